"""`package.module:function`: networks and selectors made by the user's own code, if they allowed it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ...errors import UserError, suggestion


def build_imported(
    target: str, args: Mapping[str, Any], *, field: str, allow_code: Sequence[str], spec_folder: Path
) -> tuple[nn.Module, tuple[Path, ...]]:
    """Call the function behind "package.module:function"; also gives the source files of its package."""
    place = f"{field}.build.import"
    function = load_function(target, place, allow_code, spec_folder)
    with _import_path(spec_folder):
        built = _call(function, args, target, place)
    package = target.partition(":")[0].split(".")[0]
    if not isinstance(built, nn.Module):
        raise UserError(f"{place}: {target} returned a {type(built).__name__}, expected a torch.nn.Module")
    if any(parameter.is_meta for parameter in built.parameters()):
        raise UserError(f"{place}: {target} returned a network without values (device 'meta'), expected real ones")
    return built, _source_files(sys.modules[package], spec_folder)


def load_function(target: str, place: str, allow_code: Sequence[str], spec_folder: Path) -> Any:
    """The user's function behind "package.module:function", if they allowed its package; `place` is for messages."""
    module_name, function_name = _parts(target, place)
    package = module_name.split(".")[0]
    if package not in allow_code:
        raise UserError(
            f"{place}: '{target}' would run the code of the package '{package}', which is not allowed",
            hint=f"if you trust it, add --allow-code {package} (or set SUBLAPLACE_ALLOW_CODE={package})",
        )
    with _import_path(spec_folder):
        return _find(module_name, function_name, target, place)


def _parts(target: str, place: str) -> tuple[str, str]:
    module_name, colon, function_name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise UserError(f"{place}: found '{target}', expected 'package.module:function'")
    return module_name, function_name


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _find(module_name: str, function_name: str, target: str, place: str) -> Any:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"{place}: importing {module_name} failed: {error}", hint="install it") from error
        raise UserError(
            f"{place}: there is no module '{error.name}'",
            hint="it is searched beside the spec and among the installed packages",
        ) from error
    except (Exception, SystemExit) as error:  # anything can come out of someone else's code
        raise _raised(f"importing {module_name}", error, place) from error
    if not callable(getattr(module, function_name, None)):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise UserError(
            f"{place}: module '{module_name}' has no function '{function_name}'",
            hint=suggestion(function_name, known) if known else None,
        )
    return getattr(module, function_name)


def _call(function: Any, args: Mapping[str, Any], target: str, place: str) -> Any:
    try:
        return function(**args)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(f"{target}({', '.join(f'{k}={v!r}' for k, v in args.items())})", error, place) from error


def _raised(what: str, error: BaseException, place: str) -> UserError:
    return UserError(f"{place}: {what} raised {type(error).__name__}: {error}", hint="--debug shows where")


def _source_files(package: ModuleType, spec_folder: Path) -> tuple[Path, ...]:
    """The code that a change of which may change numbers: the package, and all that was loaded from beside the spec."""
    found = {file.resolve() for folder in getattr(package, "__path__", []) for file in Path(folder).rglob("*.py")}
    for module in [package, *sys.modules.values()]:
        source = getattr(module, "__file__", None)
        if source and (module is package or Path(source).resolve().is_relative_to(spec_folder.resolve())):
            found.add(Path(source).resolve())
    # Some modules name a file that does not exist (torch.classes): only real ones count.
    return tuple(sorted(file for file in found if file.suffix == ".py" and file.is_file()))
