"""``python tests/enter.py < CALLS``: several calls of one command in a process, with the result of each.

CALLS is a JSON list of commands, each a list of words. Prints a JSON list of ``[exit code, standard error]``.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from importlib.metadata import entry_points


def enter(command: list[str]) -> tuple[int, str]:
    (entry,) = entry_points(group="console_scripts", name=command[0])
    sys.argv = command
    code, said = 0, io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            returned = entry.load()()
            code = returned if isinstance(returned, int) else 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(e.code is not None)
        except BaseException:
            code = 1
            sys.excepthook(*sys.exc_info())
    logging.disable(logging.NOTSET)
    return code, said.getvalue()


if __name__ == "__main__":
    print(json.dumps([enter(words) for words in json.loads(sys.argv[1])]), file=sys.__stdout__)
