"""Runs the tool many times without importing torch each time: one forked process for each job on stdin.

A job is a line of JSON {args, cwd, env, out, err, fault}; the answer is a line {code, cpu, peak}. Every job is a
process of its own that ends by itself, so exit codes, streams and files are real; only the imports are shared.
A fault [kind, n] strikes before the n-th fsync or rename: "kill" is kill -9, "full" a disk without space.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import traceback

import numpy  # noqa: F401
import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
import torch.func
from torch.export import load  # noqa: F401

import sublaplace_cli.commands.runner
import sublaplace_cli.render.plots  # matplotlib, too, is slow to import
import sublaplace_cli.render.text  # noqa: F401
from sublaplace_cli.__main__ import main


def arm(kind: str, at: int) -> None:
    """Let a fault strike before the `at`-th time that something becomes durable or gets its name."""
    left = at

    def guarded(real):
        def call(*args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0 and kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if left == 0 and kind == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        return call

    os.fsync, os.replace = guarded(os.fsync), guarded(os.replace)


def child(job: dict) -> None:
    """Become the command; never returns."""
    for name, number, flags in (
        (os.devnull, 0, os.O_RDONLY),
        (job["out"], 1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (job["err"], 2, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        handle = os.open(name, flags, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(job["cwd"])
    for key, value in job["env"].items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    if job["fault"] is not None:
        arm(*job["fault"])
    sys.argv = ["sublaplace", *job["args"]]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    """One job after the other until stdin ends."""
    torch.set_num_threads(1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        _, status, usage = os.wait4(pid, 0)
        answer = {
            "code": os.waitstatus_to_exitcode(status),
            "cpu": usage.ru_utime + usage.ru_stime,
            "peak": usage.ru_maxrss * 1024,
        }
        os.write(1, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    serve()
