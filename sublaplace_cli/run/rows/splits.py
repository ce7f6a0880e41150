"""The rows that a command reads, and the names under which their Jacobians are stored."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...files.data.datasets import Split

IN_OMEGA = ("train", "reference")  # rows that only enter Ω and the scores: they may be sampled


@dataclass(frozen=True)
class Splits:
    """The rows that a command reads."""

    by_name: Mapping[str, Split]  # as the command names them
    origins: Mapping[str, str]  # the split that holds the rows of each name: `reference` is often `train`
    by_origin: Mapping[str, Split]

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
