"""The only user of torch.cuda: choose a device, measure its free memory, copy to it, wait for it."""

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
# Share of the free memory that a run uses: the rest is for the interpreter, the file cache and other processes.
SAFE_SHARE = 0.6
_streams: dict[torch.device, torch.cuda.Stream] = {}  # for moves, one per device


def choose(name: str) -> torch.device:
    """The device of this name; `auto` is CUDA if available, else the CPU. Raises if there is no such device."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True  # recomputed rows must give the same bits
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name} is not a device", hint="expected auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--device {name}: no CUDA device found", hint="use --device cpu or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: found only {torch.cuda.device_count()} CUDA devices")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name} is not supported", hint="expected auto, cpu, cuda or cuda:N")
    return device


def of_rank(name: str, local_rank: int) -> torch.device:
    """The device of one of several ranks on a machine: one CUDA device per rank, unless the name has an index."""
    device = choose(name)
    if device.type == "cuda":
        if device.index is None:
            device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


def free_memory(device: torch.device) -> int:
    """Free bytes on the device; on the CPU, within the limits of the machine and the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    machine = _bytes_of("/proc/meminfo", "MemAvailable:")
    if machine is None:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(machine, _container_available())


def release(device: torch.device) -> None:
    """Release the unused memory that the allocator caches."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def room_for(device: torch.device) -> Callable[..., Tensor]:
    """Allocator of host buffers for copies to the device: pinned for CUDA, which saves a copy."""
    return partial(torch.empty, pin_memory=True) if device.type == "cuda" else torch.empty


def move(host: Tensor, device: torch.device) -> Tensor:
    """Copy to the device on a separate stream: later work on the device waits for it, running work does not."""
    if device.type != "cuda":
        return host.to(device)
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    stream, current = _streams[device], torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        moved = host.to(device, non_blocking=True)
    current.wait_stream(stream)
    moved.record_stream(current)  # its memory is not reused before the work on it is done
    return moved


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work, so that measured times are right."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory() -> int:
    """Peak memory of this process so far, in bytes."""
    peak = _bytes_of("/proc/self/status", "VmHWM:")
    if peak is None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak


def _bytes_of(path: str, name: str) -> int | None:
    """A kilobyte entry of a file under /proc, in bytes."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), None)


def _container_available() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
    return 2**62 if limit == "max" else max(0, int(limit) - used)
