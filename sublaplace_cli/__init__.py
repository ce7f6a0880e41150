"""Sub-network Laplace approximations over PyTorch networks.

    from sublaplace_cli import Regression, fit, jacobian, precision, select

    omega = precision(jacobian(model, x_train), Regression(noise_variance=0.35), prior_precision=1.0)
    posterior = fit(omega, select(omega, "greedy", k=1000))
    std = posterior.variance(jacobian(model, x_test)).sqrt()

The names below are imported when they are first used: `import sublaplace_cli` alone loads no torch.
"""

import os as _os
import sys as _sys


def _is_run_by_name() -> bool:
    """Whether this is `python -m sublaplace_cli`, or a module of the package: argv[0] is "-m" during this import."""
    if _sys.argv[:1] != ["-m"] or len(_sys.orig_argv) < len(_sys.argv):
        return False
    word = _sys.orig_argv[-len(_sys.argv)].split(".")[0]  # "name", or options in one word: "-Bmname"
    return word == __name__ or (word.startswith("-") and word.endswith(f"m{__name__}"))


def _remove_working_folder() -> None:
    """Take the entry off the import path that `python -m` puts there: a yaml.py beside the spec must not run."""
    try:
        if not _sys.flags.safe_path and _sys.path[0] == _os.getcwd():
            del _sys.path[0]
    except OSError:  # the working folder was deleted: python has added no entry
        return


# Before the first import from a file: until here, all modules are built in or were loaded to start Python.
if _is_run_by_name():
    _remove_working_folder()

from importlib import import_module as _import_module  # noqa: E402
from typing import TYPE_CHECKING as _TYPE_CHECKING  # noqa: E402
from typing import Any as _Any  # noqa: E402

__version__ = "0.1.0"

if _TYPE_CHECKING:
    from .api.command import run_command
    from .api.library import dense_jacobian, fit, fit_path, full_posterior, jacobian, precision, select, variances
    from .api.predictor import load_predictor
    from .architectures.cifar_resnet import cifar_resnet
    from .architectures.mlp import mlp
    from .core.features.beside import Beside
    from .core.features.sketch import Sketch
    from .core.features.subset import Subset
    from .core.likelihoods.binary import Binary
    from .core.likelihoods.heteroscedastic import Heteroscedastic
    from .core.likelihoods.multiclass import Multiclass
    from .core.likelihoods.regression import Regression
    from .errors import SublaplaceError

_LIBRARY = ("dense_jacobian", "fit", "fit_path", "full_posterior", "jacobian", "precision", "select", "variances")
_MODULES = {
    **dict.fromkeys(_LIBRARY, "api.library"),
    **{"load_predictor": "api.predictor", "run_command": "api.command", "SublaplaceError": "errors"},
    **{"cifar_resnet": "architectures.cifar_resnet", "mlp": "architectures.mlp"},
    **{name: f"core.features.{name.lower()}" for name in ("Beside", "Sketch", "Subset")},
    **{name: f"core.likelihoods.{name.lower()}" for name in ("Binary", "Heteroscedastic", "Multiclass", "Regression")},
}
__all__ = ["Beside", "Binary", "Heteroscedastic", "Multiclass", "Regression", "Sketch", "SublaplaceError", "Subset"]
__all__ += ["cifar_resnet", "dense_jacobian", "fit", "fit_path", "full_posterior", "jacobian", "load_predictor", "mlp"]
__all__ += ["precision", "run_command", "select", "variances"]


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
