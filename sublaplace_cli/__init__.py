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

_MODULES = {
    "api.command": ("run_command",),
    "api.library": tuple(
        ["dense_jacobian", "fit", "fit_path", "full_posterior", "jacobian", "precision", "select", "variances"]
    ),
    "api.predictor": ("load_predictor",),
    "architectures.cifar_resnet": ("cifar_resnet",),
    "architectures.mlp": ("mlp",),
    "core.likelihoods.binary": ("Binary",),
    "core.likelihoods.multiclass": ("Multiclass",),
    "core.likelihoods.regression": ("Regression",),
    "errors": ("SublaplaceError",),
}
__all__ = [  # fmt: skip
    "Binary",
    "Multiclass",
    "Regression",
    "SublaplaceError",
    "cifar_resnet",
    "dense_jacobian",
    "fit",
    "fit_path",
    "full_posterior",
    "jacobian",
    "load_predictor",
    "mlp",
    "precision",
    "run_command",
    "select",
    "variances",
]


def __getattr__(name: str) -> _Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
