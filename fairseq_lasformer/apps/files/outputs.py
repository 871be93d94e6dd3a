"""Output forms of a translated file."""

import json

from fairseq_lasformer.apps.files.translated import TranslatedFile, TranslatedSentence
from fairseq_lasformer.base.records import Json


def suffix(output: str) -> str:
    """Return what an output file's name adds to that of its input."""
    return "" if output == "text" else f".{output}"


def present(done: TranslatedFile, output: str) -> bytes:
    """Return a translated file in an output form.

    Args:
        output: ``text`` for the format of the input; ``tsv`` for source, translation, score and ``repaired``,
            ``doubtful`` or nothing; ``jsonl`` for an object of these per line. Further translations are columns of
            text and score, or a list.
    """
    if output == "text":
        return done.data
    return "".join(_json(line) if output == "jsonl" else _row(line) for line in done.lines).encode()


def _row(sentence: TranslatedSentence) -> str:
    line = sentence.line
    state = "doubtful" if sentence.doubts else "repaired" if line.repaired else ""
    cells = [sentence.source, sentence.translation, f"{line.score:.4f}", state]
    for text, score in sentence.others:
        cells += [sentence.shown(text), f"{score:.4f}"]
    return "\t".join(cell.replace("\t", " ") for cell in cells) + "\n"


def _json(sentence: TranslatedSentence) -> str:
    line = sentence.line
    fields: Json = {
        "line": line.number,
        "source": sentence.source,
        "translation": sentence.translation,
        "score": round(line.score, 4),
        "repaired": line.repaired,
        "doubtful": bool(sentence.doubts),
    }
    if sentence.others:
        others = [(sentence.shown(text), round(score, 4)) for text, score in sentence.others]
        fields["alternatives"] = [{"translation": text, "score": score} for text, score in others]
    if sentence.matches:
        fields["matches"] = [match.shown() for match in sentence.matches]
    return json.dumps(fields, ensure_ascii=False) + "\n"
