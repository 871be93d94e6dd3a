"""Words and punctuation marks of a text, for alignments and comparisons; not the tokens of a model."""

import re

_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNIT = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}])\w)+(?:[-'’.,:/](?:(?![{_CJK}])\w)+)*|[^\w\s]")


def units(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word and punctuation mark; characters of scripts without spaces are words."""
    return [match.span() for match in _UNIT.finditer(text)]
