"""Lines side by side: the scores are those of the whole document, whatever is searched together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from helpers import SMALL

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.nn.attentions.selected import LINE_BIAS_UNIT
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin.config import LasformerConfig, module_config
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.line_search import LineOf, LineSearch

PAD, EOS, SEP = 1, 2, 4
DOCUMENTS = ((3, 5, 2, 9), (4,), (1, 1, 1, 1, 6, 12, 3), (2, 7))
OPTIONS = {"own_lines": True, "source_context_only": True}


@pytest.fixture(scope="module")
def words() -> Dictionary:
    dictionary = Dictionary()
    for word in ("<sep>", *(f"w{i}" for i in range(60))):
        dictionary.add_symbol(word)
    return dictionary


@pytest.fixture
def make(words, monkeypatch):
    def made(backend: str, kappa: float, run: dict | None = None, **options) -> LasformerModel:
        torch.manual_seed(5)
        run = RunOptions(backend, **(run or {}))
        task = SimpleNamespace(source_dictionary=words, target_dictionary=words, run_options=run)
        task.separator_in = lambda dictionary: SEP
        model = LasformerModel.build_model(LasformerConfig(**(SMALL | OPTIONS | options)), task)
        with torch.no_grad():  # certain enough for searches to differ, and what others say matters
            model.decoder.output_projection.weight.mul_(4)
            for name, parameter in model.named_parameters():
                if name.endswith("line_bias"):
                    parameter.copy_(torch.linspace(0.5, 2.0, len(parameter)) / LINE_BIAS_UNIT)
        for _, selector in model.selectors():
            selector.set_share(kappa)
        model.eval()
        model.make_generation_fast_()
        assert (model.decoder.packed is not None) == (backend == "auto")
        return model

    return made


def texts() -> list[torch.Tensor]:
    torch.manual_seed(7)
    found = []
    for lengths in DOCUMENTS:
        lines = [t for n in lengths for t in (*torch.randint(5, 60, (n,)).tolist(), SEP)]
        found.append(torch.tensor([*lines[:-1], EOS]))
    return found


def lines_of(sources: list[torch.Tensor]) -> list[LineOf]:
    found = []
    for number, source in enumerate(sources):
        spans = line_spans(source.tolist()[:-1], SEP)
        for i, (first, end) in enumerate(spans):
            n = end - first
            found.append(LineOf(number, first, n + 1, 2 * n + 3, i == 0, i == len(spans) - 1))
    return found


def generator_of(model: LasformerModel, words: Dictionary, beam: int, **options) -> BeamGenerator:
    return BeamGenerator([model], words, beam_size=beam, max_len_b=200, **options)


def searched(model, words, lines, sources, beam=3, **options):
    search = LineSearch(generator_of(model, words, beam, **options), SEP, sources)
    return dict(search.search(lines))


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize(
    "kappa, options", [(1.0, {}), (0.3, {}), (1.0, {"select_pattern": "own-line"})], ids=["all", "some", "own"]
)
def test_scores_are_those_of_the_whole_translation(make, words, backend, kappa, options):
    model, sources = make(backend, kappa, **options), texts()
    lines = lines_of(sources)
    found = searched(model, words, lines, sources)
    assert sorted(found) == list(range(len(lines))) and all(len(its) == 3 for its in found.values())
    for number, source in enumerate(sources):
        best = [found[i][0] for i, line in enumerate(lines) if line.document == number]
        tokens = [[*h["tokens"].tolist()[:-1], SEP] for h in best]
        assert not any(SEP in line[:-1] or EOS in line[:-1] for line in tokens)
        target = torch.tensor([t for line in tokens for t in line][:-1] + [EOS])
        inputs = torch.cat([target.new_tensor([EOS]), target[:-1]])
        with torch.no_grad():
            scores = model(source[None], torch.tensor([len(source)]), inputs[None])[0][0]
        each = scores.float().log_softmax(-1).gather(1, target[:, None])[:, 0]
        ours = torch.cat([h["positional_scores"] for h in best])
        torch.testing.assert_close(ours, each, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_kernels_find_what_plain_pytorch_finds(make, words, kappa):
    sources = texts()
    lines = lines_of(sources)
    ours, theirs = (searched(make(backend, kappa), words, lines, sources) for backend in ("auto", "reference"))
    for i in range(len(lines)):
        for a, b in zip(ours[i], theirs[i], strict=True):
            assert a["tokens"].tolist() == b["tokens"].tolist()
            torch.testing.assert_close(a["score"], b["score"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("run", [{}, {"int8_cache": True}, {"int8": True, "int8_cache": True}], ids=str)
@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_a_line_is_the_same_to_the_last_bit_whatever_is_searched_beside_it(make, words, run, kappa):
    model, sources = make("auto", kappa, {"reproducible": True, **run}), texts()
    lines = lines_of(sources)
    together = searched(model, words, lines, sources)
    for i, line in enumerate(lines):
        (alone,) = searched(model, words, [line._replace(document=0)], [sources[line.document]]).values()
        for a, b in zip(together[i], alone, strict=True):
            assert a["tokens"].tolist() == b["tokens"].tolist()
            assert torch.equal(a["positional_scores"], b["positional_scores"])


def test_other_lines_matter_and_their_translations_do_not(make, words):
    model, sources = make("auto", 1.0), texts()
    lines = [line for line in lines_of(sources) if line.document == 2]
    before = searched(model, words, lines, sources)
    changed = sources[2].clone()
    changed[-2] = changed[-2] % 40 + 5  # a word of the last line
    after = searched(model, words, lines, [*sources[:2], changed, sources[3]])
    differ = [not torch.equal(before[i][0]["positional_scores"], after[i][0]["positional_scores"]) for i in before]
    assert all(differ)


@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_in_8_bits_nearly_the_same_is_found(make, words, kappa):
    sources = texts()
    lines = lines_of(sources)
    exact, found = (
        searched(make("auto", kappa, run), words, lines, sources) for run in ({}, {"int8": True, "int8_cache": True})
    )
    same = [i for i in exact if exact[i][0]["tokens"].tolist() == found[i][0]["tokens"].tolist()]
    assert len(same) > len(lines) / 2
    for i in same:
        torch.testing.assert_close(exact[i][0]["score"], found[i][0]["score"], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("least", [1, 8])
def test_given_lines_get_the_scores_that_a_search_gives_them(make, words, least):
    model, sources = make("auto", 0.3), texts()
    lines = lines_of(sources)
    best = {i: its[0] for i, its in searched(model, words, lines, sources).items() if len(its[0]["tokens"]) > least}
    assert len(best) > 2
    given = [lines[i]._replace(given=h["tokens"].tolist()[:-1]) for i, h in best.items()]
    found = searched(model, words, given, sources)
    for n, h in enumerate(best.values()):
        assert found[n][0]["tokens"].tolist() == h["tokens"].tolist()
        torch.testing.assert_close(found[n][0]["positional_scores"], h["positional_scores"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"source_context_only": True}, {"select_pattern": "own-line"}])
def test_without_own_lines_nothing_could_be_read(options):
    with pytest.raises(InputError, match="--source-context-only and --select-pattern own-line: add --own-lines"):
        module_config(LasformerConfig(**(SMALL | options)))


def test_limits_end_a_line_and_terms_are_in_it(make, words):
    model, sources = make("auto", 1.0), texts()
    lines = [line._replace(longest=2) for line in lines_of(sources)]
    for hypotheses in searched(model, words, lines, sources).values():
        assert all(2 <= len(h["tokens"]) <= 3 for h in hypotheses)
    wanted = [line._replace(terms=[[20, 21], [30]]) for line in lines_of(sources) if line.longest > 8]
    plain = searched(model, words, [line._replace(terms=()) for line in wanted], sources)
    for i, hypotheses in searched(model, words, wanted, sources, beam=6).items():
        best = " ".join(map(str, hypotheses[0]["tokens"].tolist()))
        assert "20 21" in best and "30" in best
        assert "20 21" not in " ".join(map(str, plain[i][0]["tokens"].tolist()))
