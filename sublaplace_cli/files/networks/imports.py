"""`package.module:function`: networks and selectors from the user's own code, if allowed."""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from os.path import dirname
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ...errors import UserError, suggestion


def build_imported(
    target: str, args: Mapping[str, Any], field: str, allow_code: Sequence[str], spec_folder: Path
) -> tuple[nn.Module, tuple[Path, ...]]:
    """The network that "package.module:function" returns, and the source files of its package."""
    function = load_function(target, field, allow_code, spec_folder)
    try:
        with _import_path(spec_folder):
            built = function(**args)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _raised(f"{target}({', '.join(f'{k}={v!r}' for k, v in args.items())})", error, field) from error
    if not isinstance(built, nn.Module):
        raise UserError(f"{field}: {target} returned a {type(built).__name__}, expected a torch.nn.Module")
    if any(parameter.is_meta for parameter in built.parameters()):
        raise UserError(f"{field}: {target} returned a network without values (device 'meta'), expected real ones")
    return built, _source_files(sys.modules[target.partition(":")[0].split(".")[0]], spec_folder)


def load_function(target: str, field: str, allow_code: Sequence[str], spec_folder: Path) -> Any:
    """The function behind "package.module:function", if its package is allowed; `field` is for messages."""
    module_name, colon, function_name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), function_name]):
        raise UserError(f"{field}: found '{target}', expected 'package.module:function'")
    package = module_name.split(".")[0]
    if package not in allow_code:
        message = f"{field}: '{target}' would run the code of the package '{package}', which is not allowed"
        hint = f"if you trust it, add --allow-code {package} (or set SUBLAPLACE_ALLOW_CODE={package})"
        raise UserError(message, hint=hint)
    with _import_path(spec_folder):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise UserError(f"{field}: importing {module_name} failed: {error}", hint="install it") from error
            hint = "it must be in the folder of the spec or installed"
            raise UserError(f"{field}: there is no module '{error.name}'", hint=hint) from error
        except (Exception, SystemExit) as error:  # the user's code can raise anything
            raise _raised(f"importing {module_name}", error, field) from error
        if not callable(getattr(module, function_name, None)):
            known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            hint = suggestion(function_name, known) if known else "define it there"
            raise UserError(f"{field}: module '{module_name}' has no function '{function_name}'", hint=hint)
        return getattr(module, function_name)


@contextmanager
def _import_path(folder: Path) -> Iterator[None]:
    """For the user's code: imports from `folder` too, and what it prints goes to stderr, as stdout is the result's."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _raised(what: str, error: BaseException, field: str) -> UserError:
    return UserError(f"{field}: {what} raised {type(error).__name__}: {error}", hint="--debug shows the traceback")


def _source_files(package: ModuleType, spec_folder: Path) -> tuple[Path, ...]:
    """The code that the numbers depend on: the package, and all modules loaded from the spec's folder."""
    found = {file.resolve() for folder in getattr(package, "__path__", []) for file in Path(folder).rglob("*.py")}
    loaded = {source for module in [*sys.modules.values()] if (source := getattr(module, "__file__", None))}
    # torch has thousands of modules in a few hundred folders: each folder is resolved once.
    root = spec_folder.resolve()
    inside = {
        folder for folder in {dirname(source) for source in loaded} if Path(folder).resolve().is_relative_to(root)
    }
    found |= {Path(source).resolve() for source in loaded if dirname(source) in inside or source == package.__file__}
    # Some modules name a file that does not exist (torch.classes).
    return tuple(sorted(file for file in found if file.suffix == ".py" and file.is_file()))
