"""One case of laplace-torch in this process: `python peer.py CASE BACKEND BATCH` prints {seconds, peak} as JSON."""

from __future__ import annotations

import json
import sys
import warnings

import problems
import torch
from laplace import FunctionalLaplace
from laplace.curvature import AsdlGGN, BackPackGGN, CurvlinopsGGN
from laplace.subnetlaplace import FullSubnetLaplace
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BACKENDS = {"curvlinops": CurvlinopsGGN, "backpack": BackPackGGN, "asdl": AsdlGGN}


def resnet20() -> nn.Module:
    from sublaplace_cli import cifar_resnet

    return cifar_resnet(depth=20, out=1, shortcut="B")


def subnet(model: nn.Module, x: Tensor, x_test: Tensor, k: int, backend: type, batch: int) -> Tensor:
    size = sum(parameter.numel() for parameter in model.parameters())
    indices = torch.randperm(size, generator=torch.Generator().manual_seed(0))[:k].sort().values
    options = {"subnetwork_indices": indices, "sigma_noise": problems.SIGMA2**0.5, "prior_precision": 1.0}
    posterior = FullSubnetLaplace(model, "regression", backend=backend, **options)
    posterior.fit(DataLoader(TensorDataset(x, torch.zeros(len(x), 1, device=x.device)), batch_size=batch))
    parts = [posterior._glm_predictive_distribution(x_test[a : a + batch])[1] for a in range(0, len(x_test), batch)]
    return torch.cat(parts)


def functional(model: nn.Module, x: Tensor, x_test: Tensor, backend: type, batch: int) -> Tensor:
    options = {"sigma_noise": problems.SIGMA2**0.5, "prior_precision": 1.0}
    posterior = FunctionalLaplace(model, "regression", n_subset=len(x), backend=backend, **options)
    posterior.fit(DataLoader(TensorDataset(x, torch.zeros(len(x), 1, device=x.device)), batch_size=batch))
    parts = [posterior._glm_predictive_distribution(x_test[a : a + batch])[1] for a in range(0, len(x_test), batch)]
    return torch.cat(parts)


def main() -> None:
    warnings.simplefilter("ignore")
    case, backend, batch = sys.argv[1], BACKENDS[sys.argv[2]], int(sys.argv[3])
    if case.startswith("mlp"):
        model = problems.ready(problems.mlp)
        x, x_test = problems.rows(2000, 90, seed=1), problems.rows(1000, 90, seed=2)
    else:
        model = problems.ready(resnet20)
        x, x_test = problems.rows(500, 3, 32, 32, seed=1), problems.rows(200, 3, 32, 32, seed=2)
    if case == "mlp-full":
        work = lambda: functional(model, x, x_test, backend, batch)  # noqa: E731
    else:
        k = int(case.rpartition("k")[2])
        work = lambda: subnet(model, x, x_test, k, backend, batch)  # noqa: E731
    seconds, variance = problems.timed(work, repeats=int(sys.argv[4]))
    json.dump({"seconds": seconds, "mean_variance": float(variance.mean()), "peak": problems.peak_bytes()}, sys.stdout)


if __name__ == "__main__":
    main()
