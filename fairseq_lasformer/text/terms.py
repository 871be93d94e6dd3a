"""Terms and their translations: reading them from files, and finding a term in a text."""

import re
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.lines import clean_line, split_lines

LONGEST_TERM = 50
"""Maximum number of words in a term."""

_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


def read_terms(path: str | Path) -> list[tuple[str, str]]:
    """Read the lines of a file of ``source term<TAB>target term``.

    Raises:
        InputError: the file cannot be read, or a line is malformed (the message names it).
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{path}: the glossary cannot be read ({e})") from e
    return parse_terms(text, str(path))


def parse_terms(text: str, path: str) -> list[tuple[str, str]]:
    """Parse the terms in the text of such a file; ``path`` names it in errors."""
    entries = []
    for number, line in enumerate(split_lines(text), 1):
        terms = [clean_line(_unquoted(term.strip())) for term in line.split("\t")]
        if not any(terms):
            continue
        if max(len(term.split()) for term in terms) > LONGEST_TERM:
            raise InputError(f"{path}:{number}: a term of more than {LONGEST_TERM} words")
        if len(terms) != 2 or not all(terms):
            raise InputError(f"{path}:{number}: expected a source term, a tab, and its translation")
        entries.append((terms[0], terms[1]))
    if not entries:
        raise InputError(f"{path}: the glossary is empty")
    return entries


def _unquoted(cell: str) -> str:
    """Return the text of a cell that a spreadsheet has quoted."""
    return cell[1:-1].replace('""', '"') if len(cell) > 2 and cell[0] == cell[-1] == '"' else cell


def term_pattern(term: str) -> re.Pattern[str]:
    """Return a pattern that finds a term in a text: whole words, except in scripts without spaces between them.

    A term without capital letters matches any capitalisation, others only their own.
    """
    left, right = ("" if _UNSPACED.match(end) else edge for end, edge in ((term[0], r"(?<!\w)"), (term[-1], r"(?!\w)")))
    return re.compile(f"{left}{re.escape(term)}{right}", re.IGNORECASE if term == term.lower() else 0)
