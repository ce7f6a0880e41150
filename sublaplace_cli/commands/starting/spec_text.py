"""The spec as commented YAML."""

from collections.abc import Iterator
from typing import Any

from .data import DataGuess
from .fitting import Setting
from .inference import Inference, NetworkGuess, inline

NO_NETWORK = "model.safetensors"  # a placeholder, with a TODO
COMMENTS = {"check": "  # TODO check: ", "likely": "  # ", "sure": ""}


def spec_text(
    network: NetworkGuess | None, data: DataGuess | None, setting: Setting, findings: dict[str, Inference]
) -> str:
    """Every guess that has to be checked has a TODO beside it."""
    return "\n".join(
        [
            "# Written by `sublaplace init`. All keys: sublaplace help spec",
            "version: 1",
            *_task(data, findings),
            "model:",
            *_model(network, setting, findings),
            "data:",
            *_data(data, setting, findings),
            "posterior:",
            "  prior_precision: 1.0   # trained with weight decay? see: sublaplace help priors",
            "",
        ]
    )


def _comment(finding: Inference | None) -> str:
    if finding is None or finding.certainty == "sure":
        return ""
    return COMMENTS[finding.certainty] + " ".join(ascii(finding.reason)[1:-1].split())


def _task(data: DataGuess | None, findings: dict[str, Inference]) -> Iterator[str]:
    if data is None:
        yield "task: regression  # TODO: regression, binary (one logit) or multiclass (C logits)"
    else:
        yield f"task: {data.task}{_comment(findings.get('task'))}"


def _model(network: NetworkGuess | None, setting: Setting, findings: dict[str, Inference]) -> Iterator[str]:
    if network is None:
        yield "  # TODO: your network; {exported: model.pt2} takes a file of torch.export"
        yield "  build: {arch: mlp, args: {in: 10, hidden: [50, 50], out: 1, act: relu}}"
        yield f"  weights: {{path: {NO_NETWORK}}}  # TODO: your checkpoint"
        return
    build = network.build
    if build.get("arch") == "mlp":
        build = {**build, "args": {**build["args"], "act": setting.activation or "relu"}}  # none: no hidden layer
        has_hidden = bool(build["args"]["hidden"])
        comment = _comment(findings.get("activation")) if "activation" in findings else ""
        if has_hidden and "activation" not in findings:
            comment = "  # TODO: act is a default; relu, tanh, gelu, silu, elu, sigmoid or leaky_relu"
        yield f"  build: {inline(build)}{comment}"
    else:
        yield f"  build: {inline(build)}{_comment(findings.get('model'))}"
    if network.weights:
        yield f"  weights: {inline(network.weights)}{_comment(findings.get('rename'))}"


def _data(data: DataGuess | None, setting: Setting, findings: dict[str, Inference]) -> Iterator[str]:
    if data is None:
        yield "  format: csv  # TODO"
        yield "  path: data.csv  # TODO"
        yield "  columns: {target: target, input: rest}  # TODO: the name of the target column"
        yield "  splits: {train: {rows: '0:800'}, test: {rows: '800:'}}  # TODO: the split of your training"
        return
    section = dict(data.section)
    splits = section.pop("splits")
    notes = {"columns": "inputs", "arrays": "inputs", "text": "max_length"}
    notes |= {key: key for key in ("transforms", "classes")}
    for key, value in section.items():
        yield f"  {key}: {inline(value)}{_comment(findings.get(notes.get(key, '')))}"
    if standardise := _standardise(setting):
        unsure = [findings.get(f"standardise {side}") for side in standardise]
        comment = next((text for finding in unsure if (text := _comment(finding))), "")
        yield f"  standardise: {inline(standardise)}{comment}"
    yield f"  splits:{_comment(findings.get('split'))}"
    for name, own in splits.items():
        yield f"    {name}: {inline(own)}"


def _standardise(setting: Setting) -> dict[str, Any]:
    return {side: kind for side in ("input", "target") if (kind := getattr(setting, side)) != "none"}
