"""What a posterior's artifact must hold."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, Strict, model_validator

from ...catalog import LINKS, OUTPUTS, RESCALES, TASKS
from ..spec.part import described
from .metadata import Checked, Count, Name, NotNegative, Positive, Rules, RunMetadata, Sha256, Size
from .tensor_rules import TensorRule, no_factor, not_positive


class FullPosteriorData(RunMetadata):
    method: Name
    freedom: float
    condition: NotNegative
    digits: Literal[4, 5] | None = None  # of the products in its Gram matrix, where they are split
    noise_variance: Positive | None
    prior_precision: Positive | list[Annotated[tuple[str, Positive], Strict(False)]]
    rules: ClassVar[Rules] = {"factor": TensorRule("F64", ("side", "side"), no_factor)}

    @model_validator(mode="after")
    def _noise_belongs_to_the_task(self) -> Self:
        task, outputs = self.spec.task, self.spec.outputs
        known = TASKS[task] if outputs is None else OUTPUTS.get((task, outputs))
        if known is None or known.one_noise != (self.noise_variance is not None):
            named = task if outputs is None else f"{task}, its outputs are {described(outputs)}"
            raise ValueError(f"its noise_variance is {self.noise_variance}, but its task is {named}")
        return self


class Serving(Checked):
    network_sha256: Sha256
    row_shapes: Annotated[list[list[Size]], Field(min_length=1)]
    integers_as_floats: bool


class SketchData(Checked):
    """The numbers that determine random signed sums."""

    k: Count
    seed: Size
    version: Count


class CompactPosteriorData(FullPosteriorData):
    """A posterior over k parameters, over k random sums, or over some of both."""

    form: Literal["primal", "dual"]
    rescale: NotNegative | None
    remainder: NotNegative
    rescaling: Annotated[str, Field(pattern=f"^({'|'.join(RESCALES)})$")]
    link: Annotated[str, Field(pattern=f"^({'|'.join(LINKS)})$")] | None
    noise_factor: Positive
    sketch: SketchData | None = None
    n_train: Count
    row_outputs: Count | None = None  # rows of A per training row; not in files of early versions: all outputs
    scale_shapes: dict[Literal["input", "target"], list[Size]]
    serving: Serving | None = None  # not in files of early versions
    classes: Annotated[list[Name], Field(min_length=2)] | None = None  # labels by class number, if they are texts
    columns: list[str] | None = None  # names of the input columns in order, where they have names
    rest: Annotated[list[str], Field(min_length=1)] | None = None  # the input columns that the spec calls so

    def tensor_rules(self) -> Rules:
        side = "k" if self.form == "primal" else "side"
        rules = dict[str, TensorRule]()
        if self.sketch is None:
            rules |= {"indices": TensorRule("I64", ("k",)), "prior": TensorRule("F64", ("k",), not_positive)}
        elif "indices" in self.tensors:
            rules["indices"] = TensorRule("I64", ("entries",))
        rules["factor"] = TensorRule("F64", (side, side), no_factor)
        if self.form == "dual":
            rules["columns"] = TensorRule("F64", ("k", side))
        for name in self.scale_shapes:
            rules[f"{name}_mean"] = TensorRule("F64", (name,))
            rules[f"{name}_std"] = TensorRule("F64", (name,), not_positive)
        return rules

    def known_axes(self) -> dict[str, int]:
        scales: dict[str, int] = {name: math.prod(shape) for name, shape in self.scale_shapes.items()}
        return scales if self.sketch is None else {**scales, "k": self._entries + self.sketch.k}

    @property
    def _entries(self) -> int:
        """Parameters among what it is over."""
        return self.tensors["indices"].shape[0] if "indices" in self.tensors else 0

    @model_validator(mode="after")
    def _no_more_than_parameters(self) -> Self:
        if self.sketch is not None and self._entries + self.sketch.k > self.n_params:
            raise ValueError(f"it is over more than the {self.n_params} parameters of the network")
        return self

    @model_validator(mode="after")
    def _scales_are_those_of_the_spec(self) -> Self:
        for name, mode in self.spec.data.standardise:
            if (mode == "none") == (name in self.scale_shapes):
                held = "holds" if name in self.scale_shapes else "holds no"
                raise ValueError(f"it {held} mean and std for its {name}, unlike its spec (data.standardise.{name})")
        return self
