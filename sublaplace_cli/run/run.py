"""An open run: project, network, rows, device and store of one command."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from .. import device as devices
from ..catalog import CALIBRATED, LINKS, TASKS
from ..core.likelihoods import Likelihood
from ..core.likelihoods.links import Link
from ..core.network.layout import Layout, network_digest
from ..core.posterior.full import full_bytes
from ..core.workers import WorkerGroup
from ..errors import UserError
from ..files.data.datasets import Split
from ..reporter import Reporter
from ..sizes import format_bytes
from .identity.network import NetworkFacts
from .identity.run_identity import provenance_of
from .job import Job
from .method_calls import Choice
from .project import Project
from .rows.passes import Passes, parts_of
from .rows.row_shards import RowSource
from .rows.row_storage import RowStorage
from .rows.splits import Splits
from .rows.test_sets import TestSet
from .store import Store


@dataclass(frozen=True)
class Run:
    """What one command works with."""

    job: Job
    project: Project
    network: NetworkFacts
    splits: Splits
    passes: Passes
    device: torch.device
    memory: int  # memory budget of the computation in bytes
    workers: WorkerGroup
    store: Store
    reporter: Reporter

    @property
    def layout(self) -> Layout:
        return self.network.layout

    @property
    def tests(self) -> tuple[TestSet, ...]:
        return self.splits.tests

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The requested choices, with every k that is already known."""
        return tuple(choice.for_network(self.layout.size) for choice in self.job.choices)

    @property
    def rescale(self) -> str:
        """The option if set, otherwise the value of the spec."""
        return self.job.posterior.rescale or self.project.spec.posterior.rescale

    @property
    def full_bytes(self) -> int:
        """Of the Gram matrix of the full posterior."""
        return full_bytes(len(self.split("train")) * self.passes.over("train").row_outputs)

    @property
    def full_fits(self) -> bool:
        return self.full_bytes <= self.memory

    @property
    def full_kind(self) -> str:
        """How the full posterior to compare with is computed: the option, with `auto` settled."""
        asked = self.job.posterior.full
        return asked if asked != "auto" else "exact" if self.full_fits else "certified"

    @property
    def full_is_certified(self) -> bool:
        """Whether all that is needed of the full posterior is certified: what is asked for, or else what fits."""
        if self.job.posterior.posterior is not None:  # the training rows are not read
            return False
        return self.full_kind == "certified" or (self.full_kind != "exact" and not self.full_fits)

    @property
    def full_inputs(self) -> dict[str, str]:
        """What artifacts that depend on the full posterior name as their input, besides what identifies the run."""
        return {"full": f"certified {self.job.compute.tolerance:g}"} if self.full_is_certified else {}

    @property
    def calibrates(self) -> bool:
        return self.rescale == CALIBRATED

    @property
    def calibrates_noise(self) -> bool:
        return self.project.spec.posterior.noise_variance == CALIBRATED

    @property
    def needs_held_out_rows(self) -> bool:
        """Whether methods predict held-out rows, and not only the test rows."""
        return self.calibrates or self.job.posterior.conformal is not None

    @property
    def fitted_rescale(self) -> str:
        """The rescaling that is fitted to training rows; a calibration is applied to finished predictions."""
        return "none" if self.calibrates else self.rescale

    @property
    def held_out(self) -> str:
        """The split whose targets a calibration is fitted to."""
        return "validation" if "validation" in self.splits.by_name else "test"

    def check_held_out(self, who: str) -> None:
        """Refuse a calibration without targets, or with fewer test rows than folds."""
        split, folds = self.split(self.held_out), self.job.posterior.folds
        if split.targets is None:
            raise UserError(f"{who}: the {self.held_out} rows have no targets to calibrate on")
        if self.held_out == "test" and len(split) < folds:
            raise UserError(f"{who}: {len(split)} test rows are too few for --folds {folds}")

    @property
    def link(self) -> Link | None:
        """How class probabilities are computed; None if there are no classes."""
        if not TASKS[self.project.spec.task].labels:
            return None
        return cast(Link, self.job.posterior.link or self.project.spec.posterior.link or LINKS[0])

    @property
    def unit_likelihood(self) -> Likelihood:
        """The task's likelihood before its noise variance is known."""
        likelihood = self.project.likelihood()
        return likelihood if self.link is None else likelihood.with_link(self.link)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.job.compute.dtype)

    def split(self, name: str) -> Split:
        return self.splits.of(name)

    def stored_as(self, name: str) -> str:
        """The name under which the Jacobian of a split is stored."""
        return self.splits.stored_as(name, samples=self.passes.sampled is not None)

    def samples(self, name: str) -> bool:
        """Whether the Jacobian of a split is one of random combinations of the outputs."""
        return self.passes.over(self.stored_as(name)) is not self.passes

    def targets(self, name: str) -> Tensor | None:
        """Numbers (N, C) float64, or classes (N,) int64."""
        targets = self.split(name).targets
        return None if targets is None else torch.from_numpy(np.array(targets)).to(self.device)

    def outputs(self, name: str) -> Tensor:
        """f of a split (N, C) by plain forward passes."""
        return self.passes.reader.outputs(self.passes.model, self.split(name))

    def row_source(self, name: str) -> RowSource:
        """By the name under which the rows are stored."""
        split, passes = self.split(name), self.passes.over(name)
        return RowSource(
            name, split, passes, self.layout, self.unit_likelihood, self.device, self.workers, self.reporter
        )

    def row_storage(self, name: str) -> RowStorage:
        source, written = self.row_source(name), not self.job.selection.scores_only
        stored, test = written and source.compact_bytes() <= self.store.limit, self.test_of(name)
        return RowStorage(source, self.memory, stored, written, {} if test is None else test.inputs)

    def test_of(self, split: str) -> TestSet | None:
        """The set of test rows of this split, if it is one."""
        return next((own for own in self.tests if own.split == split), None)

    @cached_property
    def serving(self) -> dict[str, Any]:
        """Metadata with which a posterior can predict without spec and data files."""
        return {
            "network_sha256": network_digest(self.passes.model),
            "row_shapes": [list(array.shape[1:]) for array in parts_of(self.split("train").raw)],
            "integers_as_floats": self.passes.reader.integers_as_floats,
        }

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The label of each class number, if labels are texts or true/false."""
        return next(iter(self.splits.by_origin.values())).classes

    @property
    def class_details(self) -> dict[str, list[str]]:
        """The part of a result that names the classes."""
        return {} if self.classes is None else {"classes": list(self.classes)}

    @property
    def provenance(self) -> dict[str, Any]:
        options = {"rescale": self.rescale, "link": self.link, "hessian": self.passes.hessian}
        return provenance_of(self.store.identity, options, self.job, self.tests)

    def with_half_the_memory(self) -> Run:
        """The same run after it ran out of memory; finished parts come from the store."""
        devices.release(self.device)
        reused = "" if self.job.compute.recompute else "; finished parts are reused"
        half = self.memory // 2
        self.reporter.note(f"out of memory on {self.device}: continuing within {format_bytes(half)}{reused}")
        return replace(self, memory=half)
