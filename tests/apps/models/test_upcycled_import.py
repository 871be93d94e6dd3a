"""From a model in Hugging Face's format to a selecting model for documents."""

from __future__ import annotations

import json

import pytest

transformers = pytest.importorskip("transformers")

from hf_models import FAMILIES, lines  # noqa: E402

from fairseq_lasformer.apps.models.huggingface.importing import import_model  # noqa: E402
from fairseq_lasformer.cli.main import main  # noqa: E402
from fairseq_lasformer.data.manifest import SplitInfo  # noqa: E402
from fairseq_lasformer.documents.hub import load_model  # noqa: E402


@pytest.mark.command
@pytest.mark.parametrize("family", ["marian", "m2m"])
def test_an_imported_model_of_sentences(family, tmp_path, capfd):
    """A separator is added, and a document keeps its lines."""
    original = FAMILIES[family](tmp_path)
    import_model(original.folder, tmp_path / "model", original.languages, check=False)
    named = json.loads((tmp_path / "model/settings.json").read_text())
    text = [line for line in lines() if len(line) < 40][4:44]
    for language in (named["source_lang"], named["target_lang"]):
        documents = ["\n".join(text[i : i + 4]) + "\n" for i in range(0, 40, 4)]
        (tmp_path / f"raw.{language}").write_text("\n".join(documents))
    words = ["prepare", str(tmp_path / "data"), "-s", named["source_lang"], "-t", named["target_lang"]]
    words += ["--train", str(tmp_path / "raw"), "--valid", str(tmp_path / "raw"), "--reuse", str(tmp_path / "model")]
    assert main([*words, "--separator", "<sep>", "--limit", "200", "--workers", "1"]) == 0
    assert "(chunks of every length)" in capfd.readouterr().out
    single = [*words[:1], str(tmp_path / "single"), *words[2:], "--resolutions", "sentences", "--workers", "1"]
    assert main(single) == 0 and "(single sentences)" in capfd.readouterr().out
    both = [SplitInfo.load(tmp_path / name, "train").longest for name in ("data", "single")]
    assert min(both[0]) > 2 * max(both[1])  # documents, not sentences
    assert main(["upcycle", str(tmp_path / "model/model.pt"), str(tmp_path / "single"), str(tmp_path / "out")]) == 1
    assert "single sentences" in capfd.readouterr().err and not (tmp_path / "out").exists()
    words = ["upcycle", str(tmp_path / "model/model.pt"), str(tmp_path / "data"), str(tmp_path / "out")]
    assert main([*words, "--updates", "2", "--share-loss", "1", "--documents", "2"]) == 0
    told = capfd.readouterr().out
    assert told.count("<sep> is added") == 2 and "bits per token before" in told
    found = load_model(tmp_path / "out", device="cpu").translate_documents(["\n".join(text[:3])], beam=1)
    assert found[0].count("\n") == 2
