"""`sublaplace evaluate --posterior FILE`: predictions on new data from a posterior alone, without its training rows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core.gaussian import Gaussian
from ..core.jacobian.rows import TILE_SHARE
from ..core.likelihoods import Likelihood
from ..core.posterior.rescale import rescaled_draws
from ..core.prediction import Absent, Comparison, OodSet, Prediction
from ..errors import UserError
from ..files.artifacts.artifact import Artifact
from ..files.artifacts.atomic import digest_of_files
from ..files.data.datasets import Split
from ..results.result import References, Result
from ..run.identity.network import require_same_function
from ..run.identity.run_identity import parameter_table
from ..run.input_files import OracleOutputs, oracle_outputs
from ..run.posteriors.conformal import conformal_details, fit_conformal
from ..run.posteriors.fitting import FIT_AGAIN, OLDER, Fitted, read_fitted, read_prior
from ..run.project import Project
from ..run.rows.passes import hessian_of
from ..run.rows.test_sets import TestSet
from ..run.run import Run
from .scoring.blocks import blocks_of
from .scoring.measuring import setup_of
from .scoring.ood import by_set
from .scoring.outcome import NO_OOD, Evaluation, ScoredSet, compared, set_details
from .scoring.review import review
from .scoring.shift import with_shift

MOST_SHOWN = 200  # letters of names of columns


def predict(run: Run, artifact: Artifact) -> Evaluation:
    """One row of results for each set of test rows, from the posterior and those rows."""
    _check_posterior(run, artifact)
    meta, oracles = artifact.meta, [(test, oracle_outputs(run, test)) for test in run.tests]
    prior_precision, prior = read_prior(artifact, run.layout, run.device)
    fitted = read_fitted(artifact, run.layout, prior, run.passes.n_outputs, run.memory)
    stored = _Stored(run, fitted, prior, meta)
    sets = [stored.scored(test, oracle) for test, oracle in oracles]
    known, predictions = sets[0].known, sets[0].predictions
    hessian = hessian_of(meta.get("row_outputs"), run.passes.n_outputs)
    of_posterior = {"rescale": meta["rescaling"], "link": meta["link"], "hessian": hessian}
    blocks = blocks_of([compared(own) for own in sets])
    result = Result(
        setup=setup_of(run, meta["n_train"], meta["noise_variance"], prior_precision),
        provenance={**run.provenance, **of_posterior},
        references=References(),
        rows=blocks.rows,
        details=run.class_details
        | conformal_details(run.job.posterior, known, predictions)
        | review(run, predictions[0], known)
        | by_set(predictions, known)
        | ({"verdict": shift} if (shift := with_shift({}, blocks)) else {})
        | set_details(run.splits, blocks.differences),
        artifacts={artifact.path.stem: str(artifact.path)},
    )
    return Evaluation(result, tuple(sets))


@dataclass(frozen=True)
class _Stored:
    """A stored posterior, for the rows of any split."""

    run: Run
    fitted: Fitted
    prior: Tensor
    meta: Mapping[str, Any]

    def scored(self, test: TestSet, oracle: OracleOutputs) -> ScoredSet:
        run, meta, sampled = self.run, self.meta, self.run.job.posterior.samples
        outputs, samples = _predict(run, self.fitted, self.prior, test.split, sampled)
        k = len(self.fitted.posterior.indices)
        prediction = Prediction(meta["method"], k, outputs, meta["freedom"], self.fitted.rescale, samples=samples)
        why = "--posterior: the training rows are not there"
        known = Comparison(
            likelihood=self.likelihood,
            n_train=meta["n_train"],
            targets=run.targets(test.split),
            oracle=oracle.f,
            ood=tuple(OodSet(name, {outputs: outputs}, {outputs: own}) for name, own in self.ood.items()),
            absent=Absent(full=why, oracle=oracle.missing, ood=NO_OOD),
        )
        if run.job.posterior.conformal is not None:
            there, targets = {outputs: self.at_validation}, run.targets("validation")
            known = replace(known, conformal=fit_conformal(run.job.posterior, known.likelihood, there, targets))
        return ScoredSet(test, run.split(test.split), (known.about_targets(prediction),), known)

    @property
    def likelihood(self) -> Likelihood:
        link, noise = self.meta["link"], self.meta["noise_variance"]
        likelihood = self.run.unit_likelihood if link is None else self.run.unit_likelihood.with_link(link)
        return likelihood if noise is None else likelihood.with_noise(noise)

    @cached_property
    def ood(self) -> dict[str, Gaussian]:
        sets = self.run.project.spec.data.ood_sets
        return {name: _predict(self.run, self.fitted, self.prior, split)[0] for split, name in sets.items()}

    @cached_property
    def at_validation(self) -> Gaussian:
        return _predict(self.run, self.fitted, self.prior, "validation")[0]


def _check_posterior(run: Run, artifact: Artifact) -> None:
    where, meta = f"--posterior {artifact.path}", artifact.meta
    if "probe" not in meta:
        raise UserError(f"{where}: {OLDER}", hint=FIT_AGAIN)
    if meta["weights_sha256"] != run.store.identity["weights"]:
        raise UserError(f"{where}: it was fitted for other weights", hint="give its checkpoint with --checkpoint")
    if meta["parameters"] != parameter_table(run.layout):
        raise UserError(f"{where}: its parameter table is not that of this model")
    spec, fitted_with = run.project.spec.model_dump(mode="json", by_alias=True), meta["spec"]
    if fitted_with["task"] != spec["task"]:
        raise UserError(f"{where}: its task is {fitted_with['task']}, that of the spec is {spec['task']}")
    if fitted_with.get("outputs") != spec["outputs"]:
        theirs, own = (name or "the usual ones" for name in (fitted_with.get("outputs"), spec["outputs"]))
        raise UserError(f"{where}: its outputs are {theirs}, those of the spec are {own}")
    classes, own_classes = meta.get("classes"), spec["data"]["classes"]
    if own_classes is not None and own_classes != classes:
        raise UserError(f"{where}: it was fitted with another data.classes than that of the spec: {classes}")
    for section, key in (("model", "build"), ("model", "wrap"), ("data", "transforms"), ("data", "standardise")):
        theirs = fitted_with[section].get(key)
        if spec[section].get(key) != theirs:
            raise UserError(f"{where}: it was fitted with another {section}.{key} than that of the spec: {theirs}")
    _check_rows(run.project, run.splits.by_name, meta, where)
    _check_function(run, artifact, where)


def _check_rows(project: Project, splits: Mapping[str, Split], meta: Mapping[str, Any], where: str) -> None:
    """The same input columns in the same order, where both have names; texts as the same tokens."""
    for name, split in splits.items():
        if meta.get("columns") and split.columns and list(split.columns) != meta["columns"]:
            theirs, own = ", ".join(meta["columns"]), ", ".join(split.columns)
            found = f"it was fitted to the input columns {theirs[:MOST_SHOWN]}, the {name} rows have {own[:MOST_SHOWN]}"
            raise UserError(f"{where}: {found}", hint="list the columns that it was fitted to in data.columns.input")
    texts, known = project.texts_digest, meta.get("texts_sha256")
    if None not in (texts, known) and texts != known:  # tokens may come as arrays too
        found = "it was fitted with another tokenizer, data.text.max_length or data.text.pair than those of the spec"
        raise UserError(f"{where}: {found}", hint="use those of its spec, or fit again")


def _check_function(run: Run, artifact: Artifact, where: str) -> None:
    known = artifact.meta.get("function_sha256")
    if known is not None and digest_of_files(list(run.network.defined_by)) != known:
        hint = "it gives no finite numbers for made-up rows, so every change of its files counts: undo it, or fit again"
        raise UserError(f"{where}: the files of the network are not those that it was fitted with", hint=hint)
    require_same_function(artifact, run.passes.model, run.passes.reader(run.split("test"), 0, 1), where)


def _predict(
    run: Run, fitted: Fitted, prior: Tensor, name: str, count: int | None = None
) -> tuple[Gaussian, Tensor | None]:
    """The outputs of a split, and `count` draws of them (count, M, C), pass by pass; no pass stays in memory."""
    posterior, rescale, seed = fitted.posterior, fitted.rescale, run.job.selection.seed
    theta = None if count is None else posterior.draw(count, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    fs, covariances, draws = [], [], []
    split, C = run.split(name), run.passes.n_outputs
    room = run.memory // TILE_SHARE // (16 * C * len(posterior.indices))
    step = max(1, min(run.passes.rows_per_pass(split), room))
    with run.store.timed("predict"), run.reporter.progress(f"predictions of the {name} rows", len(split)) as progress:
        for start in range(0, len(split), step):
            captured = run.passes(split, start, min(start + step, len(split)))
            J_S, outside = fitted.columns(captured, prior)
            if theta is not None:
                draws.append(rescaled_draws(J_S.T @ theta, rescale, outside, generator))
            covariances.append(rescale.apply(posterior.column_covariance(J_S, C), outside))
            fs.append(captured.f)
            progress.advance(len(captured.f))
    run.passes.float64_checks.report(name, split, run.passes.float64_checks.replaced_rows(split))
    f = torch.cat(fs)
    samples = f + torch.cat(draws).T.reshape(-1, *f.shape) if draws else None
    return Gaussian(f, torch.cat(covariances), fitted.noise_factor), samples
