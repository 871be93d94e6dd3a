"""Record of updates of translations, which is written before a translation is replaced.

An update that replaces the old translation must not be repeated: it would take the new translation for the old one, and
move every line. What is about to stand there is recorded first, so a killed update is recognised by its own result.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import digest
from fairseq_lasformer.resume import Ledger


class Entry(NamedTuple):
    """An update of a file.

    Attributes:
        settings: hash of what it depends on besides these files.
        old, new, before: SHA-256 of the old source, the new one, and the old translation; empty for a file that there
            was not.
        made: SHA-256 of the new translation.
        done: whether it stands in its place.
    """

    settings: str
    old: str
    new: str
    before: str
    made: str = ""
    done: bool = False


class UpdateRecord:
    """The last update of each file in a folder; the last entry of a file counts."""

    def __init__(self, path: Path) -> None:
        self.ledger, self.entries = Ledger(path), dict[str, Entry]()
        for name, values in self.ledger.entries:
            if len(values) == len(Entry._fields):
                *texts, done = values
                self.entries[name] = Entry._make([*map(str, texts), bool(done)])

    def is_done(self, name: str, wanted: Entry, out: Path, in_place: bool) -> bool:
        """Return whether an update need not be made.

        Args:
            wanted: the update, without ``made``.
            in_place: whether ``out`` is also the old translation.

        Raises:
            InputError: the old translation has been replaced already, and it must not be updated again.
        """
        last = self.entries.get(name)
        if last is None or (last.old, last.new) != (wanted.old, wanted.new) or not out.is_file():
            return False
        now = digest(out)
        if not in_place:
            unchanged = last.settings == wanted.settings and last.before == wanted.before
            return unchanged and (last.done or now == last.made)
        if now == last.before and now != last.made:  # killed before it was replaced, or put back
            return False
        if not last.done and now != last.made:
            raise InputError(f"{out}: has changed since an update of it was killed; put the old translation back")
        if last.settings != wanted.settings:
            raise InputError(
                f"{out}: has been updated to this source already, with other options or another model; to repeat it, "
                "put the old translation back"
            )
        return True

    def check_new(self, name: str, out: Path, replace: bool) -> None:
        """Refuse to replace a file that no update wrote.

        Args:
            replace: whether any file may be replaced.
        """
        if out.is_file() and not replace and name not in self.entries:
            raise InputError(f"{out}: exists, and no update wrote it; --overwrite replaces it")

    def add(self, name: str, entry: Entry) -> None:
        """Record an update; on disk when this returns."""
        self.ledger.add(name, *entry, lasting=True)
        self.entries[name] = entry
