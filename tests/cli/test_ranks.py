"""Several processes: the numbers of one, one voice, and an end that is clear when a rank is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.cli_tools import (
    ENVIRONMENT,
    Project,
    Run,
    Tool,
    contents,
    core,
    kink_project,
    mlp,
    quick_python,
    refused,
    save,
    strict,
)

METHODS = "gradient,greedy,variance,random,neural-linear,full,diagonal,norm,constant,map"
NET = """
import os, signal, time
from torch import nn

if "BLIND" in os.environ:  # this rank does not see the run folder
    from sublaplace_cli.errors import UserError
    from sublaplace_cli.run.rows import row_shards

    def blind(path, kind):
        raise UserError("not on this machine")

    row_shards.open_artifact = blind

class Net(nn.Sequential):
    calls = 0
    def forward(self, x):
        Net.calls += 1
        if Net.calls == int(os.environ.get("NAP_AT", -1)):
            time.sleep(5.5)  # long enough for a durable record
        if Net.calls == int(os.environ.get("RAISE_AT", -1)):
            raise RuntimeError("this rank only")
        if Net.calls == int(os.environ.get("DIE_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        self.room = x.new_empty(len(x), 1_250_000)  # 5 MB a row that nobody touches: 32 rows go into one pass
        return self[2](self[1](self[0](x)))

def make():
    return Net(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
"""


def ranks(
    size: int,
    *args: Any,
    cwd: Path,
    own: dict[int, dict[str, str]] | None = None,
    folders: dict[int, Path] | None = None,
) -> list[Run]:
    """The tool in so many processes, each with an environment and, if need be, a folder of its own; how each ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []
    for rank in range(size):
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **(own or {}).get(rank, {})}
        process = subprocess.Popen(
            [*quick_python(), "-m", "sublaplace_cli", *map(str, args)],
            cwd=(folders or {}).get(rank, cwd),
            env={**ENVIRONMENT, **{key: str(value) for key, value in env.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running.append(process)
    ended = []
    for process in running:
        out, err = process.communicate(timeout=90)
        ended.append(Run(process.returncode, out.decode(), err.decode()))
    return ended


def torchrun() -> list[str]:
    """The tool in two processes that torchrun starts and watches."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    return [*quick_python(), *words, *quick_python(), "-m", "sublaplace_cli"]


def leader(runs: list[Run]) -> Run:
    """The one that speaks; the others must not have said a word."""
    for other in runs[1:]:
        assert (other.out, other.err) == ("", ""), other.err
        assert other.code == runs[0].code, other
    return runs[0]


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Numbers to 1e-8, all else to the letter."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_same(a, b, f"{where}/{i}")
    elif isinstance(expected, float):
        assert abs(found - expected) <= 1e-8 * max(abs(expected), 1e-3), (where, found, expected)
    elif where != "/workers":
        assert found == expected, where


def test_torchrun_gives_the_result_of_one_process(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    choice = ("evaluate", "--method", METHODS, "--k", "3,30", "--dtype", "float64", "--json")
    alone = tool(*choice, "--run-dir", tmp_path / "alone", cwd=project.folder).json()
    done = subprocess.run(
        [*torchrun(), *choice, "--run-dir", str(tmp_path / "two")],
        cwd=project.folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = strict(done.stdout.decode())
    assert found["workers"] == 2
    assert_same(core(found), core(alone))
    mine, theirs = contents(tmp_path / "two"), contents(tmp_path / "alone")
    assert mine.keys() == theirs.keys()
    for name in ("jacobians-train", "jacobians-test", f"posterior-full-k{project.size}"):  # no sum over ranks in them
        assert mine[f"{name}.safetensors"] == theirs[f"{name}.safetensors"], name


def test_sets_of_test_rows_are_those_of_one_process(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    project.write_csv("other.csv", ["a", "b", "c", "y0"], 1.5 * np.hstack([project.x, project.y])[:7])
    choice = ("evaluate", "--method", "gradient,norm", "--k", "7", "--rescale", "calibrated", "--folds", "2", "--json")
    sets = ("--test", "data.csv", "--test", "other.csv", "--dtype", "float64")
    alone = tool(*choice, *sets, "--run-dir", tmp_path / "alone", cwd=project.folder).json()
    two = leader(ranks(2, *choice, *sets, "--run-dir", tmp_path / "two", cwd=project.folder))
    assert_same(core(two.json()), core(alone))
    assert contents(tmp_path / "two").keys() == contents(tmp_path / "alone").keys()


@pytest.mark.parametrize("classes", [0, 40], ids=["regression", "sampled classes"])
def test_rows_at_a_kink_are_those_of_one_process(tool: Tool, tmp_path: Path, classes: int) -> None:
    """Each rank uses float64 in some of its rows; the first one names them all."""
    project = kink_project(tmp_path / "p", classes)
    choice = ("evaluate", "--method", "gradient", "--k", "7", "--json")
    alone = tool(*choice, "--run-dir", tmp_path / "alone", cwd=project.folder)
    two = leader(ranks(2, *choice, "--run-dir", tmp_path / "two", cwd=project.folder))
    assert_same(core(two.json()), core(alone.json()))
    said = [[line for line in run.err.splitlines() if "these rows are used in float64" in line] for run in (alone, two)]
    assert said[0] == said[1] != []
    for name in ("jacobians-train", "jacobians-test"):
        assert contents(tmp_path / "two")[f"{name}.safetensors"] == contents(tmp_path / "alone")[f"{name}.safetensors"]


@pytest.mark.parametrize("task", ["regression", "binary"])
def test_random_sums_and_certified_variances_are_those_of_one_process(tool: Tool, tmp_path: Path, task: str) -> None:
    project = Project(tmp_path / "p", task, rows=80)
    splits = {"train": {"rows": "0:70"}, "test": {"rows": "70:"}}
    project.use(data={**project.spec["data"], "splits": splits})
    choice = ("evaluate", "--method", "gradient,sketch,gradient+sketch,norm", "--k", "5,12", "--rescale", "scale")
    more = ("--full", "certified", "--dtype", "float64", "--json")
    alone = tool(*choice, *more, "--run-dir", tmp_path / "alone", cwd=project.folder).json()
    two = leader(ranks(2, *choice, *more, "--run-dir", tmp_path / "two", cwd=project.folder)).json()
    assert alone["certified"]["widest"] <= 0.01
    for own, expected in zip(two["rows"], alone["rows"], strict=True):
        for name in ("mean_std", "w2", "rescale", "nll"):
            assert own[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-9), (own["method"], own["k"], name)
    for name in ("posterior-sketch-k12-scale", "posterior-gradient+sketch-k5-scale"):
        assert f"{name}.safetensors" in contents(tmp_path / "two")


def test_three_ranks_with_uneven_rows_and_several_classes(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", "multiclass", 3, rows=37)
    splits = {"train": {"rows": "0:26"}, "reference": {"rows": "20:29"}, "test": {"rows": "29:"}}
    project.use(data={**project.spec["data"], "splits": splits}, posterior={"prior_precision": "marglik"})
    more = ("--rescale", "hybrid", "--dtype", "float64", "--json")
    choice = ("evaluate", "--method", "gradient,greedy,norm", "--k", "3,40", *more)
    alone = tool(*choice, "--run-dir", tmp_path / "alone", cwd=project.folder).json()
    runs = ranks(3, *choice, "--run-dir", tmp_path / "three", cwd=project.folder)
    assert_same(core(leader(runs).json()), core(alone))
    again = tool(*choice, "--run-dir", tmp_path / "three", cwd=project.folder)  # by one process, what three have made
    assert "reusing predictions-gradient-k3" in again.err
    assert_same(core(again.json()), core(alone))


@pytest.mark.parametrize("little", [(), ("--max-artifact", "1kB", "--memory", "150kB")], ids=["held", "recomputed"])
def test_sampled_outputs_are_the_same_for_any_number_of_ranks(tool: Tool, tmp_path: Path, little: tuple) -> None:
    project = Project(tmp_path / "p", "multiclass", 40)
    choice = ("evaluate", "--method", "gradient,greedy", "--k", "20", "--full", "none", "--dtype", "float64", "--json")
    alone = tool(*choice, *little, "--run-dir", tmp_path / "alone", cwd=project.folder).json()
    two = ranks(2, *choice, *little, "--run-dir", tmp_path / "two", cwd=project.folder)
    assert leader(two).err.count("random combinations") == 1
    assert_same(core(two[0].json()), core(alone))


def test_rows_that_are_neither_stored_nor_held_and_single_steps(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", rows=60)
    project.use(data={**project.spec["data"], "splits": {"train": {"rows": "0:50"}, "test": {"rows": "50:"}}})
    little = ("--max-artifact", "1kB", "--memory", "60kB", "--dtype", "float64")
    choice = ("evaluate", "--method", "gradient,greedy", "--k", "5", *little, "--json")
    alone = tool(*choice, "--run-dir", tmp_path / "alone", cwd=project.folder).json()
    shared = ranks(2, *choice, "--run-dir", tmp_path / "two", cwd=project.folder)
    assert "not stored" in shared[0].err
    assert_same(core(leader(shared).json()), core(alone))
    fitted = ranks(2, "fit", "--method", "greedy", "--k", "4", "--run-dir", tmp_path / "f", cwd=project.folder)
    assert leader(fitted).code == 0
    assert (tmp_path / "f" / "posterior-greedy-k4.safetensors").exists()


def test_sweeps_and_posteriors_alone(tool: Tool, tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    for seed in (1, 2):
        save(mlp([3, 8, 1], seed), project.folder / f"c{seed}.safetensors")
    choice = ("evaluate", "--checkpoint", "c*.safetensors", "--k", "5", "--dtype", "float64", "--json")
    alone = tool(*choice, "--run-dir", tmp_path / "a", cwd=project.folder).json()
    both = leader(ranks(2, *choice, "--run-dir", tmp_path / "b", cwd=project.folder)).json()
    for result in (alone, both):
        for checkpoint in result["checkpoints"]:
            checkpoint.pop("artifacts")
    assert_same(core(both), core(alone))
    tool("fit", "--k", "5", "--run-dir", tmp_path / "c", cwd=project.folder)
    posterior = ("evaluate", "--posterior", tmp_path / "c" / "posterior-gradient-k5.safetensors", "--json")
    alone = tool(*posterior, cwd=project.folder).json()
    assert_same(core(leader(ranks(2, *posterior, cwd=project.folder)).json()), core(alone))


def test_an_error_is_told_once_by_the_first_rank(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    refused(leader(ranks(2, "evaluate", "--k", "999", cwd=project.folder)), "--k 999 is more than the 41")
    refused(leader(ranks(2, "evaluate", "--pool", "none", cwd=project.folder)), "--pool")
    wrong = ranks(2, "evaluate", cwd=project.folder, own={0: {"RANK": "x"}, 1: {"RANK": "x"}})
    assert [run.code for run in wrong] == [2, 2]
    assert "RANK is 'x', expected a number" in wrong[0].err


def test_ranks_that_see_other_files_are_refused(tmp_path: Path) -> None:
    project, elsewhere = Project(tmp_path / "p"), Project(tmp_path / "q")
    save(mlp([3, 8, 1], seed=9), elsewhere.folder / "model.safetensors")
    told = leader(ranks(2, "evaluate", "--k", "5", cwd=project.folder, folders={1: elsewhere.folder}))
    refused(told, "rank 1 has other weights, data or options than rank 0")
    (elsewhere.folder / "model.safetensors").unlink()
    told = leader(ranks(2, "evaluate", "--k", "5", cwd=project.folder, folders={1: elsewhere.folder}))
    refused(told, "rank 1 of 2 on ", "model.safetensors")


@pytest.fixture
def mortal(tmp_path: Path) -> Project:
    """320 training rows in ten passes through a network that can die."""
    project = Project(tmp_path / "p", rows=330)
    (project.folder / "net.py").write_text(NET)
    model = {"build": {"import": "net:make"}, "weights": {"path": "model.safetensors"}}
    splits = {"train": {"rows": "0:320"}, "test": {"rows": "320:"}}
    return project.use(model=model, data={**project.spec["data"], "splits": splits})


CHOICE = ("evaluate", "--method", "gradient", "--k", "5", "--allow-code", "net")
PREPARING = 40  # forward passes of the checks before the work, at most


def test_a_rank_that_dies_ends_all_with_3_and_the_next_run_goes_on(mortal: Project, tool: Tool, tmp_path: Path) -> None:
    undisturbed = ranks(2, *CHOICE, "--run-dir", tmp_path / "u", "--json", cwd=mortal.folder)
    expected = leader(undisturbed).json()
    calls = forward_passes_before_work(mortal, tmp_path)
    started = time.monotonic()
    dying = {1: {"DIE_AT": str(calls + 4)}, 0: {"NAP_AT": str(calls + 2)}}
    runs = ranks(2, *CHOICE, "--run-dir", tmp_path / "r", cwd=mortal.folder, own=dying)
    assert time.monotonic() - started < 45  # six of them asleep
    assert runs[1].code == -signal.SIGKILL
    assert runs[0].code == 3
    assert "error: rank 1 of 2 (process " in runs[0].err
    assert "finished parts are kept; run the same command again to continue" in runs[0].err
    assert runs[0].out == ""
    again = ranks(2, *CHOICE, "--run-dir", tmp_path / "r", "--json", cwd=mortal.folder)
    assert "continuing the Jacobian of the train rows at row" in again[0].err
    assert core(leader(again).json()) == core(expected)
    assert contents(tmp_path / "r") == contents(tmp_path / "u")


def forward_passes_before_work(project: Project, tmp_path: Path) -> int:
    """How often the network is called before the first pass over the training rows."""
    low, high = 1, PREPARING
    code = (
        "from pathlib import Path\n"
        "from sublaplace_cli.cli.settings import Settings\n"
        "from sublaplace_cli.cli.usage import parse_job\n"
        "from sublaplace_cli.core.workers import SINGLE_WORKER\n"
        "from sublaplace_cli.files.spec.loading import load_spec\n"
        "from sublaplace_cli.reporter import Silent\n"
        "from sublaplace_cli.run.open_run import open_run\n"
        "job = parse_job('evaluate', Settings(method='gradient', k='5', allow_code=('net',)))\n"
        "with open_run(job, load_spec(Path('sublaplace.yaml')), Silent(), SINGLE_WORKER) as run:\n"
        "    print(type(run.passes.model).calls)\n"
    )
    done = subprocess.run(
        [*quick_python(), "-c", code], cwd=project.folder, env=ENVIRONMENT, capture_output=True, check=True
    )
    found = int(done.stdout)
    assert low < found < high
    return found


@pytest.mark.parametrize("memory", ["2MB", "64MB"], ids=["stored", "held"])
def test_a_rank_that_does_not_see_the_run_folder(mortal: Project, tmp_path: Path, memory: str) -> None:
    choice = (*CHOICE, "--memory", memory, "--dtype", "float64", "--json", "--run-dir", tmp_path / "r")
    expected = leader(ranks(2, *choice, cwd=mortal.folder)).json()
    for name in tmp_path.glob("r/p*.safetensors"):  # posteriors and predictions are made again, from stored rows
        name.unlink()
    again = leader(ranks(2, *choice, cwd=mortal.folder, own={1: {"BLIND": "1"}}))
    assert "reusing jacobians-train" in again.err
    assert_same(core(again.json()), core(expected))


@pytest.mark.parametrize("victim", ["the first rank", "torchrun"])
def test_under_torchrun_one_message_says_what_happened(mortal: Project, tmp_path: Path, victim: str) -> None:
    calls = forward_passes_before_work(mortal, tmp_path)
    running = subprocess.Popen(
        [*torchrun(), *CHOICE],
        cwd=mortal.folder,
        env={**ENVIRONMENT, "NAP_AT": str(calls + 2)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first = until_working(mortal.folder)
    if victim == "the first rank":
        os.kill(first, signal.SIGKILL)
    else:
        running.terminate()
    said = running.communicate(timeout=60)[1].decode()
    if victim == "the first rank":
        assert said.count("error: ") == said.count("error: rank 0 of 2 (process ") == 1
    else:
        assert said.count("interrupted: finished parts are kept; run the same command again to continue") == 1
        assert "error: " not in said


def until_working(folder: Path) -> int:
    """The process of the first rank, once it computes: it has the run folder open."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for lock in folder.glob(".sublaplace/*/.lock"):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if any(os.path.realpath(fd) == str(lock) for fd in (process / "fd").iterdir()):
                        return int(process.name)
                except OSError:
                    continue
        time.sleep(0.05)
    raise AssertionError("it never began")


def test_the_first_rank_dies(mortal: Project, tmp_path: Path) -> None:
    calls = forward_passes_before_work(mortal, tmp_path)
    runs = ranks(3, *CHOICE, cwd=mortal.folder, own={0: {"DIE_AT": str(calls + 2)}})
    assert [run.code for run in runs] == [-signal.SIGKILL, 3, 3]
    assert "error: " in runs[1].err + runs[2].err
    assert "Traceback" not in runs[1].err + runs[2].err


def test_an_error_of_another_rank_is_told_by_the_first(mortal: Project, tmp_path: Path) -> None:
    calls = forward_passes_before_work(mortal, tmp_path)
    runs = ranks(2, *CHOICE, cwd=mortal.folder, own={1: {"RAISE_AT": str(calls + 2)}})
    told = leader(runs)
    assert told.code == 3
    assert "error: rank 1 of 2 on " in told.err
    assert "this rank only" in told.err


def test_torchrun_names_the_exit_code_of_a_lost_rank(mortal: Project, tmp_path: Path) -> None:
    """torchrun itself ends with 1 whatever happened; its report has the code, our message is above it."""
    done = subprocess.run(
        [*torchrun(), *CHOICE],
        cwd=mortal.folder,
        env={**ENVIRONMENT, "RAISE_AT": str(forward_passes_before_work(mortal, tmp_path) + 2)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    said = done.stderr.decode()
    assert done.returncode == 1
    assert said.count("error: unexpected RuntimeError: this rank only") + said.count("error: rank 1 of 2") == 1
    assert "exitcode  : 3" in said
