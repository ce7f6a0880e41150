"""The operators that a torch.export file may use: none of them reads files, random numbers or raw memory.

To allow another one: 1. check its schema for these three, 2. check that it runs under vmap, 3. add its name here,
4. if its kernel trusts sizes, indices or numbers among its arguments, add a line to `argument_checks`.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch

from ...errors import UserError
from .argument_checks import with_checked_arguments

# arithmetic; comparison; activations; layers; reductions; shapes; constants; the checks that export adds
_ATEN_NAMES = """
    abs add addcdiv addcmul atan2 ceil clamp clamp_max clamp_min clip cos cosh cumsum div divide erf erfc exp exp2 expm1
    floor floor_divide fmod log log10 log1p log2 logaddexp logit maximum minimum mul multiply neg negative pow
    reciprocal remainder round rsqrt rsub sgn sigmoid sign sin sinh special_expit sqrt square sub subtract tan tanh
    true_divide trunc xlogy lerp

    eq ge gt le lt ne logical_and logical_not logical_or bitwise_and bitwise_not bitwise_or isnan isinf where
    masked_fill isfinite

    celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish prelu relu relu6 selu silu softplus
    threshold _prelu_kernel hardshrink softshrink

    linear addmm addmv baddbmm bmm matmul mm mv dot einsum conv1d conv2d conv3d convolution conv_transpose1d
    conv_transpose2d batch_norm _native_batch_norm_legit_no_training _batch_norm_no_update layer_norm native_layer_norm
    group_norm native_group_norm instance_norm rms_norm _fused_rms_norm embedding dropout feature_dropout alpha_dropout
    scaled_dot_product_attention softmax _softmax log_softmax _log_softmax max_pool1d max_pool2d max_pool2d_with_indices
    avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d
    upsample_nearest2d upsample_bilinear2d pixel_shuffle pixel_unshuffle

    sum mean prod amax amin max min argmax argmin logsumexp var std var_mean std_mean norm linalg_vector_norm all any

    alias cat chunk clone concat contiguous detach diagonal expand expand_as flatten flip gather hstack index
    index_select lift_fresh_copy movedim narrow numpy_T pad constant_pad_nd reflection_pad2d replication_pad2d permute
    ravel repeat repeat_interleave reshape roll select slice split split_with_sizes squeeze stack sym_size sym_numel t
    to _to_copy transpose tril triu type_as unbind unflatten unfold unsqueeze view view_as vstack _unsafe_view
    unsafe_chunk unsafe_split

    arange full full_like ones ones_like scalar_tensor zeros zeros_like new_zeros new_ones new_full eye linspace

    _assert_tensor_metadata _assert_scalar sym_constrain_range sym_constrain_range_for_size
"""
ATEN = frozenset(_ATEN_NAMES.split())
WITHOUT_TENSORS = {  # that return none
    *("sym_size", "sym_numel", "sym_constrain_range", "sym_constrain_range_for_size"),
    *("_assert_tensor_metadata", "_assert_scalar"),
}
ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg)
LOGIC = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_)
NUMBERS: dict[str, Callable[..., Any]] = {
    **{f"_operator.{function.__name__}": function for function in (*ARITHMETIC, *LOGIC, operator.not_)},
    **{f"torch.{name}": getattr(torch, name) for name in ("sym_max", "sym_min", "sym_not", "sym_float", "sym_int")},
}
# The flag that is true in training mode; such a network has no fixed output.
TRAINING_FLAG = {"batch_norm": "training", "dropout": "train", "feature_dropout": "train", "alpha_dropout": "train"}


def find_function(target: str) -> Callable[..., Any]:
    """The operator called `target` in the file; refuses one that is not listed."""
    if target in NUMBERS:
        return _on_numbers(NUMBERS[target])
    parts = target.split(".")
    if len(parts) == 5 and parts[:3] == ["torch", "ops", "aten"] and parts[3].removesuffix("_") in ATEN:
        packet = getattr(torch.ops.aten, parts[3], None)
        if packet is not None and parts[4] in packet.overloads() and "out" not in parts[4]:
            function = getattr(packet, parts[4])
            if parts[3] in WITHOUT_TENSORS or _returns_tensors(function):
                return with_checked_arguments(function)
    hint = "use build: {import: …} with --allow-code for this network"
    raise UserError(f"it uses the operator {target[:80]!r}, which is not allowed in an exported file", hint=hint)


def _returns_tensors(function: torch._ops.OpOverload) -> bool:
    """Not so the operators of TorchScript on numbers, texts and lists, which have the same names and check nothing."""
    kinds = [str(value.type) for value in function._schema.returns]
    return bool(kinds) and set(kinds) <= {"Tensor", "List[Tensor]"}


def is_whole_number(value: Any) -> bool:
    """An integer (or a truth value) of at most 64 bits: torch has no larger ones."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _on_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*values: Any) -> Any:
        # these functions can also repeat strings and join lists: a forged file could fill the memory
        if not all(isinstance(value, (int, float)) for value in values):
            raise UserError(f"the exported graph calls {function.__name__} on something that is not a number")
        result = function(*values)
        if isinstance(result, int) and not is_whole_number(result):
            raise UserError(f"the exported graph calls {function.__name__} with a result of more than 64 bits")
        return result

    return checked
