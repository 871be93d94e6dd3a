"""Cues of subtitles, and the blocks that they make: a sentence may span several cues."""

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

from fairseq_lasformer.formats.block import BREAK
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.markup import REFERENCE

TAG = re.compile(r"</?[a-zA-Z][^<>]{0,500}>|<\d[\d:.]{0,20}>|\{\\[^{}]{0,500}\}")
END = re.compile(r"[.!?…:;\"”»)\]♪。！？」]\s*$")
_MARKS = r"(?:&lrm;|&rlm;|[\u200e\u200f\u202a-\u202e\u2066-\u2069])*"
_START = re.compile(rf"\s*{_MARKS}\s*[-–—♪#\[(>]")
_SPEAKER = re.compile(rf"\s*{_MARKS}[A-Z][\w.'’-]{{0,20}}(?: [A-Z][\w.'’-]{{0,20}}){{0,2}}:(?=\s+\S)")
_CAPITAL = re.compile(rf"\s*{_MARKS}[\"'“‘¿¡]?(?!I\b)[^\W\d_]")
_DASH = re.compile(rf"\s*{_MARKS}(?:[-–—>]+\s*)?")
_LINE_END = re.compile(r"(?:[\r\n]+|\\N)\Z")
VOICE = re.compile(r"<v(?:\.[\w.-]*)?[ \t]+([^<>]{1,200})>")
POSITION = re.compile(r"\\(?:an?\d{1,2}|pos\([^()]*\)|move\([^()]*\))")
_DRAWING, _DRAWN = re.compile(r"\\p[1-9]"), re.compile(r"\\p0")
_SPECIAL = re.compile(rf"\\[Nnh]|{REFERENCE}")
_EVERYWHERE = ("&amp;", "&nbsp;", "&gt;", "&quot;", "&apos;", "&lrm;", "&rlm;")

DEEPEST = 32
"""Number of levels of nested tags that are distinguished."""

PAUSE = 2.0
"""Seconds between two cues after which a sentence is assumed to have ended."""

TOGETHER = 0.2
"""Seconds for which two cues may be shown together and still be one sentence: programs round times."""


class Cue(NamedTuple):
    """A cue."""

    # begin, end: its times, in seconds
    begin: float
    end: float
    lines: list[str]  # its lines of text, each with its line ending
    position: str = ""  # what it says of its position on the screen; empty for the usual one
    voice: str = ""  # who speaks, if it says so


def plain(line: str) -> str:
    """Return a line without tags."""
    return TAG.sub("", line).strip()


def rolled(before: Sequence[str], here: Sequence[str]) -> int:
    """Return the number of lines at the start of a cue that are the last ones with text of the cue before it."""
    last, first = [said for line in before if (said := plain(line))], [plain(line) for line in here]
    for n in range(len(first), 0, -1):
        repeated = [line for line in first[:n] if line]
        if repeated and repeated == last[-len(repeated) :]:
            return n
    return 0


class CueWriter:
    """A writer of cues to a builder: a cue joins the open block if its sentence continues.

    Args:
        web: whether texts have the entities of WebVTT.
        joined: see :func:`read`.
        bare: whether hardly any cue of the file ends with punctuation.
        rolling: whether lines that a cue repeats from the one before it are left to :func:`subtitles.finish`.
        tag: the pattern of tags.

    Attributes:
        previous: the last cue that was added.
    """

    def __init__(
        self,
        builder: BlockBuilder,
        web: bool,
        joined: bool,
        tag: re.Pattern[str] = TAG,
        bare: bool = False,
        rolling: bool = False,
    ) -> None:
        self.builder, self.web, self.joined, self.tag = builder, web, joined, tag
        self.bare, self.rolling = bare, rolling
        self.previous: Cue | None = None
        self.before = ""  # the last line with text
        self.states: list[str] = []

    def _ends(self, cue: Cue) -> bool:
        """Return whether no sentence continues in a cue, whatever its text."""
        last = self.previous
        if last is None:
            return True
        apart = cue.begin - last.end
        return not -TOGETHER <= apart <= PAUSE or (cue.position, cue.voice) != (last.position, last.voice)

    def add(self, cue: Cue) -> None:
        """Add a cue."""
        builder = self.builder
        builder.units += 1
        builder.at("cue", f"{cue.begin:.3f}")
        apart = self._ends(cue)
        rolling = self.rolling and not apart and self.previous is not None
        repeated = rolled(self.previous.lines, cue.lines) if rolling and self.previous else 0
        drawing = False
        voice = cue.voice
        for number, line in enumerate(cue.lines):
            shown = self.tag.sub("", _LINE_END.sub("", line)).strip()
            said = VOICE.search(line)
            if number < repeated:
                builder.keep(line, BREAK if builder.inside else "")
                continue
            ended = not self.before or bool(END.search(self.before)) or bool(_START.match(shown))
            ended = ended or bool(_SPEAKER.match(shown)) or (not number and self.bare and self._begins(shown))
            ended = ended or (apart and not number) or (bool(said) and said[1] != voice)  # type: ignore[index]
            voice = said[1] if said else voice
            if ended if self.joined else not number:
                builder.leave()
            body = _LINE_END.sub("", line)
            start = 0 if builder.inside else self._opening(body)
            builder.keep(body[:start])
            builder.enter()
            position = start
            for tag in self.tag.finditer(body):
                if tag.start() >= start:
                    self._text(body[position : tag.start()], cue, number, drawing)
                    builder.keep(tag[0])
                    position = tag.end()
                _update(self.states, tag[0])
                drawing = (drawing or bool(_DRAWING.search(tag[0]))) and not _DRAWN.search(tag[0])
            self._text(body[position:], cue, number, drawing)
            builder.keep(line[len(body) :], BREAK)
            self.before = shown or self.before
        self.previous = cue

    def _begins(self, line: str) -> bool:
        """Return whether a cue without a full stop before it begins a sentence: it begins with a capital."""
        letter = _CAPITAL.match(line)
        return letter is not None and letter[0][-1].isupper()

    def _opening(self, line: str) -> int:
        """Return where a line's text begins: after a speaker's dash, which may follow tags."""
        start = position = _DASH.match(line).end()  # type: ignore[union-attr]
        while tag := self.tag.match(line, position):
            position = _DASH.match(line, tag.end()).end()  # type: ignore[union-attr]
            if re.search("[-–—>]", line[tag.end() : position]):
                start = position
        return start

    def _text(self, text: str, cue: Cue, number: int, drawing: bool) -> None:
        """Add text between tags; each cue shows its own words, and as many in each line as in the original."""
        if drawing or any(tag.startswith("<rt") for tag in self.states):
            self.builder.keep(text)
            return
        state = (cue.begin, number, *self.states)
        position = 0
        for special in _SPECIAL.finditer(text):
            self.builder.text(text[position : special.start()], state)
            if special[0].startswith("\\"):
                self.builder.keep(special[0], BREAK)
            elif not self.web and special[0] not in _EVERYWHERE:
                self.builder.text(special[0], state)
            else:
                self.builder.text(html.unescape(special[0]), state, special[0])
            position = special.end()
        self.builder.text(text[position:], state)


def _update(states: list[str], tag: str) -> None:
    """Update the list of open tags."""
    if tag.startswith("</"):
        name = tag[2:-1].strip()
        for i in reversed(range(len(states))):
            if re.match(rf"<{re.escape(name)}\b", states[i]):
                del states[i]
                break
    elif re.match(r"<[a-zA-Z]", tag) and len(states) < DEEPEST:
        states.append(tag)
