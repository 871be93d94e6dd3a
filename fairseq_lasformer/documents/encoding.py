"""Documents as tokens: a request, encoded and cut into the parts that a model translates."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import TooLong
from fairseq_lasformer.documents.given_lines import check_given
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.documents.source import Source
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.text.lines import clean_line

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel


def source_of(model: BaseFairseqModel, request: Request, translator: Translator) -> Source:
    """Encode a document, and cut it as the data preparation does.

    Args:
        model: a :class:`DocumentHubInterface`.

    Raises:
        InputError: a sentence is too long, or a given line or a memory cannot be used.
    """
    codec, given = model.codec, request.given
    encode = functools.partial(model.src_dict.encode_line, add_if_not_exist=False, append_eos=False)
    encoded = [encode(codec.encode_source(sentence)).long() for sentence in request.sentences]
    lengths = [[codec.taken(tokens.numel()) for tokens in encoded]]
    fixed: list[Tensor | None] | None = None
    if given:
        numbers = [number for number, _ in request.numbered]
        check_given(given, numbers, request.name)
        if not translator.aligned and not translator.independent:
            raise InputError("given lines need aligned lines: data with a separator, and not --align-sentences no")
        encode = functools.partial(model.tgt_dict.encode_line, add_if_not_exist=False, append_eos=False)
        known = [codec.encode_target(clean_line(given.get(number, ""))) for number in numbers]
        fixed = [encode(line).long() if line else None for line in known]
        # given lines may exceed the limit: parts are cut as if they did not
        most = codec.room - 1
        lengths.append([codec.taken(min(most, 0 if line is None else line.numel())) for line in fixed])
    matches = None
    if request.memory is not None:
        translator.check_by_lines("a memory")
        matches = request.memory.matches(request.sentences)
    wanted = model.task.cfg.overlap if request.overlap is None else request.overlap
    overlap = translator.overlap(wanted)
    try:
        cut = codec.cut_lengths(0, *lengths, overlap=overlap, windows=translator.by_lines) if encoded else []
    except TooLong as e:
        raise InputError(
            f"{request.name}: sentence {e.sentence + 1} has {e.tokens} tokens, more than the limit of "
            f"{codec.limit} that the model was trained with; split it"
        ) from None
    parts = [span for part in cut for span in codec.examples(part)]
    terms = None if request.required is None else [request.required(s) for s in request.sentences]
    if fixed is not None:
        terms = terms and [[] if line is not None else its for its, line in zip(terms, fixed)]
    return Source(encoded, parts, None, terms, fixed, matches)
