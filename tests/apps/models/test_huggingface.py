"""Imported models against Hugging Face's library: subwords, scores, translations; and refusals by name."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from starlette.testclient import TestClient
from tiers import thinned

transformers = pytest.importorskip("transformers")

from hf_models import FAMILIES, documentation, lines  # noqa: E402

from fairseq_lasformer.apps.models.huggingface import importing  # noqa: E402
from fairseq_lasformer.apps.models.huggingface.importing import import_model  # noqa: E402
from fairseq_lasformer.apps.server.app import Server  # noqa: E402
from fairseq_lasformer.apps.server.models import ServedModel  # noqa: E402
from fairseq_lasformer.apps.server.pages import Limits  # noqa: E402
from fairseq_lasformer.base.errors import InputError  # noqa: E402
from fairseq_lasformer.checkpoints.loading import load  # noqa: E402
from fairseq_lasformer.cli.main import main  # noqa: E402
from fairseq_lasformer.documents import part_search  # noqa: E402
from fairseq_lasformer.documents.hub import from_pretrained, load_model  # noqa: E402
from fairseq_lasformer.ops import KAPPA_ONE  # noqa: E402
from fairseq_lasformer.plugin.config import LasformerConfig  # noqa: E402
from fairseq_lasformer.plugin.model import LasformerModel  # noqa: E402
from fairseq_lasformer.text.lines import clean_line  # noqa: E402

LONGEST = 24


@pytest.fixture(scope="module", params=thinned(FAMILIES, "marian"))
def original(request, tmp_path_factory):
    """A random model of a family, as its own library runs it."""
    torch.manual_seed(1)
    transformers.logging.disable_progress_bar()
    return FAMILIES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def imported(original, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "model"
    told = import_model(original.folder, out, original.languages)
    assert "3+2 layers of 32" in told and str(out) in told
    return out


@pytest.fixture(scope="module")
def ours(imported):
    return from_pretrained(imported).eval()


def rows(original, dictionary, side):
    """Return the original's row for each word of ours; -1 for none."""
    words = original.vocabulary[side]
    made = [re.fullmatch(r"madeupword(\d{6})", word) for word in dictionary.symbols]  # rows without a word
    return torch.tensor([int(m[1]) if m else words.get(word, -1) for m, word in zip(made, dictionary.symbols)])


def test_lines_are_cut_into_the_same_subwords(original, ours):
    there = rows(original, ours.src_dict, 0)
    unknown = original.vocabulary[0]["<unk>"]
    for line in [*lines(), *documentation()]:
        cut = ours.binarize(ours.codec.join([ours.codec.encode_source(line)], 0))
        found = [unknown if row < 0 else row for row in there[cut].tolist()]
        assert found == original.encode(clean_line(line)), line  # every command cleans lines first


def batch(original, ours):
    """Return padded sources and prefixes of translations of random words, for the original and for ours."""
    draw = torch.Generator().manual_seed(3)
    sides = []
    for side, dictionary in enumerate((ours.src_dict, ours.tgt_dict)):
        there = rows(original, dictionary, side)
        known = (there[4:] >= 0).nonzero()[:, 0] + 4
        chosen = known[torch.randint(len(known), (3, 11), generator=draw)]
        sides.append((there, chosen))
    (there, source), (target_rows, target) = sides
    source[:, -1] = 2
    source[1, 7:] = torch.tensor([2, 1, 1, 1])
    theirs = there[source]
    mask = source != 1
    previous = torch.cat([torch.full((3, 1), 2), target], 1)
    begun = target_rows[previous]
    begun[:, 0] = original.start
    return (theirs, mask, begun), (source, mask.sum(1), previous), target_rows


@torch.no_grad()
def test_scores_are_equal(original, ours):
    (source, mask, begun), given, there = batch(original, ours)
    theirs = original.model(input_ids=source, attention_mask=mask, decoder_input_ids=begun, use_cache=False).logits
    found = ours.models[0](*given)[0]
    assert theirs.abs().max() > 2
    torch.testing.assert_close(
        found[..., there >= 0], theirs[..., there[there >= 0]], rtol=0, atol=1e-5 * float(theirs.abs().max())
    )


class EndAtLimit(transformers.LogitsProcessor):
    """Force the end as the last word, with its own score, as in fairseq; otherwise it would cost nothing."""

    def __init__(self, end):
        self.end = end

    def __call__(self, words, scores):
        if words.size(1) < LONGEST:
            return scores
        return torch.full_like(scores, -torch.inf).index_copy_(1, self.end, scores[:, self.end])


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("kernels", ["packed", "plain"])
def test_translations_are_equal(original, imported, ours, beam, kernels):
    model = load_model(imported, device="cpu") if kernels == "packed" else ours
    there, end = rows(original, ours.tgt_dict, 1), torch.tensor([original.model.config.eos_token_id])
    options = {"num_beams": beam, "do_sample": False, "max_length": LONGEST + 1, "length_penalty": 1.0}
    options |= {"early_stopping": True, "logits_processor": [EndAtLimit(end)]}
    tagged = original.forced is not None
    if tagged:
        options["forced_bos_token_id"] = original.forced
    seen = set()
    for line in lines()[:1000:50]:
        source = torch.tensor([original.encode(line)[-100:]])
        theirs = original.model.generate(source, **options)[0, 1 + tagged :].tolist()
        sentence = ours.binarize(ours.codec.join([ours.codec.encode_source(line)], 0))[-100:]
        found = model.generate(sentence, beam=beam, max_len_a=0, max_len_b=LONGEST - 1, lenpen=1.0)[0]["tokens"]
        assert there[found].tolist() == theirs, line
        seen |= {*theirs}
    assert len(seen) > 4, "the translations say nothing"


def document(n):
    return "\n".join(line for line in lines()[50 : 50 + 3 * n] if len(line) < 60)[: 60 * n].rsplit("\n", 1)[0]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_lines_of_a_document_are_translated_as_alone(imported, dtype, monkeypatch):
    """Many lines at a time, in windows; every line gets one translation."""
    model = load_model(imported, device="cpu", decode_dtype=dtype)
    monkeypatch.setattr(part_search, "WINDOW", 7)
    batches, parts = [], part_search.PartSearch.translate_parts
    monkeypatch.setattr(part_search.PartSearch, "translate_parts", lambda *a: batches.append(len(a[1])) or parts(*a))
    text = document(10)
    options = {"beam": 2, "max_len_b": 20}
    (found,) = model.translate_documents([text], lines=True, **options)
    assert [line.source for line in found] == text.split("\n") and max(batches) > 2 and sum(batches) == len(found)
    alone = [model.translate_documents([line.source], **options)[0] for line in found]
    # the order of sums depends on the batch: of all in float32, of attention's in 8 bits (seen on Intel AMX)
    assert sum(line.translation == other for line, other in zip(found, alone)) >= len(found) - 1


def test_files_are_translated_and_resumed(imported, tmp_path):
    (tmp_path / "a.txt").write_text(document(4))
    options = ["--lines", "--beam", "1", "--device", "cpu", "--quiet"]
    assert main(["translate", str(imported), str(tmp_path / "a.txt"), "-o", str(tmp_path / "b.txt"), *options]) == 0
    written = (tmp_path / "b.txt").read_text()
    assert written.count("\n") == (tmp_path / "a.txt").read_text().count("\n")


def test_it_is_served(imported):
    served = ServedModel("mine", load_model(imported, device="cpu"), beam=1)
    try:
        client = TestClient(Server([served], Limits(), None).app(("*",), False, ()))
        answer = client.post("/translate", json={"q": document(15)})
        assert answer.status_code == 200, answer.text
        assert answer.json()["translatedText"].count("\n") == document(15).count("\n") > 10
    finally:
        served.engine.close()


def test_at_kappa_one_a_model_that_selects_is_the_same(imported, original, ours):
    """The imported weights in a model that selects, as lasformer train --finetune-from-model makes one."""
    cfg = ours.cfg.model
    sizes = {
        name: cfg[name] for name in LasformerConfig.__dataclass_fields__ if name in cfg and not name.startswith("_")
    }
    chosen = {"select_modules": "encoder,decoder,cross"}
    torch.manual_seed(4)
    model = LasformerModel.build_model(LasformerConfig(**sizes | chosen), ours.task).eval()
    model.load_state_dict({**model.state_dict(), **ours.models[0].state_dict()})
    assert {int(selector.kappa) for _, selector in model.selectors()} == {KAPPA_ONE}
    _, given, _ = batch(original, ours)
    with torch.no_grad():
        expected, found = ours.models[0](*given)[0], model(*given)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def changed(original, tmp_path, name, change):
    """Return a copy of a folder with one of its JSON files changed."""
    copy = tmp_path / "copy"
    shutil.copytree(original.folder, copy)
    found = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
    (copy / name).write_text(json.dumps(found | change))
    return copy


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("config.json", {"model_type": "nllb-moe"}, "mixtures of experts"),
        ("config.json", {"model_type": "whisper"}, "known types are m2m_100, marian"),
        ("config.json", {"model_type": 3}, "what kind of model"),
        ("config.json", {"d_model": "x"}, "d_model: expected a number"),
        ("config.json", {"activation_function": "snake"}, "activation_function snake"),
        ("config.json", {"decoder_start_token_id": 7}, "decoder_start_token_id"),
        ("config.json", {"vocab_size": 5, "src_vocab_size": 5}, "does not fit the model's table"),
        ("config.json", {"max_position_embeddings": -1}, "expected a number, not -1"),
    ],
)
def test_refusals_by_name(original, tmp_path, capsys, name, change, message):
    copy = changed(original, tmp_path, name, change)
    words = ["import", str(copy), str(tmp_path / "out"), "-s", original.languages[0], "-t", original.languages[1]]
    assert main(words) == 1
    assert message in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / "out").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_does_not_fit_is_refused_before_anything_is_written(original, tmp_path):
    out = tmp_path / "out"
    broken = tmp_path / "broken"
    shutil.copytree(original.folder, broken)
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match="damaged"):
        import_model(broken, out, original.languages)
    (broken / "model.safetensors").unlink()
    with pytest.raises(InputError, match="contains no weights"):
        import_model(broken, out, original.languages)
    torch.save({"model": Bomb()}, broken / "pytorch_model.bin")
    with pytest.raises(InputError, match="refused"):
        import_model(broken, out, original.languages)
    for languages, message in ((("../x", "yy"), "not the name"), (("xx", "xx"), "both are xx")):
        with pytest.raises(InputError, match=message):
            import_model(original.folder, out, languages)
    with pytest.raises(InputError, match="config.json"):
        import_model(tmp_path, out, original.languages)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="adapters"):
        import_model(tmp_path, out, original.languages)
    assert not out.exists()
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(InputError, match="not empty"):
        import_model(original.folder, out, original.languages)


def test_a_model_that_computes_something_else_is_found(original, tmp_path, monkeypatch):
    convert = type(importing.FAMILIES[original.model.config.model_type]).convert

    def wrong(self, folder, languages):
        found = convert(self, folder, languages)
        found.weights["encoder.layers.0.fc1.bias"] += 0.1
        return found

    monkeypatch.setattr(type(importing.FAMILIES[original.model.config.model_type]), "convert", wrong)
    with pytest.raises(InputError, match="differ from the original's"):
        import_model(original.folder, tmp_path / "out", original.languages)
    assert list(tmp_path.iterdir()) == []


def test_weights_may_be_pickled_or_in_parts(original, imported, tmp_path):
    from safetensors.torch import load_file

    weights = load_file(original.folder / "model.safetensors")
    for kind in ("pickled", "parts"):
        copy = tmp_path / kind
        shutil.copytree(original.folder, copy)
        (copy / "model.safetensors").unlink()
        if kind == "pickled":
            torch.save(weights, copy / "pytorch_model.bin")
        else:
            names = sorted(weights)
            parts = {"a.bin": names[::2], "b.bin": names[1::2]}
            for name, its in parts.items():
                torch.save({key: weights[key] for key in its}, copy / name)
            index = {"weight_map": {key: name for name, its in parts.items() for key in its}}
            (copy / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        import_model(copy, tmp_path / f"{kind}_out", original.languages, check=False)
        found, expected = (load(folder / "model.pt")["model"] for folder in (tmp_path / f"{kind}_out", imported))
        assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


def test_languages_are_found_by_their_short_names(original, tmp_path):
    if original.forced is None:
        pytest.skip("a model of two languages")
    for language, message in (("tlh", "has no language tlh"), ("", "not the name of a language")):
        with pytest.raises(InputError, match=message):
            import_model(original.folder, tmp_path / "out", (original.languages[0], language or " "), check=False)


class Bomb:
    def __reduce__(self):
        return (print, ("the payload ran",))
