"""The rows that a command reads, and the names under which their Jacobians are stored."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.likelihoods import Likelihood
from ...errors import UserError
from ...files.data.datasets import Split
from ...files.data.labels import described
from .test_sets import TestSet

IN_OMEGA = ("train", "reference")  # rows that only enter Ω and the scores: they may be sampled


@dataclass(frozen=True)
class Splits:
    """The rows that a command reads."""

    by_name: Mapping[str, Split]  # as the command names them
    origins: Mapping[str, str]  # the split that holds the rows of each name: `reference` is often `train`
    by_origin: Mapping[str, Split]
    tests: tuple[TestSet, ...]  # of the test rows that are read; the first one is the reference

    def of(self, name: str) -> Split:
        """The rows of any name."""
        return self.by_origin[self.origins[name]]

    def stored_as(self, name: str, samples: bool) -> str:
        """The name under which the rows of a split are stored: that of the split that holds them.

        If rows of Ω are sampled, rows that are also predicted are stored twice: there they need all outputs.
        """
        origin = self.origins[name]
        if samples and name in IN_OMEGA:
            return "train" if origin == self.origins["train"] else origin
        return name if samples and origin in IN_OMEGA else origin


def check_targets(likelihood: Likelihood, n_outputs: int, splits: Mapping[str, Split]) -> None:
    """The likelihood, the network's outputs and the targets must fit together."""
    likelihood.check_outputs(n_outputs)
    classes = next(iter(splits.values())).classes
    if classes is not None and n_outputs not in (1, len(classes)):
        raise UserError(
            f"the labels are {len(classes)} classes ({described(classes)}), but the network has {n_outputs} outputs",
            hint="list the label of every output in data.classes, in their order",
        )
    for name, split in splits.items():
        if split.targets is not None:
            likelihood.check_targets(split.targets, split.rows, n_outputs, name)
        elif name == "train":
            raise UserError(
                "the training rows have no targets", hint="name them with data.columns.target or data.arrays.target"
            )
