"""Word-level distillation: the loss by hand, and a training with a teacher."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import batches, log_lines, state, train, trainer_of


@pytest.fixture(scope="module")
def taught(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    train(prepared, folder, "--max-update", 12, "--lr", 0.01)
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("weight, top", [(0.3, 4), (1.0, 1000), (0.0, 1)])
def test_the_loss_is_a_mean_of_the_references_and_the_teachers(prepared, taught, weight, top):
    options = ["--distil-from", taught, "--distil-weight", weight, "--distil-top", top]
    trainer = trainer_of(prepared, *options)
    model, sample = trainer.model.train(), batches(trainer.task)[0]
    loss, _, log = trainer.criterion(model, sample)
    teacher = trainer.criterion.teacher.model
    own, its = (F.log_softmax(m(**sample["net_input"])[0], -1) for m in (model, teacher))
    real = sample["target"] != 1
    best, words = its.topk(min(top, its.size(-1)))
    shares = best.exp() / best.exp().sum(-1, keepdim=True)
    expected = -(shares * own.gather(-1, words)).sum(-1)[real].sum()
    torch.testing.assert_close(log["distil_loss"], expected.detach())
    trainer.criterion.teacher = None
    plain = trainer.criterion(model, sample)[0]
    translation = trainer.criterion.compute_loss(model, model(**sample["net_input"]), sample)[0]
    torch.testing.assert_close(loss, plain + weight * (expected - translation))
    assert not [p for p in teacher.parameters() if p.requires_grad or p.grad is not None]


@pytest.mark.command
def test_a_training_learns_from_it_and_saves_the_student_alone(prepared, taught, tmp_path):
    """Trained on the teacher alone, without references, the student gets closer to it."""
    options = ["--distil-from", taught, "--distil-weight", 1.0, "--lr", 0.01, "--max-update", 12]
    done = train(prepared, tmp_path / "student", *options)
    losses = [float(line["distil_loss"]) for line in log_lines(done)]
    assert len(losses) == 12 and losses[-1] < losses[0] - 0.3
    saved = state(tmp_path / "student")
    assert saved["model"].keys() == state(taught.parent)["model"].keys()
    assert "criterion" not in saved or not saved["criterion"]
    valid = log_lines(done, "valid")
    assert valid and "valid_distil_loss" not in valid[-1]


@pytest.mark.parametrize(
    "options, message",
    [
        (["--distil-top", 0], "--distil-top 0"),
        (["--distil-weight", 1.5], "--distil-weight 1.5"),
        (["--distil-from", "nowhere.pt"], "nowhere.pt"),
    ],
)
def test_bad_options_are_refused(prepared, taught, tmp_path, options, message):
    done = train(prepared, tmp_path / "out", "--distil-from", taught, *options, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and last.startswith("error: ") and message in last


def test_a_teacher_of_other_words_is_refused(checkpoint, taught, prepared, tmp_path):
    from helpers import write_corpus

    from fairseq_lasformer.data.prepare import prepare
    from fairseq_lasformer.data.prepare_config import PrepareConfig

    other = str(write_corpus(tmp_path, "other", 9, seed=9))
    prepare(PrepareConfig("xx", "yy", (other,), (), (), tmp_path / "data", "none", size=11, workers=1))
    done = train(tmp_path / "data", tmp_path / "out", "--distil-from", taught, check=False)
    assert done.returncode and "dictionaries" in done.stderr.strip().splitlines()[-1]
