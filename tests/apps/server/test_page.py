"""The page in a real browser."""

from __future__ import annotations

import json
import threading
import time
from functools import partial

import pytest
import uvicorn

from fairseq_lasformer.apps.memory.building import build
from fairseq_lasformer.apps.server.app import Server
from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.apps.server.pages import Limits
from fairseq_lasformer.plugin.model import LasformerModel


@pytest.fixture
def address(by_lines_folder, tmp_path):
    (tmp_path / "pairs.tsv").write_text("w1 w2 w8\tW9 W7\n")
    build(tmp_path / "m.tm", [tmp_path / "pairs.tsv"], ("xx", "yy"))
    model = LasformerModel.from_pretrained(by_lines_folder)
    served = ServedModel("mine", model, beam=2, memory=model.memory(tmp_path / "m.tm"))
    server = uvicorn.Server(uvicorn.Config(Server([served], Limits()).app(), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def until(what):
    end = time.monotonic() + 30
    while not what() and time.monotonic() < end:
        time.sleep(0.05)
    assert what()


@pytest.mark.command
def test_a_text_appears_sentence_by_sentence_and_words_tell_what_they_saw(address, browser, tmp_path):
    from selenium.webdriver.common.keys import Keys

    page = browser(420, 900)
    page.get(address)

    find = partial(page.find_elements, "css selector")
    find("#input")[0].send_keys("w1 w2 w3. w4 w5.")
    find("#glossary")  # collapsed
    find("#go")[0].click()
    until(lambda: find("#save")[0].is_enabled())
    assert [s.text for s in find("#source .sentence")] == ["w1 w2 w3.", "w4 w5."]
    assert len(find("#target .sentence")) == 2 and find("#status")[0].text == "2 sentences"
    # a narrow window scrolls down, never sideways
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    # by keyboard: a sentence and its counterpart, then what a word saw
    find("#target")[0].send_keys(Keys.ARROW_DOWN)
    assert [s.get_attribute("data-i") for s in find(".sentence.on")] == ["0", "0"]
    assert find("#memory")[0].text.endswith("% similar: w1 w2 w8 – W9 W7")
    page.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: any(w.get_attribute("title") for w in find("#source .word")))
    until(lambda: find("#because")[0].is_displayed())
    # a correction stays, as do all other sentences, and it can be undone
    before = [s.text for s in find("#target .sentence")]
    page.execute_script(
        "window.asked = []; const f = fetch; window.fetch = (u, o) => { if (o) asked.push(o.body); return f(u, o); }"
    )
    page.execute_script(
        "document.querySelector('#target .sentence').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    page.switch_to.active_element.send_keys("W9  W9 nein", Keys.ENTER)
    until(lambda: find("#save")[0].is_enabled() and find("#target .sentence.mine"))
    assert find("#target .sentence")[0].text == "W9 W9 nein" and len(find("#target .sentence")) == 2
    assert json.loads(page.execute_script("return asked[0]"))["given"] == {"1": "W9 W9 nein", "2": before[1]}
    assert page.execute_script("return result.text").startswith("W9 W9 nein")
    assert find("#target .sentence")[1].text == before[1]
    find("#undo")[0].click()
    assert [s.text for s in find("#target .sentence")] == before and not find("#undo")[0].is_enabled()
    page.execute_script("correct(document.querySelectorAll('#target .sentence')[1])")
    page.switch_to.active_element.send_keys("W1", Keys.ESCAPE)
    assert [s.text for s in find("#target .sentence")] == before
    # a file is translated in its format
    (tmp_path / "a.md").write_text("# w1 w2\n\nw3 *w4*.\n")
    find("#file")[0].send_keys(str(tmp_path / "a.md"))
    until(lambda: find("#status")[0].text.startswith("a.yy.md: 2 sentences"))
    assert not find("#memory")[0].is_displayed()
    assert [m for m in page.get_log("browser") if m["level"] == "SEVERE"] == []


@pytest.mark.command
def test_a_click_says_which_sentence_decided_a_word_and_offers_its_other_form(address, browser, monkeypatch):
    because = {"line": 1, "word": "w1", "echo": False}
    word = {
        "line": 2,
        "start": 0,
        "end": 2,
        "without": "W9",
        "instead": "W9 W5",
        "text": "W4: because of w1",
        "because": because,
    }
    monkeypatch.setattr(
        ServedModel, "explained", lambda self, left, source, target, number=None: [word] if number == 2 else []
    )
    page = browser(900, 900)
    page.get(address)

    find = partial(page.find_elements, "css selector")
    find("#input")[0].send_keys("w1 w2 w3. w4 w5. w6 w7.")
    find("#go")[0].click()
    until(lambda: find("#save")[0].is_enabled())
    find('#target [data-i="1"] .word')[0].click()
    until(lambda: find("#reason")[0].text == "W4: because of w1")
    assert [s.get_attribute("data-i") for s in find(".sentence.cause")] == ["0", "0"]
    assert find("#use")[0].text == "Use “W9”"
    find('#target [data-i="0"] .word')[0].click()
    until(lambda: find("#reason")[0].text.endswith(": no other sentence decides it."))
    assert not find(".sentence.cause") and not find("#use")[0].is_displayed()
    find('#target [data-i="1"] .word')[0].click()
    until(lambda: find("#use")[0].is_displayed())
    find("#use")[0].click()  # the other form stays
    until(lambda: find("#save")[0].is_enabled())
    assert find("#target .sentence")[1].text == "W9 W5" and find("#target .sentence.mine")
    find("#undo")[0].click()
    assert find("#target .sentence")[1].text != "W9 W5"
    assert [m for m in page.get_log("browser") if m["level"] == "SEVERE"] == []
