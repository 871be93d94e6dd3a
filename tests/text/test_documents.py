"""Reading, checking, cutting and joining documents."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.prepare import _blanks
from fairseq_lasformer.text.documents import (
    Span,
    chunks,
    cut,
    join_documents,
    parts,
    read_corpus,
    read_documents,
    read_source,
    resolutions,
    split_documents,
)
from fairseq_lasformer.text.hypotheses import read_hypotheses, write_hypotheses


def test_a_boundary_that_moved_is_not_dropped_as_an_empty_pair(tmp_path):
    source = ["one", "two words", "three words here", "and four words here", "a fifth sentence is longer than all", "x"]
    for moved in (3, 4, 5):
        target = [s.upper() for s in source]
        left = [*source[:1], "", *source[1:]]
        right = [*target[:moved], "", *target[moved:]]
        (tmp_path / "c.xx").write_text("\n".join(left) + "\n")
        (tmp_path / "c.yy").write_text("\n".join(right) + "\n")
        with pytest.raises(InputError, match="c.xx:2: a document ends here, but not in"):
            read_corpus(tmp_path / "c.xx", tmp_path / "c.yy", drop_empty=True)
    # pairs that really lack a side, on either side of one document, are dropped and counted
    (tmp_path / "c.xx").write_text("\n".join([*source[:1], "", *source[1:]]) + "\n")
    (tmp_path / "c.yy").write_text(
        "\n".join([*(s.upper() for s in source[:1]), "EXTRA", *(s.upper() for s in source[1:5]), ""]) + "\n"
    )
    found = read_corpus(tmp_path / "c.xx", tmp_path / "c.yy", drop_empty=True)
    assert found.dropped == 2 and [s.upper() for s in found.documents[0].source] == found.documents[0].target


SENTENCE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=9), min_size=1, max_size=5)


@pytest.mark.command
@given(DOCUMENTS)
def test_raw_form_and_back_is_the_identity(documents):
    assert split_documents(join_documents(documents).split("\n")) == documents


@settings(deadline=None)
@given(DOCUMENTS, st.integers(8, 40), st.sampled_from(["mixture", "sentences", "documents"]))
def test_documents_to_chunks_to_documents_is_the_identity(documents, limit, how):
    spans = [s for i, d in enumerate(documents) for s in parts(i, [(len(t),) for t in d], limit)]
    joined: list[list[str]] = [[] for _ in documents]
    for span in spans:
        joined[span.document] += documents[span.document][span.start : span.start + span.size]
    assert joined == documents
    for span in spans:
        assert sum(len(t) for t in documents[span.document][span.start : span.start + span.size]) <= limit
        pieces = list(chunks(span, how))
        covered = [i for p in pieces for i in range(p.start, p.start + p.size)]
        # every resolution contains every sentence exactly once
        times = len(resolutions(span.size)) if how == "mixture" else 1
        assert sorted(covered) == sorted(list(range(span.start, span.start + span.size)) * times)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8), st.integers(9, 20))
def test_cut_into_the_fewest_parts_and_the_evenest_of_those(lengths, limit):
    def longest(bounds):
        pieces = [lengths[a:b] for a, b in itertools.pairwise([0, *bounds, len(lengths)])]
        return max(max(map(sum, zip(*piece))) for piece in pieces)

    options = [
        (len(bounds) + 1, longest(bounds))
        for n in range(len(lengths))
        for bounds in itertools.combinations(range(1, len(lengths)), n)
    ]
    best = min(o for o in options if o[1] <= limit)
    counts = cut(lengths, limit)
    assert (len(counts), longest(list(itertools.accumulate(counts))[:-1])) == best


def test_resolutions_halve():
    assert resolutions(13) == [13, 6, 3, 1]
    assert [c[:3] for c in chunks(Span(4, 10, 5), "mixture")] == [
        (4, 10, 5),
        (4, 10, 2),
        (4, 12, 2),
        (4, 14, 1),
        (4, 10, 1),
        (4, 11, 1),
        (4, 12, 1),
        (4, 13, 1),
        (4, 14, 1),
    ]


def corpus(folder, source: bytes, target: bytes):
    (folder / "c.xx").write_bytes(source)
    (folder / "c.yy").write_bytes(target)
    return folder / "c.xx", folder / "c.yy"


@pytest.mark.parametrize(
    "source, target, where, what",
    [
        (b"a\nb\n", b"a\n", "c.xx:2", "differ in length"),
        (b"a\n\nb\nc\n", b"a\nb\n\nc\n", "c.xx:2", "boundaries must agree"),
        (b"a\n\nb\n", b"a\nx\nb\n", "c.xx:2", "--drop-empty"),
        (b"a\nx\nb\n", b"a\n \nb\n", "c.yy:2", "--drop-empty"),
        (b"a\n\xff\n", b"a\nb\n", "c.xx:2", "not valid UTF-8"),
        (b"a\nb\x07c\n", b"a\nb\n", "c.xx:2", "control character U\\+0007 in column 2"),
        (b"a\tb\n", b"a\n", "c.xx:1", "control character"),
        (b"", b"", "c.xx", "the corpus is empty"),
        (b"\n\n", b"\n\n", "c.xx", "the corpus is empty"),
    ],
)
def test_bad_input_is_refused_with_file_and_line(tmp_path, source, target, where, what):
    with pytest.raises(InputError, match=f"{where}.*{what}") as caught:
        read_corpus(*corpus(tmp_path, source, target))
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere.*cannot be read"):
        read_documents(tmp_path / "nowhere")


def test_pairs_with_an_empty_side_are_dropped_and_counted_on_demand(tmp_path):
    found = read_corpus(*corpus(tmp_path, b"\xef\xbb\xbfa\n\nc\n\n\nd\n", b"A\nB\nC\n\n\n\n"), drop_empty=True)
    assert found.documents == [(["a", "c"], ["A", "C"])] and found.lines == [[1, 3]] and found.dropped == 2


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(9, 40), st.integers(0, 5), st.booleans())
def test_parts_overlap_and_fit(lengths, limit, overlap, windows):
    """Every sentence is in one part, between the requested context, or as much as fits."""
    spans = parts(7, [[n] for n in lengths], limit, overlap, windows)
    assert [(s.document, s.start) for s in spans] == [(7, sum(x.size for x in spans[:i])) for i, s in enumerate(spans)]
    assert sum(s.size for s in spans) == len(lengths)
    if sum(lengths) <= limit:
        assert spans == [Span(7, 0, len(lengths))]
    for span in spans:
        first, end = span.start - span.context, span.start + span.size
        last = end + span.after
        assert span.context <= min(overlap, span.start) and sum(lengths[first:last]) <= limit
        if span.context < min(overlap, span.start):
            assert sum(lengths[first - 1 : last]) > limit
        wanted = min(overlap, len(lengths) - end) if windows else 0
        assert span.after == wanted or (span.after < wanted and sum(lengths[first : last + 1]) > limit)


@pytest.mark.parametrize("text", ["a\nb\n\n\nc\n", "\n\na\n\nb\n\n\n\n", "a\n", "a\n\nb\n\nc\n"])
def test_blank_lines_between_documents_are_counted_and_come_back(tmp_path, text):
    (tmp_path / "t.xx").write_text(text)
    corpus = read_source(tmp_path / "t.xx", tmp_path / "t.yy")
    documents = [pair.source for pair in corpus.documents]
    write_hypotheses(tmp_path / "out", documents, "raw", corpus.blanks)
    assert (tmp_path / "out").read_text() == text
    assert _blanks([corpus, corpus])[0] == corpus.blanks[0] and len(_blanks([corpus, corpus])) == 2 * len(documents) + 1
    assert read_hypotheses(tmp_path / "out", n_documents=len(documents)) == documents
