"""Files read for an alignment, which a killed run keeps."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fairseq_lasformer.apps.pairing.units import Reading, Unit
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.resume import Ledger

_WRITTEN = "written"


class Readings:
    """Readings of files, in a file to which each is appended; what is damaged or cut short is read again.

    Args:
        path: the file; removed by :meth:`finish`.
        how: everything that a reading depends on besides the file's bytes.

    Attributes:
        written: names of the results that a killed run began to write.
    """

    def __init__(self, path: Path, how: str) -> None:
        self.how, self.ledger = how, Ledger(path)
        self._kept: dict[str, Reading] = {}
        self.written = {str(name) for name in self.ledger.values.get(_WRITTEN, ())}
        for key, values in self.ledger.entries:
            with suppress(ValueError, TypeError):
                only_keys, units = values
                self._kept[key] = Reading(
                    [Unit(str(a), tuple(map(str, b)), str(c), str(d)) for a, b, c, d in units], bool(only_keys)
                )

    def read(self, file: Path, read: Callable[[bytes], Reading]) -> Reading:
        """Return the reading of a file, which ``read`` makes if it is not kept."""
        try:
            data = file.read_bytes()
        except OSError as e:
            raise InputError(f"{file}: cannot be read ({e.strerror})") from e
        key = hashlib.sha256(f"{self.how} {file.suffix} ".encode() + data).hexdigest()
        if key not in self._kept:
            reading = read(data)
            self.ledger.add(key, reading.only_keys, reading.units)
            self._kept[key] = reading
        return self._kept[key]

    def begin_writing(self, names: Sequence[str]) -> None:
        """Record the names of files that are about to be written, none of which is there yet but by a killed run."""
        self.ledger.add(_WRITTEN, *names, lasting=True)

    def finish(self) -> None:
        """Remove the file."""
        self.ledger.path.unlink(missing_ok=True)
