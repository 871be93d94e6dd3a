"""Documents in one language: noise, and how often they are mixed with the pairs."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq.data.data_utils import numpy_seed
from helpers import ROOT, log_lines, run, state, train, write_corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.plugin.datasets.denoising import Noise, NoisySource, Symbols, noised, repeats
from fairseq_lasformer.plugin.task import DocumentTranslationTask
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

MASK, END, SEPARATOR, TAG = 3, 2, 4, 5
SYMBOLS = Symbols(MASK, SEPARATOR, TAG)


def lines_of(tokens):
    lines = [[]]
    for token in tokens:
        if token == SEPARATOR:
            lines.append([])
        else:
            lines[-1].append(token)
    return lines


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(10, 99), min_size=1, max_size=9), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.2, 0.35, 1.0]),
    st.sampled_from([0.0, 1.0]),
    st.booleans(),
    st.text(max_size=3),
)
def test_noise_masks_spans_and_moves_sentences_whole(lines, mask, permute, tagged, seed):
    body = [token for line in lines for token in (SEPARATOR, *line)][1:]
    tokens = torch.tensor([TAG] * tagged + body + [END])
    made = noised(tokens, Noise(mask, 2.0, permute), SYMBOLS, seed).tolist()
    assert made == noised(tokens, Noise(mask, 2.0, permute), SYMBOLS, seed).tolist()
    assert made[-1] == END and (made[0] == TAG) == tagged and len(made) <= len(tokens)
    found = lines_of(made[tagged:-1])
    assert len(found) == len(lines)
    seen = [token for line in found for token in line if token != MASK]
    total = sum(map(len, lines))
    assert len(seen) == total - round(mask * total)
    assert not Counter(seen) - Counter(token for line in lines for token in line)
    assert all(line[i : i + 2] != [MASK, MASK] for line in found for i in range(len(line)))
    if not mask:
        assert sorted(found) == sorted(lines)
        if not permute:
            assert found == lines


def test_noise_hits_all_parts_and_spans_have_their_length():
    lines, spans = [[*range(10, 30)]] * 4, []
    tokens = torch.tensor([token for line in lines for token in (SEPARATOR, *line)][1:] + [END])
    for seed in range(300):
        made = noised(tokens, Noise(0.3, 4.0, 0.0), SYMBOLS, str(seed)).tolist()[:-1]
        spans.append(24 / made.count(MASK))
    assert 3.0 < np.mean(spans) < 5.0  # adjacent spans count as one
    few = torch.tensor([10, SEPARATOR, 11, SEPARATOR, 12, END])
    orders = {tuple(noised(few, Noise(0.0, 1.0, 1.0), SYMBOLS, str(seed)).tolist()) for seed in range(200)}
    assert len(orders) == math.factorial(3)


@pytest.mark.parametrize("sizes", [(10, 40), (30, 30, 5)])
def test_repeats_follow_the_temperature(sizes):
    assert repeats(sizes, 1.0) == pytest.approx([1.0] * len(sizes))
    for temperature in (2.0, 5.0):
        found = repeats(sizes, temperature)
        counts = [n * times for n, times in zip(sizes, found)]
        for i, n in enumerate(sizes):
            assert counts[i] / counts[0] == pytest.approx((n / sizes[0]) ** (1 / temperature))
        assert min(found) == 1.0


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mono")
    prefix, valid = (str(write_corpus(folder, name, n, seed=n)) for name, n in (("train", 10), ("valid", 3)))
    more = write_corpus(folder, "more", 40, seed=5)
    more.with_name("more.xx").unlink()
    config = PrepareConfig(
        "xx", "yy", (prefix,), (valid,), (), folder / "data", "none", size=60, workers=1, mono=(str(more),)
    )
    prepare(config)
    return config.out


def task_of(data, **options):
    cfg = DocumentTranslationConfig(data=str(data), train_subset="train", dataset_impl=None, seed=1)
    cfg.required_seq_len_multiple = 1
    for name, value in options.items():
        setattr(cfg, name, value)
    task = DocumentTranslationTask.setup_task(cfg)
    task.load_dataset("train")
    return task


def test_an_epoch_holds_everything_and_repeats_what_comes_seldom(data):
    task = task_of(data, denoise_temperature=5.0)
    mixed = task.datasets["train"]
    pairs, noisy = mixed.datasets
    assert isinstance(noisy, NoisySource) and len(mixed) == len(pairs) + len(noisy)
    epochs = {}
    for epoch in (1, 2, 1):
        mixed.set_epoch(epoch)
        with numpy_seed(epoch):  # as fairseq does
            order = mixed.ordered_indices()
        assert epochs.setdefault(epoch, order.tolist()) == order.tolist()
        counts = Counter(order.tolist())
        assert set(counts) == set(range(len(mixed)))
        rest = repeats([len(pairs), len(noisy)], 5.0)[0]
        assert sum(counts[i] for i in range(len(pairs))) == round(rest * len(pairs))
        assert {counts[i] for i in range(len(pairs), len(mixed))} == {1}
    assert epochs[1] != epochs[2]
    first, last = mixed[0], mixed[len(mixed) - 1]
    assert torch.equal(first["source"], pairs[0]["source"])
    assert torch.equal(last["target"], noisy.dataset[len(noisy) - 1]["target"])
    assert mixed.size(len(mixed) - 1) == noisy.size(len(noisy) - 1)
    assert mixed.num_tokens(len(pairs)) == noisy.num_tokens(0)
    words = task.target_dictionary
    assert words[int(first["source"][0])] == "<xx>" and words[int(last["source"][0])] == "<yy>"
    assert words[int(first["target"][0])] == words[int(last["target"][0])] == "<yy>"
    long = max(range(len(noisy)), key=noisy.num_tokens)
    drawn = []
    for epoch in (1, 2):
        noisy.set_epoch(epoch)
        drawn.append(noisy[long]["source"].tolist())
    assert drawn[0] != drawn[1] and words.unk() in drawn[0]


def test_without_documents_the_pairs_alone(data):
    assert len(task_of(data, denoise_temperature=0.0).datasets["train"]) < len(task_of(data).datasets["train"])


@pytest.mark.parametrize("name, value", [("temperature", 0.5), ("mask", 1.5), ("span", 0.0), ("permute", -1.0)])
def test_bad_options_are_refused(data, name, value):
    with pytest.raises(InputError, match=f"--denoise-{name} {value}"):
        task_of(data, **{f"denoise_{name}": value})


@pytest.mark.command
def test_training_with_documents_moves_kappa_and_resumes(data, tmp_path):
    words = ["--select-dim", 8, "--sparsity-step", 0.01, "--update-freq", 2]
    whole = train(data, tmp_path / "whole", *words, "--max-update", 8)
    assert log_lines(whole)[-1]["kappa"] and float(log_lines(whole)[-1]["kappa"]) < 1
    train(data, tmp_path / "cut", *words, "--max-update", 5)
    train(data, tmp_path / "cut", *words, "--max-update", 8)
    one, two = (state(tmp_path / name)["model"] for name in ("whole", "cut"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    source = tmp_path / "in.txt"
    source.write_text("w1 w2\nw3\n")
    done = run("lasformer", "translate", tmp_path / "whole", source, "-o", tmp_path / "out.txt", "--beam", 1, cwd=ROOT)
    assert not done.returncode and (tmp_path / "out.txt").read_text().count("\n") == 2
