"""Subtitles, .srt and .vtt: timings stay; a sentence may run over several cues."""

from __future__ import annotations

import re
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats.block import BREAK, BlockBuilder, Parsed

_TIME = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{2})[,.](\d{3})\s*-->\s*(?:(\d+):)?(\d{1,2}):(\d{2})[,.](\d{3})")
_TAG = re.compile(r"<[^<>]*>|\{\\[^{}]*\}")
_END = re.compile(r"[.!?…:;\"”»)\]♪。！？」]\s*$")
_START = re.compile(r"\s*[-–—♪#\[(>]")

PAUSE = 2.0
"""Seconds between two cues after which a sentence is taken to have ended."""


class Cue(NamedTuple):
    """A cue.

    Attributes:
        begin, end: its times, in seconds.
        lines: its lines of text, each with its line ending.
    """

    begin: float
    end: float
    lines: list[str]


def read(text: str) -> Parsed:
    """The text of all cues. Cues that a sentence runs over are one block, with the timings as markup in it.

    Raises:
        InputError: there is no cue.
    """
    builder = BlockBuilder()
    lines = text.splitlines(keepends=True)
    previous: Cue | None = None
    states: list[str] = []
    i = 0
    while i < len(lines):
        time = _TIME.search(lines[i])
        if time is None:
            # numbers, blank lines, and the header, notes and styles of WebVTT
            builder.keep(lines[i], BREAK if builder.inside else "")
            i += 1
            continue
        end = i + 1
        while end < len(lines) and lines[end].strip():
            end += 1
        cue = Cue(_seconds(time.groups()[:4]), _seconds(time.groups()[4:]), lines[i + 1 : end])
        builder.keep(lines[i], BREAK if builder.inside else "")
        previous = _add(builder, cue, previous, states)
        i = end
    builder.leave()
    if previous is None:
        raise InputError("holds no subtitle with a time (00:00:01,000 --> 00:00:02,000)")
    return builder.parsed()


def _seconds(fields: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, thousandths = (int(field or 0) for field in fields)
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1000


def _plain(line: str) -> str:
    return _TAG.sub("", line).strip()


def _add(builder: BlockBuilder, cue: Cue, previous: Cue | None, states: list[str]) -> Cue:
    """Adds a cue's lines, to the open block if its sentence goes on."""
    before = _plain(previous.lines[-1]) if previous and previous.lines else ""
    for number, line in enumerate(cue.lines):
        plain = _plain(line)
        ended = not before or bool(_END.search(before)) or bool(_START.match(plain))
        if not number and previous is not None:
            ended = ended or cue.begin - previous.end > PAUSE
        if ended:
            builder.leave()
        body = line.rstrip("\r\n")
        dash = re.match(r"\s*(?:[-–—>]+\s*)?", body)
        start = dash.end() if dash and not builder.inside else 0
        builder.keep(body[:start])
        builder.enter()
        position = start
        for tag in _TAG.finditer(body, start):
            _text(builder, body[position : tag.start()], cue, number, states)
            builder.keep(tag[0])
            _update(states, tag[0])
            position = tag.end()
        _text(builder, body[position:], cue, number, states)
        builder.keep(line[len(body) :], BREAK)
        before = plain or before
    return cue


def _text(builder: BlockBuilder, text: str, cue: Cue, number: int, states: list[str]) -> None:
    if text:
        # each cue shows its own words, and as many in each line as in the original
        builder.text(text, (cue.begin, number, *states))


def _update(states: list[str], tag: str) -> None:
    """Keeps track of the tags that are open."""
    if tag.startswith("</"):
        name = tag[2:-1].strip()
        for i in reversed(range(len(states))):
            if re.match(rf"<{re.escape(name)}\b", states[i]):
                del states[i]
                break
    elif re.match(r"<[a-zA-Z]", tag):
        states.append(tag)
