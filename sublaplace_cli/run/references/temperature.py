"""`temperature`: the network alone, its logits divided by one number that held-out rows choose."""

from ...catalog import TASKS
from ...core.gaussian import Gaussian
from ...core.prediction import Prediction
from ...errors import UserError
from ..run import Run
from . import ReferenceInputs


def check(run: Run) -> None:
    """Logits are needed, and targets to fit the temperature to."""
    if not TASKS[run.project.spec.task].labels:
        raise UserError(f"--method temperature is for classes: the task is {run.project.spec.task}")
    run.check_held_out("--method temperature")


def predict(inputs: ReferenceInputs) -> Prediction:
    """Before the temperature is fitted, which all rows of a split do together."""
    return Prediction(inputs.name, None, Gaussian.certain(inputs.f), None, own_mean=True)
