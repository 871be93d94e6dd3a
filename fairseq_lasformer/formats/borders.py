"""Borders between the segments of a translated sentence: where punctuation, brackets, spaces and marks may stand.

Words go where the attention of a model says (:mod:`projection`); a mark may then be empty, a link may begin with a
comma, and half of a pair of brackets may be inside of it. Here they are put where the source has them.
"""

import re
from collections.abc import Hashable, Sequence

from fairseq_lasformer.formats.block import PLACEHOLDER, Markup
from fairseq_lasformer.text.spans import has_letter

_MARKS = re.compile(r"\s*[,.;:!?…/]+")
_STARS = re.compile(r"[*_]{1,3}|~~")
_LAST, _FIRST = re.compile(r"(\S+)(\s*)\Z"), re.compile(r"(\s*)(\S+)")
_WORD = re.compile(r"(\s*)(\w[\w'’-]*)")
_WORDS = re.compile(r"(\w.*?)(\s*)\Z")
_PAIRS = ("()", "[]", "（）")


def tidied(
    source: Sequence[str],
    made: Sequence[str],
    states: Sequence[Hashable],
    fills: Sequence[str],
    markup: Sequence[Markup],
) -> list[str]:
    """Return the segments of a translation with every mark where its source has it.

    Args:
        source: text of each segment of the source.
        states: formatting of each segment.
        fills: fills of the markup between them.
        markup: that markup.
    """
    texts = list(made)
    _fill_empty(source, texts, states, fills)
    _move_punctuation(source, texts, fills)
    for pair in _PAIRS:
        if any(c in text for c in pair for text in (*source, *texts)):
            _pair(source, texts, pair)
    _move_spaces(texts, states, markup)
    return texts


def _fill_empty(source: Sequence[str], texts: list[str], states: Sequence[Hashable], fills: Sequence[str]) -> None:
    """Give formatted text that has lost its words the nearest ones of its neighbours, if these have others."""
    for i, text in enumerate(source):
        if not states[i] or not has_letter(text) or has_letter(texts[i]):
            continue
        part = i + 1 < len(texts) and text[-1].isalnum() and source[i + 1][:1].isalnum()
        if part and (word := _WORD.match(texts[i + 1])):
            texts[i], texts[i + 1] = texts[i].strip() + word[2], texts[i + 1][word.end() :]
            texts[i - 1] += word[1] if i and not texts[i - 1][-1:].isspace() else ""
            continue
        if i and fills[i - 1] != PLACEHOLDER and states[i - 1] != states[i] and has_letter(texts[i - 1]):
            pattern = _LAST if len(texts[i - 1].split()) > 1 else None if has_letter(source[i - 1]) else _WORDS
            if pattern and (word := pattern.search(texts[i - 1])):
                texts[i - 1] = texts[i - 1][: word.start()]
                texts[i] = word[1] + texts[i].strip()
                if word[2] and i + 1 < len(texts):
                    texts[i + 1] = word[2] + texts[i + 1].lstrip()
                continue
        n = i + 1
        if n < len(texts) and fills[i] != PLACEHOLDER and len(texts[n].split()) > 1 and states[n] != states[i]:
            word = _FIRST.match(texts[n])
            if word and has_letter(word[2]):
                texts[i], texts[n] = texts[i].strip() + word[2], texts[n][word.end() :]
                texts[i - 1] += word[1] if i and not texts[i - 1][-1:].isspace() else ""


def _move_punctuation(source: Sequence[str], texts: list[str], fills: Sequence[str]) -> None:
    """Move punctuation at the start of a segment whose source has none there to the words before it."""
    for i in range(1, len(texts)):
        match = _MARKS.match(texts[i])
        within = source[i][:1].isalnum() and source[i - 1][-1:].isalnum()  # a part of a word was marked
        if match is None or within or _MARKS.match(source[i]):
            continue
        its_own = source[i - 1].rstrip().endswith(match[0].strip())
        before = i - 1 if its_own else next((j for j in reversed(range(i)) if texts[j].strip()), None)
        if before is None or PLACEHOLDER in fills[before:i]:
            continue
        space = " " if texts[before][-1:].isspace() and texts[i][match.end() :][:1].isalnum() else ""
        texts[before] = texts[before].rstrip() + match[0].strip() + space
        texts[i] = texts[i][match.end() :]


def _unpaired(text: str, pair: str) -> tuple[list[int], list[int]]:
    """Return the places of opening and of closing brackets without a partner."""
    opened: list[int] = []
    closing = []
    for i, c in enumerate(text):
        if c == pair[0]:
            opened.append(i)
        elif c == pair[1]:
            if opened:
                opened.pop()
            else:
                closing.append(i)
    return opened, closing


def _pair(source: Sequence[str], texts: list[str], pair: str) -> None:
    """Give each segment as many brackets without a partner as its source has, and no pair where some cross borders."""
    crossing = any(any(_unpaired(text, pair)) for text in source)
    for i, text in enumerate(source):
        wanted = [len(places) for places in _unpaired(text, pair)]
        if crossing and min(texts[i].count(c) for c in pair) > min(text.count(c) for c in pair):
            texts[i] = re.sub(rf"[{re.escape(pair)}]", "", texts[i])
        opened, closing = _unpaired(texts[i], pair)
        halves = max(0, min(text.count(c) for c in pair) - min(texts[i].count(c) for c in pair))
        unpaired = opened[wanted[0] : wanted[0] + halves]  # of pairs whose other half is in another segment
        surplus = {*opened[wanted[0] + halves :], *closing[: max(0, len(closing) - wanted[1])]}
        said = "".join(c for place, c in enumerate(texts[i]) if place not in surplus)
        if unpaired:
            end = len(said.rstrip())
            said = said[:end] + pair[1] * len(unpaired) + said[end:]
        if missing := wanted[1] - len(closing):
            if missing > 0 and text.lstrip()[:1] == pair[1]:
                said = pair[1] * missing + said
            elif missing > 0:
                end = len(said.rstrip())
                said = said[:end] + pair[1] * missing + said[end:]
        if (missing := wanted[0] - len(opened)) > 0:
            end = len(said.rstrip())
            said = f"{said[:end]}{' ' if end and end == len(said) else said[end:]}{pair[0] * missing}"
        texts[i] = said


def _stars(state: Hashable) -> int:
    """Return the number of marks of Markdown's emphasis in a state."""
    return sum(isinstance(s, str) and _STARS.fullmatch(s) is not None for s in state) if isinstance(state, tuple) else 0


def _move_spaces(texts: list[str], states: Sequence[Hashable], markup: Sequence[Markup]) -> None:
    """Move spaces out of Markdown's emphasis, whose marks would be text beside them."""
    for i, pieces in enumerate(markup):
        before, after = _stars(states[i]), _stars(states[i + 1])
        if before > after and _STARS.fullmatch(str(pieces[0])) and texts[i] != (short := texts[i].rstrip()):
            texts[i], texts[i + 1] = short, texts[i][len(short) :] + texts[i + 1].lstrip()
        elif before < after and _STARS.fullmatch(str(pieces[-1])) and texts[i + 1] != (short := texts[i + 1].lstrip()):
            texts[i], texts[i + 1] = texts[i].rstrip() + texts[i + 1][: len(texts[i + 1]) - len(short)], short
