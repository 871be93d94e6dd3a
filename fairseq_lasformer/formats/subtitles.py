"""Subtitles, .srt and .vtt: timings stay; a sentence may span several cues."""

import re
from collections.abc import Iterator, Sequence

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import BREAK, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.cues import END, POSITION, TAG, VOICE, Cue, CueWriter, plain, rolled
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markup import escape
from fairseq_lasformer.text.lines import lines_with_ends

_FRACTION = r"(?:[ \t]?[,.][ \t]?(\d{1,9}))"
_CLOCK = r"(?:(\d{1,4}):)?(\d{1,2}):(\d{2})"
_TIME = re.compile(rf"(?<!\d){_CLOCK}{_FRACTION}?[ \t]{{0,20}}-->[ \t]{{0,20}}{_CLOCK}{_FRACTION}?(?!\d)(?P<how>.*)")
_WRITTEN = rf"(?:(\d{{1,4}})[ ]?:[ ]?)?(\d{{1,2}})[ ]?:[ ]?(\d{{2}})(?:{_FRACTION}|:\d{{1,3}})?"
_ARROW = r"(?:-{1,3}>|[–—=]>|→)"
_LOOSE = re.compile(rf"\s*{_WRITTEN}[ \t]*{_ARROW}[ \t]*{_WRITTEN}[ \t]*(?P<how>)\s*\Z")
_LIKE_A_TIME = re.compile(rf"\s*\d[^\s>]{{0,12}}:[^\s>]{{0,16}}[ \t]*{_ARROW}")
_NUMBER = re.compile(r"\s*\W?\d{1,9}\W?\s*\Z")
_SETTING = re.compile(r"\b(?:line|position|align|region|vertical):\S+|\b[XY][12]:\S+")
_LEADING = re.compile(r"\s*[,.;:!?…]+(?=\s|\Z)|\s*[,;:!?](?=\S)")
_BLOCKS = re.compile(r"(?:NOTE|STYLE|REGION)(?:[ \t]|:|$)")
FEW, SHARE = 4, 0.2
"""Number of cues, and share of those that end with punctuation, from and below which capitals begin sentences."""

_LANGUAGE = re.compile(r"(Language:[ \t]*)([\w-]+)")


def read(text: str, joined: bool = True, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the text of all cues. Cues that share a sentence are one block, with the timings as markup in it.

    Args:
        joined: whether a sentence may span several cues; otherwise, each cue is a block.
        languages: the target is named in the header of WebVTT if the source is.
    """
    lines = lines_with_ends(text)
    web = _is_web(lines)
    builder = BlockBuilder(escape if web else str)
    cues = list(cues_of(lines))
    stops = sum(bool(END.search(plain(lines[end - 1]))) for start, end, _ in cues if end > start)
    writer = CueWriter(builder, web, joined, bare=len(cues) >= FEW and stops < SHARE * len(cues), rolling=joined)
    position = _header(builder, lines, languages) if web else 0
    for start, end, time in cues:
        _between(builder, lines, position, start, web)
        texts = lines[start:end]
        said = "".join(texts)
        where = " ".join([*_SETTING.findall(time["how"]), *POSITION.findall(said)])
        voices = VOICE.findall(said)
        begin, stop = _times(time)
        writer.add(Cue(begin, stop, texts, where, voices[0] if voices else ""))
        position = end
    _between(builder, lines, position, len(lines), web)
    builder.leave()
    if writer.previous is None:
        raise InputError("contains no subtitle with a time (00:00:01,000 --> 00:00:02,000)")
    return builder.parsed()


def read_cues(text: str, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the text of all cues, each as a block; see :func:`read`."""
    return read(text, False, languages)


def _is_web(lines: list[str]) -> bool:
    """Return whether a file is WebVTT."""
    return bool(lines) and lines[0].removeprefix("\ufeff").startswith("WEBVTT")


def _header(builder: BlockBuilder, lines: list[str], languages: Languages) -> int:
    """Keep the header of WebVTT, up to a blank line or a time; return its end."""
    end = 0
    while end < len(lines) and lines[end].strip() and not _time(lines[end]):
        said = _LANGUAGE.match(lines[end])
        builder.keep(said[1] + languages.instead(said[2]) + lines[end][said.end() :] if said else lines[end])
        end += 1
    return end


def _between(builder: BlockBuilder, lines: list[str], start: int, end: int, web: bool) -> None:
    """Keep what is between the texts of cues: times, numbers, blank lines, notes and styles; text is reported."""
    i = start
    while i < end:
        line = lines[i]
        fill = BREAK if builder.inside else ""
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if not line.strip() or _time(line) or _NUMBER.match(line) or (web and _time(following)):
            builder.keep(line, fill)
            i += 1
            continue
        builder.leave()
        stop = i + 1
        while stop < end and lines[stop].strip():
            stop += 1
        if web and _BLOCKS.match(line):
            builder.keep("".join(lines[i:stop]))
        else:
            if _time(lines[stop - 1]) and stop == end:
                stop -= 1
            if _NUMBER.match(lines[stop - 1]) and stop - 1 > i:
                stop -= 1
            builder.misread("".join(lines[i:stop]), "cue")
        i = stop


def _time(line: str) -> re.Match[str] | None:
    if "-->" in line and (match := _TIME.search(line)):
        return match
    return _LOOSE.match(line) if ">" in line or "→" in line else None


def _like_a_time(line: str) -> bool:
    """Return whether a line is meant to be the times of a cue, whether or not they can be read."""
    if ":" not in line or not (">" in line or "→" in line):
        return False
    return _time(line) is not None or _LIKE_A_TIME.match(line) is not None


def _times(match: re.Match[str]) -> tuple[float, float]:
    """Return begin and end of a cue in seconds."""
    fields = match.groups()
    return _seconds(fields[:4]), _seconds(fields[4:8])


def cues_of(lines: list[str]) -> Iterator[tuple[int, int, re.Match[str]]]:
    """Yield the begin and end of each cue's text, and the times before it."""
    web = _is_web(lines)
    i = 0
    while i < len(lines):
        time = _time(lines[i])
        if time is None:
            i += 1
            continue
        begin, i = i + 1, _end_of(lines, i, web)
        yield begin, i, time


def _end_of(lines: list[str], time: int, web: bool) -> int:
    """Return the line after a cue's text: the start of the next cue, with or without its number, or a blank line.

    In WebVTT, a blank line ends a cue; elsewhere, text may follow it.
    """
    end = time + 1
    while end < len(lines) and not _like_a_time(lines[end]):
        if web and not lines[end].rstrip("\r\n"):
            break
        if _NUMBER.match(lines[end]):
            following = next((line for line in lines[end + 1 : end + 4] if line.strip()), "")
            if _like_a_time(following):
                break
        end += 1
    while end > time + 1 and not lines[end - 1].strip():
        end -= 1
    return end


def finish(original: str, translated: str, width: int) -> str:
    """Make every cue of a translated file displayable: no empty line in it, no line too long.

    Nor lone punctuation, unless there are tags.

    Args:
        original: the file before translation, with as many lines.
        width: characters of a line beyond which the cue is rewrapped; 0 for any number.
    """
    old, new = lines_with_ends(original), lines_with_ends(translated)
    if len(old) != len(new):
        return translated
    cues = [(start, end) for start, end, _ in cues_of(old)]
    texts = [[line.rstrip("\r\n") for line in new[a:b]] for a, b in cues]
    for k in range(1, len(cues)):
        _repeat(texts[k - 1], texts[k], old[slice(*cues[k - 1])], old[slice(*cues[k])])
    for k in range(1, len(cues)):
        _move_punctuation(texts[k - 1], texts[k], old[slice(*cues[k])])
        _share(texts, k, old[slice(*cues[k])])
    finished, position = [], 0
    for (a, b), lines in zip(cues, texts):
        ending = re.search(r"[\r\n]*\Z", new[b - 1] if b > a else "")
        ends = [re.search(r"[\r\n]*\Z", line)[0] or (ending[0] if ending else "") for line in new[a:b]]  # type: ignore[index]
        break_ = next((end for end in ends if end), "\n")
        shown = _wrapped(_with_text(lines), width, [len(plain(line)) for line in old[a:b]])
        finished += new[position:a]
        finished += [line + break_ for line in shown]
        if shown and b == len(new) and not re.search(r"[\r\n]\Z", new[-1]):
            finished[-1] = shown[-1]
        position = b
    return "".join([*finished, *new[position:]])


def _with_text(lines: list[str]) -> list[str]:
    """Return the lines of a cue that have text, each with the tags of empty lines before it, or at the end after it."""
    parts: list[str] = []
    tags = ""
    for line in lines:
        if plain(line):
            parts.append(tags + line)
            tags = ""
        else:
            tags += line.strip()
    if tags and parts:
        parts[-1] += tags
    return parts or ([tags] if tags else [])


def _repeat(before: list[str], here: list[str], old_before: Sequence[str], old_here: Sequence[str]) -> None:
    """Give lines that a cue repeats from the one before it the translation that they have there: rolling captions."""
    known = {plain(line): plain(new) for line, new in zip(old_before, before)}
    for i, line in enumerate(old_here[: rolled(old_before, old_here)]):
        said = plain(line)
        new = known.get(said, "")
        if new and new != said and here[i].strip() == line.strip():
            here[i] = here[i].replace(said, new, 1) if said in here[i] else new


def _move_punctuation(before: list[str], here: list[str], original: list[str]) -> None:
    """Move punctuation at the start of a cue, where its original has none, to the end of the cue before it."""
    first = next((i for i, line in enumerate(here) if plain(line)), None)
    last = next((i for i in reversed(range(len(before))) if plain(before[i])), None)
    if first is None or last is None or any(_LEADING.match(plain(line)) for line in original[:1]):
        return
    if (match := _LEADING.match(here[first])) and (rest := here[first][match.end() :].lstrip()):
        here[first] = rest
        if not END.search(plain(before[last])) and not before[last].rstrip().endswith(","):
            before[last] = before[last].rstrip() + match[0].strip()


def _share(texts: list[list[str]], k: int, original: list[str]) -> None:
    """Give a cue without a word half of the words of the previous cue, if a sentence spans both."""
    here, before = " ".join(texts[k]), " ".join(texts[k - 1])
    if not any(c.isalnum() for line in original for c in plain(line)):
        return  # it had no words either
    if not texts[k] or any(c.isalnum() for c in plain(here)) or TAG.search(here + before):
        return
    words = before.split()
    if len(words) < 2 or not here.strip() and END.search(before):
        return
    half = (len(words) + 1) // 2
    texts[k - 1] = [" ".join(words[:half])]
    texts[k] = [" ".join(words[half:]) + here.strip()]


def _wrapped(lines: list[str], width: int, before: list[int]) -> list[str]:
    """Wrap a cue's lines evenly if one is longer than the width and than all original lines; tags do not count."""
    if not width or not lines or max(len(plain(line)) for line in lines) <= max(width, *before):
        return lines
    if any(re.match("[-–—]", plain(line)) for line in lines[1:]):
        return lines  # of two speakers
    words = re.findall(r"(?:<[^<>]{0,500}>|\S)+", " ".join(lines))
    total = sum(len(plain(word)) + 1 for word in words) - 1
    most = -(-total // -(-total // width))  # as even as possible
    rows: list[list[str]] = [[]]
    filled = 0
    for word in words:
        size = len(plain(word))
        if rows[-1] and filled + 1 + size > width or filled >= most:
            rows.append([])
            filled = 0
        filled += size + bool(rows[-1])
        rows[-1].append(word)
    return [" ".join(line) for line in rows if line]


def _seconds(fields: Sequence[str | None]) -> float:
    hours, minutes, seconds = (int(field or 0) for field in fields[:3])
    return hours * 3600 + minutes * 60 + seconds + float(f"0.{fields[3] or 0}")
