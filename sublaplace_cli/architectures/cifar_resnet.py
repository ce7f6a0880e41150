"""`arch: cifar_resnet`: the ResNets for 32 × 32 images of He et al. (2016), section 4.2."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .arguments import one_of, positive_int, refuse_unknown, required

DEPTHS = (20, 32, 44, 56, 110)


def cifar_resnet(**args: Any) -> nn.Module:
    """A ResNet; args: depth, out (10), shortcut A (pad) or B (1x1 conv, the default)."""
    refuse_unknown("cifar_resnet", args, ("depth", "out", "shortcut"))
    depth = one_of("cifar_resnet", "depth", required("cifar_resnet", args, "depth", "depth: 20, out: 10"), DEPTHS)
    outputs = positive_int("cifar_resnet", "out", args.get("out", 10))
    shortcut = one_of("cifar_resnet", "shortcut", args.get("shortcut", "B"), ("A", "B"))
    return CifarResNet(blocks_per_stage=(depth - 2) // 6, outputs=outputs, shortcut=shortcut)


class CifarResNet(nn.Module):
    """conv1, bn1, three stages of 16, 32 and 64 channels, mean over positions, linear."""

    def __init__(self, blocks_per_stage: int, outputs: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = _conv3x3(3, 16, stride=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, 1, blocks_per_stage, shortcut)
        self.layer2 = _stage(16, 32, 2, blocks_per_stage, shortcut)
        self.layer3 = _stage(32, 64, 2, blocks_per_stage, shortcut)
        self.linear = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:  # x (B, 3, H, W)
        h = torch.relu(self.bn1(self.conv1(x)))
        h = self.layer3(self.layer2(self.layer1(h)))
        return self.linear(h.mean(dim=(-2, -1)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; no in-place operation, so that it runs under vmap."""

    def __init__(self, channels_in: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = _conv3x3(channels_in, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv3x3(channels, channels, stride=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = _shortcut(channels_in, channels, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class PadShortcut(nn.Module):
    """Option A: every second position, and zero channels added on both sides."""

    def __init__(self, extra_channels: int) -> None:
        super().__init__()
        self.each_side = extra_channels // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[..., ::2, ::2], (0, 0, 0, 0, self.each_side, self.each_side))


def _shortcut(channels_in: int, channels: int, stride: int, option: str) -> nn.Module:
    if channels_in == channels and stride == 1:
        return nn.Identity()
    if option == "A":
        return PadShortcut(channels - channels_in)
    return nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))


def _stage(channels_in: int, channels: int, stride: int, blocks: int, shortcut: str) -> nn.Sequential:
    first = BasicBlock(channels_in, channels, stride, shortcut)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1, shortcut) for _ in range(blocks - 1)))


def _conv3x3(channels_in: int, channels: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
