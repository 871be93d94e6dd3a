"""``python -m fairseq_lasformer.executors.child HANDLE``: a worker's process; see :mod:`processes`.

It takes a worker and then items from the connection at HANDLE, and answers ``("report", units)`` and
``("result", result)``.
"""

import sys
from multiprocessing.connection import Connection

from fairseq_lasformer.base.errors import InputError


def main() -> None:
    connection = Connection(int(sys.argv[1]))
    worker = connection.recv()
    worker.begin()
    while True:
        try:
            item = connection.recv()
        except EOFError:
            return
        connection.send(("result", worker(item, lambda units: connection.send(("report", units)))))


if __name__ == "__main__":
    try:
        main()
    except InputError as e:
        raise SystemExit(f"error: {e}") from None
