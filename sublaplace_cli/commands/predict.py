"""`sublaplace evaluate --posterior FILE`: predictions on new data from a posterior alone, without its training rows."""

from dataclasses import replace

import torch
from torch import Tensor

from ..core.gaussian import Gaussian
from ..core.jacobian.rows import TILE_SHARE
from ..core.posterior.rescale import rescaled_draws
from ..core.prediction import Absent, Comparison, OodSet, Prediction
from ..errors import UserError
from ..files.artifacts.artifact import Artifact
from ..results.result import References, Result
from ..run.input_files import oracle_outputs
from ..run.posteriors.conformal import conformal_details, fit_conformal
from ..run.posteriors.fitting import Fitted, read_fitted, read_prior
from ..run.posteriors.predictions import TEST
from ..run.project import parameter_table
from ..run.rows.passes import hessian_of
from ..run.run import Run
from .evaluate import NO_OOD, Evaluation
from .scoring.measuring import measured_row, setup_of
from .scoring.ood import by_set
from .scoring.review import review


def predict(run: Run, artifact: Artifact) -> Evaluation:
    """One row of results, from the posterior and the test rows."""
    _check_posterior(run, artifact)
    meta = artifact.meta
    oracle = oracle_outputs(run)
    fitted = read_fitted(artifact, run.layout.size, run.passes.n_outputs, run.device, run.memory)
    prior_precision, prior = read_prior(artifact, run.layout, run.device)
    outputs, samples = _predict(run, fitted, prior, TEST, run.job.posterior.samples)
    k = len(fitted.posterior.indices)
    prediction = Prediction(meta["method"], k, outputs, meta["freedom"], fitted.rescale, samples=samples)
    likelihood = run.unit_likelihood if meta["link"] is None else run.unit_likelihood.with_link(meta["link"])
    known = Comparison(
        likelihood=likelihood if meta["noise_variance"] is None else likelihood.with_noise(meta["noise_variance"]),
        n_train=meta["n_train"],
        targets=run.targets("test"),
        oracle=oracle,
        std_full=None,
        ood=tuple(
            OodSet(name, {outputs: outputs}, {outputs: _predict(run, fitted, prior, split)[0]})
            for split, name in run.project.spec.data.ood_sets.items()
        ),
        absent=Absent(full="--posterior: the training rows are not there", oracle="no oracle in the spec", ood=NO_OOD),
    )
    prediction = known.about_targets(prediction)
    if run.job.posterior.conformal is not None:
        there, _ = _predict(run, fitted, prior, "validation")
        targets = run.targets("validation")
        known = replace(known, conformal=fit_conformal(run.job.posterior, known.likelihood, {outputs: there}, targets))
    hessian = hessian_of(meta.get("row_outputs"), run.passes.n_outputs)
    of_posterior = {"rescale": meta["rescaling"], "link": meta["link"], "hessian": hessian}
    result = Result(
        setup=setup_of(run, meta["n_train"], meta["noise_variance"], prior_precision),
        provenance={**run.provenance, **of_posterior},
        references=References(),
        rows=(measured_row(prediction, known),),
        details=conformal_details(run.job.posterior, known, [prediction])
        | review(run, prediction, known)
        | by_set([prediction], known),
        artifacts={artifact.path.stem: str(artifact.path)},
    )
    return Evaluation(result, (prediction,), known)


def _check_posterior(run: Run, artifact: Artifact) -> None:
    where, meta = f"--posterior {artifact.path}", artifact.meta
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
    for section, key in (("model", "build"), ("model", "wrap"), ("data", "transforms"), ("data", "standardise")):
        theirs = fitted_with[section].get(key)
        if spec[section].get(key) != theirs:
            raise UserError(f"{where}: it was fitted with another {section}.{key} than that of the spec: {theirs}")


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
