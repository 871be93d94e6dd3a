"""The search that the task builds, and its refusals."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace

import pytest
from fairseq import options

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.generator import AlignedGenerator


@pytest.fixture(scope="module")
def hub(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


@pytest.fixture
def build(hub, monkeypatch):
    """build(task options, options of fairseq's generation)"""

    cfg = copy.deepcopy(hub.task.cfg)
    monkeypatch.setattr(hub.task, "cfg", cfg)

    def make(of_task: dict, **generation):
        for name, value in of_task.items():
            setattr(cfg, name, value)
        return hub.task.build_generator(hub.models, SimpleNamespace(**{"beam": 2, **generation}))

    return make


def test_lines_are_aligned_unless_asked_otherwise(build, hub):
    aligned = build({"repair": 5})
    assert isinstance(aligned, AlignedGenerator) and aligned.alignment.repairs == 5
    separator = hub.task.target_dictionary.index("<sep>")
    assert aligned.alignment.separators == (separator, separator) and separator != hub.task.target_dictionary.unk()
    assert isinstance(build({"align_sentences": "yes"}), AlignedGenerator)


@pytest.mark.parametrize(
    "of_task, options",
    [({"align_sentences": "no"}, {}), ({}, {"align_sentences": "no"}), ({}, {"constraints": "unordered"})],
)
def test_fairseqs_own_search_can_be_had(build, of_task, options):
    generator = build(of_task, **options)
    assert type(generator) is BeamGenerator and (generator.max_len_a, generator.max_len_b) == (1.5, 50)


@pytest.mark.parametrize(
    "of_task, options, message",
    [
        ({}, {"match_source_len": True}, "--align-sentences: not with --match-source-len .add --align-sentences no"),
        ({"sentence_max_len_a": -1.0}, {}, "--sentence-max-len-a -1.0, .* allow no tokens at all"),
        ({"sentence_max_len_a": 0.0, "sentence_max_len_b": 0.5}, {}, "allow no tokens at all"),
        ({"repair": -1}, {}, "--repair -1: expected a number of times"),
    ],
)
def test_what_contradicts_alignment_is_refused(build, of_task, options, message):
    with pytest.raises(InputError, match=message):
        build(of_task, **options)


def test_alignment_needs_a_separator(build, hub, monkeypatch):
    monkeypatch.setattr(hub.task, "settings", dataclasses.replace(hub.task.settings, separator=""))
    assert type(build({})) is BeamGenerator
    with pytest.raises(InputError, match="--align-sentences yes: the data in .* has no separator"):
        build({"align_sentences": "yes"})
    monkeypatch.setattr(hub.task, "settings", dataclasses.replace(hub.task.settings, separator="<nowhere>"))
    with pytest.raises(InputError, match="its dictionaries lack the separator <nowhere>"):
        build({})


@pytest.mark.parametrize("option", [["--remove-bpe"], ["--remove-bpe", "sentencepiece"], ["--post-process", "@@ "]])
def test_removing_subwords_is_ignored_for_prepared_data(option, prepared, tmp_path, caplog):
    """fairseq would join the subwords, and our task the words that are left, into one."""
    register()

    def parsed(folder):
        words = [str(folder), "--task", "document_translation", "--path", "x", *option]
        return options.parse_args_and_arch(options.get_generation_parser(), input_args=words)

    assert parsed(prepared).post_process is None and "is ignored" in caplog.text
    assert parsed(tmp_path).post_process  # data of fairseq-preprocess has nothing else that joins them
