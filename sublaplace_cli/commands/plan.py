"""`--dry-run`: what would be computed, written and held in memory; writes nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..catalog import FULL, task_of
from ..core.combined_pass import prepare_combined
from ..core.jacobian.blocks import stored_bytes
from ..core.jacobian.capture import SAMPLE_ROWS, Capture
from ..core.jacobian.rows import TILE_SHARE
from ..core.panels.sizes import Sizes, sizes_of
from ..core.posterior.certified.intervals import vector_bytes, vectors_at_once
from ..core.posterior.certified.preconditioners import COPIES
from ..core.posterior.full import full_bytes
from ..core.posterior.subnet import natural_form, subnet_bytes
from ..core.selectors.greedy import columns_room, first_width
from ..device import OUT_OF_MEMORY, peak_memory
from ..files.artifacts.run_folder import file_stem
from ..results.result import Listing
from ..run.full.certifier import (
    SAMPLED_OUTPUTS,
    TRAINING_SAMPLE,
    certified_bytes,
    certified_stem,
    preconditioner_rank,
)
from ..run.posteriors.fitting import variant
from ..run.references import norm
from ..run.references.beside import cheap_calls
from ..run.rows.row_shards import EXPANDED
from ..run.rows.row_storage import RowStorage
from ..run.rows.sampled import DEFAULT_SAMPLED, EXACT_OUTPUTS
from ..run.run import Run
from .planning.timing import estimated_time
from .planning.work import Plan

LONG = 10.0  # seconds from which on a run says beforehand how long it will take


def plan(run: Run, spent: float = 0.0) -> Listing:
    """p, N, files and bytes to be written, and estimates of the time, after the seconds already spent, and memory."""
    estimate = Estimate(run)
    files, there = estimate.files(), estimate.reused()
    memory, time = estimate.peak(), estimated_time(estimate.work())
    return Listing(
        {
            "schema": 1,
            "dry_run": True,
            "n_params": run.layout.size,
            "n_outputs": run.passes.n_outputs,
            **{f"n_{name}": len(split) for name, split in run.splits.by_name.items()},
            **estimate.hessian(),
            "run_dir": str(run.store.path),
            "memory_limit": run.memory,
            "memory_estimate": memory,
            "seconds_estimate": _rounded(spent + time.seconds),
            "seconds_by_step": {name: _rounded(seconds) for name, seconds in time.by_step.items()},
            "estimate": time.text(memory, spent),
            "bytes_to_write": sum(size for name, size in files.items() if name not in there),
            "files": {name: size for name, size in files.items() if name not in there},
            "reused": sorted(there & set(files)),
        }
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def _row_costs(capture: Capture, n_rows: int) -> dict[str, int]:
    C = capture.templates[0].n_outputs
    return {
        "backward_passes_per_row": C,
        "bytes_of_jacobian": n_rows * sum(map(stored_bytes, capture.templates)),
        "bytes_of_gram_matrix": full_bytes(n_rows * C),
    }


@dataclass(frozen=True)
class Estimate:
    """What a run will take, before it starts."""

    run: Run

    def expectation(self) -> str | None:
        """Its time and memory as a sentence, if it takes long; nothing if there is no room to measure."""
        try:
            memory, time = self.peak(), estimated_time(self.work())
        except OUT_OF_MEMORY:  # the work itself goes on with less
            return None
        return time.text(memory) if time.seconds >= LONG else None

    @property
    def rows(self) -> int:
        return len(self.run.split("train")) * self.run.passes.over("train").row_outputs

    def hessian(self) -> dict[str, Any]:
        """The cost of all outputs of the training rows and of random combinations of them, if there are many."""
        passes, train, spec = self.run.passes, self.run.split("train"), self.run.project.spec
        is_softmax = task_of(spec.task, spec.outputs).softmax
        if passes.sampled is None and not (is_softmax and passes.n_outputs > EXACT_OUTPUTS):
            return {}
        if passes.sampled is not None:
            combined = passes.sampled.capture
        else:
            sample = passes.reader.evenly_spaced(train, SAMPLE_ROWS)
            combined = prepare_combined(passes.capture, DEFAULT_SAMPLED, sample, self.run.memory)
        used = "exact" if passes.sampled is None else "sampled"
        costs = {"exact": _row_costs(passes.capture, len(train)), "sampled": _row_costs(combined, len(train))}
        return {"hessian": used, **{f"hessian_{name}": cost for name, cost in costs.items()}}

    @property
    def fits(self) -> bool:
        return self.run.job.command in ("fit", "evaluate")

    @property
    def storages(self) -> list[RowStorage]:
        names = dict.fromkeys(map(self.run.stored_as, self.run.splits.by_name))
        return [self.run.row_storage(name) for name in names]

    def files(self) -> dict[str, int]:
        run, p, C = self.run, self.run.layout.size, self.run.passes.n_outputs
        files: dict[str, int] = {}
        for storage in self.storages if not run.job.selection.scores_only else ():
            outputs = 16 * len(storage.source.split) * C
            files[storage.key.name] = outputs + (storage.source.compact_bytes() if storage.stored else 0)
        files["scores"] = 16 * p
        evaluates = run.job.command == "evaluate"
        tests = {own: 8 * (4 + C) * len(run.split(own.split)) * C for own in run.tests}  # with C × C covariances

        def predicted(name: str) -> dict[str, int]:
            return {own.stem(name): size for own, size in tests.items()}

        for choice in run.choices:
            if choice.k is None:  # not known yet, or none
                continue
            name, k = choice.call.name, choice.k
            selector, chosen = (name, k) if choice.call.selects else (choice.call.method.subset, k // 2)
            if selector is not None:
                files[file_stem("indices", selector, chosen)] = 16 * chosen
            if self.fits:
                matrices = subnet_bytes(k, self.rows, natural_form(k, self.rows))
                files[variant(file_stem("posterior", name, k), run.rescale)] = matrices + 16 * k
            if evaluates:
                files |= predicted(variant(file_stem("predictions", name, k), run.fitted_rescale))
        if evaluates and not run.calibrates:
            calls = [*(choice.call for choice in run.choices), *cheap_calls(run)]
            for call in calls:
                files |= predicted(norm.stem(call.name)) if call.method.beside else {}
        if self.needs_full and not run.full_is_certified:
            files[file_stem("posterior", FULL, p)] = full_bytes(self.rows)
            files |= predicted(file_stem("predictions", FULL, p)) if evaluates and run.job.compares_with_full else {}
        elif self.needs_full:
            names = [own.split for own in run.tests] if evaluates and run.job.compares_with_full else []
            tolerance = run.job.compute.tolerance
            files |= {certified_stem(own, tolerance): certified_bytes(len(run.split(own)), C) for own in names}
            files[certified_stem(TRAINING_SAMPLE, tolerance)] = certified_bytes(SAMPLED_OUTPUTS // C, C)
        return files

    def reused(self) -> frozenset[str]:
        """The artifacts that are there."""
        if self.run.job.compute.recompute:
            return frozenset()
        return frozenset(path.stem for path in self.run.store.path.glob("*.safetensors"))

    def work(self) -> Plan:
        return Plan(self.run, self.needs_full, self.reused(), self.files())

    @property
    def needs_full(self) -> bool:
        """Whether the full posterior of the training rows is also fitted."""
        run, job = self.run, self.run.job
        if job.command == "evaluate" and job.compares_with_full:
            return True
        if any(choice.call.is_full or choice.retain is not None for choice in run.choices):
            return True
        if run.calibrates:  # by targets instead
            return False
        return any(choice.call.method.needs_full for choice in run.choices) or (self.fits and run.rescale != "none")

    def peak(self) -> int:
        """Memory of the process now, plus what stays in memory, plus the largest step."""
        held = sum(storage.source.expanded_bytes() for storage in self.storages if storage.form)
        return peak_memory() + held // self.run.workers.size + 8 * 3 * self.run.layout.size + max(self._steps())

    def _steps(self) -> Iterator[int]:
        run, rows = self.run, self.rows
        yield max(own.rows_per_pass * own.passes.capture.row_bytes for own in (each.source for each in self.storages))
        yield self._tiles(self._sizes.row_tile_bytes)
        for choice in run.choices:
            if choice.k is not None and self.fits:
                yield self._subnet(choice.k)
            if choice.k is not None and run.job.command != "jacobians" and choice.call.method.pooled:
                yield self._search(choice.k)
        if self.needs_full:
            everywhere = [*(own.split for own in run.tests), *run.project.spec.data.ood_sets]
            predicted = everywhere if run.job.command == "evaluate" else []
            test = max((len(run.split(name)) for name in predicted), default=0) * run.passes.n_outputs
            if run.full_is_certified:
                yield from self._certified()
            else:  # the Gram matrix with its tiles, then the cross Gram matrix and the result of its solve
                yield full_bytes(rows) + 8 * 2 * rows * test + 2 * self._tiles(self._sizes.gram.tile_bytes)

    def _certified(self) -> Iterator[int]:
        """The preconditioner while it is made; then with the vectors of a batch."""
        run, rows = self.run, self.rows
        own = 8 * rows * preconditioner_rank(rows, run.memory)
        yield COPIES * own
        at_once = vectors_at_once(rows, run.layout.size, run.memory)
        yield own + at_once * vector_bytes(rows, run.layout.size) + self._tiles(self._sizes.row_tile_bytes)

    def _search(self, k: int) -> int:
        """Columns that a search holds, the directions of its pivots, and its work matrices."""
        columns = min(8 * self.rows * min(first_width(k), self.run.layout.size), columns_room(self.run.memory))
        return 2 * columns + 8 * self.rows * k + 8 * 3 * min(self.rows, 2 * k) ** 2

    def _tiles(self, cap: int) -> int:
        """One tile of rows while its blocks are used; for held rows, only what is made of them."""
        blocks = self.run.passes.over("train").capture.templates
        form = self.run.row_storage("train").form
        if form == EXPANDED:
            blocks = tuple(block.expanded() for block in blocks)
        widest = max(block.work_bytes if form else block.row_bytes for block in blocks)
        return min(len(self.run.split("train")) * widest, cap, self.run.memory // TILE_SHARE)

    @property
    def _sizes(self) -> Sizes:
        return sizes_of(self.run.device)

    def _subnet(self, k: int) -> int:
        """Matrices of the posterior, and the columns of a chunk of rows: assembled, and per block."""
        chunk = min(8 * 2 * self.rows * k, min(self._sizes.row_tile_bytes, self.run.memory // TILE_SHARE))
        return subnet_bytes(k, self.rows, natural_form(k, self.rows)) + chunk + self._tiles(self._sizes.row_tile_bytes)
