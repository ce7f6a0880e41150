"""Runs Python programs without importing torch each time: one forked process per job.

A job arrives on a Unix socket: JSON {words, cwd, env, fault} and the three streams. The words are those after
`python`: a script, `-m module` or `-c code`, and its arguments. The answer is {code, cpu, peak}. Every job is a
process of its own that ends by itself, so exit codes, streams and files are real; only the imports are common. A byte
sent while it runs is a signal for it; a client that goes away takes its job with it.
A fault [kind, n] strikes before the n-th fsync or rename: "kill" is kill -9, "full" a disk without space.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as the tool sets it before it imports torch

import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
import torch.distributed.run
import torch.func
from torch.export import load  # noqa: F401

import sublaplace_cli

for found in pkgutil.walk_packages(sublaplace_cli.__path__, "sublaplace_cli."):
    if not found.name.endswith(("__main__", "triton_code")):  # one runs the tool, one needs Triton
        importlib.import_module(found.name)


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


def become(job: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the program of a job."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    if job["fault"] is not None:
        arm(*job["fault"])
    words = job["words"]
    code = 0
    try:
        if words[0] == "-m":
            sys.argv, sys.path[0] = words[1:], job["cwd"]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv, sys.path[0] = words[:1], job["cwd"]
            exec(words[1], {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = words, os.path.dirname(words[0])
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Server:
    """Accepts jobs, passes signals on, reports how each job ended."""

    def __init__(self, address: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(address)
        self.listener.listen()
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.selector.register(0, selectors.EVENT_READ, sys.exit)  # nobody is left who could send a job
        self.clients: dict[int, socket.socket] = {}

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def accept(self) -> None:
        client, _ = self.listener.accept()
        text, streams, _, _ = socket.recv_fds(client, 1 << 20, 3)
        pid = os.fork()
        if pid == 0:
            for inherited in (self.listener, client, *self.clients.values()):
                inherited.close()
            self.selector.close()
            become(json.loads(text), streams)
        for stream in streams:
            os.close(stream)
        self.clients[pid] = client
        handle = os.pidfd_open(pid)
        self.selector.register(client, selectors.EVENT_READ, lambda: self.send_signal(pid))
        self.selector.register(handle, selectors.EVENT_READ, lambda: self.report(pid, handle))

    def send_signal(self, pid: int) -> None:
        received = self.clients[pid].recv(1)
        os.kill(pid, received[0] if received else signal.SIGKILL)
        if not received:
            self.selector.unregister(self.clients[pid])

    def report(self, pid: int, handle: int) -> None:
        _, status, usage = os.wait4(pid, 0)
        self.selector.unregister(handle)
        os.close(handle)
        client = self.clients.pop(pid)
        if client in self.selector.get_map():
            self.selector.unregister(client)
            cpu = usage.ru_utime + usage.ru_stime
            answer = {"code": os.waitstatus_to_exitcode(status), "cpu": cpu, "peak": usage.ru_maxrss * 1024}
            client.send(json.dumps(answer).encode())
        client.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    server = Server(sys.argv[1])
    gc.freeze()  # a collection in a job would copy every page of the imports
    os.write(1, b"ready\n")
    server.serve()
