"""The promised properties of the demo corpus."""

from __future__ import annotations

import collections
import itertools
import json
import sys

import pytest
from helpers import ROOT, run

from fairseq_lasformer.evaluation.probe import words
from fairseq_lasformer.text.documents import read_corpus

sys.path.insert(0, str(ROOT / "data" / "demo"))
import lexicon as lex


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


def spans(demo):
    """Every probe with its document's source words and the position of the probed word in them."""
    _, splits, probes = demo
    asked = {
        "pronoun": {"it"},
        "address": {"you"},
        "ambiguity": {entry[0] for entry in lex.AMBIGUOUS},
        "tense": {entry[0] for entry in lex.UNMARKED_VERBS},
    }
    for split, entries in probes.items():
        documents = [[words(s) for s in d.source] for d in splits[split].documents]
        for p in entries:
            sentences = documents[p["document"]]
            sentence = sentences[p["sentence"]]
            places = [i for i, w in enumerate(sentence) if w.lower() in asked[p["phenomenon"]]]
            assert len(places) == 1, (sentence, p)
            first = sum(map(len, sentences[: p["sentence"]]))
            yield p, sentence, [w for s in sentences for w in s], first + places[0]


def cues(phenomenon: str, right: str | None = None) -> set[str]:
    """Return the first words of the cues of a phenomenon; with ``right``, of those that decide for that word."""
    table = {
        "pronoun": lex.OBJECTS,
        "address": lex.NAMES,
        "ambiguity": lex.PLACES,
        "tense": lex.TENSE_ADVERBS,
    }[phenomenon]
    if right is None:
        facts = list(table)
    elif phenomenon in ("pronoun", "address"):
        facts = [fact for fact in table if fact.lower() == right.lower()]
    elif phenomenon == "ambiguity":
        facts = [("nature", "town")[i] for e in lex.AMBIGUOUS for i in (0, 1) if e[i + 1].split()[1] == right]
    else:
        facts = [("present", "past")[i] for e in lex.UNMARKED_VERBS for i in (0, 1) if e[i + 1] == right]
    return {entry[0].split()[0].lower() for fact in facts for entry in table[fact]}


def test_no_sentence_holds_what_decides_its_words_unless_the_probe_says_so(demo):
    for p, sentence, _, _ in spans(demo):
        inside = {w.lower() for w in sentence} & cues(p["phenomenon"])
        assert bool(inside) == (p["distance"] == 0), (sentence, p)


def test_at_the_distance_named_stands_a_word_that_decides_for_the_right_translation(demo):
    for p, _, text, place in spans(demo):
        if p["distance"] > 0:
            assert text[place - p["distance"]].lower() in cues(p["phenomenon"], p["right"]), (p, text[place])
            # and nothing in between decides the phenomenon differently ("Mr" and "Mrs" are names of one kind)
            between = {w.lower() for w in text[place - p["distance"] + 1 : place]}
            assert not between & (cues(p["phenomenon"]) - cues(p["phenomenon"], p["right"])), p


def test_the_same_english_sentence_is_seen_with_several_translations(demo):
    """The same sentence, word for word, with the probed word translated as its context demands: none gives it away."""
    seen = collections.defaultdict(lambda: collections.defaultdict(list))
    words_asked = collections.defaultdict(collections.Counter)
    for p, sentence, text, place in spans(demo):
        if p["distance"] > 0:
            seen[p["phenomenon"]][" ".join(sentence)].append(p["right"])
            words_asked[text[place].lower()][p["right"].lower()] += 1
    for phenomenon, sentences in seen.items():
        repeated = [rights for rights in sentences.values() if len(rights) > 1]
        several = sum(len(set(rights)) > 1 for rights in repeated)
        assert several >= 3 and several > 0.2 * len(repeated), phenomenon
    for word, rights in words_asked.items():  # and the word alone decides nothing
        assert max(rights.values()) < 0.65 * rights.total(), word


def test_wrong_answers_are_what_other_contexts_would_demand(demo):
    choices = {"pronoun": {"er", "sie", "es"}, "address": {"du", "sie"}}
    for p, sentence, _, _ in spans(demo):
        if p["phenomenon"] in choices:
            assert {w.lower() for w in [p["right"], *p["wrong"]]} == choices[p["phenomenon"]], p
            continue
        table = lex.AMBIGUOUS if p["phenomenon"] == "ambiguity" else lex.UNMARKED_VERBS
        entry = next(e for e in table if e[0] in {w.lower() for w in sentence})
        assert {p["right"], *p["wrong"]} == {form.split()[-1] for form in entry[1:3]}, p


def test_the_same_seed_gives_the_same_corpus(demo, tmp_path):
    run("python", ROOT / "data/demo/generate.py", tmp_path, "--documents", 60)
    run("python", ROOT / "data/demo/generate.py", tmp_path / "again", "--documents", 60)
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    assert run("python", ROOT / "data/demo/generate.py", tmp_path, "--documents", 3, check=False).returncode != 0
