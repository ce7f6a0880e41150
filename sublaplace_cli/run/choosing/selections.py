"""Which parameters each method chooses, stored and reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import torch
from torch import Tensor

from ...catalog import load
from ...core.features.subset import Subset
from ...core.posterior.path import path_gains
from ...core.selectors import Selection, SelectionProblem, checked
from ...errors import UserError
from ...files.artifacts.artifact import Artifact
from ...files.artifacts.run_folder import file_stem
from ...files.networks.imports import load_function
from ..method_calls import Choice, MethodCall
from ..problem import Problem, Scores
from ..store import Content, Key, Stored
from .chosen import Chosen

FIRST_PATH = 256  # parameters of the first path that k = auto tries; doubled until it is long enough
RETAINED_ROUNDING = 1e-10


@dataclass(frozen=True)
class Path:
    """An ordered selection, and the share of the full network's ipv that each of its prefixes retains."""

    selection: Selection
    retained: Tensor


def select(problem: Problem, choices: Sequence[Choice]) -> dict[Choice, Chosen]:
    """The selections of all these choices; a method with nested subsets runs once, for its largest k."""
    scores = problem.scores
    selected: dict[Choice, Chosen] = {}
    for call in dict.fromkeys(choice.call for choice in choices):
        group = [choice for choice in choices if choice.call == call]
        selector = _Selector(problem, call, scores.value, {"scores": scores.digest or ""})
        if group[0].retain is not None:
            chosen = [selector.retaining(group[0].retain)]
        elif not call.method.takes_k or call.own_code:  # fast, or code that may have changed: never reused
            chosen = [selector.not_reused(choice.k) for choice in group]
        else:
            chosen = selector.reused([choice.k for choice in group if choice.k is not None])
        selected |= zip(group, chosen, strict=True)
    return selected


def first_selection(problem: Problem, choice: Choice) -> Tensor:
    """What a method chooses before the prior is tuned (flat indices); nothing is stored."""
    return _Selector(problem, choice.call, problem.compute_scores(), {}).run(choice.k).indices


@dataclass(frozen=True)
class _Selector:
    """One method on one problem."""

    problem: Problem
    call: MethodCall
    scores: Scores
    inputs: dict[str, str]  # digests of what a selection depends on

    @property
    def pool(self) -> str:
        return self.problem.run.job.selection.pool

    def not_reused(self, k: int | None) -> Chosen:
        store = self.problem.run.store
        with store.timed("select"):
            selection = self.run(k)
        return self._chosen(store.put(self._key(len(selection.indices)), selection, self._write))

    def reused(self, ks: list[int]) -> list[Chosen]:
        """Selections of several k; the missing ones are computed in one run if smaller ones are prefixes."""
        if len(ks) > 1 and not self.call.is_nested(self.pool):
            return [self.reused([k])[0] for k in ks]

        def make(missing: list[int]) -> list[Selection]:
            longest = self.run(max(ks[i] for i in missing))
            return [_prefix(longest, ks[i]) for i in missing]

        stored = self.problem.run.store.get_all([self._key(k) for k in ks], make, self._read, self._write)
        return [self._chosen(each) for each in stored]

    def retaining(self, fraction: float) -> Chosen:
        """k = auto: the shortest prefix of the method's path that retains this fraction of the full ipv."""
        path, run = self._path(fraction), self.problem.run
        n_short = int((path.retained < fraction * (1 - RETAINED_ROUNDING)).sum())
        k = min(n_short + 1, len(path.selection.indices))
        run.reporter.note(
            f"{self.call.name}: k = {k} retains {float(path.retained[k - 1]):.4f} of the full network's ipv"
        )
        return self._chosen(run.store.get(self._key(k), lambda: _prefix(path.selection, k), self._read, self._write))

    def _key(self, k: int) -> Key:
        name = self.call.name
        return Key("indices", file_stem("indices", name, k), self.inputs, {"method": name}, "select")

    def _read(self, artifact: Artifact) -> Selection:
        device, p = self.problem.run.device, self.problem.run.layout.size
        indices = checked(artifact.tensor("indices"), p, str(artifact.path))
        return Selection(indices.to(device), artifact.tensor("scores").to(device))

    def _write(self, selection: Selection) -> Content:
        return {"indices": selection.indices, "scores": selection.values.double()}, {"pool": self.pool}

    def _chosen(self, stored: Stored[Selection]) -> Chosen:
        assert stored.digest is not None, "indices are always stored"
        return Chosen(self.call.name, Subset(stored.value.indices), stored.digest)

    def _path(self, fraction: float) -> Path:
        """A path long enough to retain this fraction, and what each of its prefixes retains."""
        run, name = self.problem.run, self.call.name

        def read(artifact: Artifact) -> Path | None:
            selection, retained = self._read(artifact), artifact.tensor("retained").to(run.device)
            is_long_enough = len(retained) == run.layout.size or float(retained[-1]) >= fraction
            return Path(selection, retained) if is_long_enough else None

        def write(path: Path) -> Content:
            tensors, facts = self._write(path.selection)
            return {**tensors, "retained": path.retained}, facts

        inputs = {**self.inputs, **run.full_inputs}
        key = Key("path", f"path-{name}", inputs, {"method": name}, "select")
        return run.store.get(key, lambda: self._growing_path(fraction), read, write).value

    def _growing_path(self, fraction: float) -> Path:
        problem, p = self.problem, self.problem.run.layout.size
        freedom = problem.full.freedom.value
        if freedom <= 0:
            raise UserError("--k auto: the data say nothing about this network's parameters (the full ipv is 0)")
        limit = min(p, int(self.pool)) if self.call.method.pooled and self.pool.isdigit() else p
        module = import_module(self.call.method.entry.partition(":")[0])
        if hasattr(module, "path_until"):  # a search that ends where it retains enough, instead of many searches
            selection, gains = module.path_until(self._asked, fraction * freedom, limit)
            return self._long_enough(Path(selection, gains.cumsum(0) / freedom), fraction)
        k = min(FIRST_PATH, limit)
        while True:
            selection = self.run(k)
            retained = path_gains(problem.omega, selection.indices).cumsum(0) / freedom
            if float(retained[-1]) >= fraction or k == limit:
                return self._long_enough(Path(selection, retained), fraction)
            problem.run.reporter.note(f"{self.call.name}: k = {k} retains {float(retained[-1]):.4f}, trying a larger k")
            k = min(2 * k, limit)

    def _long_enough(self, path: Path, fraction: float) -> Path:
        k, retained = len(path.retained), float(path.retained[-1])
        if k == self.problem.run.layout.size or retained >= fraction * (1 - RETAINED_ROUNDING):
            return path
        raise UserError(
            f"--k auto: all {k} candidates of --pool together retain only {retained:.4f} of the full network's ipv, "
            f"less than --retain {fraction:g}",
            hint="enlarge --pool, or lower --retain",
        )

    def run(self, k: int | None) -> Selection:
        call, reporter = self.call, self.problem.run.reporter
        reporter.detail(f"selecting by {call.name}")
        if call.own_code:
            return self._run_users_code(k)
        module = import_module(call.method.entry.partition(":")[0])
        if hasattr(module, "advise") and k is not None and (advice := module.advise(self._asked, k)) is not None:
            reporter.note(advice)
        return load(call.method.entry)(self._asked, k if call.pattern is None else call.pattern)

    def _run_users_code(self, k: int | None) -> Selection:
        name, run = self.call.name, self.problem.run
        allowed, folder = run.project.options.allow_code, run.project.loaded.folder
        function = load_function(name, f"--method {name}", allowed, folder)
        try:
            answer = function(self._asked, k)
        except Exception as error:  # the user's code may raise anything
            raise UserError(f"--method {name} failed: {type(error).__name__}: {error}") from error
        indices = answer.indices if isinstance(answer, Selection) else torch.as_tensor(answer)
        indices = checked(indices, run.layout.size, name, k).to(run.device)
        return Selection(indices, self.scores.score[indices])

    @cached_property
    def _asked(self) -> SelectionProblem:
        run = self.problem.run
        return SelectionProblem(
            precision=self.problem.omega,
            score=self.scores.score,
            data_diagonal=self.scores.data_diagonal,
            theta=run.layout.flatten(run.passes.model),
            last_linear=run.network.last_linear,
            seed=run.job.selection.seed,
            pool=self.pool,
            other_rows=self.problem.other_reference,
        )


def _prefix(selection: Selection, k: int) -> Selection:
    return Selection(selection.indices[:k], selection.values[:k])
