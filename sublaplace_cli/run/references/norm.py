"""`norm`: covariance b·G V⁻¹ Gᵀ, b fitted to the full posterior on left-out training rows. No sub-network is used."""

from ...core.gaussian import Gaussian
from ...core.posterior.rescale import Rescale, fit_scale
from ...core.prediction import Prediction
from ...files.artifacts.artifact import Artifact
from ..store import Content, Key
from . import ReferenceInputs


def predict(inputs: ReferenceInputs) -> Prediction:
    """A calibration replaces the fit to the full posterior; that fit at the test rows is stored."""
    run = inputs.problem.run
    if run.calibrates:
        return Prediction(inputs.name, None, Gaussian(inputs.f, inputs.rows.products), None)
    test = inputs.rows.test
    if test is None:
        return _fitted(inputs)
    needed = {**test.inputs, **run.full_inputs}
    key = Key("predictions", test.stem(stem(inputs.name)), needed, {"method": inputs.name, "k": None}, "predict")

    def read(artifact: Artifact) -> Prediction:
        covariance = artifact.tensor("covariance", (*inputs.f.shape, inputs.f.shape[1])).to(run.device)
        rescale = Rescale(artifact.meta["rescale"], artifact.meta["remainder"])
        return Prediction(inputs.name, None, Gaussian(inputs.f, covariance), None, rescale)

    return run.store.get(key, lambda: _fitted(inputs), read, _content).value


def stem(name: str) -> str:
    """Name of the artifact with its predictions."""
    return f"predictions-{name}"


def _fitted(inputs: ReferenceInputs) -> Prediction:
    problem, products = inputs.problem, inputs.rows.products
    sigma = problem.full.left_out.variances[:, problem.means].clamp(min=0.0).sqrt().flatten()
    norms = problem.full.left_out_products.diagonal(dim1=1, dim2=2)[:, problem.means].flatten()
    root = fit_scale(sigma, norms.sqrt())
    b = 0.0 if root is None else root**2
    return Prediction(inputs.name, None, Gaussian(inputs.f, b * products), None, Rescale(1.0, b))


def _content(made: Prediction) -> Content | None:
    """Nothing if a left-out variance is not a number: no artifact may hold one."""
    outputs, rescale = made.outputs, made.rescale
    if not bool(outputs.covariance.isfinite().all()):
        return None
    tensors = {"mean": outputs.mean, "std": outputs.std, "covariance": outputs.covariance}
    return tensors, {"freedom": None, "rescale": rescale.c, "remainder": rescale.b}
