"""Names in a checkpoint → names in the network: prefixes, `rename`, and a mapping to suggest where they do not fit."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from ...errors import UserError
from ..spec.models import WeightsSpec

State = dict[str, Tensor]
Pairs = Mapping[str, str]  # old → new

# Added to each name by DataParallel, torch.compile and training frameworks.
COMMON_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.")
COUNTER = "num_batches_tracked"  # of BatchNorm; no output depends on it
MOST_SUGGESTED = 200  # entries of a mapping in a message


def named_for(expected: Mapping[str, Tensor], state: State, path: Path, options: WeightsSpec | None) -> State:
    """The state under the names that fit `expected` best: as they are, or without prefixes that all of them have."""
    if options is not None:
        state = _strip(path, state, options.strip_prefix)
        state = _rename(path, state, options.rename)
    prefix = (options and options.prefix) or ""
    forms = [{prefix + name: tensor for name, tensor in form.items()} for form in without_common_prefixes(state)]
    return max(forms, key=lambda form: sum(name in expected for name in form))


def without_common_prefixes(state: Mapping[str, Tensor]) -> list[State]:
    """The state as it is, and without known prefixes that all names have, dropped one after the other."""
    forms = [dict(state)]
    while prefix := next((p for p in COMMON_PREFIXES if forms[-1] and all(n.startswith(p) for n in forms[-1])), None):
        forms.append({name.removeprefix(prefix): tensor for name, tensor in forms[-1].items()})
    return forms


def _strip(path: Path, state: State, prefix: str | None) -> State:
    if not prefix:
        return state
    if not any(name.startswith(prefix) for name in state):
        hint = f"the keys are {some(state)}"
        raise UserError(f"{path}: no key starts with strip_prefix '{prefix}'", hint=hint)
    whole = prefix if prefix.endswith(".") else f"{prefix}."
    # 'module' means 'module.' if keys continue that way
    cut = whole if any(name.startswith(whole) for name in state) else prefix
    return _with_new_names(path, state, {name: name.removeprefix(cut) for name in state}, "strip_prefix")


def _rename(path: Path, state: State, rename: Pairs) -> State:
    """By names as they are in the file, if all rules match there; otherwise without prefixes that all names have."""
    if not rename:
        return state
    forms = without_common_prefixes(state)
    unmatched = [[old for old in rename if not any(_matches(old, name) for name in form)] for form in forms]
    chosen = next((form for form, missing in zip(forms, unmatched, strict=True) if not missing), None)
    if chosen is None:
        best = min(unmatched, key=len)
        shown = [f"the keys are {some(forms[0])}", *(f"without a known prefix: {some(form)}" for form in forms[1:])]
        raise UserError(f"{path}: rename '{best[0]}' matches no key", hint="; ".join(shown))
    return _with_new_names(path, chosen, new_names(chosen, rename), "rename")


def new_names(names: Iterable[str], rename: Pairs) -> dict[str, str]:
    """Every name with its new one: by the rule with the most literal characters; the others stay."""
    found = {}
    for name in names:
        rules = [(len(old.replace("*", "")), old) for old in rename if _matches(old, name)]
        best = [old for length, old in rules if length == max(rules)[0]]
        answers = {_filled(old, rename[old], name) for old in best} or {name}
        if len(answers) > 1:
            raise UserError(f"rename {' and '.join(map(repr, best))} match '{name}' equally well", hint="name it alone")
        found[name] = answers.pop()
    return found


def _matches(old: str, name: str) -> re.Match[str] | None:
    """Of a whole name, or of its beginning if the rule ends with a dot; each * is a part between two dots."""
    if "*" not in old and not name.startswith(old):  # the usual rules, without a regular expression
        return None
    pattern = "([^.]+)".join(map(re.escape, old.split("*")))
    return re.match(pattern, name) if old.endswith(".") else re.fullmatch(pattern, name)


def _filled(old: str, new: str, name: str) -> str:
    match = _matches(old, name)
    assert match is not None, "the rule was chosen because it matches"
    first, *rest = new.split("*")
    return first + "".join(map("".join, zip(match.groups(), rest, strict=True))) + name[match.end() :]


def _with_new_names(path: Path, state: State, names: Pairs, option: str) -> State:
    renamed: State = {}
    for name, tensor in state.items():
        if names[name] in renamed:
            raise UserError(f"{path}: after {option} two keys have the name '{names[name]}' (one was '{name}')")
        renamed[names[name]] = tensor
    return renamed


def some(names: Iterable[str]) -> str:
    """The first ten of some names, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:10]) + (f" ... and {len(listed) - 10} more" if len(listed) > 10 else "")


def natural_order(name: str) -> list[tuple[bool, int, str]]:
    """A key to sort names by: fc2 before fc10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,9})", name)]


def suggested_rename(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """`rename: {…}` for tensors whose shapes are in order those of the network; None if they are not."""
    pairs = _pairs_in_order(state, expected)
    if pairs is None or len(pairs) > MOST_SUGGESTED:
        return None
    proposals = [short for short in _shortened(pairs) if _says(short, pairs)]
    best = min([*proposals, pairs], key=len)
    entries = ", ".join(f"{_quoted(old)}: {_quoted(new)}" for old, new in best.items() if old != new)
    return f"rename: {{{entries}}}" if entries else None


def _quoted(name: str) -> str:
    return json.dumps(name)  # a text in YAML too, even where it looks like a number


def _pairs_in_order(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Pairs | None:
    """Layer by layer, in the order of the file or of the names: a safetensors file does not keep the order."""
    theirs, own = _by_layer(state), _by_layer(expected)
    orders = [list(theirs), sorted(theirs, key=natural_order)]
    for order in orders if len(theirs) == len(own) else []:
        if [theirs[layer] for layer in order] == [*own.values()]:
            pairs = zip(order, own, strict=True)
            return {_name(old, part): _name(new, part) for old, new in pairs for part in theirs[old]}
    names, needed = ([name for name in tensors if not name.endswith(COUNTER)] for tensors in (state, expected))
    if [state[name].shape for name in names] == [expected[name].shape for name in needed]:
        return dict(zip(names, needed, strict=True))
    return None


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, tuple[int, ...]]]:
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        layer, _, part = name.rpartition(".")
        if part != COUNTER:
            layers.setdefault(layer, {})[part] = tuple(tensor.shape)
    return layers


def _name(layer: str, part: str) -> str:
    return f"{layer}.{part}" if layer else part


def _shortened(pairs: Pairs) -> Iterator[Pairs]:
    """Rules for prefixes in place of names: as short as possible, with and without stars for numbers."""
    for longest in (True, False):
        rules = dict(_head(old, new, longest) for old, new in pairs.items())
        yield rules
        yield dict(_starred(*rule) for rule in rules.items())


def _head(old: str, new: str, shortest: bool) -> tuple[str, str]:
    """Both without the parts that they end with together: all of these, or one."""
    theirs, own = old.split("."), new.split(".")
    while len(theirs) > 1 and len(own) > 1 and theirs[-1] == own[-1]:
        theirs, own = theirs[:-1], own[:-1]
        if not shortest:
            break
    dot = "." if len(theirs) < old.count(".") + 1 else ""
    return ".".join(theirs) + dot, ".".join(own) + dot


def _starred(old: str, new: str) -> tuple[str, str]:
    theirs, own = ([part for part in name.split(".") if part.isdigit()] for name in (old, new))
    if theirs != own:
        return old, new
    return tuple(".".join("*" if part.isdigit() else part for part in name.split(".")) for name in (old, new))  # type: ignore[return-value]


def _says(rules: Pairs, pairs: Pairs) -> bool:
    try:
        return new_names(pairs, rules) == dict(pairs)
    except UserError:
        return False
