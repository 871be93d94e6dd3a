"""Averaging, and unusable checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import save_model

from fairseq_lasformer.analysis import cost
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.cli.checkpoints import Average, run_average


def test_averaging_takes_the_mean_of_the_weights_and_the_last_kappa(tmp_path, build):
    first, last = save_model(tmp_path / "1.pt", build, 0.5, 0.0), save_model(tmp_path / "2.pt", build, 0.3, 1.0)
    loading.average([tmp_path / "1.pt", tmp_path / "2.pt"], tmp_path / "mean.pt")
    mean = loading.load(tmp_path / "mean.pt")["model"]
    name = "decoder.embed_tokens.weight"
    torch.testing.assert_close(mean[name], (first.state_dict()[name] + last.state_dict()[name]) / 2)
    assert cost.kappas(mean) == {m: [0.3, 0.3] for m in ("encoder", "decoder", "cross")}


def test_a_checkpoint_is_written_with_a_given_kappa(tmp_path, build):
    model = save_model(tmp_path / "1.pt", build, 0.5)

    def write(kappa: float, source: str = "1.pt", name: str = "bad.pt") -> None:
        run_average(Average(out=tmp_path / name, checkpoints=(tmp_path / source,), kappa=kappa))

    write(0.1, name="k.pt")
    made = loading.load(tmp_path / "k.pt")["model"]
    assert cost.kappas(made) == {m: [0.1, 0.1] for m in ("encoder", "decoder", "cross")}
    assert all(torch.equal(t, made[name]) for name, t in model.state_dict().items() if not name.endswith("kappa"))
    for wrong in (0.0, -0.1, 1e-9, 1.1, float("nan")):
        with pytest.raises(InputError, match="--kappa .*: expected a share of the keys, above 0 and at most 1"):
            write(wrong)
    save_model(tmp_path / "dense.pt", build, 0.5, select_modules="none")
    with pytest.raises(InputError, match="--kappa: .*dense.pt selects nothing"):
        write(0.1, "dense.pt")
    assert not (tmp_path / "bad.pt").exists()


class Foreign:
    def __reduce__(self):
        return (print, ("this must never run",))


def test_useless_checkpoints_are_refused_in_one_line(tmp_path, build, capsys):
    save_model(tmp_path / "good.pt", build, 0.2)
    data = (tmp_path / "good.pt").read_bytes()
    (tmp_path / "short.pt").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save({"model": Foreign()}, tmp_path / "foreign.pt")
    torch.save({"weights": 1}, tmp_path / "other.pt")
    torch.save({"model": {}, "cfg": {"model": {"_name": "transformer"}}}, tmp_path / "transformer.pt")
    for name in ("short", "empty", "foreign", "other", "none"):
        with pytest.raises(InputError, match=f"{name}.pt") as caught:
            loading.load(tmp_path / f"{name}.pt")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="of architecture transformer"):
        cost.checkpoint_cost(tmp_path / "transformer.pt", [100])
    assert "this must never run" not in capsys.readouterr().out


def test_tied_weights_stay_tied_in_an_average(tmp_path, build):
    for n in (1, 2):
        save_model(tmp_path / f"{n}.pt", build, 0.5, float(n))
        state = torch.load(tmp_path / f"{n}.pt", weights_only=False)
        names = [name for name in state["model"] if name.endswith("embed_tokens.weight")]
        state["model"] |= dict.fromkeys(names, state["model"][names[0]])
        torch.save(state, tmp_path / f"{n}.pt")
    loading.average([tmp_path / "1.pt", tmp_path / "2.pt"], tmp_path / "mean.pt")
    found = loading.load(tmp_path / "mean.pt")["model"]
    assert len(names) == 2 and found[names[0]].data_ptr() == found[names[1]].data_ptr()
    both = [loading.load(tmp_path / f"{n}.pt")["model"] for n in (1, 2)]
    assert len({t.data_ptr() for t in found.values()}) == len({t.data_ptr() for t in both[1].values()})
    torch.testing.assert_close(found[names[1]], (both[0][names[0]] + both[1][names[0]]) / 2)


def test_the_moving_average_takes_the_place_of_the_weights(tmp_path, build):
    model = save_model(tmp_path / "1.pt", build, 0.5)
    plain = torch.load(tmp_path / "1.pt")
    moved = {n: t + 1 if t.is_floating_point() else t for n, t in model.state_dict().items()}
    torch.save(plain | {"extra_state": {"ema": moved}}, tmp_path / "2.pt")
    loading.average([tmp_path / "2.pt"], tmp_path / "ema.pt", ema=True)
    made = loading.load(tmp_path / "ema.pt")
    assert all(torch.equal(t, moved[n]) for n, t in made["model"].items()) and "ema" not in made["extra_state"]
    with pytest.raises(InputError, match="1.pt: contains no moving average; train with --store-ema"):
        loading.average([tmp_path / "2.pt", tmp_path / "1.pt"], tmp_path / "mean.pt", ema=True)
    name = "decoder.embed_tokens.weight"
    for bad in (None, moved[name][:-1], moved[name] * float("nan"), "words"):
        other = {n: t for n, t in (moved | {name: bad}).items() if t is not None}
        torch.save(plain | {"extra_state": {"ema": other}}, tmp_path / "bad.pt")
        with pytest.raises(InputError, match="bad.pt: (its|the) moving average"):
            loading.average([tmp_path / "bad.pt"], tmp_path / "mean.pt", ema=True)
    assert not (tmp_path / "mean.pt").exists()


def test_too_little_memory_is_not_damage(tmp_path, build, monkeypatch):
    save_model(tmp_path / "c.pt", build, 0.2)

    def load(*_, **__):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:128] . DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(InputError, match="not enough memory to load it$"):
        loading.load(tmp_path / "c.pt")


def test_a_full_disk_is_one_line(tmp_path):
    """/dev/full takes nothing, as a full disk does."""
    state = {"model": {"a": torch.zeros(1 << 16)}}
    with pytest.raises(InputError, match="/dev/full: cannot be written"):
        loading.save(state, Path("/dev/full"))
    loading.save(state, tmp_path / "c.pt")
    assert torch.load(tmp_path / "c.pt")["model"]["a"].numel() == 1 << 16
