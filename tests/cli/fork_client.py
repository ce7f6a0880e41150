"""`python` through the fork server at the address that comes first: the same words, streams, signals and end."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    job = {"words": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ), "fault": None}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    socket.send_fds(server, [json.dumps(job).encode()], [0, 1, 2])
    code = json.loads(server.recv(1 << 16))["code"]
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
