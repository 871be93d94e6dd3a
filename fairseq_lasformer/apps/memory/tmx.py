"""TMX: the pairs of two languages in a translation memory's exchange format, read piece by piece."""

from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats import language
from fairseq_lasformer.formats.markup import refuse_entities

CHUNK = 1 << 16
"""Bytes read at a time."""

DEEPEST = 256
"""Maximum nesting depth of elements."""

CODES = ("bpt", "ept", "ph", "it", "ut")
"""Inline elements whose content is code, not text."""


class _Units:
    """Collector of the segments of units.

    Attributes:
        done: complete units: the first segment of each language.
    """

    def __init__(self) -> None:
        self.done: list[dict[str, str]] = []
        self.unit: dict[str, str] | None = None
        self.language = ""
        self.text: list[str] | None = None
        self.depth = self.code = 0
        self.seen = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(":")[2].lower()
        if not self.seen and local != "tmx":
            raise InputError("not a TMX file")
        self.seen = True
        self.depth += 1
        if self.depth > DEEPEST:
            raise InputError(f"elements are nested more than {DEEPEST} deep")
        if local == "tu":
            self.unit = {}
        elif local == "tuv":
            self.language = language(attributes.get("xml:lang") or attributes.get("lang") or "")
        elif local == "seg":
            self.text = []
        elif local in CODES:
            self.code += 1

    def end(self, name: str) -> None:
        local = name.rpartition(":")[2].lower()
        self.depth -= 1
        if local == "seg" and self.text is not None and self.unit is not None:
            self.unit.setdefault(self.language, "".join(self.text))
            self.text = None
        elif local == "tu" and self.unit is not None:
            self.done.append(self.unit)
            self.unit = None
        elif local in CODES:
            self.code -= 1

    def data(self, text: str) -> None:
        if self.text is not None and not self.code:
            self.text.append(text)


def pairs(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a file in two languages; a side that is missing is empty."""
    units, parser = _Units(), expat.ParserCreate()
    parser.buffer_text = True

    refuse_entities(parser)
    parser.StartElementHandler, parser.EndElementHandler = units.start, units.end
    parser.CharacterDataHandler = units.data
    languages = language(source), language(target)
    with open(path, "rb") as file:
        while True:
            chunk = file.read(CHUNK)
            try:
                parser.Parse(chunk, not chunk)
            except expat.ExpatError as e:
                raise InputError(f"line {e.lineno}: not well-formed XML ({expat.ErrorString(e.code)})") from e
            except InputError:
                raise
            except (LookupError, ValueError) as e:  # of the encoding that it names
                raise InputError(f"its encoding cannot be read ({e}); convert it to UTF-8") from e
            for unit in units.done:
                yield unit.get(languages[0], ""), unit.get(languages[1], "")
            units.done = []
            if not chunk:
                return
