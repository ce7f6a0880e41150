"""Two checkouts on the same work: every artifact and result byte for byte.

    python tests/benchmarks/same_results.py OTHER_CHECKOUT [--only NAME] [--cache FILE]

The cache keeps what the other checkout gave, so that it runs once only.

Each case is a list of commands. It runs in a fresh copy of the quickstart (or of a small made classification project)
with the package of either checkout; then all files in the run folders and what was printed are compared. Times and the
folders themselves are left out. Exit code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parents[2]
SELECTORS = "gradient,greedy,subnet-diagonal,last-k,neural-linear,random,magnitude,variance,names:0.*"
ALL = f"{SELECTORS},full,map,norm,constant,diagonal"
# Of posteriors: what serving needs (and with it the checksum of the metadata) is new.
ADDED_METADATA = ("serving", "checksum")
EVALUATE = ("evaluate", "--method", "gradient", "--k", "100")
CASES: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "all methods": ("quickstart", [("evaluate", "--method", ALL, "--k", "50,200,1000")]),
    "twice": ("quickstart", [EVALUATE, EVALUATE]),
    "kfac and ensemble": ("ensemble", [("evaluate", "--method", "kfac,ensemble,gradient", "--k", "100")]),
    "step by step": (
        "quickstart",
        [
            ("jacobians",),
            ("select", "--method", "greedy", "--k", "70"),
            ("fit", "--method", "greedy", "--k", "70"),
            ("evaluate", "--method", "greedy", "--k", "70"),
        ],
    ),
    "jacobians of one split": ("quickstart", [("jacobians", "--split", "test"), ("jacobians", "--scores-only")]),
    "fit the full posterior": ("quickstart", [("fit", "--method", "full"), ("fit", "--method", "neural-linear")]),
    "indices from a file": ("quickstart", [("fit", "--indices", "indices.txt")]),
    "scale": ("quickstart", [("evaluate", "--method", "gradient,norm", "--k", "50,500", "--rescale", "scale")]),
    "hybrid": ("quickstart", [("evaluate", "--method", "gradient,greedy", "--k", "50,500", "--rescale", "hybrid")]),
    "marglik": ("marglik", [("evaluate", "--method", "gradient", "--k", "50,500")]),
    "marglik by layer": ("marglik by layer", [EVALUATE]),
    "marglik of a sub-network": ("marglik", [(*EVALUATE, "--full", "none")]),
    "tune by nll": ("tune", [EVALUATE]),
    "tune by nll of a sub-network": ("tune", [(*EVALUATE, "--full", "none")]),
    "posterior": (
        "quickstart",
        [
            ("fit", "--method", "gradient", "--k", "100", "--run-dir", "out"),
            ("evaluate", "--posterior", "out/posterior-gradient-k100.safetensors", "--predictions", "p.csv",
             "--samples", "3"),
        ],
    ),
    "posterior, hybrid": (
        "quickstart",
        [
            ("fit", "--method", "gradient", "--k", "700", "--rescale", "hybrid", "--run-dir", "out"),
            ("evaluate", "--posterior", "out/posterior-gradient-k700-hybrid.safetensors", "--predictions", "p.csv"),
        ],
    ),
    "samples": (
        "quickstart",
        [(*EVALUATE, "--rescale", "hybrid", "--samples", "3", "--predictions", "p.jsonl"),
         (*EVALUATE, "--samples", "2", "--predictions", "p.safetensors")],
    ),
    "sweep": (
        "ensemble",
        [("evaluate", "--method", "gradient,random", "--k", "50", "--checkpoint", "model.safetensors",
          "--checkpoint", "second.safetensors", "--seed", "0", "--seed", "1", "--predictions", "p.csv")],
    ),
    "two ranks": ("quickstart", [("2 ranks", "evaluate", "--method", "gradient,greedy", "--k", "100,600")]),
    "two ranks, hybrid": ("quickstart", [("2 ranks", *EVALUATE, "--rescale", "hybrid")]),
    "k auto": (
        "quickstart",
        [("evaluate", "--method", "gradient", "--k", "auto", "--retain", "0.6"),
         ("evaluate", "--method", "greedy", "--k", "auto", "--retain", "0.6", "--pool", "400")],
    ),
    "bracket": (
        "quickstart",
        [("evaluate", "--method", "gradient", "--k", "100,1000", "--full", "bracket", "--full-rows", "100")],
    ),
    "no full": ("quickstart", [(*EVALUATE, "--full", "none"), EVALUATE]),
    "map alone": ("quickstart", [("evaluate", "--method", "map", "--full", "none")]),
    "unweighted": ("quickstart", [(*EVALUATE, "--score", "unweighted", "--reference", "test")]),
    "variance over the test rows": (
        "quickstart",
        [("evaluate", "--method", "variance,greedy", "--k", "10", "--reference", "test", "--pool", "paper")],
    ),
    "nothing stored": ("quickstart", [(*EVALUATE, "--max-artifact", "1kB")]),
    "little memory": ("quickstart", [(*EVALUATE, "--memory", "20MB", "--max-artifact", "1kB")]),
    "float32 products": ("quickstart", [(*EVALUATE, "--gram-dtype", "float32")]),
    "split products": ("quickstart", [(*EVALUATE, "--gram-dtype", "split")]),
    "float64": ("quickstart", [(*EVALUATE, "--dtype", "float64")]),
    "dry run": ("quickstart", [(*EVALUATE, "--dry-run", "--memory", "1GiB")]),
    "gate": (
        "quickstart",
        [(*EVALUATE, "-o", "first.json"),
         (*EVALUATE, "--baseline", "first.json", "--max-regression", "w2=1%", "--fail-if", "nll > 9")],
    ),
    "binary": ("binary", [("evaluate", "--method", ALL + ",kfac", "--k", "20,40"),
                          ("evaluate", "--method", "gradient", "--k", "20", "--rescale", "hybrid")]),
    "binary marglik": ("binary marglik", [("evaluate", "--method", "gradient", "--k", "20")]),
    "multiclass": ("multiclass", [("evaluate", "--method", ALL + ",kfac", "--k", "20,40"),
                                  ("evaluate", "--method", "gradient", "--k", "20", "--rescale", "scale",
                                   "--predictions", "p.csv")]),
    "multiclass marglik": ("multiclass marglik", [("evaluate", "--method", "gradient", "--k", "20")]),
    "multiclass, two ranks": ("multiclass", [("2 ranks", "evaluate", "--method", "gradient", "--k", "20,90")]),
}  # fmt: skip


def quickstart(folder: Path, **changes: Any) -> None:
    """The shipped example, with sections of its spec replaced."""
    shutil.copytree(HERE / "examples" / "quickstart", folder, ignore=shutil.ignore_patterns(".sublaplace"))
    spec = yaml.safe_load((folder / "sublaplace.yaml").read_text())
    (folder / "sublaplace.yaml").write_text(yaml.safe_dump({**spec, **changes}, sort_keys=False))
    np.savetxt(folder / "indices.txt", np.arange(0, 3000, 31), fmt="%d")
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    moved = {name: t + 0.01 * torch.randn(t.shape, generator=generator) for name, t in weights.items()}
    save_file(moved, folder / "second.safetensors")


def classification(folder: Path, task: str, classes: int, **posterior: Any) -> None:
    """A small made problem and a network with seeded weights."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    x, outputs = rng.normal(size=(120, 4)), 1 if task == "binary" else classes
    y = (x @ rng.normal(size=(4, classes))).argmax(1)
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=y)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Tanh(), torch.nn.Linear(12, outputs))
    save_file(model.state_dict(), folder / "model.safetensors")
    spec = {
        "version": 1,
        "task": task,
        "model": {
            "build": {"arch": "mlp", "args": {"in": 4, "hidden": [12], "out": outputs, "act": "tanh"}},
            "weights": {"path": "model.safetensors"},
        },
        "data": {
            "format": "npz",
            "path": "data.npz",
            "arrays": {"input": "x", "target": "y"},
            "splits": {"train": {"rows": "0:90"}, "test": {"rows": "90:"}},
        },
        "posterior": {"prior_precision": 0.7, **posterior},
    }
    (folder / "sublaplace.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))


def make_project(kind: str, folder: Path) -> None:
    """The folder that a case runs in."""
    marglik = {"prior_precision": "marglik", "noise_variance": "marglik"}
    by_layer = {"prior_precision": {"0.*": "marglik", "*": 2.0}, "noise_variance": "auto"}
    if kind == "ensemble":
        quickstart(folder, ensemble={"checkpoints": ["model.safetensors", "second.safetensors"]})
    elif kind == "marglik":
        quickstart(folder, posterior=marglik)
    elif kind == "marglik by layer":
        quickstart(folder, posterior=by_layer)
    elif kind == "tune":
        quickstart(folder, posterior={"prior_precision": {"tune": "nll"}})
        spec = yaml.safe_load((folder / "sublaplace.yaml").read_text())
        spec["data"]["splits"] = {
            "train": {"rows": "0:300"},
            "validation": {"rows": "300:353"},
            "test": {"rows": "353:"},
        }
        (folder / "sublaplace.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    elif kind.startswith("binary"):
        classification(folder, "binary", 2, **({"prior_precision": "marglik"} if "marglik" in kind else {}))
    elif kind.startswith("multiclass"):
        classification(folder, "multiclass", 3, **({"prior_precision": "marglik"} if "marglik" in kind else {}))
    else:
        quickstart(folder)


def run(checkout: Path, folder: Path, words: tuple[str, ...]) -> dict[str, Any]:
    """One command with the package of this checkout."""
    command = [sys.executable, "-m", "sublaplace_cli"]
    if words[0] == "2 ranks":
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "sublaplace_cli"]
        command, words = [sys.executable, *launch], words[1:]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *words, "--json"], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{checkout}: {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.replace(str(folder), ""))
    found.pop("seconds", None)
    found.pop("memory_estimate", None)
    return {"exit code": done.returncode, "printed": found}


def digest_of(path: Path) -> str:
    """sha256 of a file; of a posterior without the metadata in ADDED_METADATA."""
    content = path.read_bytes()
    if path.name.startswith("posterior-"):
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        meta = json.loads(header["__metadata__"]["sublaplace"])
        header["__metadata__"] = {key: value for key, value in meta.items() if key not in ADDED_METADATA}
        content = json.dumps(header, sort_keys=True).encode() + content[8 + size :]
    return hashlib.sha256(content).hexdigest()


def outcome(checkout: Path, case: str) -> dict[str, Any]:
    """What the case prints, and the digest of every file that it leaves."""
    kind, commands = CASES[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "project"
        make_project(kind, folder)
        found: dict[str, Any] = {f"stdout {i}": run(checkout, folder, words) for i, words in enumerate(commands)}
        for path in sorted(folder.rglob("*")):
            if (
                path.is_file()
                and path.suffix in (".safetensors", ".csv", ".jsonl", ".json")
                and path.name != "first.json"
            ):
                found[str(path.relative_to(folder))] = digest_of(path)
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    cache = arguments.cache
    known = json.loads(cache.read_text()) if cache is not None and cache.exists() else {}
    broken = 0
    for case in arguments.only or CASES:
        if case not in known:
            known[case] = outcome(arguments.other.resolve(), case)
            if cache is not None:
                cache.write_text(json.dumps(known))
        mine, theirs = json.loads(json.dumps(outcome(HERE, case))), known[case]
        different = sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))
        broken += bool(different)
        sys.stdout.write(f"{'DIFFERS' if different else 'same'}  {case} ({len(mine)} files and results)\n")
        for key in different:
            sys.stdout.write(
                f"    {key}: {str(mine.get(key))[:600]}\n    {' ' * len(key)}  {str(theirs.get(key))[:600]}\n"
            )
        sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
