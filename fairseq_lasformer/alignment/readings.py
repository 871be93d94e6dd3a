"""Files read for an alignment, which a killed run keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from fairseq_lasformer.alignment.units import Reading, Unit
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.resume import AppendedLines


class Readings:
    """Readings of files, in a file to which each is appended; what is damaged or cut short is read again.

    Args:
        path: the file; removed by :meth:`finish`.
        how: everything that a reading depends on besides the file's bytes.
    """

    def __init__(self, path: Path, how: str) -> None:
        self.how, self.record = how, AppendedLines(path)
        self._kept: dict[str, Reading] = {}
        for line in self.record.lines:
            try:
                key, only_keys, units = json.loads(line)
                self._kept[str(key)] = Reading(
                    [Unit(str(a), tuple(map(str, b)), str(c), str(d)) for a, b, c, d in units], bool(only_keys)
                )
            except (ValueError, TypeError, RecursionError):
                continue

    def read(self, file: Path, read: Callable[[bytes], Reading]) -> Reading:
        """Return the reading of a file, which ``read`` makes if it is not kept.

        Raises:
            InputError: the file cannot be read, or the reading cannot be kept.
        """
        try:
            data = file.read_bytes()
        except OSError as e:
            raise InputError(f"{file}: cannot be read ({e.strerror})") from e
        key = hashlib.sha256(f"{self.how} {file.suffix} ".encode() + data).hexdigest()
        if key not in self._kept:
            found = read(data)
            self.record.add(json.dumps([key, found.only_keys, found.units]))
            self._kept[key] = found
        return self._kept[key]

    def finish(self) -> None:
        """Remove the file."""
        self.record.path.unlink(missing_ok=True)
