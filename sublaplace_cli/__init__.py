"""Sub-network Laplace approximations over PyTorch networks.

    from sublaplace_cli import Regression, fit, jacobian, precision, select

    omega = precision(jacobian(model, x_train), Regression(noise_variance=0.35), prior_precision=1.0)
    posterior = fit(omega, select(omega, "greedy", k=1000))
    std = posterior.variance(jacobian(model, x_test)).sqrt()

The names below are imported when they are first used: `import sublaplace_cli` alone loads no torch.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

__version__ = "0.1.0"

if _TYPE_CHECKING:
    from .api.command import run_command
    from .api.library import dense_jacobian, fit, fit_path, full_posterior, jacobian, precision, select, variances
    from .api.predictor import load_predictor
    from .architectures.cifar_resnet import cifar_resnet
    from .architectures.mlp import mlp
    from .core.likelihoods.binary import Binary
    from .core.likelihoods.multiclass import Multiclass
    from .core.likelihoods.regression import Regression
    from .errors import SublaplaceError

_LIBRARY = ("dense_jacobian", "fit", "fit_path", "full_posterior", "jacobian", "precision", "select", "variances")
_MODULES = {
    **dict.fromkeys(_LIBRARY, "api.library"),
    **{"load_predictor": "api.predictor", "run_command": "api.command", "SublaplaceError": "errors"},
    **{"cifar_resnet": "architectures.cifar_resnet", "mlp": "architectures.mlp"},
    **{name: f"core.likelihoods.{name.lower()}" for name in ("Binary", "Multiclass", "Regression")},
}
__all__ = ["Binary", "Multiclass", "Regression", "SublaplaceError", "cifar_resnet", "dense_jacobian", "fit", "fit_path"]
__all__ += ["full_posterior", "jacobian", "load_predictor", "mlp", "precision", "run_command", "select", "variances"]


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f".{_MODULES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
