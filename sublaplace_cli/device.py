"""The only user of torch.cuda: which device, how much memory is free on it, waiting for it."""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from .errors import UserError

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)

# What may be taken of the memory that is free: the rest is for the interpreter, the file cache and others.
SAFE_SHARE = 0.6


def choose(name: str) -> torch.device:
    """`auto` is CUDA where there is one; asking for a CUDA device that is not there is an error."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True  # rows that are computed again must give the same bits
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name} is not a device", hint="expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {name}: there is no CUDA device here", hint="use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: there are only {torch.cuda.device_count()} CUDA devices here")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name} is not supported", hint="expected auto, cpu, cuda or cuda:N")
    return device


def of_rank(name: str, local_rank: int) -> torch.device:
    """The device of one of several ranks on a machine: where it has several CUDA devices, one each."""
    device = choose(name)
    if device.type == "cuda":
        if device.index is None:
            device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that are free on the device; on the CPU, within the limits of the machine and the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min(_machine_available(), _container_available())


def release(device: torch.device) -> None:
    """Give back what the allocator holds without using it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def room_for(device: torch.device) -> Callable[..., Tensor]:
    """What makes host memory that is on its way to the device: pinned, so that it is moved without a copy."""
    return partial(torch.empty, pin_memory=True) if device.type == "cuda" else torch.empty


def move(host: Tensor, device: torch.device) -> Tensor:
    """To the device, beside what it computes: its work on the tensor waits for the move, nothing else does."""
    if device.type != "cuda":
        return host.to(device)
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    stream, current = _streams[device], torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        there = host.to(device, non_blocking=True)
    current.wait_stream(stream)
    there.record_stream(current)  # its memory is not used again before the work on it is done
    return there


_streams: dict[torch.device, torch.cuda.Stream] = {}  # for moves, one a device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given, so that times are true."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory() -> int:
    """The most memory that this process has had so far."""
    seen = _kilobytes("/proc/self/status", "VmHWM:")
    if seen is not None:
        return seen * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _machine_available() -> int:
    seen = _kilobytes("/proc/meminfo", "MemAvailable:")
    return seen * 1024 if seen is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _kilobytes(path: str, name: str) -> int | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), None)


def _container_available() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
    return 2**62 if limit == "max" else max(0, int(limit) - used)
