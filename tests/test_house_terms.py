"""The promised properties of the demo corpus with house terms."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import ROOT, run

from fairseq_lasformer.evaluation.probe import words
from fairseq_lasformer.text.documents import read_corpus

sys.path.insert(0, str(ROOT / "data" / "demo"))
import house_terms

FORMS = {row[0]: [form.split()[1] for form in row[1:]] for row in house_terms.TERMS}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terms")
    sizes = ["--documents", 120, "--clients", 12, "--test-documents", 40, "--test-clients", 6]
    run("python", ROOT / "data/demo/house_terms.py", folder, *sizes)
    return folder


def corpus(folder, name):
    return read_corpus(folder / f"{name}.en", folder / f"{name}.de")


def houses(documents):
    """Return the houses whose words occur in documents together with their terms."""
    found = set()
    for document in documents:
        for source, target in zip(document.source, document.target):
            for term, forms in FORMS.items():
                if term in words(source):
                    found |= {i for i, form in enumerate(forms) if form in words(target)}
    return found


def test_each_client_has_one_house_and_his_memory_tells_which(made):
    every = set()
    for c in range(12):
        own = houses(corpus(made, f"client{c}").documents)
        assert len(own) == 1
        every |= own
    assert every == {0, 1, 2}
    owners = json.loads((made / "test.clients.json").read_text())
    tested = corpus(made, "test").documents
    assert len(owners) == len(tested) == 40
    for t in range(6):
        memory = corpus(made, f"memory{t}").documents
        own = [document for document, owner in zip(tested, owners) if owner == t]
        assert len(memory) == house_terms.EARLIER and houses(memory) == houses(own)
        text = {word for document in memory for line in document.source for word in words(line)}
        assert FORMS.keys() <= text


def test_the_probes_name_the_right_words(made):
    documents = corpus(made, "test").documents
    probes = [json.loads(line) for line in (made / "test.probe.jsonl").read_text().splitlines()]
    for p in probes:
        assert words(documents[p["document"]].target[p["sentence"]])[p["word"]] == p["right"]
        assert p["right"] not in p["wrong"] and 0 <= p["distance"] < 10**9
        if p["phenomenon"] != "house term" and p["distance"]:
            before = sum(len(words(line)) for line in documents[p["document"]].source[: p["sentence"] + 1])
            assert p["distance"] < before
    terms = [p for p in probes if p["phenomenon"] == "house term"]
    assert len(terms) > 150 and all(len(p["wrong"]) == 2 for p in terms)
    assert 0 < sum(p["first"] for p in terms) < len(terms)
    # the others are those of the demo: as many probes of each kind have the deciding word in their own sentence
    assert {p["phenomenon"] for p in probes} == {"pronoun", "ambiguity", "tense", "address", "house term"}


def test_no_test_sentence_is_known(made):
    sentences = {
        name: {line for name in names for document in corpus(made, name).documents for line in document.source}
        for name, names in {
            "train": [f"client{c}" for c in range(12)],
            "test": ["test"],
            "memory": [f"memory{t}" for t in range(6)],
        }.items()
    }
    assert not sentences["test"] & (sentences["train"] | sentences["memory"])
