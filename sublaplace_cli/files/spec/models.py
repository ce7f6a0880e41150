"""The spec as typed, frozen records: one model per mapping of `sublaplace.yaml`.

A model lists its keys; `rules` yields the problems between them. To add a key: add the field here, a line to the rules
if it depends on another key, and a case to `tests/files/spec`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from ...catalog import ARCHITECTURES, CALIBRATED, LINKS, OUTPUTS, RESCALES, TASKS, Task
from .data import DataSpec
from .gate import MetricLimits, known_rows_and_metrics
from .part import Finding, Part, refuse, wrong
from .values import Distinct, Globs, Index, Text, by_hand, each, is_number, mapping, matching, none_is, one_of, positive

_ONE_LOGIT_TASKS = " or ".join(name for name, facts in TASKS.items() if facts.one_logit)
_SOFTMAX_TASKS = " or ".join(name for name, facts in TASKS.items() if facts.softmax)
_MEASURED_TASKS = " or ".join(name for name, facts in TASKS.items() if not facts.labels)
_NOISE_TASKS = " or ".join(name for name, facts in TASKS.items() if facts.one_noise)
_OUTPUT_NAMES = dict.fromkeys(outputs for _, outputs in OUTPUTS)
_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
WITH_WEIGHTS = ("exported", "huggingface")  # builds that bring their weights
_IMPORT = matching(f"{_DOTTED}:{_DOTTED}", "a text like 'package.module:function'")


class BuildSpec(Part):
    """How the network is built: a built-in architecture, the user's function, an exported file or a folder."""

    arch: Annotated[str, one_of(ARCHITECTURES)] | None = None
    import_: Annotated[str, _IMPORT] | None = Field(default=None, alias="import")
    exported: Text | None = None
    huggingface: Text | None = None  # a local folder
    base: Text | None = None  # the folder of the base network, if the first one holds an adapter
    args: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        sources = [key for key in ("arch", "import", "exported", "huggingface") if raw.get(key) is not None]
        misspelt = raw.keys() - set(cls.keys().values())
        if len(sources) > 1 or not (sources or misspelt):
            got = " and ".join(sources) or "none of them"
            yield Finding((), f"expected exactly one of arch, import, exported and huggingface, got {got}")
        for key, what in (("exported", "an exported model"), ("huggingface", "a Hugging Face folder")):
            if key in sources and raw.get("args"):
                yield Finding(("args",), f"{what} takes no args", at_key=True)
        if raw.get("base") is not None and "huggingface" not in sources:
            yield Finding(("base",), "only together with huggingface", at_key=True)


class WeightsSpec(Part):
    """The checkpoint file and how its names map to those of the network."""

    path: Text
    key: Text | None = None
    strip_prefix: Text | None = None
    rename: dict[str, str] = Field(default_factory=dict)
    prefix: Text | None = None
    strict: bool = True

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        for old, new in mapping(raw.get("rename")).items():
            stars = old.count("*") if isinstance(old, str) else 0
            if isinstance(new, str) and stars != new.count("*"):
                message = f"expected as many * in the new name as in the old one ({stars}), got {new.count('*')}"
                yield Finding(("rename", old), message)
            elif stars and any(part.count("*") > 1 for part in old.split(".")):
                yield Finding(("rename", old), "expected at most one * between two dots", at_key=True)


class LogOdds(Part):
    """The classes that count as 1 when a multiclass network is read as a binary one."""

    classes: Annotated[list[Index], Distinct]


class WrapSpec(Part):
    """A function of the network's outputs that replaces them."""

    binary_logodds: LogOdds = Field(alias="binary-logodds")


Wrap = Annotated[WrapSpec | None, none_is(None)]


class ModelSpec(Part):
    build: BuildSpec
    weights: WeightsSpec | None = None
    wrap: Wrap = None
    trainable: Globs | None = None  # None: as the code of the network says

    def name(self, checkpoints: Sequence[str] = ()) -> str:
        """For people: how it is built, and from which file; `checkpoints` replace that of the spec."""
        build = self.build.arch or self.build.import_ or self.build.exported or ""
        paths = checkpoints or ([] if self.weights is None else [self.weights.path])
        if len(paths) > 1:
            return f"{build}, {len(paths)} checkpoints"
        return f"{build}, {paths[0]}" if paths else build

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        build = mapping(raw.get("build"))  # a missing build is reported elsewhere
        if raw.get("weights") is None and build and not any(build.get(key) for key in WITH_WEIGHTS):
            needless = " and ".join(WITH_WEIGHTS)
            yield Finding(("weights",), f"this key is required, but missing (only {needless} bring their own)")


HeldOut = Literal["test", "validation"]


class NoiseFrom(Part):
    """The noise variance as the residual mean square of a split."""

    from_: Annotated[HeldOut, one_of(get_args(HeldOut))] = Field(alias="from")


class Tune(Part):
    """The prior precision that predicts the rows of another split best."""

    tune: Annotated[Literal["nll"], one_of(["nll"])]
    split: Annotated[Literal["validation"], one_of(["validation"])] = "validation"


def _prior_precision(value: object) -> object:
    if isinstance(value, Tune) or (isinstance(value, Mapping) and "tune" in value):
        return Tune.model_validate(value)
    if value == "marglik":
        return value
    if isinstance(value, Mapping) and value:
        checked = each(lambda item: item if item == "marglik" else positive(item), value.items())
        return dict(zip(value, checked, strict=True))
    if not is_number(value):
        raise refuse(wrong("a number above 0, 'marglik' or {glob: one of them}", value))
    return positive(value)


def _noise_variance(value: object) -> object:
    if isinstance(value, (Mapping, NoiseFrom)):
        return NoiseFrom.model_validate(value, by_alias=True, by_name=False)
    if value in ("auto", "marglik", CALIBRATED):
        return value
    if not is_number(value):
        raise refuse(wrong("'auto', 'marglik', 'calibrated', a number above 0 or {from: test or validation}", value))
    return positive(value)


class Sampled(Part):
    """The output Hessian from this many random combinations of a row's outputs."""

    sampled: Annotated[int, Field(ge=1)]


def _hessian(value: object) -> object:
    if isinstance(value, (Mapping, Sampled)):
        return Sampled.model_validate(value)
    if value != "exact":
        raise refuse(wrong("'exact' or {sampled: NUMBER}", value))
    return value


class PosteriorSpec(Part):
    prior_precision: Annotated[
        float | Literal["marglik"] | Tune | dict[str, float | Literal["marglik"]], by_hand(_prior_precision)
    ] = 1.0
    noise_variance: Annotated[
        Literal["auto", "marglik", "calibrated"] | float | NoiseFrom, by_hand(_noise_variance)
    ] = "auto"
    rescale: Annotated[str, one_of(RESCALES)] = "none"
    link: Annotated[str, one_of(LINKS)] | None = None
    hessian: Annotated[Literal["exact"] | Sampled, by_hand(_hessian)] | None = None


class OracleSpec(Part):
    """The reference for coverage: another model, or its stored predictions."""

    weights: WeightsSpec | None = None
    build: BuildSpec | None = None
    wrap: Wrap = None
    predictions: Text | None = None
    array: Text | None = None

    def as_model(self, model: ModelSpec) -> ModelSpec:
        """The oracle's network; its build and its wrap are those of `model` unless the spec names others."""
        wrap = self.wrap if "wrap" in self.model_fields_set else model.wrap
        update = {"build": self.build or model.build, "weights": self.weights, "wrap": wrap, "trainable": None}
        return model.model_copy(update=update)

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        model_keys = [key for key in ("weights", "build", "wrap") if key in raw]
        predicted = raw.get("predictions") is not None
        if predicted and model_keys:
            yield Finding((), f"expected either a model or predictions, got predictions and {model_keys[0]}")
        elif not predicted and raw.get("array") is not None:
            yield Finding(("array",), "only together with predictions", at_key=True)
        elif not (predicted or model_keys or raw.keys() - cls.model_fields.keys()):
            yield Finding((), "expected weights or predictions")
        elif model_keys and raw.get("weights") is None:
            yield from ModelSpec.rules({"build": {"arch": None}, **raw})


class EnsembleSpec(Part):
    """Checkpoints of the same network from several trainings."""

    checkpoints: Annotated[list[Text], Distinct]

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        named = raw.get("checkpoints")
        if isinstance(named, (list, tuple)) and len(named) < 2:
            yield Finding(("checkpoints",), "expected at least two checkpoints: one has no variance")


def _outputs_and_noise(raw: Mapping[str, Any], task: str, known: Task) -> Iterator[Finding]:
    """`outputs` must be one of the task, and a noise variance needs a likelihood that has one for all rows."""
    outputs, data = raw.get("outputs"), mapping(raw.get("data"))
    tasks = [name for name, other in OUTPUTS if other == outputs]
    if tasks and task not in tasks:
        yield Finding(("outputs",), f"only for task {' or '.join(tasks)}, but task is {task}")
    noise = mapping(raw.get("posterior")).get("noise_variance", "auto")
    is_set = is_number(noise) or mapping(noise) or noise in ("marglik", CALIBRATED)
    if is_set and not known.one_noise:
        message = f"only for task {_NOISE_TASKS}, but task is {task}"
        yield Finding(("posterior", "noise_variance"), message)
    elif is_set and task in tasks and not OUTPUTS[task, str(outputs)].one_noise:
        message = f"each row has its own noise variance, because outputs is {outputs}"
        yield Finding(("posterior", "noise_variance"), message)
    elif (split := mapping(noise).get("from")) in get_args(HeldOut) and mapping(data.get("splits")).get(
        str(split)
    ) is None:
        yield Finding(("posterior", "noise_variance", "from"), f"there is no split '{split}'")


def _classes_and_task(raw: Mapping[str, Any], task: str, known: Task) -> Iterator[Finding]:
    """Labels need a task with classes, as many of them, and no wrap, which counts classes by number."""
    classes = mapping(raw.get("data")).get("classes")
    if not known.labels:
        yield Finding(("data", "classes"), f"only for classes, but task is {task}", at_key=True)
    elif mapping(mapping(raw.get("model")).get("wrap")):
        yield Finding(("data", "classes"), "a wrap counts classes by number: store class numbers", at_key=True)
    elif known.one_logit and isinstance(classes, list) and len(classes) > 2:
        yield Finding(("data", "classes"), f"a {task} task has two classes, got {len(classes)}")


class Spec(Part):
    """All of `sublaplace.yaml`."""

    version: Annotated[Literal[1], one_of([1])]
    task: Annotated[str, one_of(TASKS)]
    outputs: Annotated[str, one_of(_OUTPUT_NAMES)] | None = None  # None: the usual ones of the task
    model: ModelSpec
    data: DataSpec
    posterior: PosteriorSpec = PosteriorSpec()
    oracle: OracleSpec | None = None
    ensemble: EnsembleSpec | None = None
    gate: Annotated[dict[str, MetricLimits], BeforeValidator(known_rows_and_metrics)] | None = None

    @classmethod
    def rules(cls, raw: Mapping[str, Any]) -> Iterator[Finding]:
        task = raw.get("task")
        known = TASKS.get(task) if isinstance(task, str) else None
        for name in ("model", "oracle"):
            if known is not None and not known.one_logit and mapping(mapping(raw.get(name)).get("wrap")):
                yield Finding((name, "wrap"), f"needs task {_ONE_LOGIT_TASKS}, but task is {task}", at_key=True)
        data, posterior = mapping(raw.get("data")), mapping(raw.get("posterior"))
        splits = mapping(data.get("splits"))
        if known is not None and not known.softmax and mapping(posterior.get("hessian")):
            message = f"sampled is only for task {_SOFTMAX_TASKS}, but task is {task}"
            yield Finding(("posterior", "hessian"), message)
        build = mapping(mapping(raw.get("model")).get("build"))
        text = mapping(data.get("text"))
        if text and text.get("tokenizer") is None and build and build.get("huggingface") is None:
            message = "texts need a tokenizer: name its folder here, unless build: {huggingface: ...} brings one"
            yield Finding(("data", "text", "tokenizer"), message)
        tuned = "tune" in mapping(posterior.get("prior_precision"))
        if tuned and splits.get("validation") is None and splits.get("test") is None:
            yield Finding(("posterior", "prior_precision"), "tune needs a split 'validation' or 'test' in data.splits")
        if known is not None and known.labels and mapping(data.get("standardise")).get("target", "none") != "none":
            message = f"only for task {_MEASURED_TASKS}, but task is {task}"
            yield Finding(("data", "standardise", "target"), message)
        if known is not None and data.get("classes") is not None:
            yield from _classes_and_task(raw, str(task), known)
        if known is not None and not known.labels and posterior.get("link") is not None:
            yield Finding(("posterior", "link"), f"only for classes, but task is {task}")
        if known is not None:
            yield from _outputs_and_noise(raw, str(task), known)
