"""Streams: the result alone on stdout, all else on stderr; terminals, pipes that close, help that is quick."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cli_tools import COMMAND, ENVIRONMENT, Project, Tool, call, start, strict

CHOICE = ("evaluate", "--method", "gradient,greedy", "--k", "3,5")


def cpu_time(*args: str, cwd: Path, limit: float) -> tuple[float, int, str]:
    """Least user + system time of up to 15 runs (other work adds to it), the exit code and both streams."""
    best = float("inf")
    for _ in range(15):
        if best < limit:
            break
        process = subprocess.Popen(
            [*COMMAND, *args],
            cwd=cwd,
            env={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        text = process.stdout.read().decode()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        best = min(best, usage.ru_utime + usage.ru_stime)
    return best, process.returncode, text


@pytest.mark.parametrize(
    ("command", "limit"),
    [([], 0.150), (["jacobians"], 0.250), (["select"], 0.250), (["fit"], 0.250), (["evaluate"], 0.250)],
)
def test_help_is_quick(tmp_path: Path, command: list[str], limit: float) -> None:
    seconds, code, text = cpu_time(*command, "--help", cwd=tmp_path, limit=limit)
    assert code == 0
    assert "Usage:" in text
    assert ("--run-dir" in text) == bool(command)
    assert seconds < limit


def test_a_spec_error_is_quick(project: Project) -> None:
    (project.folder / "sublaplace.yaml").write_text("version: 1\ntask: regresion\n")
    seconds, code, text = cpu_time("evaluate", cwd=project.folder, limit=0.5)
    assert code == 2
    assert "did you mean 'regression'" in text
    assert seconds < 0.5


def test_nothing_heavy_is_imported_for_help(tmp_path: Path) -> None:
    script = (
        "import sys, sublaplace_cli.cli.app; print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_version_and_help_go_to_stdout(tool: Tool, tmp_path: Path) -> None:
    from sublaplace_cli import __version__

    for args in (["--version"], ["evaluate", "--version"]):
        run = tool(*args, cwd=tmp_path)
        assert (run.code, run.out, run.err) == (0, f"sublaplace {__version__}\n", "")
    run = tool(cwd=tmp_path)
    assert "Usage" in run.out + run.err
    for command in ("jacobians", "select", "fit", "evaluate"):
        assert f"sublaplace {command}" in tool(command, "--help", cwd=tmp_path).out, "an example"


def test_debug_shows_where_and_keeps_the_code(tool: Tool, project: Project) -> None:
    for options, code in ((("--k", "999"), 2), (("--spec", "absent.yaml"), 2)):
        run = tool("evaluate", "--debug", *options, cwd=project.folder)
        assert "Traceback" in run.err
        assert "UserError" in run.err or "SpecError" in run.err
        assert run.out == ""
        assert run.code == code, "1 would say that a limit was broken"


def test_quiet_verbose_and_colours(tool: Tool, project: Project) -> None:
    quiet = tool(*CHOICE, "-q", cwd=project.folder)
    assert (quiet.code, quiet.err_but_sanity()) == (0, "")
    verbose = tool(*CHOICE, "-v", "--recompute", cwd=project.folder)
    assert "selecting by greedy" in verbose.err
    assert verbose.out == quiet.out
    for env in ({"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"HOME": None}, {"LC_ALL": "C"}, {"TERM": None}):
        run = tool(*CHOICE, "--format", "table", cwd=project.folder, env=env)
        assert run.code == 0
        assert "\x1b" not in run.out + run.err


@pytest.mark.parametrize("kind", ["table", "markdown"])
def test_an_output_that_is_not_utf8(project: Project, kind: str) -> None:
    options = ("--method", "gradient,map", "--format", kind)
    run = call(*CHOICE, *options, cwd=project.folder, env={"PYTHONIOENCODING": "ascii"})
    assert run.code == 0, run.err
    assert "gradient" in run.out


def on_terminal(args: tuple, cwd: Path, env: dict[str, str], width: int) -> tuple[int, str, str]:
    """Run with stdout and stderr on two pseudo-terminals."""
    import fcntl
    import struct
    import termios

    pairs = [pty.openpty() for _ in range(2)]
    for _, follower in pairs:
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    shape = {"TERM": "xterm-256color", "COLUMNS": str(width), "LINES": "40"}
    process = start(*args, cwd=cwd, env={**shape, **env}, stdout=pairs[0][1], stderr=pairs[1][1], quick=True)
    for _, follower in pairs:
        os.close(follower)
    texts = {leader: b"" for leader, _ in pairs}
    open_ends = set(texts)
    while open_ends:
        for leader in select.select(list(open_ends), [], [], 60)[0]:
            try:
                chunk = os.read(leader, 65536)
            except OSError:
                chunk = b""
            texts[leader] += chunk
            if not chunk:
                open_ends.discard(leader)
    for leader in texts:
        os.close(leader)
    return process.wait(30), texts[pairs[0][0]].decode(), texts[pairs[1][0]].decode()


def test_on_a_terminal(project: Project) -> None:
    code, out, err = on_terminal(CHOICE, project.folder, {}, 200)
    assert code == 0
    assert "method" in out
    assert "greedy" in out
    assert "\t" not in out
    assert "Jacobian of the train rows" in err
    assert "Jacobian" not in out
    assert "w2_relative" not in err
    code, out, err = on_terminal((*CHOICE, "--recompute"), project.folder, {"NO_COLOR": "1"}, 80)
    assert code == 0
    assert not any(f"\x1b[{n}" in out + err for n in (*range(30, 50), "1;3", "38;5", "38;2")), "NO_COLOR"
    for word in ("method", "gradient", "greedy", "full", "w2"):
        assert word in out, f"{word}: on 80 columns, too"
    assert "…" not in out, "a number that is cut off is no number"


def test_a_pipe_that_closes(project: Project, tmp_path: Path) -> None:
    command = " ".join([*COMMAND, *CHOICE, "--run-dir", str(tmp_path / "r")])
    for reader in ("head -c 1", "true"):
        done = subprocess.run(
            ["bash", "-c", f"{command} --json | {reader}; echo ${{PIPESTATUS[0]}} >&2"],
            cwd=project.folder,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        assert "Broken" not in done.stderr
        assert "rror" not in done.stderr.replace("standard errors", "")
        assert done.stderr.splitlines()[-1] in ("0", "141")
        assert len(done.stdout) <= 1
        strict((tmp_path / "r" / "evaluation.json").read_text())


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">/dev/full"])
def test_streams_that_are_not_there(project: Project, tmp_path: Path, closed: str) -> None:
    result = tmp_path / "result.json"
    command = " ".join([*COMMAND, *CHOICE, "-o", str(result), closed])
    done = subprocess.run(
        ["bash", "-c", command], cwd=project.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    if closed == ">/dev/full":
        assert done.returncode == 3, done.stderr
        assert "No space left" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
    assert len(strict(result.read_text())["rows"]) == 4


def test_a_closed_stdin_is_no_question(project: Project) -> None:
    done = subprocess.run(
        ["bash", "-c", " ".join([*COMMAND, *CHOICE, "<&-"])],
        cwd=project.folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("method\t")
