"""Which line decided a word: against an oracle that decides by rules, and against scoring from scratch."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents import because
from fairseq_lasformer.documents.because import Because, explain
from fairseq_lasformer.documents.explanation import Explained, Explanation
from fairseq_lasformer.documents.forced import ForcedDocument, Place
from fairseq_lasformer.documents.scoring import against_second, continued, log_probabilities, of_spans
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.text.documents import Span

SEPARATOR = "<sep>"
OBJECTS = {"bridge": "sie", "table": "er"}
WORDS = {"bridge": "Brücke", "table": "Tisch", "is": "ist", "old": "alt", "new": "neu", "the": "die", "raft": "Floß"}


class Oracle:
    """A model of documents that translates word by word; *it* is *sie* after a bridge, *er* after a table.

    The last object before it in the source decides; without one, the last *sie* or *er* in the translation; without
    that, both are equally likely. A raft makes *sie* more likely, two make it sure.
    """

    def __init__(self, source: Dictionary, target: Dictionary) -> None:
        self.source, self.target, self.decoder = source, target, Reader(self)

    def encoder(self, sources, lengths=None, observe=None):
        return sources

    def reorder_encoder_out(self, encoded, order):
        return encoded[order]

    def get_normalized_probs(self, output, log_probs):
        return output[0].log_softmax(-1)

    def row(self, previous, source):
        lines = " ".join(self.source[i] for i in source if i > 3 or i == self.source.index(SEPARATOR)).split(SEPARATOR)
        lines = [line.split() for line in lines]
        line, word, found, objects, said = 0, 0, [], [], ""
        for n, token in enumerate(previous):
            name = self.target[token]
            if n and name == SEPARATOR:
                line, word = line + 1, 0
            elif n:
                said = name if name in OBJECTS.values() else said
                word += 1
            here = lines[line] if line < len(lines) else []
            asked = here[word] if word < len(here) else ""
            objects = [w for before in [*lines[:line], here[:word]] for w in before if w in OBJECTS]
            if asked == "it":
                rafts = sum(before.count("raft") for before in lines[:line])
                decided = OBJECTS[objects[-1]] if objects else said or "sie" * (rafts > 1)
                one, two = (0.65, 0.33) if rafts else (0.49, 0.49)
                likely = {decided: 0.98} if decided else {"sie": one, "er": two}
            elif asked:
                likely = {WORDS[asked]: 0.98}
            else:
                likely = {SEPARATOR if line + 1 < len(lines) else self.target.eos_word: 0.98}
            row = torch.full((len(self.target),), (1 - sum(likely.values())) / len(self.target))
            for name, p in likely.items():
                row[self.target.index(name)] += p
            found.append(row.log())
        return torch.stack(found)


class Reader:
    """The oracle's decoder, whose features are log probabilities."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def extract_features(self, previous, encoded, state=None, observe=None):
        return torch.stack([self.oracle.row(*pair) for pair in zip(previous.tolist(), encoded.tolist())]), {}

    def output_layer(self, features):
        return features

    def reorder_incremental_state_scripting(self, state, order):
        pass


@pytest.fixture
def hub():
    source, target = Dictionary(), Dictionary()
    for dictionary, words in ((source, [*WORDS, "it"]), (target, [*WORDS.values(), "sie", "er"])):
        for word in (SEPARATOR, *words):
            dictionary.add_symbol(word)
    codec = SimpleNamespace(
        separator=SEPARATOR,
        tags=("", ""),
        resolutions="mixture",
        encode_source=str,
        encode_target=str,
        decode_line=str,
        join=lambda lines, side: f" {SEPARATOR} ".join(lines),
        cut=lambda number, *sides, overlap: [Span(0, 0, len(sides[0]))],
    )
    task = SimpleNamespace(cfg=SimpleNamespace(overlap=0))
    model = Oracle(source, target)
    return SimpleNamespace(
        codec=codec, task=task, models=[model], src_dict=source, tgt_dict=target, device=torch.device("cpu")
    )


def translated(lines):
    """The oracle's translation, where it is decided; ``sie`` elsewhere."""
    found, last = [], "sie"
    for line in lines:
        words = []
        for word in line.split():
            last = OBJECTS.get(word, last)
            words.append(last if word == "it" else WORDS[word])
        found.append(" ".join(words))
    return found


def explained(hub, lines, **options):
    numbered = [(i, *sides) for i, sides in enumerate(zip(lines, translated(lines)), 1)]
    return explain(hub, numbered, **options)


FAR = ["the table is old", "the bridge is old", *["the old is new"] * 20, "it is old", "it is new"]


@pytest.mark.parametrize(
    ("lines", "line", "cause"),
    [
        (["the bridge is old", "it is new"], 2, 1),
        (["the table is old", "the bridge is old", "it is new"], 3, 2),  # the last object counts
        (["the bridge is old", "the bridge is new", "it is new"], 3, 2),  # of two alike, the nearest
        (["the bridge is old", "it is new", "it is old"], 3, 1),  # line 2 is an echo
        (["the bridge is old", "the raft is old", "it is new"], 3, 1),  # the raft makes it more likely, no more
        (["the raft is old", "the old is new", "the raft is old", "it is new"], 4, 3),  # none is enough
        (FAR, 23, 2),
        (FAR, 24, 2),
    ],
)
@pytest.mark.parametrize("thorough", [False, True])
def test_the_line_that_decided_is_named(hub, lines, line, cause, thorough):
    found = [w for w in explained(hub, lines, thorough=thorough).words if w.line == line]
    (word,) = found
    assert word.cause is not None and word.cause.line == cause and not word.cause.echo and not word.ambiguous
    right = translated(lines)[line - 1].split()[0]
    assert (word.start, word.end) == (0, len(right)) and word.without == {"sie": "er", "er": "sie"}[right]
    assert word.instead == " ".join([word.without, *translated(lines)[line - 1].split()[1:]])
    assert word.context == pytest.approx(math.log(0.98 / 0.49), abs=0.02)


def test_words_that_their_own_line_decides_name_no_other(hub):
    assert explained(hub, ["the table is old", "the bridge is new it is old"]).words == []


def test_what_nothing_decides_is_ambiguous_and_later_words_follow_it(hub):
    found = explained(hub, ["the old is new", "it is old", "it is new"]).words
    assert [(w.line, w.ambiguous, w.without) for w in found] == [(2, True, "er"), (3, False, "er")]
    assert found[0].cause is None and found[0].instead == "er ist alt"
    assert found[1].cause is not None and found[1].cause.line == 2 and found[1].cause.echo


def test_thoroughly_all_lines_that_give_as_much_are_named_and_left_out(hub):
    lines = ["the bridge is old", "the old is new", "the bridge is new", "it is new"]
    (word,) = explained(hub, lines, asked=[4]).words
    assert word.cause is not None and (word.cause.line, word.others) == (3, (1,))
    assert word.cause.costs == pytest.approx(0.0, abs=1e-5)  # the other line still says it
    assert word.together == pytest.approx(math.log(0.98 / 0.49), abs=0.02)
    spans = word.cause.word, word.cause.translated
    assert [text[slice(*span)] for text, span in zip((lines[2], "die Brücke ist neu"), spans)] == ["bridge", "Brücke"]


def test_the_worth_of_the_document_is_by_line_and_by_distance(hub):
    found = explained(hub, FAR)
    assert found.bits[23] == pytest.approx(1.0, abs=0.03) and found.bits[3] == pytest.approx(0.0, abs=1e-5)
    assert found.cxmi == pytest.approx(sum(found.bits.values()) / sum(found.tokens.values()))
    assert [(name, n) for name, n, _ in found.by_distance() if n] == [("11-30", 2)]


def test_a_sentence_says_it(hub):
    found = explained(hub, ["the bridge is old", "the old is new", "it is new", "it is new"], asked=[3])
    assert found.sentence(found.words[0]) == (
        "sie: because of bridge (line 1, 2 lines before), 0.7 nats; leaving it out costs 0.69 nats; without context er"
    )
    lines = ["the bridge is old", "the bridge is new", "it is new"]
    assert (
        "; also line 1; leaving it out costs 0.00 nats, with the others 0.69; "
        in explained(hub, lines, asked=[3]).table()
    )
    table = explained(hub, ["the old is new", "it is old"]).table().splitlines()
    assert table[0] == "2  sie: ambiguous; nothing decides between this and er"
    assert table[1].startswith("0 words depend on other lines, 1 is ambiguous; other lines are worth")
    several = Explanation([(1, "a", "A"), (2, "b", "B")], [Explained(2, 0, 1, 0.5)], {}, {})
    assert several.sentence(several.words[0]) == "B: because of several lines, 0.5 nats"


DOCUMENT = ["w1 w2 w3", "w4 w5", "w1 w6 w7", "w8"]
TRANSLATION = ["W1 W2 W3", "W4 W5", "W1 W6 W7", "W8"]


@pytest.fixture
def small(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


def tokens_of(model, lines, side):
    dictionary = (model.src_dict, model.tgt_dict)[side]
    encode = (model.codec.encode_source, model.codec.encode_target)[side]
    text = f" {SEPARATOR} ".join(map(encode, lines))
    return dictionary.encode_line(text, add_if_not_exist=False).long()


def log_probability(model, source, target, line):
    """The log probabilities of a line's tokens, by the model's forward pass alone."""
    pair = [tokens_of(model, lines, side)[None] for side, lines in enumerate((source, target))]
    previous = pair[1].roll(1, 1)
    out = model.models[0](pair[0], torch.tensor([pair[0].size(1)]), previous)[0][0].log_softmax(-1)
    own = out.gather(1, pair[1][0][:, None])[:, 0]
    start = len(tokens_of(model, target[:line], 1)) if line else 0
    return own[start : start + len(tokens_of(model, target[line : line + 1], 1)) - 1]


@torch.no_grad()
def test_leaving_a_line_out_is_the_document_without_it(small):
    """In float64, against the text without the line, encoded and scored again."""
    small.models[0].double()
    document = ForcedDocument(small, DOCUMENT, TRANSLATION)
    search = Because(document)
    for line in (2, 3):
        words = [
            because._Word(Place(line, *document.place(line, n)), n, 0.0, 0, 0, False)
            for n in range(len(document.words[line]))
        ]
        for left_out in ((0,), (1,), (0, 1)):
            costs = search.costs([(word, left_out) for word in words])
            kept = [i for i in range(4) if i not in left_out]
            sides = [[side[i] for i in kept] for side in (DOCUMENT, TRANSLATION)]
            without = log_probability(small, *sides, kept.index(line))
            whole = log_probability(small, DOCUMENT, TRANSLATION, line)
            for word, cost in zip(words, costs):
                _, first, end = word.place
                assert cost == pytest.approx(float((whole - without)[first:end].sum()), abs=1e-9)


def test_scores_of_places_are_those_of_whole_targets(small):
    pairs = [
        tuple(tokens_of(small, lines[:n], side) for side, lines in enumerate((DOCUMENT, TRANSLATION))) for n in (4, 2)
    ]
    model = small.models[0], small.tgt_dict
    every = log_probabilities(*model, pairs, 4096, "cpu")
    found = of_spans(*model, pairs, [[(0, 2), (3, 4)], [(1, 3)]], 4096, "cpu")
    expected = [[every[0][0:2].sum(), every[0][3:4].sum()], [every[1][1:3].sum()]]
    assert all(a == pytest.approx(list(map(float, b)), abs=1e-5) for a, b in zip(found, expected))


@torch.no_grad()
def test_the_second_word_is_the_best_of_the_others(small):
    source, target = (tokens_of(small, lines[:2], side) for side, lines in enumerate((DOCUMENT, TRANSLATION)))
    model = small.models[0], small.tgt_dict
    ((own, second, other),) = against_second(*model, [(source, target)], 4096, "cpu")
    previous = target.roll(1)[None]
    every = model[0](source[None], torch.tensor([len(source)]), previous)[0][0].log_softmax(-1)
    for i, token in enumerate(target.tolist()):
        assert float(own[i]) == pytest.approx(float(every[i, token]), abs=1e-5) and int(other[i]) != token
        every[i, token] = every[i, small.tgt_dict.pad()] = every[i, small.tgt_dict.unk()] = -1e9
        assert float(second[i]) == pytest.approx(float(every[i].max()), abs=1e-5)


@torch.no_grad()
def test_targets_go_on_with_the_best_words_each_from_where_it_begins_to_where_it_ends(build, small_task):
    model, dictionary = build(kappa=0.3).eval(), small_task.target_dictionary
    sources = [torch.tensor([*range(n, n + 5 + n % 3), dictionary.eos()]) for n in range(10, 22)]
    beginnings = [(source, source[: n % 5].roll(1)) for n, source in enumerate(sources)]
    most, ends = [4 + n % 9 for n in range(12)], {dictionary.eos(), *range(3, 64, 5)}
    found = continued(model, dictionary, beginnings, ends, most, 4096, "cpu")
    for (source, start), limit, whole in zip(beginnings, most, found):
        expected = start.tolist()
        while len(expected) < limit:
            previous = torch.tensor([[dictionary.eos(), *expected]])
            scores = model(source[None], torch.tensor([len(source)]), previous)[0][0, -1]
            scores[dictionary.pad()] = -1e9
            if int(scores.argmax()) in ends:
                break
            expected.append(int(scores.argmax()))
        assert whole.tolist() == expected
    grown = {len(whole) - len(start) for (_, start), whole in zip(beginnings, found)}
    assert len(grown) > 3 and 0 < sum(len(whole) < n for whole, n in zip(found, most)) < 12


def test_long_documents_are_explained_in_their_parts(small):
    document, translation = DOCUMENT * 4, TRANSLATION * 4
    forced = ForcedDocument(small, document, translation)
    assert len(forced.parts) > 1
    assert all(set(forced.before(i)) <= set(range(forced.part(i).start - forced.part(i).context, i)) for i in range(16))
    found = small.explain("\n\n".join(document), "\n\n".join(translation))
    assert list(found.bits) == [2 * i + 1 for i in range(16)]  # blank lines count
    assert found.bits[31] == pytest.approx(forced.bits(15), abs=1e-4)
    assert all(0 <= word.start < word.end and word.line in found.bits for word in found.words)


@pytest.mark.parametrize(
    ("translation", "options", "message"),
    [
        ("W1", {}, "1 lines, but the document has 2"),
        (["W1"], {}, "type list; expected text|takes a list"),
        (None, {"lines": [3]}, "there is no line 3"),
        ("W1\n" + "W2 " * 60, {}, "line 2 has .* tokens"),
    ],
)
def test_what_cannot_be_explained_is_refused(small, translation, options, message):
    with pytest.raises(InputError, match=message):
        small.explain("w1\nw2", translation, **options)


def test_models_of_sentences_have_nothing_to_explain(hub):
    hub.codec.separator = ""
    with pytest.raises(InputError, match="reads single sentences"):
        explained(hub, ["the bridge is old"])
