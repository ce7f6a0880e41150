"""Single-logit ResNets for Setup B, fine-tuned from the ten-class checkpoints in minutes instead of 100 epochs.

As in the paper: binary cross-entropy, SGD with Nesterov momentum 0.9, weight decay 1e-4, batches of 128, a cosine
schedule to 0, crops after reflective padding by 4 pixels and flips. Not as in the paper: the start is a trained
ten-class network instead of noise, so the rate begins at 0.01 instead of 0.1, and there are few epochs over 10,000
images. A depth without a checkpoint is grown from the largest one below it (see `grown`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from common import save_weights
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from sublaplace_cli import cifar_resnet

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAINED = (20, 56)  # depths of the ten-class checkpoints
UPPER = (5, 6, 7, 8, 9)
BATCH, RATE, PADDING = 128, 0.01, 4
EPOCHS = {20: 5, 56: 3, 110: 2}


def weights_name(depth: int) -> str:
    return f"resnet{depth}_cifar10_akamaster.safetensors"


def train(data: Path, depth: int, out: Path, quick: bool) -> None:
    """Fine-tune and save, unless the file exists."""
    if out.exists():
        return
    torch.manual_seed(0)
    start = max(trained for trained in TRAINED if trained <= depth)
    ten = cifar_resnet(depth=start, out=10, shortcut="A")
    ten.load_state_dict(load_file(data / weights_name(start)))
    model = one_logit(ten if start == depth else grown(ten, depth))
    with np.load(data / "cifar10_train_10000.npz") as rows:
        images = torch.from_numpy(rows["x"]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(np.isin(rows["y"], UPPER))
    finetune(model, images, labels.float(), 1 if quick else EPOCHS[depth])
    save_weights(model, out)


def one_logit(model: nn.Module) -> nn.Module:
    """The same network with one output; its head starts as the difference of the two groups' mean class weights."""
    old, new = model.linear, nn.Linear(64, 1)
    side = torch.full((old.out_features,), -1 / (old.out_features - len(UPPER)))
    side[list(UPPER)] = 1 / len(UPPER)
    with torch.no_grad():
        new.weight.copy_(side @ old.weight)
        new.bias.copy_(side @ old.bias)
    model.linear = new
    return model


def grown(model: nn.Module, depth: int) -> nn.Module:
    """The same function with more blocks: the new ones, distributed between the old, start with γ = 0 in their last
    normalisation, and relu(x + 0) = x where x is the output of a relu."""
    deep = cifar_resnet(depth=depth, out=model.linear.out_features, shortcut="A")
    for name in ("conv1", "bn1", "linear"):
        getattr(deep, name).load_state_dict(getattr(model, name).state_dict())
    for stage in ("layer1", "layer2", "layer3"):
        old, new = getattr(model, stage), getattr(deep, stage)
        copied = {i * len(new) // len(old): block for i, block in enumerate(old)}
        for i, block in enumerate(new):
            if i in copied:
                block.load_state_dict(copied[i].state_dict())
            else:
                nn.init.zeros_(block.bn2.weight)
    return deep


def finetune(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    """Epochs over uint8 images (N, 3, 32, 32); leaves the model in eval mode."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=1e-4)
    batches = -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    model.train()
    for epoch in range(epochs):
        losses = []
        for batch in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad(set_to_none=True)
            logits = model(normalised(augmented(images[batch]))).squeeze(1)
            loss = F.binary_cross_entropy_with_logits(logits, labels[batch])
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        sys.stderr.write(f"cifar: fine-tuning, epoch {epoch + 1} of {epochs}: loss {np.mean(losses):.4f}\n")
    model.eval()


def augmented(images: Tensor) -> Tensor:
    """Each image flipped with probability 1/2 and shifted by up to four pixels in each direction."""
    count, _, height, width = images.shape
    padded = F.pad(images.float(), (PADDING,) * 4, mode="reflect")
    down, right = torch.randint(2 * PADDING + 1, (2, count, 1))
    columns = right + torch.arange(width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    rows = down + torch.arange(height)
    each = torch.arange(count).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[each, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2).contiguous()


def normalised(images: Tensor) -> Tensor:
    return (images / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
