"""One list of small problems for all tests: each has a 2-D weight, a bias, and something that can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


class ResidualConv(nn.Module):
    """Convolutions, BatchNorm with lived-in statistics, a shortcut."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.linear = nn.Linear(4, out)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return self.linear((h + self.conv2(h)).mean(dim=(2, 3)))


class Attention(nn.Module):
    """Embedding, LayerNorm, multi-head attention, pooled over tokens."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, out)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.norm(self.embed(tokens))
        return self.head((h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


class Tied(nn.Module):
    """One weight used twice, by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = nn.Linear(5, 5)
        self.second.weight = self.first.weight
        self.out = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x))))).squeeze(1)


class TwoInputs(nn.Module):
    """Takes one dict of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(3, 4)
        self.right = nn.Linear(2, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.out(torch.tanh(self.left(inputs["a"]) + self.right(inputs["b"])))


class GroupedConv(nn.Module):
    """Grouped and dilated convolutions over time, with GroupNorm; the first has a stride that leaves a place over."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2)
        self.norm = nn.GroupNorm(2, 4)
        self.conv2 = nn.Conv1d(4, 4, 2, dilation=2, groups=4, bias=False)
        self.linear = nn.Linear(4, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.tanh(self.conv2(torch.relu(self.norm(self.conv1(x))))).mean(2))


class TokenBlock(nn.Module):
    """Tokens, one of them padding, mixed by their mean; LayerNorm and an MLP at each; the table is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4, padding_idx=0)
        self.mix = nn.Linear(4, 4, bias=False)
        self.norm = nn.LayerNorm(4)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens)
        h = h + torch.tanh(self.mix(h)).mean(1, keepdim=True)
        h = h + self.down(torch.nn.functional.gelu(self.up(self.norm(h))))
        return self.head(h.mean(1))


def _mlp(sizes: list[int], act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def _positions() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2))


def _frozen() -> nn.Module:
    model = _mlp([4, 6, 5, 1])
    model[2].requires_grad_(False)
    return model


def _lived_in(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn_like(module.running_mean) * 0.3
            module.running_var = torch.rand_like(module.running_var) + 0.5
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


@dataclass(frozen=True)
class Case:
    name: str
    task: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor | dict[str, Tensor] | tuple[Tensor, ...]]
    n_outputs: int = 1
    n_train: int = 23
    n_test: int = 9
    outputs: str | None = None  # another meaning of the outputs than the task's usual one

    @property
    def kind(self) -> str:
        """The likelihood, as the reference calls it."""
        return self.outputs or self.task

    def make(self, dtype: torch.dtype = torch.float64):
        """(model, training inputs, training targets, test inputs, test targets), seeded."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            model = _lived_in(self.build()).to(dtype).eval()
            train, test = self._cast(self.inputs(self.n_train), dtype), self._cast(self.inputs(self.n_test), dtype)
            return model, train, self._targets(self.n_train), test, self._targets(self.n_test)

    def _targets(self, n: int) -> Tensor:
        if self.task == "regression":
            return torch.randn(n, self.n_outputs // (2 if self.outputs else 1), dtype=torch.float64)
        classes = 2 if self.task == "binary" else self.n_outputs
        return torch.arange(n) % classes

    def _cast(self, inputs, dtype):
        def one(t: Tensor) -> Tensor:
            return t.to(dtype) if t.is_floating_point() else t

        return {k: one(t) for k, t in inputs.items()} if isinstance(inputs, dict) else one(inputs)


def _images(n: int) -> Tensor:
    return torch.randn(n, 2, 5, 5)


def _series(n: int) -> Tensor:
    return torch.randn(n, 2, 10)


def _few_tokens(n: int) -> Tensor:
    return torch.randint(0, 5, (n, 4))


def _tokens(n: int) -> Tensor:
    return torch.randint(0, 11, (n, 6))


OWN = "mean-and-log-variance"
CASES = [
    Case("linear", "regression", lambda: nn.Sequential(nn.Linear(5, 1)), lambda n: torch.randn(n, 5)),
    Case("mlp", "regression", lambda: _mlp([4, 7, 6, 1]), lambda n: torch.randn(n, 4)),
    Case("mlp-3-outputs", "regression", lambda: _mlp([4, 6, 3], nn.Tanh), lambda n: torch.randn(n, 4), n_outputs=3),
    Case("conv", "regression", lambda: ResidualConv(1), _images),
    Case("conv-binary", "binary", lambda: ResidualConv(1), _images),
    Case("conv-multiclass", "multiclass", lambda: ResidualConv(3), _images, n_outputs=3),
    Case("mlp-multiclass", "multiclass", lambda: _mlp([4, 6, 4]), lambda n: torch.randn(n, 4), n_outputs=4),
    Case("attention", "regression", lambda: Attention(2), _tokens, n_outputs=2),
    Case("tied", "regression", Tied, lambda n: torch.randn(n, 5)),
    Case("frozen", "binary", _frozen, lambda n: torch.randn(n, 4)),
    Case("two-inputs", "regression", TwoInputs, lambda n: {"a": torch.randn(n, 3), "b": torch.randn(n, 2)}),
    Case("grouped-conv", "binary", lambda: GroupedConv(1), _series),
    Case("token-block", "multiclass", TokenBlock, _few_tokens, n_outputs=5),
    Case("mlp-over-positions", "regression", _positions, lambda n: torch.randn(n, 3, 4), n_outputs=2),
    Case("mlp-own-noise", "regression", lambda: _mlp([4, 6, 4], nn.Tanh), lambda n: torch.randn(n, 4), 4, outputs=OWN),
]
