"""Commands run in forks of one process that has imported torch and fairseq, which takes seconds each time.

A fork is as fresh as a new process except for these imports. Tests that depend on the imports (the environment, the
console script itself) need a separate process: see ``helpers.run``.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn


@cache
def _server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def execute(
    command: Sequence[str], environment: Mapping[str, str], cwd: Path, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run ``python SCRIPT …``, ``python -m MODULE …`` or a console script in a fork; its output goes to ``folder``."""
    out, err, status = folder / "stdout", folder / "stderr", folder / "status"
    os.mkfifo(status)
    request = {"command": command, "environment": dict(environment), "cwd": str(cwd)}
    request |= {"out": str(out), "err": str(err), "status": str(status)}
    print(json.dumps(request), file=_server().stdin, flush=True)
    code = int(status.read_text())
    return subprocess.CompletedProcess(command, code, out.read_text(errors="replace"), err.read_text(errors="replace"))


def _child(request: dict) -> None:
    """Run the command in the fork."""
    for path, descriptor in ((os.devnull, 0), (request["out"], 1), (request["err"], 2)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    signal.alarm(300)
    become(request["command"], request["environment"], request["cwd"])


def become(command: Sequence[str], environment: Mapping[str, str], cwd: str) -> NoReturn:
    """Let this fork be a command; its standard streams are those of the descriptors 0 to 2."""
    code = 1
    try:
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, m, encoding="utf-8") for i, m in enumerate("rww"))
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        program, *sys.argv = command
        try:
            if program == "python" and sys.argv[0] == "-m":
                del sys.argv[0]
                runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
                code = 0
            elif program == "python":
                sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
                runpy.run_path(sys.argv[0], run_name="__main__")
                code = 0
            else:
                sys.argv.insert(0, program)
                (entry,) = entry_points(group="console_scripts", name=program)
                sys.exit(entry.load()())
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
            if isinstance(e.code, str):
                print(e.code, file=sys.stderr)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def preload() -> None:
    """Import what takes seconds."""
    import fairseq.criterions
    import fairseq.models
    import fairseq.tasks
    import fairseq.trainer  # noqa: F401

    logging.root.handlers.clear()


def _serve() -> None:
    sys.path.pop(0)
    preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork():
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if not pid:
            _child(request)
        _, status = os.waitpid(pid, 0)
        Path(request["status"]).write_text(str(os.waitstatus_to_exitcode(status)))
        os._exit(0)


if __name__ == "__main__":
    _serve()
