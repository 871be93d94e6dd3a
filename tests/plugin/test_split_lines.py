"""Training on lines cut in two (--split-lines)."""

import random
import shutil

import pytest
import torch
from helpers import batches, log_lines, state, train, trainer_of

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.plugin.datasets.split_lines import SplitSide, share_at, split_lines
from fairseq_lasformer.plugin.task import DocumentTranslationTask
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig


class Words(list):
    """A dictionary of a few words."""

    def pad(self):
        return 1

    def eos(self):
        return 2


WORDS = Words(["<s>", "<pad>", "</s>", "<unk>", "<sep>", ",", *(f"w{i}" for i in range(60))])
SEP = 4


def batch(seed=1, sizes=((9, 12, 3), (14,), (8, 8, 8, 8))):
    """Examples of lines; the target's are a bit longer."""
    torch.manual_seed(seed)
    sides = [], []
    for lines in sizes:
        for to, more in zip(sides, (0, 2)):
            tokens = []
            for i, n in enumerate(lines):
                tokens += [SEP] * bool(i) + torch.randint(6, 60, (n + more,)).tolist()
            to.append(torch.tensor([*tokens, 2]))
    source = torch.nn.utils.rnn.pad_sequence([s.flip(0) for s in sides[0]], True, 1).flip(1)
    target = torch.nn.utils.rnn.pad_sequence(sides[1], True, 1)
    lengths = torch.tensor([*map(len, sides[0])])
    previous = torch.cat([torch.full((len(sizes), 1), 2), target[:, :-1]], 1).masked_fill(target == 1, 1)
    inputs = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": previous}
    ids = torch.arange(len(sizes)) + 10
    return {"id": ids, "net_input": inputs, "target": target, "ntokens": int((target != 1).sum()), "nsentences": 3}


def sides(limit=200):
    return SplitSide.of(WORDS, "<sep>", limit, True), SplitSide.of(WORDS, "<sep>", limit, False)


def rows(tokens):
    return [[t for t in row if t != 1] for row in tokens.tolist()]


def test_separators_come_in_on_both_sides_and_nothing_else_changes():
    before, seen = batch(), set()
    for update in range(20):
        after = split_lines(before, 0.5, sides(), f"1 {update}")
        both = [
            (before["net_input"]["src_tokens"], after["net_input"]["src_tokens"]),
            (before["target"], after["target"]),
        ]
        added = []
        for old, new in both:
            for a, b in zip(rows(old), rows(new)):
                assert [t for t in a if t != SEP] == [t for t in b if t != SEP]
            added.append([b.count(SEP) - a.count(SEP) for a, b in zip(rows(old), rows(new))])
        assert added[0] == added[1] and min(added[0]) >= 0
        target, inputs = after["target"], after["net_input"]
        assert after["ntokens"] == int((target != 1).sum()) == before["ntokens"] + sum(added[0])
        assert inputs["src_lengths"].tolist() == [len(row) for row in rows(inputs["src_tokens"])]
        assert [row[1:] for row in rows(inputs["prev_output_tokens"])] == [row[:-1] for row in rows(target)]
        assert (inputs["prev_output_tokens"][:, 0] == 2).all() and (inputs["src_tokens"][:, -1] == 2).all()
        assert torch.equal(after["id"], before["id"])
        seen.add(tuple(added[0]))
    assert len(seen) > 5  # each update cuts other lines
    assert rows(before["target"]) == rows(batch()["target"])  # the input is unchanged


def test_halves_are_at_about_the_same_share_and_short_lines_whole():
    after = split_lines(batch(), 1.0, sides(), "1 1")
    lines = [
        [len(line.split()) for line in " ".join("|" if t == SEP else str(t) for t in row[:-1]).split("|")]
        for row in rows(after["net_input"]["src_tokens"])
    ]
    assert [len(own) for own in lines] == [5, 2, 8] and lines[0][-1] == 3
    for first, second in (lines[0][:2], lines[0][2:4], lines[1]):
        assert 0.3 <= first / (first + second) <= 0.7


def test_a_draw_depends_on_update_and_example_alone():
    whole = split_lines(batch(), 0.5, sides(), "1 7")
    part = batch(sizes=((9, 12, 3), (14,)))
    assert rows(split_lines(part, 0.5, sides(), "1 7")["target"]) == rows(whole["target"])[:2]
    torch.manual_seed(99)
    assert torch.equal(split_lines(batch(), 0.5, sides(), "1 7")["target"], whole["target"])


def test_a_subword_is_not_cut_from_its_word():
    words = Words(["<s>", "<pad>", "</s>", "<unk>", "<sep>", "▁a", "b", "c", "▁d,"])
    side = SplitSide.of(words, "<sep>", 99, True)
    assert side.before([5, 6, 8, 5, 6, 7]) == [1, 0, 1, 2, 0, 0]
    joined = SplitSide.of(Words(["<s>", "<pad>", "</s>", "<unk>", "<sep>", "a@@", "b", ","]), "<sep>", 99, True)
    assert joined.before([5, 6, 7, 6]) == [1, 0, 1, 2]
    chinese = SplitSide.of(Words(["<s>", "<pad>", "</s>", "<unk>", "<sep>", "▁我", "你", "，"]), "<sep>", 99, True)
    assert chinese.before([5, 6, 7, 6, 6, 6, 6, 6]) == [1, 1, 1, 2, 1, 1, 1, 1]


def test_an_example_at_the_limit_stays_within_it():
    longest = max(len(row) for row in rows(batch()["target"]))
    after = split_lines(batch(), 1.0, sides(longest + 1), "1 1")
    assert max(len(row) for row in rows(after["target"])) == longest + 1


def test_the_share_falls_to_0_over_the_last_third():
    assert [share_at(0.6, update, 300) for update in (0, 100, 200)] == pytest.approx([0.6] * 3)
    assert [share_at(0.6, update, 300) for update in (250, 300, 301)] == pytest.approx([0.3, 0.0, 0.0])
    assert share_at(0.6, 10**6, 0) == 0.6  # a training without an end


def test_what_cannot_be_is_refused(prepared):
    def task(**options):
        cfg = DocumentTranslationConfig(data=str(prepared), train_subset="train", seed=1, max_update=0, **options)
        return DocumentTranslationTask.setup_task(cfg)

    with pytest.raises(InputError, match="--split-lines 1.5: expected a share from 0 to 1"):
        task(split_lines=1.5)
    made = task()
    made.settings = made.settings._replace(separator="") if hasattr(made.settings, "_replace") else None
    with pytest.raises(InputError, match="--split-lines: the data has no separator between lines"):
        made._split_sides()


def test_the_task_cuts_lines_in_training_alone(prepared, monkeypatch):
    monkeypatch.setattr("fairseq_lasformer.text.halves.LEAST", 2)
    trainer = trainer_of(prepared, "--split-lines", 1, "--max-update", 100)
    task, sample = trainer.task, batches(trainer.task)[0]
    model, tokens = trainer.model, []
    original = model.forward

    def forward(src_tokens, *args, **kwargs):
        tokens.append(src_tokens)
        return original(src_tokens, *args, **kwargs)

    model.forward = forward
    separator = task.source_dictionary.index("<sep>")
    task.train_step(sample, model, trainer.criterion, trainer.optimizer, 1)
    task.train_step(sample, model, trainer.criterion, trainer.optimizer, 100)  # the last one
    task.valid_step(sample, model, trainer.criterion)
    first, last, valid = ((t == separator).sum() for t in tokens)
    assert first > last == valid == (sample["net_input"]["src_tokens"] == separator).sum()


@pytest.mark.command
def test_a_resumed_training_cuts_the_same_lines(tmp_path):
    generator = random.Random(1)
    for name, n in (("train", 12), ("valid", 2)):
        words = [[[generator.randrange(20) for _ in range(10)] for _ in range(4)] for _ in range(n)]
        for language, letter in (("xx", "w"), ("yy", "W")):
            text = "\n".join("".join(" ".join(f"{letter}{w}" for w in line) + "\n" for line in d) for d in words)
            (tmp_path / f"{name}.{language}").write_text(text, encoding="utf-8")
    train_set, valid = (str(tmp_path / name) for name in ("train", "valid"))
    prepared = tmp_path / "data"
    prepare(PrepareConfig("xx", "yy", (train_set,), (valid,), (), prepared, "none", "sentencepiece", 60, workers=1))
    options = ["--split-lines", 0.5, "--max-update", 6, "--save-interval-updates", 3, "--keep-interval-updates", -1]
    whole = train(prepared, tmp_path / "whole", *options)
    (tmp_path / "parts").mkdir()
    (middle,) = (tmp_path / "whole").glob("checkpoint_*_3.pt")
    shutil.copy(middle, tmp_path / "parts" / "checkpoint_last.pt")
    train(prepared, tmp_path / "parts", *options)
    first, second = state(tmp_path / "whole")["model"], state(tmp_path / "parts")["model"]
    assert all(torch.equal(first[name], second[name]) for name in first)
    plain = train(prepared, tmp_path / "plain", "--max-update", 6)
    assert log_lines(whole)[0]["loss"] != log_lines(plain)[0]["loss"]
