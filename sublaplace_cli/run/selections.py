"""Which parameters each method chooses, stored and reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import torch
from torch import Tensor

from ..catalog import load
from ..core.posterior.path import path_gains
from ..core.selectors import Selection, SelectionProblem, checked
from ..errors import UserError
from ..files.artifacts.artifact import Artifact
from ..files.artifacts.run_folder import file_stem
from ..files.networks.imports import load_function
from .job import Choice, MethodCall
from .problem import Problem, Scores
from .store import Content, Key, Stored

FIRST_PATH = 256  # parameters of the first path that k = auto tries; doubled until it is long enough
RETAINED_ROUNDING = 1e-10


@dataclass(frozen=True)
class Chosen:
    """The indices of one method and k, with the digest of the artifact that holds them."""

    method: str
    indices: Tensor
    digest: str

    @property
    def k(self) -> int:
        return len(self.indices)


@dataclass(frozen=True)
class Path:
    """A selection in order, and which share of the full network's ipv each of its prefixes retains."""

    selection: Selection
    retained: Tensor


@dataclass(frozen=True)
class Selector:
    """Selects parameters for one problem."""

    problem: Problem
    scores: Stored[Scores]

    def select(self, choices: Sequence[Choice]) -> dict[Choice, Chosen]:
        """The selections of all these choices; a method with nested subsets runs once, for its largest k."""
        selected: dict[Choice, Chosen] = {}
        for call in dict.fromkeys(choice.call for choice in choices):
            group = [choice for choice in choices if choice.call == call]
            if group[0].retain is not None:
                (choice,) = group
                selected[choice] = self._retaining(choice)
            else:
                selected |= self._select_group(call, group)
        return selected

    def _select_group(self, call: MethodCall, group: list[Choice]) -> dict[Choice, Chosen]:
        if not call.method.takes_k or call.own_code:  # fast, or code that may have changed: never reused
            with self.problem.run.store.timed("select"):
                made = {choice: self._run(call, choice.k) for choice in group}
            return {choice: self._stored(call, selection) for choice, selection in made.items()}
        ks = [choice.k for choice in group if choice.k is not None]
        keys = [self._key(call, k) for k in ks]
        if not call.is_nested(self._pool):
            stored = [self._get_all(call, [key], [k])[0] for key, k in zip(keys, ks, strict=True)]
        else:
            stored = self._get_all(call, keys, ks)
        return {choice: self._chosen(call, found) for choice, found in zip(group, stored, strict=True)}

    def _get_all(self, call: MethodCall, keys: list[Key], ks: list[int]) -> list[Stored[Selection]]:
        def make(missing: list[int]) -> list[Selection]:
            longest = self._run(call, max(ks[i] for i in missing))
            return [Selection(longest.indices[: ks[i]], longest.values[: ks[i]]) for i in missing]

        return self.problem.run.store.get_all(keys, make, self._reader(call), _content_of(self._pool))

    def _key(self, call: MethodCall, k: int) -> Key:
        return Key("indices", file_stem("indices", call.name, k), self._inputs, {"method": call.name}, "select")

    def _reader(self, call: MethodCall):  # type: ignore[no-untyped-def]
        def read(artifact: Artifact) -> Selection:
            indices = checked(artifact.tensor("indices"), self.problem.run.layout.size, call.name)
            device = self.problem.run.device
            return Selection(indices.to(device), artifact.tensor("scores").to(device))

        return read

    def _stored(self, call: MethodCall, selection: Selection) -> Chosen:
        """Store a selection that was just made."""
        key = self._key(call, len(selection.indices))
        put = self.problem.run.store.put
        return self._chosen(call, put(key, selection, _content_of(self._pool)))

    def _chosen(self, call: MethodCall, stored: Stored[Selection]) -> Chosen:
        assert stored.digest is not None, "indices are always stored"
        return Chosen(call.name, stored.value.indices, stored.digest)

    def _retaining(self, choice: Choice) -> Chosen:
        """k = auto: the shortest prefix of the method's path that retains the fraction asked for."""
        call, fraction = choice.call, choice.retain
        assert fraction is not None, "the caller has checked it"
        path = self._path(call, fraction)
        n_short = int((path.retained < fraction * (1 - RETAINED_ROUNDING)).sum())
        k = min(n_short + 1, len(path.selection.indices))
        share = float(path.retained[k - 1])
        self.problem.run.reporter.note(f"{call.name}: k = {k} retains {share:.4f} of the full network's ipv")
        prefix = Selection(path.selection.indices[:k], path.selection.values[:k])
        key, store = self._key(call, k), self.problem.run.store
        return self._chosen(call, store.get(key, lambda: prefix, self._reader(call), _content_of(self._pool)))

    def _path(self, call: MethodCall, fraction: float) -> Path:
        """A path long enough to retain this fraction, and what each of its prefixes retains."""
        run, p = self.problem.run, self.problem.run.layout.size

        def read(artifact: Artifact) -> Path | None:
            names = ("indices", "scores", "retained")
            indices, values, retained = (artifact.tensor(name).to(run.device) for name in names)
            if len(indices) < p and float(retained[-1]) < fraction:
                return None
            return Path(Selection(checked(indices, p, call.name), values), retained)

        def write(path: Path) -> Content:
            tensors, facts = _content_of(self._pool)(path.selection)
            return {**tensors, "retained": path.retained}, facts

        key = Key("path", f"path-{call.name}", self._inputs, {"method": call.name}, "select")
        return run.store.get(key, lambda: self._growing_path(call, fraction), read, write).value

    def _growing_path(self, call: MethodCall, fraction: float) -> Path:
        problem, p = self.problem, self.problem.run.layout.size
        freedom = problem.full.freedom
        if freedom <= 0:
            raise UserError("--k auto: the data say nothing about this network's parameters (the full ipv is 0)")
        limit = min(p, int(self._pool)) if call.method.pooled and self._pool.isdigit() else p
        k = min(FIRST_PATH, limit)
        while True:
            selection = self._run(call, k)
            retained = path_gains(problem.omega, selection.indices).cumsum(0) / freedom
            if float(retained[-1]) >= fraction or k == p:
                return Path(selection, retained)
            if k == limit:
                raise UserError(
                    f"--k auto: all {limit} candidates of --pool together retain only {float(retained[-1]):.4f} of the "
                    f"full network's ipv, less than --retain {fraction:g}",
                    hint="enlarge --pool, or lower --retain",
                )
            problem.run.reporter.note(f"{call.name}: k = {k} retains {float(retained[-1]):.4f}, trying a larger k")
            k = min(2 * k, limit)

    def _run(self, call: MethodCall, k: int | None) -> Selection:
        return run_method(self.problem, self._selection_problem, call, k)

    @property
    def _pool(self) -> str:
        return self.problem.run.job.selection.pool

    @cached_property
    def _inputs(self) -> dict[str, str]:
        digest = self.scores.digest
        assert digest is not None, "scores are always stored"
        return {"scores": digest}

    @cached_property
    def _selection_problem(self) -> SelectionProblem:
        scores = self.scores.value
        return selection_problem(self.problem, scores.score, scores.data_diagonal)


def _content_of(pool: str):  # type: ignore[no-untyped-def]
    def write(selection: Selection) -> Content:
        return {"indices": selection.indices, "scores": selection.values.double()}, {"pool": pool}

    return write


def selection_problem(problem: Problem, score: Tensor, data_diagonal: Tensor) -> SelectionProblem:
    """All that a method may read."""
    run = problem.run
    return SelectionProblem(
        precision=problem.omega,
        score=score,
        data_diagonal=data_diagonal,
        theta=run.layout.flatten(run.passes.model),
        last_linear=run.network.last_linear,
        seed=run.job.selection.seed,
        pool=run.job.selection.pool,
        other_rows=problem.other_reference,
    )


def first_selection(problem: Problem, choice: Choice) -> Tensor:
    """What a method chooses before the prior is tuned (flat indices); nothing is stored."""
    scores = problem.compute_scores()
    plain = selection_problem(problem, scores.score, scores.data_diagonal)
    return run_method(problem, plain, choice.call, choice.k).indices


def run_method(problem: Problem, asked: SelectionProblem, call: MethodCall, k: int | None) -> Selection:
    """Run one selector."""
    run = problem.run
    run.reporter.detail(f"selecting by {call.name}")
    if call.own_code:
        return _users_own(problem, asked, call, k)
    module = import_module(call.method.entry.partition(":")[0])
    if hasattr(module, "advise") and k is not None and (advice := module.advise(asked, k)) is not None:
        run.reporter.note(advice)
    return load(call.method.entry)(asked, k if call.pattern is None else call.pattern)


def _users_own(problem: Problem, asked: SelectionProblem, call: MethodCall, k: int | None) -> Selection:
    project = problem.run.project
    function = load_function(call.name, f"--method {call.name}", project.options.allow_code, project.loaded.folder)
    try:
        answer = function(asked, k)
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"--method {call.name} failed: {type(error).__name__}: {error}") from error
    indices = answer.indices if isinstance(answer, Selection) else torch.as_tensor(answer)
    indices = checked(indices, problem.run.layout.size, call.name, k).to(problem.run.device)
    return Selection(indices, asked.score[indices])
