"""Console scripts that run in forks of one process which has imported torch and fairseq (see forkserver.py).

``python launcher.py SOCKET`` is that process. A script that :func:`script` returns hands it its arguments, environment,
folder and standard streams, forwards signals, and ends with the command's exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

CLIENT = """#!{python} -SE
import json, os, signal, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({path!r})
told = json.dumps([{name!r}, sys.argv, dict(os.environ), os.getcwd()]).encode()
socket.send_fds(s, [len(told).to_bytes(8, "big")], [0, 1, 2])
s.sendall(told)
pid = int.from_bytes(s.recv(8, socket.MSG_WAITALL), "big")
for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(n, lambda n, _: os.kill(pid, n))
code = int.from_bytes(s.recv(8, socket.MSG_WAITALL), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def script(python: str, path: str, name: str) -> str:
    """Return the text of a console script ``name``.

    Args:
        python: the interpreter.
        path: the socket of the process.
    """
    return CLIENT.format(python=python, path=path, name=name)


def serve(path: str) -> None:
    """Run commands until killed."""
    from forkserver import become, preload

    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    sys.path.pop(0)
    preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        listening.close()
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        told = client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        name, argv, environment, cwd = json.loads(told)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if not (pid := os.fork()):
            client.close()
            for descriptor, stream in enumerate(streams):
                os.dup2(stream, descriptor)
                os.close(stream)
            become([name, *argv[1:]], environment, cwd)
        for stream in streams:
            os.close(stream)
        client.sendall(pid.to_bytes(8, "big"))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        client.sendall(code.to_bytes(8, "big", signed=True))
        os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
