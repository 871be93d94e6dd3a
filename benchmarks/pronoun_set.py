"""A contrastive test set of pronouns that only other lines decide: ``python -m benchmarks.pronoun_set TEST OUT``.

Chinese drops subjects and objects that the context makes clear. Of each line of a test set (``TEST.zh``, ``TEST.en``)
whose source has no pronoun and whose reference has a single one, the set holds the reference and what it would be with
other pronouns of the same agreement: *he*, *she*, *it*; *they*, *we*, *you*, and *I* where the verb after it does not
tell; *him*, *them*, *us*, *me*, *you*. Before it stand up to ``--lines`` lines of its document. The result has the
format of ContraPro, with the pronoun of each group in ``OUT.pronouns``: ``lasformer score contrast MODEL OUT``.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_lasformer.analysis.contrast_sets import SEPARATOR
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.evaluation.pronouns import ENGLISH, LANGUAGES
from fairseq_lasformer.text.documents import read_documents

SUBJECTS = (("he", "she", "it"), ("they", "we", "you", "i"))
OBJECTS = ("them", "us", "me", "you", "him")
OTHERS = ("her", "his", "hers", "its", "my", "mine", "your", "yours", "our", "ours", "their", "theirs")
"""Forms whose lines are left out: exchanging one pronoun of two says less than it seems."""

_WORD = re.compile(r"[^\W\d_]+")
_TELLS = re.compile(r"\s*['’]?\s*(?:am|m|are|re|was|were)\b", re.IGNORECASE)
_STARTS = re.compile(r"(?:^|[.?!:\"“‘¿¡(–—-])\s*['’]?$")
_CLAUSE = re.compile(r"(?:^|[,;]|\b(?:and|but|if|that|because|when|so|think|know|say|said))\s*$", re.IGNORECASE)


def exchanged(line: str) -> tuple[str, list[str]] | None:
    """Return the only pronoun of a line, and the line with each of the others in its place; None if there is none."""
    found = [word for word in _WORD.finditer(line) if word[0].lower() in (*ENGLISH, *OTHERS)]
    if len(found) != 1 or found[0][0].lower() in OTHERS:
        return None
    word = found[0]
    form, before, after = word[0].lower(), line[: word.start()], line[word.end() :]
    starts = _STARTS.search(before) is not None
    if form in ("it", "you") and not starts and not _CLAUSE.search(before):
        return None  # an object, or after its verb, which may tell
    others = next((group for group in SUBJECTS if form in group), OBJECTS)
    if _TELLS.match(after) and "i" in others:
        others = () if form == "i" else others[:3]
    shown = {other: "I" if other == "i" else other.capitalize() if starts else other for other in others}
    lines = [before + shown[other] + after for other in others if other != form]
    return (ENGLISH[form], lines) if lines else None


def groups(
    sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], n_lines: int
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each group: its pronoun, and pairs of a source and a target with their context, the right one first."""
    for source, target in zip(sources, targets, strict=True):
        for i, (asked, said) in enumerate(zip(source, target, strict=True)):
            others = None if LANGUAGES["en"].source.search(asked) else exchanged(said)
            if others is not None:
                before = [side[max(0, i - n_lines) : i] for side in (source, target)]
                own = f" {SEPARATOR} ".join([*before[0], asked])
                yield others[0], [(own, f" {SEPARATOR} ".join([*before[1], text])) for text in (said, *others[1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test", type=Path, help="prefix of the test set, raw documents")
    parser.add_argument("out", type=Path, help="prefix of the files that are written")
    parser.add_argument("--lines", type=int, default=10, help="lines of context (default: %(default)s)")
    args = parser.parse_args()
    texts = [read_documents(Path(f"{args.test}.{language}")) for language in ("zh", "en")]
    found = list(groups(*texts, args.lines))
    starts = [0]
    for _, its in found:
        starts.append(starts[-1] + len(its))
    pairs = [pair for _, its in found for pair in its]
    written = {
        "zh": [source for source, _ in pairs],
        "en": [target for _, target in pairs],
        "groups": list(map(str, starts)),
        "pronouns": [pronoun for pronoun, _ in found],
    }
    for end, lines in written.items():
        atomic_write(args.out.with_name(f"{args.out.name}.{end}"), "".join(f"{line}\n" for line in lines))
    chance = sum(1 / len(its) for _, its in found) / max(1, len(found))
    print(f"{len(found)} groups, {len(pairs)} candidates; chance {chance:.3f}")


if __name__ == "__main__":
    main()
