"""Updates of translated files to a changed source: unchanged blocks stay as they are (:mod:`documents.updating`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fairseq_lasformer.documents.updating import EDITED, KEPT, NEW, REREAD, Former, Updater, kept_lines
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.file_translation.file_translator import FileTranslator
from fairseq_lasformer.file_translation.reading import FileDocument
from fairseq_lasformer.file_translation.translated import TranslatedFile
from fairseq_lasformer.formats import OpenFile


class UpdatedFile(NamedTuple):
    """An updated translation of a file.

    Attributes:
        states: state of each of its lines, see :class:`documents.updating.Updated`.
        contradicted: numbers, from 1, of edited lines that the new context contradicts.
        gone: number of old lines that no longer exist.
        guessed: whether the edited lines are those that the model would not have written.
    """

    made: TranslatedFile
    states: list[str]
    contradicted: list[int]
    gone: int
    guessed: bool = False

    @property
    def changed(self) -> bool:
        """Return whether the translation has changed."""
        return self.gone > 0 or any(state in (NEW, REREAD) for state in self.states)

    def summary(self) -> str:
        """Return the counts in words."""
        words = [f"{self.states.count(state)} {state}" for state in (KEPT, NEW, REREAD)]
        edits = (
            "edited by the looks of it, and kept (--machine FILE tells exactly)" if self.guessed else "edited, and kept"
        )
        words += [f"{n} {edits}" for n in [self.states.count(EDITED)] if n]
        words += [f"{self.gone} gone"] if self.gone else []
        if self.contradicted:
            words.append(f"edited, but the new context contradicts line {', '.join(map(str, self.contradicted))}")
        return ", ".join(words)


class FileUpdater:
    """An updater of translated files.

    Args:
        touch_edits: whether edited lines may be translated again.

    Raises:
        InputError: the model cannot keep lines apart, or does not read documents.
    """

    def __init__(self, files: FileTranslator, touch_edits: bool = False) -> None:
        if not files.translator.reads_documents:
            raise InputError("an update needs a model of documents whose lines are aligned (data with a separator)")
        self.files, self.updater = files, Updater(files.translator, files.model.device, touch_edits)

    def update(
        self,
        old: OpenFile,
        translated: OpenFile,
        new: OpenFile,
        tick: Callable[[int], object] = lambda n: None,
        begin: Callable[[int], object] = lambda n: None,
        machine: OpenFile | None = None,
    ) -> UpdatedFile:
        """Update a translation.

        Args:
            old, translated: the source as it was, and its translation.
            new: the source as it is now.
            machine: the translation as the model wrote it; lines that differ from it count as edited. Default: lines
                that the model would not write do.

        Raises:
            InputError: the translation does not belong to the old source, or a file cannot be written.
        """
        for version in (translated, machine or translated):
            if len(old.blocks) != len(version.blocks):
                cues = ", or their sentences end in other cues: try --from cues" if old.units else ""
                raise InputError(
                    f"the old source has {len(old.blocks)} paragraphs, but its translation has {len(version.blocks)}; "
                    f"not versions of the same document{cues}"
                )
        reader = self.files.reader
        before = reader.read(old._replace(finished=()), dict(enumerate(translated.blocks)))
        alike = enumerate(kept_lines([b.text for b in old.blocks], [b.text for b in new.blocks]))
        same = {i: translated.blocks[j] for i, j in alike if j is not None and old.blocks[j] == new.blocks[i]}
        now = reader.read(new._replace(finished=()), same)
        kept = kept_lines(before.lines, now.lines)
        for i, line in enumerate(kept):  # unchanged sentences of changed paragraphs
            if line is not None and line + 1 in before.given:
                now.given.setdefault(i + 1, before.given[line + 1])
        kept = [line if i + 1 in now.given else None for i, line in enumerate(kept)]
        begin(len(now.lines))
        if not now.lines:
            made = self.files.rendered(now, [])
            return UpdatedFile(made, [], [], len(before.lines))
        former = Former(self.files.source(before), None if machine is None else _edited(before, translated, machine))
        source = self.files.source(now)
        found = self.updater.update(former, source, kept, tick)
        again = {i for i, state in enumerate(found.states) if state == REREAD}
        fresh = now._replace(
            given={n: text for n, text in now.given.items() if n - 1 not in again},
            kept={i: text for i, text in now.kept.items() if not again & set(_lines_of(now, i))},
        )
        made = self.files.rendered(fresh, self.files.with_sources(fresh, found.lines))
        gone = len(before.lines) - len({line for line in kept if line is not None})
        return UpdatedFile(made, found.states, [i + 1 for i in found.contradicted], gone, machine is None)


def _edited(before: FileDocument, translated: OpenFile, machine: OpenFile) -> set[int]:
    """Return the numbers of the lines in paragraphs whose translation differs from what the model wrote."""
    pairs = enumerate(zip(translated.blocks, machine.blocks))
    blocks = [i for i, (now, then) in pairs if now.segments != then.segments]
    return {line for i in blocks for line in _lines_of(before, i)}


def _lines_of(document: FileDocument, block: int) -> range:
    """Return the numbers, from 0, of a block's lines."""
    first = sum(map(len, document.sentences[:block]))
    return range(first, first + len(document.sentences[block]))
