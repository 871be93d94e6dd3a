"""The task: nothing is left out, kappa moves when it should, words are dropped."""

from __future__ import annotations

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from helpers import SIZES, batches, state, train, trainer_of

from fairseq_lasformer.data.manifest import SplitInfo


@pytest.mark.parametrize("damage", ["truncated", "foreign", "sizes"])
def test_bad_checkpoints_end_training_in_one_line(trained, prepared, tmp_path, damage):
    good = (trained[0] / "checkpoint_last.pt").read_bytes()
    (tmp_path / "checkpoint_last.pt").write_bytes(good[: len(good) // 2] if damage == "truncated" else good)
    if damage == "foreign":
        torch.save({"model": subprocess.Popen}, tmp_path / "checkpoint_last.pt")
    options = ["--encoder-ffn-embed-dim", 64] if damage == "sizes" else []
    done = train(prepared, tmp_path, "--max-update", 9, *options, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ") and "checkpoint_last.pt" in last
    assert "Traceback" not in done.stderr


@pytest.mark.command
@pytest.mark.parametrize("option", ["--finetune-from-model", "--restore-file", "--continue-once"])
@pytest.mark.parametrize("place", ["none.pt", "empty", "/dev/zero"])
def test_a_beginning_that_is_no_checkpoint_ends_training_in_one_line(prepared, tmp_path, option, place):
    (tmp_path / "empty").mkdir()
    place = place if place.startswith("/") else tmp_path / place
    done = train(prepared, tmp_path / "out", "--max-update", 1, option, place, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith(f"error: {option} {place}") and "Traceback" not in done.stderr
    assert not list((tmp_path / "out").glob("*.pt"))


@pytest.mark.command
def test_a_training_begins_with_the_checkpoint_of_a_folder(trained, prepared, tmp_path):
    done = train(prepared, tmp_path, "--max-update", 1, "--finetune-from-model", trained[0])
    assert f"loading pretrained model from {trained[0] / 'checkpoint_best.pt'}" in done.stdout + done.stderr
    # a run that continues no longer needs it
    train(prepared, tmp_path, "--max-update", 2, "--finetune-from-model", tmp_path / "gone")


def test_an_example_beyond_the_limit_is_an_error_not_a_gap(prepared, tmp_path):
    done = train(prepared, tmp_path, "--max-update", 1, "--max-source-positions", 12, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and re.match(r"error: \d+ of \d+ examples are longer", last)


@pytest.mark.parametrize("max_tokens", [60, 100, 150])
def test_no_example_is_left_out_of_the_batches(prepared, max_tokens):
    from fairseq_lasformer.plugin.task import DocumentTranslationTask
    from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

    cfg = DocumentTranslationConfig(data=str(prepared), train_subset="train", dataset_impl=None)
    cfg.required_seq_len_multiple = 1
    task = DocumentTranslationTask.setup_task(cfg)
    for split in ("train", "test"):
        task.load_dataset(split)
        iterator = task.get_batch_iterator(
            task.datasets[split], max_tokens=max_tokens, max_positions=(500, 500), required_batch_size_multiple=8
        ).next_epoch_itr(shuffle=False)
        seen = [i for batch in iterator for i in batch["id"].tolist()]
        assert sorted(seen) == list(range(len(task.datasets[split])))


@pytest.mark.parametrize("times", [1, 3])
def test_the_first_of_several_training_splits_counts_as_often_as_asked(prepared, tmp_path, times):
    from fairseq_lasformer.plugin.task import DocumentTranslationTask
    from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

    data = shutil.copytree(prepared, tmp_path / "data")
    for path in list(data.glob("test.xx-yy.*")):
        shutil.copy(path, path.with_name(path.name.replace("test.", "train1.")))
    (data / "documents.train.json").unlink()  # it counts only the first split
    cfg = DocumentTranslationConfig(data=str(data), train_subset="train", dataset_impl=None, upsample_primary=times)
    task = DocumentTranslationTask.setup_task(cfg)
    task.load_dataset("train", combine=True)
    first, second = (SplitInfo.load(prepared, split).n_examples for split in ("train", "test"))
    assert len(task.datasets["train"]) == times * first + second


@pytest.mark.command
def test_a_criterion_without_supervision_is_refused_for_a_selecting_model(prepared, tmp_path):
    plain = ["--criterion", "label_smoothed_cross_entropy", "--disable-validation", "--max-update", 1]
    done = train(prepared, tmp_path, *plain, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.strip().splitlines()[-1].startswith("error: criterion LabelSmoothedCrossEntropyCriterion: the sel")
    )
    train(prepared, tmp_path, *plain, model=["--arch", "lasformer", *SIZES, "--select-modules", "none"])


@pytest.mark.command
def test_a_moving_average_of_the_weights_takes_kappa_as_it_is(prepared, tmp_path):
    """--store-ema"""
    options = ["--store-ema", "--ema-decay", 0.5, "--ema-fp32", "--disable-validation"]
    train(prepared, tmp_path, "--max-update", 3, *options)
    saved = state(tmp_path)
    average, weights = saved["extra_state"]["ema"], saved["model"]
    for name, value in weights.items():
        if name.endswith("kappa"):
            assert int(average[name]) == int(value) == 970_000
    name = "encoder.layers.0.fc1.weight"
    assert not torch.equal(average[name], weights[name])
    train(prepared, tmp_path, "--max-update", 4, *options)
    assert int(state(tmp_path)["extra_state"]["ema"]["encoder.layers.0.self_attn.selector.kappa"]) == 960_000


def test_an_update_that_mixed_precision_skips_does_not_move_kappa(prepared):

    trainer = trainer_of(prepared)
    scale = [8.0]
    step = trainer.optimizer.step

    def skip(*_):
        scale[0] /= 2

    sample = batches(trainer.task)[0]
    before = {n: int(s.kappa) for n, s in trainer.model.selectors()}
    trainer.optimizer.scaler = SimpleNamespace(get_scale=lambda: scale[0])
    trainer.optimizer.step = skip
    trainer.train_step([sample])
    assert {n: int(s.kappa) for n, s in trainer.model.selectors()} == before and trainer.task.sums is not None
    trainer.optimizer.step = step
    trainer.train_step([sample])
    assert (
        all(abs(int(s.kappa) - before[n]) == 1000 for n, s in trainer.model.selectors()) and trainer.task.sums is None
    )


@pytest.mark.parametrize("option", ["--max-source-positions", "--max-tokens"])
def test_limits_are_told_as_plain_numbers(prepared, tmp_path, option):
    done = train(prepared, tmp_path, "--max-update", 1, option, 12, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ") and "np." not in last
    if option == "--max-tokens":
        assert re.match(r"error: --max-tokens 12: the longest example has \d+ tokens", last)


def test_words_are_dropped_anew_and_the_frame_stays():
    from fairseq_lasformer.plugin.datasets.word_dropout import DroppedSide, drop_words

    batch = {
        "net_input": {"src_tokens": torch.randint(4, 60, (4, 50)), "prev_output_tokens": torch.randint(4, 60, (4, 50))}
    }
    batch["net_input"]["src_tokens"][:, :3] = 1
    sides = [DroppedSide(k, 3, frozenset({0, 1, 2, 9})) for k in batch["net_input"]]
    torch.manual_seed(1)
    first, second = (drop_words(batch, 0.3, sides)["net_input"]["src_tokens"] for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, drop_words(batch, 0.3, sides)["net_input"]["src_tokens"])
    original = batch["net_input"]["src_tokens"]
    assert not torch.equal(first, second) and (original[:, :3] == 1).all() and (first[:, :3] == 1).all()
    assert 0.2 < float((first == 3).float().mean()) < 0.4 and torch.equal(first == 9, original == 9)
    assert torch.equal(first[first != 3], original[first != 3])
    assert drop_words({}, 0.3, sides) == {}


def test_the_separator_of_prepared_data_is_never_dropped(prepared):
    from fairseq_lasformer.plugin.task import DocumentTranslationTask
    from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

    task = DocumentTranslationTask.setup_task(DocumentTranslationConfig(data=str(prepared), train_subset="train"))
    for side, dictionary in zip(task.dropped_sides, (task.src_dict, task.tgt_dict)):
        spared = {dictionary.index("<sep>"), dictionary.eos(), dictionary.pad(), dictionary.bos()}
        assert side.spared == spared and dictionary.unk() not in spared


def test_what_is_summed_over_workers_is_not_the_log_record(prepared):
    """The selectors' sums are summed over workers in place, and the record is still to be logged."""
    trainer = trainer_of(prepared)
    sample = batches(trainer.task)[0]
    _, _, log = trainer.task.train_step(sample, trainer.model, trainer.criterion, trainer.optimizer, 0)
    assert torch.equal(trainer.task.sums, log["selection"]) and trainer.task.sums is not log["selection"]
