"""Arguments that an operator's kernel trusts: torch checks them in other operators, but not in these.

One line per operator in `ARGUMENT_CHECKS`; its check gets the arguments by their names in the operator's schema, and
returns what is wrong. It runs with every call: some operators return other shapes for tensors without values.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import UserError

Arguments = Mapping[str, Any]

MOST_PIECES = 2**16
LEAST_SCALE, LARGEST_SCALE = 2.0**-20, 2.0**20


def with_checked_arguments(function: torch._ops.OpOverload) -> Callable[..., Any]:
    """The operator, or if its kernel trusts its arguments, a function that checks them first."""
    name = function._schema.name.removeprefix("aten::").removesuffix("_")
    if name not in ARGUMENT_CHECKS:
        return function
    declared, check = function._schema.arguments, ARGUMENT_CHECKS[name]
    defaults = {argument.name: argument.default_value for argument in declared}

    def checked(*args: Any, **kwargs: Any) -> Any:
        named = {argument.name: value for argument, value in zip(declared, args, strict=False)}
        if problem := check({**defaults, **named, **kwargs}):
            raise UserError(f"the exported graph calls {name} with wrong arguments: {problem}")
        found = function(*args, **kwargs)
        # The shapes of the other results depend on the device: nothing may be computed from them.
        return (found[0], *[None] * (len(found) - 1)) if check is _per_channel else found

    return checked


def _per_channel(arguments: Arguments) -> str | None:
    """Weight, bias and running statistics: one value per channel."""
    channels = arguments["input"].shape[1]
    for name in ("weight", "bias", "running_mean", "running_var"):
        found = arguments[name]
        if found is not None and tuple(found.shape) != (channels,):
            return f"{name} has the shape {tuple(found.shape)} for {channels} channels"
    return None


def _equal_lengths(arguments: Arguments) -> str | None:
    keys, values = arguments["key"].shape, arguments["value"].shape
    return None if keys[-2] == values[-2] else f"{keys[-2]} keys and {values[-2]} values"


def _one_number(arguments: Arguments) -> str | None:
    """The kernel writes as many values as each number of a tensor says, also beyond its result."""
    return "a tensor of repeats" if isinstance(arguments["repeats"], torch.Tensor) else None


def _no_overflow(arguments: Arguments) -> str | None:
    """The processor stops a program that divides the smallest integer by -1."""
    operands = [arguments["self"], arguments["other"]]
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if arguments.get("rounding_mode") != "trunc" or any(operand.is_floating_point() for operand in tensors):
        return None
    return "integers are divided by a tensor or by -1" if tensors[1:] or arguments["other"] == -1 else None


def _few_pieces(arguments: Arguments) -> str | None:
    tensor = arguments["self"] if "self" in arguments else arguments["tensor"]
    length, size = tensor.shape[arguments["dim"]], arguments.get("split_size", 1)
    pieces = len(size) if isinstance(size, (list, tuple)) else -(-length // max(size, 1))
    pieces = min(pieces, arguments.get("chunks", pieces))
    return f"it makes {pieces} pieces, more than {MOST_PIECES}" if pieces > MOST_PIECES else None


def _no_negative_wrap(arguments: Arguments) -> str | None:
    """Around the edges, a negative amount leaves a part of the result unwritten."""
    is_wrapped = arguments.get("mode") == "circular"
    return "negative amounts around the edges" if is_wrapped and min(arguments["pad"], default=0) < 0 else None


def _possible_scales(arguments: Arguments) -> str | None:
    scales = [arguments.get("scales_h"), arguments.get("scales_w"), *(arguments.get("scale_factors") or ())]
    wrong = [scale for scale in scales if scale is not None and not LEAST_SCALE <= scale <= LARGEST_SCALE]
    return f"scale {wrong[0]}" if wrong else None


ARGUMENT_CHECKS: dict[str, Callable[[Arguments], str | None]] = {
    "_native_batch_norm_legit_no_training": _per_channel,
    "_batch_norm_no_update": _per_channel,
    "scaled_dot_product_attention": _equal_lengths,
    "repeat_interleave": _one_number,
    "pad": _no_negative_wrap,
    "div": _no_overflow,
    "divide": _no_overflow,
    **dict.fromkeys(("split", "unsafe_split", "chunk", "unsafe_chunk", "unbind"), _few_pieces),
    **dict.fromkeys(("upsample_nearest2d", "upsample_bilinear2d"), _possible_scales),
}
