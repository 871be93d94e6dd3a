"""Advanced SubStation Alpha, .ass and .ssa: the texts of its dialogue; styles, times and comments stay.

See the format's description: in a line ``Dialogue:``, the field ``Text`` is the last one and may contain commas; the
line ``Format:`` before it names the fields. Override tags (``{\\i1}``) are markup, drawings (``{\\p1}``) no text, and
``\\N``, ``\\n``, ``\\h`` breaks.
"""

import re

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.cues import POSITION, Cue, CueWriter
from fairseq_lasformer.text.lines import lines_with_ends

_LINE = re.compile(r"(Dialogue:[ \t]*)(.*?)(\s*)\Z", re.S)
_BRACES = re.compile(r"\{[^{}]{0,2000}\}")  # without a backslash, they are comments
_KARAOKE = re.compile(r"\{[^{}]*\\[kK][fot]?\d")
_CLOCK = re.compile(r"\s*(\d{1,3}):(\d{1,2}):(\d{1,2}(?:[.,:]\d{1,3})?)\s*\Z")
FIELDS = "Layer,Start,End,Style,Name,MarginL,MarginR,MarginV,Effect,Text"
"""Fields of a line of dialogue in a file that names none."""


def read(text: str) -> Parsed:
    """Read the texts of all lines of dialogue; a sentence may span several."""
    builder = BlockBuilder()
    writer = CueWriter(builder, False, True, _BRACES)
    names = _names(FIELDS)
    events = True
    for line in lines_with_ends(text):
        said = line.strip()
        if said.startswith("["):
            events = said.lower() in ("[events]", "[]")
        elif events and said.lower().startswith("format:"):
            names = _names(said.partition(":")[2])
        match = _LINE.match(line)
        if match is None:
            builder.keep(line)
            continue
        fields = match[2].split(",", len(names) - 1)
        known = dict(zip(names, fields))
        begin, end = (_seconds(known.get(name, "")) for name in ("start", "end"))
        if len(fields) < len(names) or names[-1] != "text" or begin is None or end is None:
            builder.leave()
            builder.misread(line, "cue")
            continue
        if _KARAOKE.search(fields[-1]):  # syllables, each with its time
            builder.leave()
            builder.misread(line, "karaoke line")
            builder.units += 1
            writer.previous = writer.previous or Cue(begin, end, [])
            continue
        builder.keep(match[1] + ",".join(fields[:-1]) + ",")
        where = [known.get("style", ""), *POSITION.findall(fields[-1])]
        lines = re.findall(r".*?\\N|.+\Z", fields[-1], re.S)
        writer.add(Cue(begin, end, lines, " ".join(where), known.get("name", known.get("actor", "")).strip()))
        builder.keep(match[3], " ")
    builder.leave()
    if writer.previous is None:
        raise InputError("contains no line of dialogue (Dialogue: 0,0:00:01.00,0:00:02.00,…)")
    return builder.parsed()


def _names(fields: str) -> list[str]:
    return [name.strip().lower() for name in fields.split(",")]


def _seconds(clock: str) -> float | None:
    match = _CLOCK.match(clock)
    return None if match is None else int(match[1]) * 3600 + int(match[2]) * 60 + float(re.sub("[,:]", ".", match[3]))
