"""Training examples that begin with lines of other documents."""

from __future__ import annotations

import random

import pytest
from helpers import read_split

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig, fingerprint


def corpus(tmp_path, name, seed, n=12):
    """Write documents of lines that name their document; target words are the source's, with the file's letter."""
    rng = random.Random(seed)
    sides = ([], [])
    for d in range(n):
        lines = [f"{name}{d} {rng.choice('abcdef')} {rng.choice('ghijkl')}" for _ in range(rng.randint(2, 5))]
        lines.append("a g" if d % 2 else "b h")  # a line shared by several documents
        sides[0].append("\n".join(lines))
        sides[1].append("\n".join(line.upper() for line in lines))
    for side, language in zip(sides, ("xx", "yy")):
        (tmp_path / f"{name}.{language}").write_text("\n\n".join(side) + "\n")
    return str(tmp_path / name)


def prepared(tmp_path, out, **options):
    prefixes = tuple(str(tmp_path / name) for name in "pq")
    config = PrepareConfig(
        *("xx", "yy", prefixes, prefixes[:1], (), tmp_path / out, "none"), size=50, limit=40, workers=1, **options
    )
    return prepare(config)


def lines_of(example):
    return [line.replace("@@ ", "") for line in example.split(" <sep> ")]


def test_examples_begin_with_lines_of_other_documents_of_their_file(tmp_path):
    for seed, name in enumerate("pq"):
        corpus(tmp_path, name, seed)
    plain = prepared(tmp_path, "plain")
    done = prepared(tmp_path, "with", memory_examples=0.5, memory_tokens=100)
    before, after = (
        [list(map(lines_of, read_split(tmp_path / out, "train", side))) for side in ("xx", "yy")]
        for out in ("plain", "with")
    )
    info = SplitInfo.load(tmp_path / "with", "train")
    n = len(before[0])
    assert plain.splits[0].n_remembering == 0 and len(after[0]) == n == info.n_examples
    longer = [i for i in range(n) if len(after[0][i]) > len(before[0][i])]
    assert len(longer) == info.n_remembering == done.splits[0].n_remembering
    assert 0.3 < len(longer) / n < 0.6
    for i in range(n):
        extra = len(after[0][i]) - len(before[0][i])
        assert after[0][i][extra:] == before[0][i] and after[1][i][extra:] == before[1][i]
        assert [line.upper() for line in after[0][i]] == after[1][i]  # pairs stay pairs
        owners = {line.split()[0] for line in before[0][i] if line[:1] in "pq"}
        for line in after[0][i][:extra]:
            assert line.split()[0] not in owners and line not in before[0][i]
            assert not owners or line[:1] in (*{owner[0] for owner in owners}, "a", "b")  # of the same file
    for side in ("xx", "yy"):
        assert max(len(example.split()) for example in read_split(tmp_path / "with", "train", side)) < 40
    valid = read_split(tmp_path / "plain", "valid", "xx"), read_split(tmp_path / "with", "valid", "xx")
    assert valid[0] == valid[1]  # other splits stay as they are
    assert not list((tmp_path / "with").glob("**/*.tm"))


def test_the_same_examples_each_time_and_none_by_default(tmp_path):
    for seed, name in enumerate("pq"):
        corpus(tmp_path, name, seed)
    for out in ("one", "two"):
        prepared(tmp_path, out, memory_examples=1.0, memory_tokens=30)
    assert read_split(tmp_path / "one", "train", "xx") == read_split(tmp_path / "two", "train", "xx")
    default = PrepareConfig("xx", "yy", (str(tmp_path / "p"),), (), (), tmp_path / "none", "none")
    settings = default.settings()
    tokens = PrepareConfig("xx", "yy", (str(tmp_path / "p"),), (), (), tmp_path / "none", "none", memory_tokens=9)
    assert fingerprint(default.inputs(settings)) == fingerprint(tokens.inputs(settings))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"memory_examples": 1.5}, "--memory-examples 1.5: expected a share from 0 to 1"),
        ({"memory_examples": 0.5, "memory_tokens": 0}, "--memory-tokens: at least 1"),
        ({"memory_examples": 0.5, "separator": ""}, "with a separator between them"),
        ({"memory_examples": 0.5, "resolutions": "sentences"}, "needs examples of more than one sentence"),
    ],
)
def test_impossible_requests_are_refused(tmp_path, options, message):
    corpus(tmp_path, "p", 1)
    corpus(tmp_path, "q", 2)
    with pytest.raises(InputError, match=message):
        prepared(tmp_path, "out", **options)
