"""Shortlists: the words on them, and a search among these that equals one among all words."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import search
from fairseq.data import Dictionary
from helpers import SMALL, run
from tiers import thinned

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.data import shortlist as module
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.shortlist import Shortlist, build, load
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops import cpu
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment
from fairseq_lasformer.search.processors import ProcessedSearch

V, SEPARATOR, PAD, EOS = 64, 30, 1, 2


@pytest.fixture(scope="module")
def words() -> Dictionary:
    """Return a dictionary whose separator is in its middle."""
    dictionary = Dictionary()
    for i in range(4, V):
        dictionary.add_symbol("<sep>" if i == SEPARATOR else f"w{i}")
    return dictionary


@pytest.fixture(scope="module", params=thinned(["reference", "float32", "int8", "define"], "float32", "int8"))
def model(words, request) -> LasformerModel:
    torch.manual_seed(5)
    packed = request.param in ("float32", "int8")
    if packed and cpu.kernels() is None:
        pytest.skip("no CPU kernels")
    options = RunOptions("auto" if packed else "reference", int8=request.param == "int8")
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words, run_options=options)
    own = {"embedding": "define", "define_dim": 8, "define_expand": 32} if request.param == "define" else {}
    # with one table for both sides, a model that was not trained copies
    sizes = SMALL | {"share_all_embeddings": False} | own
    model = LasformerModel.build_model(LasformerConfig(**sizes), task)
    with torch.no_grad():  # certain enough for searches to differ
        model.decoder.output_projection.weight.mul_(4)
    model.eval()
    if packed:
        model.make_generation_fast_()
        assert model.decoder.packed is not None
    return model


def shortlist(best: int = 6, frequent: tuple[int, ...] = (SEPARATOR, 5, 6)) -> Shortlist:
    """Return a shortlist in which every word has ``best`` random translations."""
    draw = np.random.default_rng(3)
    translations = np.stack([draw.choice(np.arange(4, V), best, replace=False) for _ in range(V)]).ravel()
    return Shortlist(np.array(frequent), np.arange(V + 1) * best, translations, np.arange(V), V)


def batch(*documents: tuple[int, ...]) -> dict:
    """Return documents with sentences of the given lengths, padded on the left; only these determine the words."""
    rows = []
    for lengths in documents:
        draw = torch.Generator().manual_seed(sum(lengths) + 100 * len(lengths))
        row: list[int] = []
        for n in lengths:
            row += [*torch.randint(31, V, (n,), generator=draw).tolist(), SEPARATOR]
        rows.append(torch.tensor([*row[:-1], EOS]))
    width = max(map(len, rows))
    source = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=PAD) for row in rows])
    return {
        "id": torch.arange(len(rows)) + 90,
        "net_input": {"src_tokens": source, "src_lengths": source.ne(PAD).sum(1)},
    }


DOCUMENTS = ((3, 5, 2), (4,), (1, 1, 1, 1, 6), (2, 7))


def aligned(models, words, strategy=None, **options) -> AlignedGenerator:
    alignment = Alignment((SEPARATOR, SEPARATOR), 1.5, 2, 0)
    return AlignedGenerator(models, words, alignment=alignment, search_strategy=strategy, **options)


def on_list(some: Shortlist, source: torch.Tensor) -> set[int]:
    """Return the words of a document's list, as the class describes them."""
    found = {0, 1, 2, 3, *some.frequent.tolist()}
    for word in (w for w in source.tolist() if w > 3):
        found |= {int(some.same[word]), *some.words[some.starts[word] : some.starts[word + 1]].tolist()}
    return found


STRATEGIES = {
    "beam": lambda d: search.BeamSearch(d),
    "diverse": lambda d: search.DiverseBeamSearch(d, 2, 0.5),
    "sampling": lambda d: search.Sampling(d),
}


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("ensemble", [1, 2])
@pytest.mark.parametrize("kind", ["aligned", "free"])
def test_with_every_word_on_the_list_it_is_the_same_search(model, words, beam, ensemble, kind):
    every = shortlist(frequent=tuple(range(4, V)))
    sample = batch(*DOCUMENTS)
    options = {"beam_size": beam, "max_len_b": 20}
    make = {"aligned": aligned, "free": BeamGenerator}[kind]
    expected = make([model] * ensemble, words, **options).generate([], sample)
    found = make([model] * ensemble, words, shortlist=every, **options).generate([], sample)
    for ours, theirs in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a["positional_scores"], b["positional_scores"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_documents_have_words_of_their_own_lists_and_are_translated_as_alone(model, words, strategy):
    some, sample = shortlist(), batch(*DOCUMENTS)
    found = aligned([model], words, STRATEGIES[strategy](words), shortlist=some, beam_size=4).generate([], sample)
    lists = []
    for i, (hypotheses, document) in enumerate(zip(found, DOCUMENTS, strict=True)):
        lists.append(on_list(some, sample["net_input"]["src_tokens"][i]))
        assert len(lists[-1]) < V - 10
        for hypothesis in hypotheses:
            assert set(hypothesis["tokens"].tolist()) <= lists[-1]
            assert hypothesis["tokens"].tolist().count(SEPARATOR) == len(document) - 1
        if strategy == "beam":
            alone = aligned([model], words, shortlist=some, beam_size=4).generate([], batch(document))
            assert alone[0][0]["tokens"].tolist() == hypotheses[0]["tokens"].tolist()
    assert len(set(map(frozenset, lists))) == len(lists)


def test_other_words_are_taken_where_all_words_are_searched(model, words):
    """Otherwise the test above would hold without any list."""
    some, sample = shortlist(), batch(*DOCUMENTS)
    found = aligned([model], words, beam_size=4).generate([], sample)
    outside = [
        set(hypotheses[0]["tokens"].tolist()) - on_list(some, sample["net_input"]["src_tokens"][i])
        for i, hypotheses in enumerate(found)
    ]
    assert any(outside)


def test_beginnings_need_not_stand_on_the_list(model, words):
    some, sample = shortlist(best=2), batch((3, 5), (4, 2))
    there = [on_list(some, row) for row in sample["net_input"]["src_tokens"]]
    missing = [min(set(range(40, V)) - its) for its in there]
    prefix = torch.tensor([[missing[0], 31, missing[0]], [missing[1], PAD, PAD]])
    begun = aligned([model], words, shortlist=some, beam_size=4).generate([], sample, prefix_tokens=prefix)
    assert begun[0][0]["tokens"][:3].tolist() == prefix[0].tolist() and begun[1][0]["tokens"][0] == missing[1]


def test_weights_that_change_are_read_from_the_next_batch_on(model, words):
    some, sample = shortlist(), batch(*DOCUMENTS)

    def translated(by):
        found = aligned([by], words, shortlist=some, beam_size=3).generate([], sample)
        return [(h["tokens"].tolist(), h["positional_scores"].tolist()) for its in found for h in its]

    changed = copy.deepcopy(model)
    with torch.no_grad():
        weights = changed.decoder.output_projection
        getattr(weights, "reduce", weights).weight.mul_(-0.9)
    fresh = copy.deepcopy(changed)
    if model.decoder.packed is not None:
        fresh.make_generation_fast_()
    assert translated(changed) == translated(fresh) != translated(model)


def test_words_are_copied():
    some = shortlist(best=1)._replace(same=np.array([*range(60), 7, 8, 9, 10]))
    allowed = some.allowed(np.array([[40, 62, EOS]]), [[50]])
    assert allowed[0, [40, 9, 50, SEPARATOR, 0, 1, 2, 3, 5, 6]].all() and allowed.sum() <= 13


def test_a_beam_wider_than_the_list(model, words):
    some, sample = shortlist(best=1, frequent=(SEPARATOR,)), batch((2, 1))
    found = aligned([model], words, shortlist=some, beam_size=20).generate([], sample)
    assert set(found[0][0]["tokens"].tolist()) <= on_list(some, sample["net_input"]["src_tokens"][0])


def test_nothing_of_a_list_stays_behind(model, words):
    generator = aligned([model], words, shortlist=shortlist(), beam_size=3, tokens_to_suppress=("w40", "w50"))
    before = generator.token_indices_to_suppress
    generator.generate([], batch((3, 2)))
    assert (generator.vocab_size, generator.token_indices_to_suppress) == (V, before)
    generator.shortlist = None
    plain = aligned([model], words, beam_size=3, tokens_to_suppress=("w40", "w50"))
    a, b = (g.generate([], batch((3, 2)))[0][0]["tokens"].tolist() for g in (generator, plain))
    assert a == b and not {40, 50} & set(a)


def test_suppressed_words_stay_suppressed(model, words):
    every = shortlist(frequent=tuple(range(4, V)))
    first = aligned([model], words, shortlist=every, beam_size=3).generate([], batch((3, 2)))[0][0]["tokens"]
    word = words[int(first[0])]
    again = aligned([model], words, shortlist=every, beam_size=3, tokens_to_suppress=(word,))
    assert int(first[0]) not in again.generate([], batch((3, 2)))[0][0]["tokens"].tolist()


# from the command line


@pytest.fixture(scope="module")
def made(prepared, tmp_path_factory):
    """A shortlist of the prepared data."""
    path = tmp_path_factory.mktemp("shortlist") / "list.npz"
    assert f"{path}: " in build(prepared, path, best=10, frequent=40)
    return path


@pytest.mark.command
def test_it_is_made_from_lines_and_translates(made, prepared, trained_folder, tmp_path, capsys):
    with np.load(made) as arrays:
        starts, translations = arrays["starts"], arrays["words"]
    dictionary = Dictionary.load(str(prepared / "dict.xx.txt"))
    separator = dictionary.index("<sep>")
    lines = module._lines(prepared, ("xx", "yy"), (separator, separator))
    sentences = SplitInfo.load(prepared, "train").sentences
    assert sentences <= len(lines) < 1.1 * sentences  # not also in all of their chunks
    told = [dictionary[int(translations[starts[i]])] for i in range(4, len(dictionary)) if starts[i] < starts[i + 1]]
    assert len(told) > 20
    outputs = []
    for name, more in (("all", []), ("some", ["--shortlist", str(made)])):
        out = tmp_path / name
        arguments = [str(prepared), str(trained_folder / "checkpoint_last.pt"), str(out), *more]
        assert main(["generate", *arguments, "--", "--beam", "2"]) == 0
        outputs.append(out.read_text())
    documents = [text.splitlines() for text in outputs]
    assert [d.count("\t") for d in documents[0]] == [d.count("\t") for d in documents[1]]
    with_list = load_model(trained_folder, prepared, "cpu", shortlist=made)
    lines = list(with_list.translate_lines("a b\nc d", beam=2))
    assert [line.translation for line in lines] == with_list.translate_documents(["a b\nc d"], beam=2)[0].split("\n")


def test_a_list_that_cannot_be_used_is_refused_in_one_line(made, prepared, trained_folder, tmp_path):
    dictionary = Dictionary.load(str(prepared / "dict.xx.txt"))
    with np.load(made) as arrays:
        whole = dict(arrays)
    bad = {
        "damaged": (made.read_bytes()[:-100], "cannot be read as a shortlist"),
        "text": (b"hello", "cannot be read as a shortlist"),
    }
    changes = {
        "other": ({"dictionaries": np.array(["a", "b"])}, "belongs to other dictionaries"),
        "words": ({"words": whole["words"] + 10**6}, "damaged"),
        "negative": ({"frequent": whole["frequent"] - 1000}, "damaged"),
        "starts": ({"starts": whole["starts"][::-1]}, "damaged"),
        "middle": ({"starts": np.where(np.arange(whole["starts"].size) == 9, 10**6, whole["starts"])}, "damaged"),
        "short": ({"starts": whole["starts"][:-1]}, "damaged"),
        "pickle": ({"words": np.array([print], dtype=object)}, "cannot be read as a shortlist"),
        "lacking": ({"words": None}, "cannot be read as a shortlist"),
    }
    for name, (content, message) in bad.items():
        (tmp_path / name).write_bytes(content)
        changes[name] = ({}, message)
    for name, (change, message) in changes.items():
        path = tmp_path / name
        if change:
            arrays = {k: v for k, v in (whole | change).items() if v is not None}
            with open(path, "wb") as file:
                np.savez(file, **arrays)
        with pytest.raises(InputError, match=message):
            load(path, dictionary, dictionary)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "none", dictionary, dictionary)
    refused = run("lasformer", "translate", trained_folder, "--shortlist", tmp_path / "none", check=False)
    assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1 and "no such file" in refused.stderr


def test_too_large_a_file_is_not_read(made, prepared, monkeypatch):
    dictionary = Dictionary.load(str(prepared / "dict.xx.txt"))
    monkeypatch.setattr(module, "_LARGEST", 1000)
    with pytest.raises(InputError, match="too large"):
        load(made, dictionary, dictionary)


def test_without_training_data_there_is_none(broken, tmp_path, capsys):
    for path in broken.glob("train.*.idx"):
        path.unlink()
    assert main(["shortlist", str(broken)]) == 1
    assert "has no training data" in capsys.readouterr().err


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("kind", ["aligned", "free"])
def test_a_search_within_another_changes_neither(model, words, monkeypatch, listed, kind):
    """As in a server, where one thread searches alternatives with the generator that another translates with."""
    given = shortlist(best=2) if listed else None
    make = {"aligned": aligned, "free": BeamGenerator}[kind]
    generator = make([model], words, shortlist=given, beam_size=3)
    outer, inner = batch(*DOCUMENTS), batch((4, 2, 1))

    def tokens(found):
        return [[hypothesis["tokens"].tolist() for hypothesis in hypotheses] for hypotheses in found]

    expected, inside, steps = tokens(generator.generate([], outer)), tokens(generator.generate([], inner)), []
    step = ProcessedSearch.step

    def interrupted(self, *args):
        steps.append(None)
        if len(steps) == 3:
            assert tokens(generator.generate([], inner)) == inside
        return step(self, *args)

    monkeypatch.setattr(ProcessedSearch, "step", interrupted)
    assert tokens(generator.generate([], outer)) == expected and len(steps) > 3
