"""The report: what it reads, what it shows, and the page in a real browser."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from helpers import run, tokens, train

from fairseq_lasformer.analysis import runs
from fairseq_lasformer.analysis.attention_view import sparse
from fairseq_lasformer.analysis.report import report
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.inference.attention import attention_of
from fairseq_lasformer.ops import AttentionMask

pytest.importorskip("plotly", reason="the report needs plotly")


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
    rows = sparse(seen["cross.0"], most=5)
    assert len(rows) == 25 and all(len(r) <= 5 and r == sorted(r, key=lambda k: -k[1]) for r in rows)


def test_one_heads_output_is_the_values_weighted_as_shown(build):
    model = build(0.3, encoder_attention_heads=1, select_share=1).eval()
    source = tokens(1, 30)[0]
    weights = attention_of(model, source, source)["encoder.0"]
    attention, x = model.encoder.layers[0].self_attn, model.encoder.embed(source[None])[0]
    with torch.no_grad():  # reads the kept keys alone, or a mask; never these weights
        out = attention(x, None, AttentionMask(None, False)).out
    torch.testing.assert_close(attention.out_proj(weights @ attention.v_proj(x[0])), out[0], rtol=1e-4, atol=1e-5)


def test_logs_of_both_commands_are_read_and_repeated_updates_count_once(tmp_path):
    lines = [
        '2026 | INFO | train_inner | {"num_updates": "1", "loss": "9.5", "kappa_encoder_0": "1", "clip": "x"}',
        '[2026][train_inner][INFO] - {"num_updates": "2", "loss": "8", "kappa_encoder_0": "0.9"}',
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


def test_folders_that_hold_nothing_are_named(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        runs.read_runs([tmp_path / "x"])
    (tmp_path / "y").mkdir()
    with pytest.raises(InputError, match="y: holds no checkpoint"):
        runs.read_runs([tmp_path / "y"])
    (tmp_path / "y" / "train.log").write_text("")
    (tmp_path / "y" / "scores.json").write_text("[]")
    with pytest.raises(InputError, match="scores.json: not scores"):
        runs.read_runs([tmp_path / "y"])


@pytest.fixture(scope="module")
def page(prepared, tmp_path_factory):
    """A report on two runs, with scores and a document whose text would end a script."""
    folder = tmp_path_factory.mktemp("report")
    for name, dense in (("sparse", []), ("dense", ["--select-modules", "none"])):
        done = train(prepared, folder / name, "--max-update", 6, *dense)
        (folder / f"{name}.log").write_text(done.stdout + done.stderr)
    scores = {"d_bleu": 12.345, "accuracy": {"all": 0.5}, "by_distance": {"1-30": 0.75}, "counts": {"1-30": 4}}
    quarter = {"d_bleu": 33.0, "chrf": 44.0, "documents": 7}
    scores |= {"by_position": {"last quarter": quarter}, "omissions": {"omitted": [[1, 2], [3, 4]], "added": []}}
    (folder / "sparse.json").write_text(json.dumps({"systems": {"sparse": scores}}))
    (folder / "doc").write_text("w1 w2 w3\nw4 </script> w5\n\nw6 w7\n")
    out = folder / "report.html"
    done = run("lasformer", "report", folder / "sparse", folder / "dense", "-o", out, "--document", folder / "doc")
    assert "sparse, dense" in done.stdout
    return out


def test_the_page_holds_all_it_needs(page):
    text = page.read_text(encoding="utf-8")
    assert "12.35" in text or "12.34" in text
    block = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert "<" not in block
    data = json.loads(block)
    titles = [f["layout"]["title"]["text"] for f in data["figures"]]
    assert titles[:4] == ["Loss", "Selection KL", "κ by module", "Mass of the kept keys by module"]
    assert {"Cost of attention against length", "Accuracy by distance of the deciding word"} <= set(titles)
    place = data["figures"][titles.index("d-BLEU by quarter")]["data"]
    assert [(bar["name"], list(bar["x"])) for bar in place] == [("sparse", ["last quarter"])]
    assert "<th>lines omitted</th><td>2</td>" in text and "<th>lines added</th><td>0</td>" in text
    assert [(v["run"], v["document"]) for v in data["views"]] == [("sparse", 1), ("sparse", 2)]  # dense has no view
    view = data["views"][0]
    assert view["modules"].keys() == {"encoder.0", "decoder.0", "cross.0"}
    assert len(view["modules"]["cross.0"]) == len(view["target"]) and view["source"][-1] == "</s>"
    outside = text.split("<script>")[0] + text.split("</script>")[-1]
    assert "http" not in outside and "src=" not in outside


def test_what_is_put_into_the_page_is_not_replaced_in_turn(page, tmp_path):
    run_folder = shutil.copytree(page.parent / "sparse", tmp_path / "@PLOTLY@")
    shutil.copy(page.parent / "sparse.log", run_folder / "train.log")
    report([run_folder], tmp_path / "r.html", title="@DATA@ @SCORES@")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert len(text) < 1.1 * len(page.read_text(encoding="utf-8"))
    block = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert any("@PLOTLY@" in str(f) for f in json.loads(block)["figures"])
    assert "<title>@DATA@ @SCORES@</title>" in text


def test_a_damaged_checkpoint_is_an_error_not_an_empty_page(page, tmp_path):
    whole = (page.parent / "sparse" / "checkpoint_last.pt").read_bytes()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint_last.pt").write_bytes(whole[: len(whole) // 2])
    done = run("lasformer", "report", tmp_path / "run", "-o", tmp_path / "r.html", check=False)
    assert done.returncode == 1 and "checkpoint_last.pt: refused, truncated" in done.stderr
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "content",
    ["null", "[1]", '{"systems": {}}', '{"systems": null}', '{"systems": {"a": "x"}}', '{"systems": {"a": [1]}}',
     '{"systems": {"a": {"d_bleu": "high"}}}', '{"systems": {"a": {"accuracy": {"all": "x"}}}}'],
)  # fmt: skip
def test_scores_of_another_shape_are_named(tmp_path, content):
    (tmp_path / "train.log").touch()
    (tmp_path / "scores.json").write_text(content)
    with pytest.raises(InputError, match="scores.json: not scores written by lasformer score --json"):
        runs.read_runs([tmp_path])


CHROMIUM = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.mark.slow
@pytest.mark.skipif(not all(CHROMIUM), reason="no chromium and chromedriver here (Debian: apt install chromium-driver)")
def test_in_a_browser_a_click_on_a_token_changes_the_highlight(page):
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM[0]
    quiet = "no-first-run disable-background-networking disable-component-update disable-sync disable-quic disable-gpu"
    for flag in ("headless=new", "no-sandbox", "window-size=1200,2000", *quiet.split()):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(CHROMIUM[1]))
    try:
        browser.get(page.as_uri())

        def tokens_of(side):
            return browser.find_elements("css selector", f"#{side} .token")

        def marked():
            return [t.get_attribute("data-index") for t in tokens_of("source") if "rgba" in t.get_attribute("style")]

        def told():
            return browser.find_element("id", "told").text

        assert len(browser.find_elements("css selector", "#charts .main-svg")) >= 6 and marked() == []
        widths = browser.execute_script(
            "return [...document.querySelectorAll('#charts > div')].map("
            "b => [b.clientWidth, b.querySelector('.main-svg').getBoundingClientRect().width])"
        )
        assert all(abs(box - chart) <= 20 for box, chart in widths), widths  # none is drawn wider than its box
        tokens_of("source")[0].click()
        first = told()
        assert first.startswith("“w1”") and marked() and len(browser.find_elements("css selector", ".chosen")) == 1
        tokens_of("source")[2].click()
        assert told() != first and told().startswith("“w3”")
        tokens_of("target")[0].click()  # of the other side: the module that attends from there
        module = browser.execute_script("return document.querySelector('#module').selectedOptions[0].text")
        assert module == "decoder.0" and len(browser.find_elements("css selector", "#target .chosen")) == 1
        browser.execute_script(
            "const s = document.querySelector('#view'); s.value = 1; s.dispatchEvent(new Event('change'))"
        )
        assert tokens_of("source")[0].text == "w6" and told() == ""
        assert [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    finally:
        browser.quit()


def test_a_report_without_a_document_has_no_attention_view(page, tmp_path):
    report([page.parent / "sparse"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert '"views": []' in text
