"""Subtitles, .srt and .vtt: timings stay; a sentence may span several cues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats.block import BREAK, BlockBuilder, Parsed

_CLOCK = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})[,.](\d{3})"
_TIME = re.compile(rf"(?<!\d){_CLOCK}[ \t]{{0,20}}-->[ \t]{{0,20}}{_CLOCK}")
_TAG = re.compile(r"<[^<>]{0,500}>|\{\\[^{}]{0,500}\}")
_END = re.compile(r"[.!?…:;\"”»)\]♪。！？」]\s*$")
_START = re.compile(r"\s*[-–—♪#\[(>]")

DEEPEST = 32
"""Number of levels of nested tags that are distinguished."""

PAUSE = 2.0
"""Seconds between two cues after which a sentence is assumed to have ended."""


class Cue(NamedTuple):
    """A cue.

    Attributes:
        begin, end: its times, in seconds.
        lines: its lines of text, each with its line ending.
    """

    begin: float
    end: float
    lines: list[str]


def read(text: str, joined: bool = True) -> Parsed:
    """Read the text of all cues. Cues that share a sentence are one block, with the timings as markup in it.

    Args:
        joined: whether a sentence may span several cues; otherwise, each cue is a block.

    Raises:
        InputError: there is no cue.
    """
    builder = BlockBuilder()
    lines = _lines(text)
    previous: Cue | None = None
    states: list[str] = []
    position = 0
    for start, end, time in _cues(lines):
        # before the text: the time, numbers, blank lines, and the header, notes and styles of WebVTT
        for line in lines[position:start]:
            builder.keep(line, BREAK if builder.inside else "")
        cue = Cue(_seconds(time.groups()[:4]), _seconds(time.groups()[4:]), lines[start:end])
        previous = _add(builder, cue, previous, states, joined)
        position = end
    for line in lines[position:]:
        builder.keep(line, BREAK if builder.inside else "")
    builder.leave()
    if previous is None:
        raise InputError("contains no subtitle with a time (00:00:01,000 --> 00:00:02,000)")
    return builder.parsed()


def read_cues(text: str) -> Parsed:
    """Read the text of all cues, each as a block; see :func:`read`."""
    return read(text, joined=False)


def _lines(text: str) -> list[str]:
    """Split a file into lines with their line endings; only those that the formats define count."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)


def _time(line: str) -> re.Match[str] | None:
    return _TIME.search(line) if "-->" in line else None


def _cues(lines: list[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
    """Yield the begin and end of each cue's text, and the times before it."""
    i = 0
    while i < len(lines):
        time = _time(lines[i])
        if time is None:
            i += 1
            continue
        begin, i = i + 1, _end_of(lines, i)
        yield begin, i, time


def _end_of(lines: list[str], time: int) -> int:
    """Return the line after a cue's text: a blank one, or the start of the next cue, with or without its number."""
    end = time + 1
    while end < len(lines) and lines[end].strip() and not _time(lines[end]):
        if lines[end].strip().isdecimal() and end + 1 < len(lines) and _time(lines[end + 1]):
            break
        end += 1
    return end


def finish(original: str, made: str, width: int) -> str:
    """Make every cue of a translated file displayable: no empty line in it, no lone punctuation, no line too long.

    Args:
        original: the file before translation, with as many lines.
        width: characters of a line beyond which the cue is rewrapped; 0 for any number.
    """
    old, new = _lines(original), _lines(made)
    if len(old) != len(new):
        return made
    cues = [(start, end) for start, end, _ in _cues(old)]
    texts = [[line.rstrip("\r\n") for line in new[a:b]] for a, b in cues]
    for k in range(1, len(cues)):
        _share(texts, k)
    found, position = [], 0
    for (a, b), lines in zip(cues, texts):
        ending = re.search(r"[\r\n]*\Z", new[b - 1] if b > a else "")
        ends = [re.search(r"[\r\n]*\Z", line)[0] or (ending[0] if ending else "") for line in new[a:b]]  # type: ignore[index]
        break_ = next((end for end in ends if end), "\n")
        shown = _wrapped([line for line in lines if _plain(line)], width, [len(_plain(line)) for line in old[a:b]])
        found += new[position:a]
        found += [line + break_ for line in shown]
        if shown and b == len(new) and not re.search(r"[\r\n]\Z", new[-1]):
            found[-1] = shown[-1]
        position = b
    return "".join([*found, *new[position:]])


def _share(texts: list[list[str]], k: int) -> None:
    """Give a cue without a word half of the words of the previous cue, if a sentence spans both."""
    here, before = " ".join(texts[k]), " ".join(texts[k - 1])
    if not texts[k] or any(c.isalnum() for c in _plain(here)) or _TAG.search(here + before):
        return
    words = before.split()
    if len(words) < 2 or not here.strip() and _END.search(before):
        return
    half = (len(words) + 1) // 2
    texts[k - 1] = [" ".join(words[:half])]
    texts[k] = [" ".join(words[half:]) + here.strip()]


def _wrapped(lines: list[str], width: int, before: list[int]) -> list[str]:
    """Wrap a cue's lines evenly if one is longer than the width and than all original lines; tags do not count."""
    if not width or not lines or max(len(_plain(line)) for line in lines) <= max(width, *before):
        return lines
    if any(re.match(r"\s*[-–—]", line) for line in lines[1:]):
        return lines  # of two speakers
    words = re.findall(r"(?:<[^<>]{0,500}>|\S)+", " ".join(lines))
    total = sum(len(_plain(word)) + 1 for word in words) - 1
    most = -(-total // -(-total // width))  # as even as possible
    found: list[list[str]] = [[]]
    filled = 0
    for word in words:
        size = len(_plain(word))
        if found[-1] and filled + 1 + size > width or filled >= most:
            found.append([])
            filled = 0
        filled += size + bool(found[-1])
        found[-1].append(word)
    return [" ".join(line) for line in found if line]


def _seconds(fields: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, thousandths = (int(field or 0) for field in fields)
    return hours * 3600 + minutes * 60 + seconds + thousandths / 1000


def _plain(line: str) -> str:
    return _TAG.sub("", line).strip()


def _add(builder: BlockBuilder, cue: Cue, previous: Cue | None, states: list[str], joined: bool) -> Cue:
    """Add a cue's lines, to the open block if its sentence continues."""
    before = _plain(previous.lines[-1]) if previous and previous.lines else ""
    builder.at("cue", f"{cue.begin:.3f}")
    for number, line in enumerate(cue.lines):
        plain = _plain(line)
        ended = not before or bool(_END.search(before)) or bool(_START.match(plain))
        if not number and previous is not None:
            ended = ended or cue.begin - previous.end > PAUSE
        if ended if joined else not number:
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
    """Update the list of open tags."""
    if tag.startswith("</"):
        name = tag[2:-1].strip()
        for i in reversed(range(len(states))):
            if re.match(rf"<{re.escape(name)}\b", states[i]):
                del states[i]
                break
    elif re.match(r"<[a-zA-Z]", tag) and len(states) < DEEPEST:
        states.append(tag)
