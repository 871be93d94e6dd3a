"""The report: its input, its content, and the page in a real browser."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from helpers import run, tokens, train

from fairseq_lasformer.analysis import runs
from fairseq_lasformer.analysis.attention_view import sparse
from fairseq_lasformer.analysis.report import report
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.word_attention import attention_of
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.ops import AttentionMask


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_the_attention_shown_is_the_one_that_is_used(build, kappa):
    model = build(kappa).eval()
    source, target = tokens(1, 30)[0], torch.cat([tokens(1, 24)[0], torch.tensor([2])])
    seen = attention_of(model, source, target)
    assert set(seen) == {f"{m}.{g}" for m in ("encoder", "decoder", "cross") for g in (0, 1)}
    for name, weights in seen.items():
        assert weights.shape == (30 if name.startswith("encoder") else 25, 25 if name.startswith("decoder") else 30)
        torch.testing.assert_close(weights.sum(1), torch.ones(len(weights)))
    assert seen["decoder.0"].triu(1).abs().max() == 0
    keep = 10 if kappa < 1 else 30  # max(10, 0.3 * 30)
    assert ((seen["encoder.0"] > 0).sum(1) == keep).all() and ((seen["cross.1"] > 0).sum(1) == keep).all()
    rows = sparse(seen["cross.0"].numpy(), most=5)
    assert len(rows) == 25 and all(len(r) <= 5 and r == sorted(r, key=lambda k: -k[1]) for r in rows)


def test_one_heads_output_is_the_values_weighted_as_shown(build):
    model = build(0.3, encoder_attention_heads=1, select_share=1).eval()
    source = tokens(1, 30)[0]
    weights = attention_of(model, source, source)["encoder.0"]
    attention, x = model.encoder.layers[0].self_attn, model.encoder.embed(source[None])[0]
    with torch.no_grad():  # reads only the kept keys, or a mask; never these weights
        out = attention(Pass(x, x, AttentionMask(None, False))).out
    torch.testing.assert_close(attention.out_proj(weights @ attention.v_proj(x[0])), out[0], rtol=1e-4, atol=1e-5)


def test_logs_of_both_commands_are_read_and_repeated_updates_count_once(tmp_path):
    lines = [
        '2026 | INFO | train_inner | {"num_updates": "1", "loss": "9.5", "kappa_encoder_0": "1", "clip": "x"}',
        '[2026][train_inner][INFO] - {"num_updates": "2", "loss": "8", "kappa_by_group": "encoder:0.9"}',
        '[2026][train_inner][INFO] - {"num_updates": "3", "lo',
        '2026 | INFO | train_inner | {"num_updates": "2", "loss": "7", "kappa_encoder_0": "0.8"}',
        '2026 | INFO | valid | {"valid_loss": "6", "valid_num_updates": "2"}',
        '{"epoch": 1, "num_updates": "3", "loss": "5"}',
        "{'_name': None, 'common': {'seed': 1}}",
    ]
    (tmp_path / "a.log").write_text("\n".join(lines))
    found = runs.read_log(tmp_path / "a.log")
    assert [line["loss"] for line in found["train_inner"]] == [9.5, 7, 5] and "clip" not in found["train_inner"][0]
    assert found["valid"] == [{"loss": 6.0, "num_updates": 2.0}]


def test_the_last_start_in_a_log_counts(tmp_path):
    log = tmp_path / "train.log"
    about = {"cpu": "Some processor", "cores": 2, "memory": 3.9, "gpu": None, "torch": "2.1"}
    first, last = runs.started(["fairseq-train", "a"], {}), runs.started(["fairseq-train", "b"], about)
    log.write_text(f"{first}epoch 1\n{last}[started] {{\n[started] {{}}\n")
    found = runs.read_start(log)
    assert found["command"] == ["fairseq-train", "b"] and found["machine"] == about
    (tmp_path / "other").write_text("nothing")
    assert runs.read_start(tmp_path / "other") == {}


def test_folders_that_hold_nothing_are_named(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        runs.read_runs([tmp_path / "x"])
    (tmp_path / "y").mkdir()
    with pytest.raises(InputError, match="y: contains no checkpoint"):
        runs.read_runs([tmp_path / "y"])


def test_runs_are_told_apart_and_found_one_folder_down(tmp_path):
    for folder in ("a/model", "b/model", "demo/one", "demo/two"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "checkpoint_last.pt").touch()
    (tmp_path / "demo/raw").mkdir()
    found = runs.read_runs([tmp_path / "a/model", tmp_path / "b", tmp_path / "demo"])
    assert [run.name for run in found] == [str(tmp_path / "a/model"), str(tmp_path / "b/model"), "one", "two"]


@pytest.fixture(scope="module")
def page(prepared, tmp_path_factory):
    """A report on two runs, and a document whose text would end a script."""
    folder = tmp_path_factory.mktemp("report")
    for name, dense in (("sparse", []), ("dense", ["--select-modules", "none"])):
        train(prepared, folder / name, "--max-update", 30, "--lr", 0.02, *dense)
    (folder / "doc.xx").write_text("w1 w2 w3\nw4 </script> w5\n\nw6 w7\n")
    (folder / "doc.yy").write_text("w3 w2 w1\nw5 w4\n\nw7 w6\n")
    out = folder / "report.html"
    done = run("lasformer", "report", folder / "sparse", folder / "dense", "-o", out, "--document", folder / "doc.xx")
    assert "sparse, dense" in done.stdout
    return out


def content(page) -> dict:
    block = (
        page.read_text(encoding="utf-8").split('<script type="application/json" id="data">')[1].split("</script>")[0]
    )
    assert "<" not in block
    return json.loads(block)


def test_the_page_holds_all_it_needs(page):
    text = page.read_text(encoding="utf-8")
    assert len(text) < 200_000 and set(content(page)) == {"samples", "views"}
    for fact in ("lasformer report", "torch 2", "doc.xx"):
        assert fact in text
    outside = text.split("<script>")[0]
    assert "http" not in outside and "src=" not in outside and "@" not in outside.split("</style>")[1]


def test_samples_stand_beside_their_source(page):
    first, second = content(page)["samples"]
    assert first["source"] == ["w1 w2 w3", "w4 </script> w5"] and first["reference"] == ["w3 w2 w1", "w5 w4"]
    assert [each["name"] for each in first["runs"]] == ["sparse", "dense"] and first["omitted"] == 0
    assert all(len(each["lines"]) == len(it["source"]) for it in (first, second) for each in it["runs"])
    explained = [each["because"] for it in (first, second) for each in it["runs"]]
    assert all(len(its) == len(it["source"]) for its, it in zip(explained, (first, first, second, second)))
    views = content(page)["views"]
    assert [(v["run"], v["document"]) for v in views] == [("sparse", 1), ("sparse", 2)]  # dense: no selection
    shown = ["".join(word + space for word, space in line) for line in views[0]["target"]]
    assert shown == ["".join(text for text, _ in line) for line in first["runs"][0]["lines"]]


def test_what_is_put_into_the_page_is_not_replaced_in_turn(page, tmp_path):
    run_folder = shutil.copytree(page.parent / "sparse", tmp_path / "@SCRIPT@")
    report([run_folder], tmp_path / "r.html", page.parent / "doc.xx")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(text) < 1.1 * len(page.read_text(encoding="utf-8"))
    assert content(tmp_path / "r.html")["samples"][0]["runs"][0]["name"] == "@SCRIPT@"


def test_a_damaged_checkpoint_is_an_error_not_an_empty_page(page, tmp_path):
    whole = (page.parent / "sparse" / "checkpoint_last.pt").read_bytes()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])
    words = ("report", tmp_path / "run", "-o", tmp_path / "r.html", "--document", page.parent / "doc.xx")
    done = run("lasformer", *words, check=False)
    assert "checkpoint_last.pt: refused, truncated" in done.stderr


@pytest.mark.command
@pytest.mark.parametrize("width", [1200, 820, 420])
def test_in_a_browser(page, browser, width):
    from selenium.webdriver.common.keys import Keys

    window = browser(width, 1000)
    window.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )
    window.get(page.as_uri())

    def find(css):
        return window.find_elements("css selector", css)

    def script(code):
        return window.execute_script(f"return {code}")

    def colours(css):
        return script(f"[...document.querySelectorAll('{css}')].map(w => w.style.background).filter(Boolean).length")

    shown = lambda: find("#attends")[0].text  # noqa: E731
    assert script("document.documentElement.scrollWidth <= innerWidth")  # scrolls down, never sideways
    # the attention between lines is a table of coloured cells
    assert len(find("#map tbody td")) == 4 and colours("#map td") == 4
    # it opens on a word that attends to others, and words are reached by keyboard
    assert shown().startswith("“") and len(find(".chosen")) == 1 and colours("#attention .word") > 0
    words = find("#source .word")
    words[0].click()
    first = shown()
    assert first.startswith("“w1” (line 1)")
    words[0].send_keys(Keys.ARROW_RIGHT)
    assert shown().startswith("“w2” (line 1)") and shown() != first
    window.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    assert shown().startswith("“w4” (line 2)")
    # a word of the other side: the attention that starts there
    find("#target .word")[0].click()
    assert script("document.querySelector('#module').selectedOptions[0].text") == "decoder"
    assert len(find("#target .chosen")) == 1
    find("#documents button")[1].click()
    assert [cell.text for cell in find("#sample td.source")][0].endswith("w6 w7")
    window.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert script("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    assert [e for e in window.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []


def test_a_run_that_cannot_be_loaded_is_left_out_unless_it_is_the_only_one(page, tmp_path, capsys):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "checkpoint_last.pt").write_text("no checkpoint")
    document = page.parent / "doc.xx"
    report([page.parent / "sparse", tmp_path / "broken"], tmp_path / "r.html", document)
    assert "broken: left out: " in capsys.readouterr().err
    assert [one["name"] for one in content(tmp_path / "r.html")["samples"][0]["runs"]] == ["sparse"]
    with pytest.raises(InputError):
        report([tmp_path / "broken"], tmp_path / "none.html", document)
    assert not (tmp_path / "none.html").exists()
