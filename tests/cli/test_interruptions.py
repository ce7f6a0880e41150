"""Killed, interrupted, out of disk, two at once: the same command again ends with the bytes of an undisturbed run."""

from __future__ import annotations

import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from cli.cli_tools import Project, Tool, call, contents, core, mlp, refused, save, start, strict, whole
from safetensors.torch import load_file

SLOW = """
import os, signal, time
from torch import nn

class Net(nn.Sequential):
    calls = 0
    def forward(self, x):
        Net.calls += 1
        if "TALLY" in os.environ:
            open(os.environ["TALLY"], "w").write(str(Net.calls))
        time.sleep(float(os.environ.get("NAP", 0)))
        if Net.calls == int(os.environ.get("LONG_NAP_AT", -1)):
            time.sleep(5.1)
        if Net.calls == int(os.environ.get("DIE_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        self.room = x.new_empty(len(x), 1_250_000)  # 5 MB a row that nobody touches: 32 rows go into one pass
        return self[2](self[1](self[0](x)))

def make():
    return Net(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
"""
CHOICE = ("evaluate", "--method", "gradient,greedy", "--k", "3,7", "--allow-code", "slow")


@pytest.fixture(scope="module")
def slow(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Path, dict]:
    """640 training rows (twenty passes) through a network that can sleep and die; a finished run folder; the result."""
    folder = tmp_path_factory.mktemp("slow")
    project = Project(folder / "project", rows=650)
    (project.folder / "slow.py").write_text(SLOW)
    save(mlp([3, 8, 1]), project.folder / "model.safetensors")
    model = {"build": {"import": "slow:make"}, "weights": {"path": "model.safetensors"}}
    splits = {"train": {"rows": "0:640"}, "test": {"rows": "640:"}}
    project.use(model=model, data={**project.spec["data"], "splits": splits})
    run = tool(*CHOICE, "--json", "--run-dir", folder / "r", cwd=project.folder)
    return project, folder / "r", run.json()


def same_as_undisturbed(slow: tuple[Project, Path, dict], folder: Path, what: str) -> None:
    mine, theirs = contents(slow[1]), contents(folder)
    assert set(theirs) == set(mine), f"{what}: other files"
    for name in mine.keys() - {"evaluation.json"}:
        assert mine[name] == theirs[name], f"{what}: other bytes in {name}"
    ours, other = (strict((place / "evaluation.json").read_text()) for place in (slow[1], folder))
    assert core(ours) == core(other), f"{what}: other numbers"
    assert ours["artifacts"].keys() == other["artifacts"].keys(), f"{what}: other artifacts in evaluation.json"


def count_of_writes(tool: Tool, slow: tuple[Project, Path, dict], folder: Path) -> int:
    """How many times something is synced or renamed in a whole run."""
    low, high = 1, 400
    while low < high:
        middle = (low + high) // 2
        shutil.rmtree(folder, ignore_errors=True)
        code = tool(*CHOICE, "--run-dir", folder, "-q", cwd=slow[0].folder, fault=("kill", middle)).code
        low, high = (middle + 1, high) if code != 0 else (low, middle)
    return low - 1


def test_kill_9_before_every_write(tool: Tool, slow: tuple[Project, Path, dict], tmp_path: Path) -> None:
    total, problems = count_of_writes(tool, slow, tmp_path / "count"), []
    assert total > 40
    for at in [*range(1, 14), *range(14, total + 1, 5), total]:
        folder = tmp_path / f"r{at}"
        killed = tool(*CHOICE, "--run-dir", folder, "-q", cwd=slow[0].folder, fault=("kill", at))
        assert killed.code == -signal.SIGKILL
        whole(folder)
        if list(folder.glob("indices-*.safetensors")) and not list(folder.glob("predictions-full-*.safetensors")):
            problems.append(f"killed before write {at}: the full posterior's variances were not kept")
        again = tool(*CHOICE, "--run-dir", folder, "-q", cwd=slow[0].folder)
        try:
            assert again.code == 0, again.err
            same_as_undisturbed(slow, folder, f"killed before write {at}")
        except AssertionError as error:
            problems.append(str(error).splitlines()[0])
    assert not problems, "\n".join(problems)


def test_disk_full_at_every_write(tool: Tool, slow: tuple[Project, Path, dict], tmp_path: Path) -> None:
    problems = []
    for at in [*range(1, 14), *range(17, 60, 6)]:
        folder = tmp_path / f"r{at}"
        full = tool(*CHOICE, "--run-dir", folder, cwd=slow[0].folder, fault=("full", at))
        try:
            refused(full, "No space left", "could not write", "--run-dir", code=3, folder=folder)
            assert tool(*CHOICE, "--run-dir", folder, "-q", cwd=slow[0].folder).code == 0
            same_as_undisturbed(slow, folder, f"full at write {at}")
        except AssertionError as error:
            problems.append(f"{at}: {str(error)[:200]}")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("share", [0.1, 0.6, 0.99])
def test_a_limit_on_the_size_of_files(
    slow: tuple[Project, Path, dict], tool: Tool, tmp_path: Path, share: float
) -> None:
    limit = int(share * (slow[1] / "jacobians-train.safetensors").stat().st_size)

    def less() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    run = call(*CHOICE, "--run-dir", tmp_path / "r", cwd=slow[0].folder, preexec_fn=less)
    refused(run, "could not write", ".safetensors", "free some disk", code=3, folder=tmp_path / "r")
    assert tool(*CHOICE, "--run-dir", tmp_path / "r", cwd=slow[0].folder).code == 0
    same_as_undisturbed(slow, tmp_path / "r", "after the limit")


def test_kill_9_in_the_jacobian_pass_resumes(tool: Tool, slow: tuple[Project, Path, dict], tmp_path: Path) -> None:
    folder = tmp_path / "r"
    tally = tmp_path / "tally"
    assert tool(*CHOICE, "--run-dir", tmp_path / "whole", cwd=slow[0].folder, env={"TALLY": str(tally)}).code == 0
    calls = int(tally.read_text())  # the last twenty are the passes over the training rows
    probe = tool(*CHOICE, "--run-dir", tmp_path / "probe", cwd=slow[0].folder, env={"DIE_AT": str(calls - 12)})
    assert probe.code == -signal.SIGKILL
    assert (tmp_path / "probe" / "jacobians-train.safetensors.part").exists()
    assert not (tmp_path / "probe" / "jacobians-train.safetensors").exists()
    assert tool(*CHOICE, "--run-dir", tmp_path / "probe", cwd=slow[0].folder).code == 0
    same_as_undisturbed(slow, tmp_path / "probe", "restarted")
    late = {"LONG_NAP_AT": str(calls - 10), "DIE_AT": str(calls - 8)}
    killed = tool(*CHOICE, "--run-dir", folder, cwd=slow[0].folder, env=late)
    assert killed.code == -signal.SIGKILL
    assert (folder / "jacobians-train.safetensors.part.json").exists()
    part = folder / "jacobians-train.safetensors.part"
    shutil.copytree(folder, tmp_path / "damaged")
    again = tool(*CHOICE, "--run-dir", folder, cwd=slow[0].folder)
    assert "continuing the Jacobian of the train rows at row" in again.err
    assert again.code == 0, again.err
    same_as_undisturbed(slow, folder, "resumed")
    # the part that was done is damaged in between: noticed, not used
    content = bytearray((tmp_path / "damaged" / part.name).read_bytes())
    for place in range(len(content) // 3, len(content) // 3 + 64):
        content[place] ^= 255
    (tmp_path / "damaged" / part.name).write_bytes(content)
    broken = tool(*CHOICE, "--run-dir", tmp_path / "damaged", cwd=slow[0].folder)
    if broken.code == 0:
        same_as_undisturbed(slow, tmp_path / "damaged", "damaged in between")
    else:
        refused(broken, "jacobians-train.safetensors", "--recompute")


def test_scores_of_rows_that_are_neither_stored_nor_held_survive_a_kill(
    tool: Tool, slow: tuple[Project, Path, dict], tmp_path: Path
) -> None:
    """They are summed during the pass: a resumed pass has seen only the rest of the rows."""
    words = [
        "select",
        "--method",
        "gradient",
        "--k",
        "3",
        "--allow-code",
        "slow",
        "--max-artifact",
        "1",
        "--memory",
        "100kB",
    ]
    tally = {"TALLY": str(tmp_path / "tally")}
    assert tool(*words, "--run-dir", tmp_path / "whole", cwd=slow[0].folder, env=tally).code == 0
    calls = int((tmp_path / "tally").read_text())
    late = {"LONG_NAP_AT": str(calls - 200), "DIE_AT": str(calls - 100)}
    assert tool(*words, "--run-dir", tmp_path / "r", cwd=slow[0].folder, env=late).code == -signal.SIGKILL
    again = tool(*words, "--run-dir", tmp_path / "r", cwd=slow[0].folder)
    assert again.code == 0, again.err
    assert "continuing the Jacobian of the train rows at row" in again.err
    whole_run, resumed = (load_file(tmp_path / name / "scores.safetensors") for name in ("whole", "r"))
    assert torch.allclose(whole_run["score"], resumed["score"], rtol=1e-9)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(tool: Tool, slow: tuple[Project, Path, dict], tmp_path: Path, number: int, code: int) -> None:
    folder = tmp_path / "r"
    running = start(*CHOICE, "--json", "--run-dir", folder, cwd=slow[0].folder, quick=True, env={"NAP": "0.15"})
    for _ in range(300):
        if list(folder.glob("*.part")):
            break
        time.sleep(0.1)
    time.sleep(0.5)
    running.send_signal(number)
    out, err = running.communicate(timeout=20)
    assert running.returncode == code
    assert out == b""
    assert b"Traceback" not in err
    assert b"interrupted" in err
    whole(folder)
    assert tool(*CHOICE, "--run-dir", folder, cwd=slow[0].folder).code == 0
    same_as_undisturbed(slow, folder, "after the signal")


def test_two_at_once(slow: tuple[Project, Path, dict], tmp_path: Path) -> None:
    folder = tmp_path / "r"
    options = (*CHOICE, "--json", "--run-dir", folder)
    both = [start(*options, cwd=slow[0].folder, quick=True, env={"NAP": "0.15"}) for _ in range(2)]
    ended = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], ended
    said = [err.decode() for _, err in ended if b"waiting" in err]
    assert len(said) == 1, "the second says that it waits"
    assert str(folder) in said[0]
    assert "reusing" in said[0]
    for out, _ in ended:
        assert core(strict(out.decode())) == core(slow[2])
    same_as_undisturbed(slow, folder, "two at once")


def test_waiting_can_be_interrupted(slow: tuple[Project, Path, dict], tmp_path: Path) -> None:
    import fcntl

    folder = tmp_path / "r"
    folder.mkdir()
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = start("evaluate", "--allow-code", "slow", "--run-dir", folder, cwd=slow[0].folder, quick=True)
        assert running.stderr is not None
        assert b"waiting" in running.stderr.readline()
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=20)
    assert running.returncode == 143
    assert out == b""
    assert b"Traceback" not in err


def test_a_signal_early(project: Project) -> None:
    """While modules are being imported, too."""
    for delay in (0.3, 0.9):
        running = start("evaluate", cwd=project.folder)
        time.sleep(delay)
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=20)
        assert running.returncode in (143, -signal.SIGTERM)
        assert b"Traceback" not in err
        assert out == b""


SWALLOWED = {
    "except": "try:\n    {kill}\nexcept BaseException:\n    pass\n",
    # Python itself drops what a finaliser raises, and would print it: so do its import locks, now and then.
    "finaliser": "import weakref\nheld = {{1}}\ncallback = weakref.ref(held, lambda _: {kill})\ndel held\n",
}


@pytest.mark.parametrize("way", SWALLOWED)
def test_a_signal_that_somebody_swallows(tool: Tool, project: Project, way: str) -> None:
    """What the handler raises may get lost during an import; the command must end all the same, with no traceback."""
    (project.folder / "greedy_nets.py").write_text(
        "import os, signal\nfrom torch import nn\n"
        + SWALLOWED[way].format(kill="os.kill(os.getpid(), signal.SIGTERM)")
        + "def make():\n    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))\n"
    )
    project.use(model={"build": {"import": "greedy_nets:make"}, "weights": {"path": "model.safetensors"}})
    run = tool("evaluate", "--k", 5, "--allow-code", "greedy_nets", cwd=project.folder)
    assert run.code == 143
    assert run.out == ""
    assert "Traceback" not in run.err
    assert "Exception ignored" not in run.err
