"""The kernels compiled ahead of time for GPUs that need not be there: registers, instructions, no TF32.

Needs Triton, whose wheel brings the assembler and the disassembler.
"""

from __future__ import annotations

import os

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)
triton = pytest.importorskip("triton")

import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import triton.language as tl
from kernels import mutations
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from sublaplace_cli.core.kernels.launch import DIGIT_TILES, EXACT_OPTIONS, LINEAR_TILES

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CAPABILITIES = (80, 89, 90, 120)
NAMES = {torch.float64: "fp64", torch.float32: "fp32"}
ALIGNED = "tt.divisibility", 16
SIZES = ("m", "n", "d_in", "d_out", "C", "C2")
STRIDES = ("a_row", "b_row", "d_row", "d_output", "e_row", "e_output", "K_row")


@dataclass(frozen=True)
class Compiled:
    """What one kernel became."""

    registers: int
    stack: int  # bytes per thread: what did not fit into registers
    instructions: Counter[str]  # by their name, without suffixes
    ptx: str
    ttir: str


def folder() -> Path:
    """Of this process: nothing of another version of the kernels is reused."""
    return Path(tempfile.mkdtemp(prefix="kernels-"))


@cache
def kernels(fault: str | None = None):
    """The module of the kernels, or one with a fault."""
    if fault is None:
        from sublaplace_cli.core.kernels import triton_code

        return triton_code
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, mutations.NAME, raising=False)
        return mutations.apply(fault, folder())


def compiled(kernel, types: dict[str, str], constants: dict, options: dict, capability: int, aligned=()) -> Compiled:
    os.environ["TRITON_CACHE_DIR"] = str(folder())
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    attributes = {(kernel.arg_names.index(name),): [list(ALIGNED)] for name in aligned}
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        usage, code = (tool("cuobjdump", option, file.name) for option in ("-res-usage", "-sass"))
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))
    names = Counter(re.findall(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9]+)", code, flags=re.MULTILINE))
    return Compiled(registers, stack, names, found.asm["ptx"], found.asm["ttir"])


def tool(*command: str) -> str:
    env = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
    return subprocess.run(
        [TOOLS / command[0], *command[1:]], env=env, capture_output=True, text=True, check=True
    ).stdout


@cache
def linear(
    dtype: torch.dtype, kept: torch.dtype, several: bool, aligned: bool, capability: int, fault: str | None = None
) -> Compiled:
    """As the launcher compiles it: one output is a constant; sizes and strides that are multiples of 16, or not."""
    pointers = dict.fromkeys("abde", f"*{NAMES[kept]}") | {"K": "*fp64", "numbers": "*fp64"}
    far = {} if aligned else dict.fromkeys(STRIDES, "i64")
    tiles = LINEAR_TILES[several]
    constants = {"UPPER": True, "DTYPE": tl.float64 if dtype == torch.float64 else tl.float32, **tiles.constants}
    constants |= {} if several else {"C": 1, "C2": 1}
    even = [*pointers, *(("d_in", "d_out", *STRIDES) if aligned else ())]
    return compiled(kernels(fault).outer_gram_kernel, pointers | far, constants, tiles.options, capability, even)


@cache
def digits(s: int, upper: bool, capability: int) -> Compiled:
    pointers = {"a": "*i8", "b": "*i8"} | dict.fromkeys(("K", "a_scale", "b_scale", "numbers"), "*fp64")
    constants, options = {"UPPER": upper, "S": s, **DIGIT_TILES.constants}, {**DIGIT_TILES.options, **EXACT_OPTIONS}
    kernel = kernels().level_gram_kernel
    return compiled(kernel, pointers | {"K_row": "i64"}, constants, options, capability, [*pointers, "depth"])


def report(name: str, found: Compiled, record_property) -> None:
    """For the table that the job prints."""
    kinds = ("DMMA", "DFMA", "IMMA", "IGMMA", "FFMA", "HMMA")
    counts = ", ".join(f"{found.instructions[kind]} {kind}" for kind in kinds if found.instructions[kind])
    record_property("kernel", f"{name}: {found.registers} registers, {found.stack} bytes of stack, {counts}")


each_capability = pytest.mark.parametrize("capability", CAPABILITIES)
each_alignment = pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "odd"])
each_count = pytest.mark.parametrize("several", [False, True], ids=["one output", "several"])


def fits(found: Compiled) -> bool:
    return found.stack == 0 and not found.instructions["LDL"] and not found.instructions["STL"]


def masked_loads(ttir: str) -> list[int]:
    """Of each load with a mask, the number of its operands: the third is what stands for what is not read."""
    loads = re.findall(r"tt\.load ([^:]*?)(?: \{[^}]*\})? :", ttir)
    return [len(operands.split(",")) for operands in loads if "," in operands]


@each_capability
@each_alignment
@each_count
@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.float64, torch.float64), (torch.float64, torch.float32), (torch.float32, torch.float32)],
    ids=["float64", "float64 of float32", "float32"],
)
def test_linear_layers(dtype, kept, several, aligned, capability, record_property):
    found = linear(dtype, kept, several, aligned, capability)
    words = f"{NAMES[dtype]} of {NAMES[kept]}, {'several outputs' if several else 'one output'}"
    report(f"sm_{capability} linear {words}, {'aligned' if aligned else 'odd'}", found, record_property)
    assert fits(found)
    assert "tf32" not in found.ptx
    assert not found.instructions["HMMA"]
    if dtype == torch.float64:
        assert found.instructions["DMMA" if capability in (80, 90) else "DFMA"]
    else:
        assert found.instructions["FFMA"]
    assert set(masked_loads(found.ttir)) == {3}


@each_capability
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("s", [4, 5])
def test_digits(s, upper, capability, record_property):
    found = digits(s, upper, capability)
    report(f"sm_{capability} {s} digits{', upper' if upper else ''}", found, record_property)
    assert fits(found)
    assert found.instructions["IGMMA" if capability == 90 else "IMMA"]
    assert set(masked_loads(found.ttir)) == {3}
    assert "fma.rn.f64" not in found.ptx, "a product is rounded before it is added"


def test_tf32_is_seen():
    found = linear(torch.float32, torch.float32, False, True, 80, fault="tf32")
    assert "tf32" in found.ptx
    assert found.instructions["HMMA"]


def test_a_load_without_a_substitute_is_seen():
    fault = "nothing in place of what is not read"
    found = linear(torch.float64, torch.float64, False, True, 80, fault=fault)
    assert 2 in masked_loads(found.ttir)


def test_too_few_warps_are_seen():
    """The test of registers can fail: with half the warps some do not fit."""
    four = {"UPPER": True, "DTYPE": tl.float64, **LINEAR_TILES[False].constants}
    pointers = dict.fromkeys("abde", "*fp64") | {"K": "*fp64", "numbers": "*fp64"}
    options = {"num_warps": 4, "num_stages": 3}
    assert not fits(compiled(kernels().outer_gram_kernel, pointers, four, options, 80, list(pointers)))
