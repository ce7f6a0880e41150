"""The work of a command that is not stored yet, step by step, as formulas in the sizes of the problem."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from ...catalog import FULL
from ...core.jacobian.blocks import Block, DenseBlock
from ...core.jacobian.rows import TILE_SHARE
from ...core.panels.sizes import sizes_of
from ...core.posterior.subnet import natural_form
from ...core.selectors import SearchSize
from ...core.selectors.pool import pool_size
from ...core.tuning.nll import ALPHA_GRID, ALPHA_REFINEMENTS
from ...files.artifacts.run_folder import file_stem
from ...run.hyperparameters import OpenHyperparameters
from ...run.method_calls import DEFAULT_K, MethodCall
from ...run.posteriors.fitting import variant
from ...run.references import norm
from ...run.references.beside import cheap_calls
from ...run.rows.float64_check import MOST_SAMPLED, ROWS_PER_SAMPLED
from ...run.rows.row_shards import EXPANDED
from ...run.rows.row_storage import RowStorage
from ...run.run import Run
from ...run.tuning import NAME
from .certified import certified_works
from .costs import (
    Work,
    gram_products,
    is_written_out,
    sketch_elements,
    square_elements,
    square_products,
    written_products,
)

SAMPLED_ROW = 10  # passes that a row of the float64 check takes
FORWARD = 1 / 3  # of a pass: without the way back
EIGENVALUES, EIGENVECTORS = 2, 6  # times n³: a symmetric eigenproblem is far slower than a product of its size
ALPHAS = ALPHA_GRID + 2 * ALPHA_REFINEMENTS
EVALUATIONS = 60  # of the evidence with several prior precisions
COLUMN_TOUCHES = 4  # how often each number of a gathered column is copied or scaled


@dataclass(frozen=True)
class Plan:
    """What a run still has to do; `reused` are the artifacts that are there."""

    run: Run
    needs_full: bool
    reused: frozenset[str]
    sizes: dict[str, int]  # bytes of each artifact

    def works(self) -> list[Work]:
        """Everything that takes time; what is stored costs nothing."""
        once = [*self._passes(), *self._tuning(), *self._scores(), *self._searches()]
        folds = self.run.job.posterior.folds if self._open.by_nll and self.run.held_out == "test" else 0
        return once + [*self._subnets(), *self._full()] * (1 + folds)

    @cached_property
    def storages(self) -> dict[str, RowStorage]:
        names = dict.fromkeys(map(self.run.stored_as, self.run.splits.by_name))
        return {name: self.run.row_storage(name) for name in names}

    def _passes(self) -> Iterator[Work]:
        for name, storage in self.storages.items():
            if storage.key.name in self.reused:
                continue
            n = len(storage.source.split)
            checked = min(MOST_SAMPLED, max(1, n // ROWS_PER_SAMPLED)) * SAMPLED_ROW
            rows = float(n + checked) if self._differentiates else n * FORWARD
            written = self.sizes.get(storage.key.name, 0)
            yield Work("jacobians", f"{n:,} {name} rows in passes", rows=rows, split=name, written=written)

    @property
    def _differentiates(self) -> bool:
        return self.run.job.command != "evaluate" or self.run.job.needs_gradients

    def blocks(self, name: str) -> list[Block]:
        """The blocks of one row, in the form in which they are used."""
        storage = self.storages[self.run.stored_as(name)]
        expands = storage.form == EXPANDED
        return [block.expanded() if expands else block for block in storage.source.templates]

    @cached_property
    def _open(self) -> OpenHyperparameters:
        return OpenHyperparameters.of(self.run)

    def _tuning(self) -> Iterator[Work]:
        """Prior precisions that the data determine: Gram matrices and their eigenvalues."""
        if self._open.is_settled or not self._is_made(NAME):
            return
        P, held_out, products, elements = self.rows, self.run.held_out, 0.0, 0.0
        groups = 1 if self._open.by_nll else len(self._open.globs)
        yield from [*self._gram("train", "train", "tune")] * groups
        if self._open.by_nll:
            yield from self._gram("train", held_out, "tune")
            products = EIGENVECTORS * P**3 + P**2 * self._predictions(held_out)
            elements = ALPHAS * P * self._predictions(held_out)
        else:
            products = EIGENVALUES * P**3 if groups == 1 else EVALUATIONS * P**3 / 2
            elements = EVALUATIONS * groups * P**2 if groups > 1 else 0
        yield Work("tune", "prior precisions from the data", products=products, elements=elements)

    def read(self, name: str, step: str, times: float = 1.0) -> Iterator[Work]:
        """Rows that are not held are read, or computed, again for every question."""
        storage = self.storages[self.run.stored_as(name)]
        if storage.form is None and storage.stored:
            yield Work(step, f"reading the {name} rows", written=int(times * storage.source.compact_bytes()))
        elif storage.form is None:
            n = len(storage.source.split)
            yield Work(step, f"{n:,} {name} rows in passes again", rows=times * n, split=storage.source.name)

    @cached_property
    def n_train(self) -> int:
        return len(self.run.split("train"))

    @cached_property
    def rows(self) -> int:
        """Rows of the Jacobian of the training data."""
        return self.n_train * self.run.passes.over("train").row_outputs

    def _is_made(self, *names: str) -> bool:
        return not self.reused.issuperset(names)

    @property
    def _needs_scores(self) -> bool:
        job = self.run.job
        chooses = any(choice.call.chooses for choice in self.run.choices)
        return chooses or (job.command == "jacobians" and job.selection.split == "all")

    @property
    def _makes_full(self) -> bool:
        """Whether K of the training rows is computed together with its products with the test rows."""
        run = self.run
        exact = self.needs_full and not run.full_is_certified and run.job.command == "evaluate"
        return exact and self._is_made(file_stem("posterior", FULL, run.layout.size))

    def _scores(self) -> Iterator[Work]:
        if not self._needs_scores or not self._is_made("scores"):
            return
        blocks, n = self.blocks("train"), self.n_train
        elements = sum(map(square_elements, blocks))
        # Layers that are written out for K give their squares on the way.
        apart = [own for own in blocks if not (self._makes_full and is_written_out(own) and written_products(own))]
        products = sum(map(square_products, apart))
        yield Work("scores", "scores", products=n * products, elements=n * elements)
        if self.storages[self.run.stored_as("train")].stored:  # others are added up in the passes
            yield from self.read("train", "scores")

    def _searches(self) -> Iterator[Work]:
        """Of the methods that compare candidates with each other; the others sort their scores."""
        if self.run.job.command == "jacobians":
            return
        for call, ks in self._by_call():
            names = [file_stem("indices", call.name, k) for k in ks]
            if not call.own_code and self._is_made(*names):
                yield from self._search(call, max(ks))

    def _search(self, call: MethodCall, k: int) -> Iterator[Work]:
        module, blocks = import_module(call.method.entry.partition(":")[0]), self.blocks("train")
        if not hasattr(module, "cost"):
            return
        pool = self.run.job.selection.pool
        k = min(k, int(pool)) if pool.isdecimal() else k  # one that is found later ends with the pool
        candidates = pool_size(pool, k, self.run.layout.size)
        row = (self.n_train * sum(map(square_products, blocks)), self.n_train * sum(map(square_elements, blocks)))
        cost = module.cost(SearchSize(self.rows, candidates, k, *row))
        what = f"a search for {k:,} parameters by {call.name}"
        yield Work("select", what, products=cost.products, elements=cost.elements)
        yield from self.read("train", "select", cost.reads)

    def _by_call(self) -> list[tuple[MethodCall, list[int]]]:
        """Every method with a posterior over k, with its k; of one that is found later, a usual one."""
        found: dict[MethodCall, list[int]] = {}
        for choice in self.run.choices:
            if choice.call.is_compact:
                k = choice.k or self._stored_k(choice.call) or DEFAULT_K
                found.setdefault(choice.call, []).append(min(k, self.run.layout.size))
        return list(found.items())

    def _stored_k(self, call: MethodCall) -> int | None:
        """The k of a method that takes none, or finds its own, if an earlier run has stored it."""
        start = file_stem("indices", call.name, 0).removesuffix("0")
        sizes = (name.removeprefix(start) for name in sorted(self.reused) if name.startswith(start))
        return next((int(size) for size in sizes if size.isdecimal()), None)

    @property
    def _predicted(self) -> list[str]:
        """The splits that methods predict."""
        run = self.run
        if run.job.command != "evaluate":
            return [run.held_out] if run.job.command == "fit" and run.calibrates else []
        held_out = [run.held_out] if run.needs_held_out_rows else []
        return list(dict.fromkeys(["test", *held_out, *run.project.spec.data.ood_sets]))

    def _predictions(self, split: str) -> int:
        return len(self.run.split(split)) * self.run.passes.n_outputs

    def _subnets(self) -> Iterator[Work]:
        run = self.run
        if run.job.command not in ("fit", "evaluate"):
            return
        for call, ks in self._by_call():
            posteriors = [variant(file_stem("posterior", call.name, k), run.rescale) for k in ks]
            stems = [variant(file_stem("predictions", call.name, k), run.fitted_rescale) for k in ks]
            splits = [name for name in self._predicted if name != "test" or self._is_made(*stems)]
            if not splits and (run.job.command == "evaluate" or not self._is_made(*posteriors)):
                continue
            paths = [ks] if call.selects else [[k] for k in ks]  # prefixes share their work
            if self._is_made(*posteriors):
                written = sum(self.sizes.get(name, 0) for name in posteriors)
                for path in paths:
                    yield from self._fit(path, written // len(paths))
            for split in splits:
                for path in paths:
                    yield from self._predict(path, split)
            if call.makes_features:
                yield from self._sketches(ks, (["train"] if self._is_made(*posteriors) else []) + splits)

    def _fit(self, ks: list[int], written: int) -> Iterator[Work]:
        P, largest = self.rows, max(ks)
        squares = sum(min(k, P) ** 3 / 6 for k in ks)  # factors of prefixes are parts of one; their traces are not
        dual = [k for k in ks if natural_form(k, P) == "dual"]
        gram = P**2 * largest / 2 if dual else P * largest**2 / 2
        factors = squares if dual else max(min(k, P) ** 3 / 6 for k in ks)
        what = f"a posterior of size {largest:,}"
        elements = COLUMN_TOUCHES * P * largest
        yield Work("fit", what, products=gram + factors + squares, elements=elements, written=written)
        yield from self.read("train", "fit")

    def _sketches(self, ks: list[int], splits: list[str]) -> Iterator[Work]:
        """The features of rows, all of whose gradients are summed."""
        for split in splits:
            n = len(self.run.split(split))
            elements = n * sum(sketch_elements(block, k) for block in self.blocks(split) for k in ks)
            yield Work("fit" if split == "train" else "predict", f"features of {n:,} {split} rows", elements=elements)

    def _predict(self, ks: list[int], split: str) -> Iterator[Work]:
        P, MC, products = self.rows, self._predictions(split), 0.0
        for k in ks:
            is_dual = natural_form(k, P) == "dual"
            products += MC * (P * k + P**2 / 2 if is_dual else k**2 / 2)
        what = f"predictions of {len(self.run.split(split)):,} {split} rows"
        yield Work("predict", what, products=products, elements=COLUMN_TOUCHES * MC * max(ks))
        yield from self.read(split, "predict")

    def _full(self) -> Iterator[Work]:
        """The full posterior: factor, trace, variances of rows, and of left-out training rows for what is fitted."""
        run, P, p = self.run, self.rows, self.run.layout.size
        beside = [norm.stem(call.name) for call in cheap_calls(run)]
        leaves_out = (bool(beside) and self._is_made(*beside)) or run.fitted_rescale != "none"
        predicted = [
            name for name in self._predicted if name != "test" or self._is_made(file_stem("predictions", FULL, p))
        ]
        stem = file_stem("posterior", FULL, p)
        if self.needs_full and run.full_is_certified:
            yield from certified_works(self, self._predicted if run.job.compares_with_full else [])
            return
        if not self.needs_full or not (predicted or leaves_out or run.job.command == "fit"):
            return
        if self._is_made(stem):
            written = self.sizes.get(stem, 0)
            yield from self._gram("train", "train", "full")
            yield Work("full", f"a factor of {P:,} rows", products=P**3 / 3, written=written, undivided=True)
        for split in predicted:
            yield from self._gram("train", split, "full")
            what = f"full variances of {len(run.split(split)):,} {split} rows"
            yield Work("full", what, products=P**2 / 2 * self._predictions(split), undivided=True)
        if leaves_out:
            yield Work("rescale", "variances of left-out training rows", products=P**3 / 6, undivided=True)

    def _gram(self, left: str, right: str, step: str) -> Iterator[Work]:
        """A Gram matrix; of one split with itself half of it, in tiles of which each meets those after it."""
        blocks, n, m = self.blocks(left), len(self.run.split(left)), len(self.run.split(right))
        C = self.blocks(right)[0].n_outputs
        same, tiles = left == right, self._tiles(left, C)
        pairs, reads = (n * m / 2, (tiles + 1) / 2) if same else (n * m, float(self._tiles(right, C)))
        dense = [block for block in blocks if isinstance(block, DenseBlock) or is_written_out(block)]
        written = n * reads + (0 if same else m)  # rows
        elements = sum(block.n_outputs * block.width for block in dense) * written
        what = f"a Gram matrix of {n:,} rows" if same else f"a Gram matrix of {n:,} by {m:,} rows"
        products = pairs * sum(gram_products(block, C) for block in blocks)
        products += written * sum(map(written_products, dense))
        yield Work(step, what, products=products, elements=elements)
        yield from self.read(left, step, reads)

    def _tiles(self, name: str, C: int) -> int:
        is_held = self.storages[self.run.stored_as(name)].form is not None
        row_bytes = max(block.work_bytes if is_held else block.row_bytes for block in self.blocks(name))
        room = min(self.run.memory // TILE_SHARE, sizes_of(self.run.device).gram.tile_bytes)
        most = max(1, int((self.run.memory / TILE_SHARE / 24) ** 0.5) // C)
        n = len(self.run.split(name))
        return -(-n // max(1, min(n, room // max(1, row_bytes), most)))
