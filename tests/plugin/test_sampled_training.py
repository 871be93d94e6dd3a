"""Training data whose subwords are redrawn in every epoch."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from helpers import log_lines, state, train, write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import SubwordCodec
from fairseq_lasformer.plugin.datasets.subword_sampling import SampledSide
from fairseq_lasformer.plugin.task import DocumentTranslationTask
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig


@pytest.fixture(scope="module", params=["sentencepiece", "subword-nmt"])
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    train_set, valid = (str(write_corpus(folder, name, n, seed=n)) for name, n in (("train", 20), ("valid", 4)))
    # few merges, so what they merge is also in the dictionary
    size = 80 if request.param == "sentencepiece" else 22
    config = PrepareConfig(
        "xx", "yy", (train_set,), (valid,), (), folder / "data", "none", request.param, size, workers=1
    )
    prepare(config)
    return config.out


def task_of(data, **options) -> DocumentTranslationTask:
    cfg = DocumentTranslationConfig(data=str(data), train_subset="train", dataset_impl=None, seed=1)
    cfg.required_seq_len_multiple, cfg.subword_sampling = 1, 0.2
    for name, value in options.items():
        setattr(cfg, name, value)
    task = DocumentTranslationTask.setup_task(cfg)
    for split in ("train", "valid"):
        task.load_dataset(split)
    return task


def texts(task, dataset) -> list[tuple[str, ...]]:
    codec = SubwordCodec.of(task.folder, task.settings)
    sides = ("source", task.source_dictionary), ("target", task.target_dictionary)
    return [
        tuple(codec.words(" ".join(words[int(i)] for i in dataset[n][side])) for side, words in sides)
        for n in range(len(dataset))
    ]


def test_every_epoch_has_the_same_text_in_other_subwords(data):
    task = task_of(data)
    dataset = task.datasets["train"]
    usual = dataset.dataset
    assert texts(task, dataset) == texts(task, usual) and len(dataset) == len(usual)
    drawn = {}
    for epoch in (1, 2, 1):
        dataset.set_epoch(epoch)
        now = [dataset[n]["target"].tolist() for n in range(len(dataset))]
        assert drawn.setdefault(epoch, now) == now  # the same again, as after resuming
    kept = [usual[n]["target"].tolist() for n in range(len(usual))]
    for epoch in (1, 2):
        assert sum(a != b for a, b in zip(drawn[epoch], kept)) > len(kept) // 8
    assert drawn[1] != drawn[2]
    separator = task.target_dictionary.index("<sep>")
    assert [t.count(separator) for t in drawn[1]] == [t.count(separator) for t in kept]
    assert all(t[-1] == task.target_dictionary.eos() and task.target_dictionary.unk() not in t for t in drawn[1])


def test_validation_keeps_its_subwords_and_so_do_examples_at_the_limit(data):
    task = task_of(data)
    assert not hasattr(task.datasets["valid"], "sides")
    longest = int(task.datasets["train"].sizes.max())
    limited = copy.copy(task.datasets["train"])
    limited.sides = tuple(side._replace(limit=longest) for side in limited.sides)
    for n in range(len(limited)):
        assert max(len(limited[n]["source"]), len(limited[n]["target"])) <= longest


def test_random_numbers_of_others_are_left_alone(data):
    random.seed(3)
    first = random.random()
    random.seed(3)
    dataset = task_of(data).datasets["train"]
    _ = dataset[0], dataset[1]
    assert random.random() == first


def test_symbols_that_are_spelled_out_stay_so(data):
    task = task_of(data)
    words = task.target_dictionary
    draws = []

    def sampler(pieces, generator):
        draws.append(pieces)
        return ["</s>"]

    side = SampledSide(sampler, words, ("<sep>",), "<sep>", "", 50)
    some = [w for w in (words[i] for i in range(4, 12)) if w != "<sep>"][:2]
    tokens = torch.tensor([words.index(w) for w in (*some, "<sep>", *some, "<unk>", "</s>")])
    assert torch.equal(side.draw(tokens, random.Random(1)), tokens) and draws == [some]


def test_what_cannot_be_is_refused(data, tmp_path):
    with pytest.raises(InputError, match="expected a number from 0 to 1"):
        task_of(data, subword_sampling=1.5)
    task = task_of(data, subword_sampling=0.0)
    task.settings, task.cfg.subword_sampling = None, 0.1
    with pytest.raises(InputError, match="not prepared by lasformer prepare"):
        task.load_dataset("train")


@pytest.mark.command
def test_a_resumed_training_goes_on_as_it_would_have(data, tmp_path):
    options = ["--subword-sampling", 0.2, "--num-workers", 1, "--max-tokens", 400]
    whole = train(data, tmp_path / "whole", *options, "--max-update", 6)
    train(data, tmp_path / "parts", *options, "--max-update", 3)
    train(data, tmp_path / "parts", *options, "--max-update", 6)
    plain = train(data, tmp_path / "plain", *options[2:], "--max-update", 6)
    first, second = state(tmp_path / "whole")["model"], state(tmp_path / "parts")["model"]
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert log_lines(whole)[0]["loss"] != log_lines(plain)[0]["loss"]
