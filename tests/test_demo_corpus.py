"""The demo corpus: what it promises."""

from __future__ import annotations

import collections
import itertools
import json

import pytest
from conftest import ROOT, run

from fairseq_lasformer.documents import read_corpus
from fairseq_lasformer.evaluation.probe import words


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    run("python", ROOT / "data/demo/generate.py", folder)
    splits = {s: read_corpus(folder / f"{s}.en", folder / f"{s}.de") for s in ("train", "valid", "test")}
    probes = {s: [json.loads(line) for line in (folder / f"{s}.probe.jsonl").read_text().splitlines()] for s in splits}
    return folder, splits, probes


def test_it_has_the_sizes_it_promises(demo):
    _, splits, _ = demo
    documents = [d for c in splits.values() for d in c.documents]
    lengths = [len(d.source) for d in documents]
    assert len(documents) >= 2000 and min(lengths) >= 5 and max(lengths) <= 150
    assert 0.08 <= sum(n > 60 for n in lengths) / len(lengths) <= 0.1


def test_no_sentence_of_one_split_is_in_another(demo):
    sentences = {s: {x for d in c.documents for x in d.source} for s, c in demo[1].items()}
    for a, b in itertools.combinations(sentences, 2):
        assert not sentences[a] & sentences[b]


def test_the_probe_names_the_right_words_at_all_distances(demo):
    _, splits, probes = demo
    documents = splits["test"].documents
    for p in probes["test"]:
        assert words(documents[p["document"]].target[p["sentence"]])[p["word"]] == p["right"]
        assert p["right"] not in p["wrong"]
    distances = [p["distance"] for p in probes["test"]]
    assert 0 in distances and max(distances) > 1000 and sum(d == 0 for d in distances) < 0.15 * len(distances)
    assert {p["phenomenon"] for p in probes["test"]} == {"pronoun", "ambiguity", "tense", "address"}


def test_no_sentence_decides_its_own_words(demo):
    """The same English sentence, seen with both translations where the context differs; no cue is left inside it."""
    _, splits, probes = demo
    seen = collections.defaultdict(lambda: collections.defaultdict(set))
    for p in probes["train"]:
        if p["distance"] > 0:
            # all but the content words, which are drawn independently of the facts: the bare pattern decides nothing
            source = splits["train"].documents[p["document"]].source[p["sentence"]].split()
            seen[p["phenomenon"]][source[0]].add(p["right"])
    for phenomenon, by_start in seen.items():
        assert all(len(rights) >= 2 for rights in by_start.values()), phenomenon


def test_the_same_seed_gives_the_same_corpus(demo, tmp_path):
    run("python", ROOT / "data/demo/generate.py", tmp_path, "--documents", 60)
    run("python", ROOT / "data/demo/generate.py", tmp_path / "again", "--documents", 60)
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert run("python", ROOT / "data/demo/generate.py", tmp_path, "--documents", 3, check=False).returncode != 0
