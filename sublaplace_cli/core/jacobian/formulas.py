"""Layers whose gradients have a formula: from their inputs and output gradients to blocks.

To add one: write `name(layer, spans, a, deltas) -> blocks`, add it to `FORMULAS` and a case to the tests; where it does
not cover all settings of such a layer, add a line to `has_formula`.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .blocks import Block, DenseBlock
from .conv import ConvBlock, Geometry
from .embedding import EmbeddingBlock
from .linear import LinearBlock

Spans = Mapping[str, slice]  # of a layer's trainable parameters, by their name in the layer
Formula = Callable[..., list[Block]]


def linear(layer: nn.Linear, spans: Spans, a: Tensor, deltas: Tensor) -> list[Block]:
    """δ ⊗ [a, 1]; leading dimensions besides the row are positions."""
    inputs = a.reshape(len(a), -1, a.shape[-1])  # (m, T, d_in)
    delta = deltas.reshape(*deltas.shape[:2], -1, deltas.shape[-1])  # (m, C, T, d_out)
    if "weight" not in spans:
        return _bias(spans, delta.sum(2))
    with_bias = "bias" in spans and spans["bias"].start == spans["weight"].stop
    block: Block = LinearBlock(spans["weight"].start, inputs, delta, with_bias)
    # One position: factored for every result. Several: whichever form is smaller.
    if inputs.shape[1] > 1 and _saved_bytes(inputs, delta, block.width) < 0:
        block = block.expanded()
    return [block] if with_bias else [block, *_bias(spans, delta.sum(2))]


def convolution(layer: nn.Conv1d | nn.Conv2d, spans: Spans, a: Tensor, deltas: Tensor) -> list[Block]:
    """The weight as (a, δ) where that is smaller, else written out; the bias is δ summed over positions."""
    blocks = _bias(spans, deltas.flatten(3).sum(3))
    if "weight" in spans:
        padding = tuple(int(p) for p in layer.padding)
        geometry = Geometry(tuple(layer.weight.shape), layer.stride, padding, layer.dilation, layer.groups)
        block = ConvBlock(spans["weight"].start, geometry, a, deltas)
        blocks.insert(0, block if _saved_bytes(a, deltas, block.width) > 0 else block.expanded())
    return blocks


def batch_norm(layer: nn.BatchNorm2d, spans: Spans, a: Tensor, deltas: Tensor) -> list[Block]:
    """In eval mode an affine map of the standardised inputs."""
    assert layer.running_mean is not None and layer.running_var is not None, "has_formula checks them"  # noqa: PT018
    shape = (1, -1, *[1] * (a.ndim - 2))
    scale = torch.rsqrt(layer.running_var + layer.eps)
    standard = (a - layer.running_mean.reshape(shape)) * scale.reshape(shape)
    return _affine(spans, deltas, standard, lambda t: t.flatten(3).sum(3) if t.ndim > 3 else t)


def layer_norm(layer: nn.LayerNorm, spans: Spans, a: Tensor, deltas: Tensor) -> list[Block]:
    """An affine map of the inputs standardised over the last axes; the axes between row and these are positions."""
    standard = F.layer_norm(a, layer.normalized_shape, None, None, layer.eps)
    inner = len(layer.normalized_shape)

    def add_up(t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:2], -1, t.shape[-inner:].numel()).sum(2)

    return _affine(spans, deltas, standard, add_up)


def group_norm(layer: nn.GroupNorm, spans: Spans, a: Tensor, deltas: Tensor) -> list[Block]:
    """An affine map of the inputs standardised within groups of channels."""
    standard = F.group_norm(a, layer.num_groups, None, None, layer.eps)
    return _affine(spans, deltas, standard, lambda t: t.flatten(3).sum(3) if t.ndim > 3 else t)


def embedding(layer: nn.Embedding, spans: Spans, a: Tensor, deltas: Tensor) -> list[Block]:
    """Gradients at the entries of the tokens; the padding entry has none."""
    tokens = a.reshape(len(a), -1)
    delta = deltas.reshape(*deltas.shape[:2], -1, deltas.shape[-1])
    if layer.padding_idx is not None:
        delta = delta * (tokens != layer.padding_idx).to(delta.dtype)[:, None, :, None]
    return [EmbeddingBlock(spans["weight"].start, layer.num_embeddings, tokens, delta)]


FORMULAS: dict[type[nn.Module], Formula] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm3d: batch_norm,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
    nn.Embedding: embedding,
}


def formula_of(layer: nn.Module) -> Formula | None:
    """The formula of a layer; None if there is none for its type or settings, or if the layer was modified."""
    kind = next((kind for kind in FORMULAS if isinstance(layer, kind)), None)
    if kind is None or type(layer).forward is not kind.forward or hasattr(layer, "parametrizations"):
        return None
    names = {name for name, tensor in layer._parameters.items() if tensor is not None}
    hooked = layer._forward_pre_hooks or layer._forward_hooks or layer._backward_hooks
    return FORMULAS[kind] if names <= {"weight", "bias"} and not hooked and has_formula(layer) else None


def has_formula(layer: nn.Module) -> bool:
    """Whether the formula covers this layer's settings."""
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
        return layer.running_mean is not None and not layer.training
    if isinstance(layer, nn.Embedding):
        return layer.max_norm is None and not layer.scale_grad_by_freq
    return True


def _affine(spans: Spans, deltas: Tensor, standard: Tensor, add_up: Callable[[Tensor], Tensor]) -> list[Block]:
    blocks = _bias(spans, add_up(deltas).flatten(2))
    if "weight" in spans:
        blocks.insert(0, DenseBlock(spans["weight"].start, add_up(deltas * standard.unsqueeze(1)).flatten(2)))
    return blocks


def _saved_bytes(a: Tensor, deltas: Tensor, width: int) -> int:
    """Bytes per row that storing (a, δ) saves over writing the gradients out."""
    stored = a[0].numel() * a.element_size() + deltas[0].numel() * deltas.element_size()
    return width * deltas.shape[1] * deltas.element_size() - stored


def _bias(spans: Spans, delta: Tensor) -> list[Block]:
    return [DenseBlock(spans["bias"].start, delta)] if "bias" in spans else []
