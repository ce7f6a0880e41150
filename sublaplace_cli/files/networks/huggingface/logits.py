"""The forward of a transformers network as everything else expects it: arrays in, one row of logits per row out."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ....errors import UserError

OF_TOKENIZERS = {"input_ids", "attention_mask", "token_type_ids"}  # dropped where the network has no use for them
NOT_INPUTS = {"labels", "return_dict", "use_cache", "output_attentions", "output_hidden_states"}
NAME_THEM = "data: {arrays: {input: {input_ids: ARRAY, attention_mask: ARRAY}}}"
LABELS_SHOWN = 10
HEADS = "a network for classification or regression of whole rows, such as BertForSequenceClassification"


def give_logits(module: nn.Module) -> nn.Module:
    """Make the forward return the logits (rows, outputs); the names of parameters stay as they are."""
    original = type(module)
    parameters = inspect.signature(original.forward).parameters
    known = [name for name in parameters if name not in (*NOT_INPUTS, "self", "kwargs")]
    main = str(getattr(module, "main_input_name", known[0]))

    class RowLogits(original):  # type: ignore[misc, valid-type]  # a subclass of whatever the folder names
        def forward(self, *args: Tensor, **inputs: Tensor) -> Tensor:
            if len(args) > 1:
                raise UserError(f"the network {original.__name__} takes its inputs by name", hint=NAME_THEM)
            inputs = _known_inputs(({main: args[0]} if args else {}) | inputs, known, original.__name__)
            with ExitStack() as stack:
                stack.enter_context(_masks_without_branches())
                if next(self.parameters()).dtype == torch.float64:
                    stack.enter_context(_NothingInFloat32())
                found = super().forward(**inputs, return_dict=True)
            return _row_logits(found, original.__name__)

    RowLogits.__name__ = original.__name__  # in notes
    module.__class__ = RowLogits
    return module


def require_known_tokens(module: nn.Module, inputs: Any, where: str) -> None:
    """Refuse token ids that the network has no embedding for, in any row of the arrays."""
    config, embeddings = getattr(module, "config", None), getattr(module, "get_input_embeddings", None)
    named = inputs if isinstance(inputs, dict) else {str(getattr(module, "main_input_name", "")): inputs}
    if not isinstance(named.get("input_ids"), np.ndarray) or embeddings is None:
        return
    length = named["input_ids"].shape[-1]
    for name, layer in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, nn.Embedding) and layer.num_embeddings < length:
            message = f"{where} have {length} tokens, but the network takes at most {layer.num_embeddings}"
            raise UserError(message, hint="lower data.text.max_length, or cut the arrays")
    sizes = {"input_ids": getattr(embeddings(), "num_embeddings", None)}
    sizes["token_type_ids"] = getattr(config, "type_vocab_size", None)
    for name, most in sizes.items():
        ids = named.get(name)
        if ids is not None and ids.dtype.kind in "iu" and most and not (ids.min() >= 0 and ids.max() < most):
            found = f"{where}: {name} go from {int(ids.min())} to {int(ids.max())}"
            message = f"{found}, but the network has embeddings for 0 to {most - 1}"
            raise UserError(message, hint="use the tokenizer that the network was trained with")


def other_order_of_labels(module: nn.Module, classes: Sequence[str]) -> str | None:
    """The labels as the configuration has them (id2label), if they are these classes in another order."""
    labels = getattr(getattr(module, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or set(labels) != set(range(len(classes))):
        return None
    ordered = [str(labels[number]).strip().casefold() for number in range(len(classes))]
    own = [name.casefold() for name in classes]
    if own == ordered or sorted(own) != sorted(ordered):
        return None
    return ", ".join(str(labels[number])[:40] for number in range(min(len(classes), LABELS_SHOWN)))


def _known_inputs(inputs: dict[str, Tensor], known: list[str], network: str) -> dict[str, Tensor]:
    if unknown := [name for name in inputs if name not in known and name not in OF_TOKENIZERS]:
        message = f"the network {network} takes no input '{unknown[0]}'"
        raise UserError(message, hint=f"it takes {', '.join(known[:8])}: {NAME_THEM}")
    return {name: tensor for name, tensor in inputs.items() if name in known}


def _row_logits(found: Any, network: str) -> Tensor:
    logits = getattr(found, "logits", None)
    if not isinstance(logits, Tensor):
        raise UserError(f"the network {network} has no logits: it has no head", hint=f"expected {HEADS}")
    if logits.ndim != 2:
        shape = tuple(logits.shape)
        message = f"the network {network} gives logits of shape {shape}, expected one row of outputs per input row"
        raise UserError(message, hint=f"expected {HEADS}; no tagging of tokens, no language model")
    return logits


@contextmanager
def _masks_without_branches() -> Iterator[None]:
    """Attention masks are made in the same way for every row: torch.func cannot branch on the values of a mask."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks

    original = masks["eager"]
    masks["eager"] = partial(_always_made, original)
    try:
        yield
    finally:
        masks["eager"] = original


def _always_made(make: Any, *args: Any, **options: Any) -> Any:
    return make(*args, **{**options, "allow_is_bidirectional_skip": False})


class _NothingInFloat32(TorchFunctionMode):
    """In a float64 network everything is float64; some layers of transformers would round to float32 inside."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wider = [torch.float64 if arg is torch.float32 else arg for arg in args]
        named = {name: torch.float64 if arg is torch.float32 else arg for name, arg in (kwargs or {}).items()}
        own: Any = Tensor.double if func is Tensor.float else func
        return own(*wider, **named)
