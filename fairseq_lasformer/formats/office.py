"""Archives of XML files, such as Word's .docx and OpenDocument's .odt: which of their files are read, and written."""

import io
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import Parsed, Unread
from fairseq_lasformer.text.spans import has_letter

MOST_HEAD = 20_000
"""Number of characters of an XML file in which its prefixes are declared."""

MOST, MOST_TEXT, MOST_MEMBERS = 512 << 20, 64 << 20, 10_000
"""Maximum size of an unpacked archive and of the files in it that are read, in bytes, and maximum number of files.

A file that is read takes six times its size in memory.
"""


class Archive(NamedTuple):
    """A zip archive whose XML files have been read."""

    data: bytes
    files: tuple[str, ...]  # the names of its XML files with text
    parsed: tuple[Parsed, ...]  # those files, in the same order
    finish: Callable[[str], str] = str  # finishes each translated file
    # the names of further files that `finish` changes, such as styles, which name a language
    marked: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()  # text in files that are not read

    def write(self, texts: tuple[str, ...]) -> bytes:
        """Return the archive with other XML files; everything else in it is copied."""
        changed = dict(zip(self.files, texts))
        archive = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self.data)) as old, zipfile.ZipFile(archive, "w") as new:
            new.comment = old.comment
            for info in old.infolist():
                text = changed.get(info.filename)
                if text is None and info.filename in self.marked:
                    text = old.read(info).decode("utf-8-sig")
                if text is not None:
                    new.writestr(info, self.finish(text).encode("utf-8"), info.compress_type)
                    continue
                copy = copied(info)
                with old.open(info) as source, new.open(copy, "w", force_zip64=info.file_size > 1 << 31) as target:
                    shutil.copyfileobj(source, target, 1 << 20)  # a piece at a time
        return archive.getvalue()


def copied(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Return the description of a file in an archive, for a copy of it."""
    entry = zipfile.ZipInfo(info.filename, info.date_time)
    entry.compress_type, entry.external_attr, entry.create_system = (
        info.compress_type,
        info.external_attr,
        info.create_system,
    )
    entry.comment, entry.extra = info.comment, info.extra
    return entry


class Parts(NamedTuple):
    """The files of an archive, by what becomes of them."""

    main: str  # the file that it cannot lack
    read: Callable[[str], bool]  # whether a file has paragraphs
    marked: Callable[[str], bool]  # whether a file names languages
    # what a file's text is called that is shown but not read (`diagram`); empty for other files
    shown: Callable[[str], str]
    # what else is shown and not read, by what it is called, with the file that it is in
    further: Callable[[zipfile.ZipFile], list[tuple[str, str]]] = lambda archive: []


_SHOWN = re.compile(r"<(?:\w+:)?(?:t|v|p|text|tspan)(?:\s[^<>]*)?>([^<>]*)</")


def unpacked(data: bytes) -> int:
    """Return the size of an unpacked archive, in bytes; 0 if it is none."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(info.file_size for info in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        return 0


def read_archive(
    data: bytes, parts: Callable[[zipfile.ZipFile], Parts], parse: Callable[[str], Parsed], what: str
) -> Archive:
    """Read the XML files of an archive.

    Args:
        what: what it is, for errors.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > MOST:
                raise InputError(f"unpacked, it takes up more than {MOST >> 20} MiB")
            names = [info.filename for info in archive.infolist()]
            if len(names) > MOST_MEMBERS or len(set(names)) < len(names):
                raise InputError(f"not {what}: it contains the same name twice, or more than {MOST_MEMBERS:,} files")
            chosen = parts(archive)
            if chosen.main not in names:
                raise InputError(f"not {what}: {chosen.main} is missing")
            text = [name for name in names if chosen.read(name) or chosen.marked(name) or chosen.shown(name)]
            if sum(archive.getinfo(name).file_size for name in text) > MOST_TEXT:
                raise InputError(f"its text takes up more than {MOST_TEXT >> 20} MiB, unpacked; divide it")
            if broken := archive.testzip():  # including files that are only copied
                raise InputError(f"not {what}, damaged or encrypted (checksum of {broken})")
            read = sorted((name for name in names if chosen.read(name)), key=lambda name: name != chosen.main)
            texts = [archive.read(name).decode("utf-8-sig") for name in read]
            marked = tuple(name for name in names if chosen.marked(name) and name not in read)
            shown = [(name, chosen.shown(name)) for name in names if name not in read]
            unread = [
                Unread(0, kind, name)
                for name, kind in shown
                if kind and any(map(has_letter, _SHOWN.findall(archive.read(name).decode("utf-8", "replace"))))
            ]
            unread += [Unread(0, *said) for said in chosen.further(archive)]
    except InputError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, UnicodeDecodeError, EOFError, OSError) as e:
        raise InputError(f"not {what}, damaged or encrypted ({e})") from e
    except (ValueError, zlib.error) as e:
        raise InputError(f"damaged ({e})") from e
    return Archive(data, tuple(read), tuple(map(parse, texts)), marked=marked, unread=tuple(unread))


def labels_with_words(labels: Iterable[str], place: str) -> list[tuple[str, str]]:
    """Return an entry of ``Parts.further`` for each label of lists that has a word."""
    lettered = {label for label in labels if re.search(r"[^\W\d_]{2}", label)}
    return [("list label", place)] * len(lettered)


def one_prefix(text: str, namespace: str) -> str:
    """Return an XML file in which a namespace has a single prefix: others that stand for it are replaced."""
    names = dict.fromkeys(re.findall(rf'xmlns:([\w.-]+)\s*=\s*["\']{re.escape(namespace)}["\']', text[:MOST_HEAD]))
    first, *others = names or ("",)
    if not others:
        return text
    return re.sub(rf"(?<=[<\s/])(?:{'|'.join(map(re.escape, others))}):(?=[\w.-]+[\s=/>])", f"{first}:", text)


def prefix_of(text: str, namespace: str, usual: str) -> str:
    """Return the prefix of a namespace in an XML file, with its colon."""
    match = re.search(rf'xmlns(?::([\w.-]+))?\s*=\s*["\']{re.escape(namespace)}["\']', text)
    if match is None:
        return f"{usual}:"
    return f"{match[1]}:" if match[1] else ""
