"""Safety: no checkpoint, kill, full disk or hostile file may run code or damage what is there."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import forkserver
import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from helpers import ROOT, SIZES, run
from omegaconf import DictConfig
from omegaconf.nodes import AnyNode

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.cli.main import COMMANDS
from fairseq_lasformer.documents import hub
from fairseq_lasformer.plugin.patches import compat


def armed(checkpoint: Path, folder: Path, where: str) -> tuple[Path, Path]:
    """The checkpoint with a setting that creates a file when fairseq evaluates it, and that file."""
    ran = folder / "payload_ran"
    payload = f"[__import__('pathlib').Path({str(ran)!r}).touch(),None][1]"
    state = loading.load(checkpoint)
    model = state["cfg"]["model"]
    if where == "a namespace's":
        state["args"], state["cfg"] = Namespace(**vars(model), encoder_xformers_att_config=payload), None
    elif where == "a list's":
        model.adaptive_softmax_cutoff = [payload]
    elif where == "a key":
        state["cfg"]["task"] = {payload: 1}
    elif where == "the environment":
        state["cfg"]["common"]["tensorboard_logdir"] = "${oc.env:HOME}"
    elif where == "endless work":
        model.encoder_xformers_att_config = "9**9**9**9"
    else:
        setattr(model, where, payload)
    path = folder / "checkpoint_best.pt"
    torch.save(state, path)
    return path, ran


@pytest.mark.parametrize(
    "where",
    [
        "encoder_xformers_att_config",
        "decoder_xformers_att_config",
        "adaptive_softmax_cutoff",
        "a namespace's",
        "a list's",
        "a key",
        "the environment",
        "endless work",
    ],
)
def test_a_checkpoint_with_code_in_its_settings_is_refused_by_every_loader(checkpoint, prepared, tmp_path, where):
    path, ran = armed(checkpoint, tmp_path, where)
    for load in (
        lambda: loading.load(path),
        lambda: checkpoint_utils.load_checkpoint_to_cpu(str(path)),
        lambda: checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(prepared)}),
        lambda: hub.from_pretrained(tmp_path, path.name, prepared),
        lambda: TransformerModel.from_pretrained(str(tmp_path), path.name, str(prepared)),
        lambda: loading.average([path, path], tmp_path / "mean.pt"),
    ):
        with pytest.raises(InputError, match="refused, its setting .* contains code"):
            load()
    assert not ran.exists() and not (tmp_path / "mean.pt").exists()


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Code:
    """A string of Python that creates a file, as fairseq would evaluate it; and the file."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran
        self.text = f"[__import__('pathlib').Path({str(ran)!r}).touch(),[(32,3)]*2][1]"


def foreign(value: object) -> Namespace:
    """Settings of an architecture that evaluates its layers."""
    return Namespace(arch="fconv", _name="fconv", encoder_layers=value)


def alias(code: Code) -> dict:
    """A setting in its own root, joined to code from two outer strings, neither of which is code."""
    inner = DictConfig({"_name": "transformer", "encoder": {"xformers_att_config": "${x}${y}"}, "x": "{", "y": "}"})
    return {"model": inner, "x": code.text[:9], "y": code.text[9:]}


def endless() -> dict:
    settings: dict = {"_name": "transformer"}
    settings["encoder"] = settings
    return settings


# Changes to a checkpoint's parts; with `args`, to one of the old kind.
POISONS: dict[str, Callable[[dict, Code], object]] = {
    "a word": lambda s, c: setattr(s["cfg"]["model"], "encoder_xformers_att_config", c.text),
    "bytes": lambda s, c: s["cfg"].update(model=foreign(c.text.encode())),
    "a node in a table": lambda s, c: s["cfg"].update(model=vars(foreign(AnyNode(c.text)))),
    "a node in a namespace": lambda s, c: s["cfg"].update(model=foreign(AnyNode(c.text))),
    "a node of the transformer": lambda s, c: s["cfg"].update(
        model={"_name": "transformer", "encoder": {"xformers_att_config": AnyNode(c.text)}}
    ),
    "two words joined": lambda s, c: s["cfg"].update(alias(c)),
    "two words joined by a node": lambda s, c: s["cfg"].update(alias(c), model=foreign(AnyNode("${x}${y}"))),
    "bytes in args": lambda s, c: s.update(args=foreign(c.text.encode()), cfg=None),
    "a word in args": lambda s, c: s.update(args=Namespace(arch="fconv", encoder_layers=c.text), cfg=None),
    "a pickle": lambda s, c: s["extra_state"].update(more=Payload(c.ran)),
    # five more
    "two words joined, in a plain table": lambda s, c: s["cfg"].update(
        alias(c), model={"_name": "transformer", "encoder": {"xformers_att_config": "${x}${y}"}}
    ),
    "a set": lambda s, c: s["cfg"]["task"].update(left_pad_source={c.text}),
    "an array": lambda s, c: setattr(s["cfg"]["model"], "adaptive_softmax_cutoff", np.array([c.text], dtype=object)),
    "a pickle among the weights": lambda s, c: s["model"].update(more=Payload(c.ran)),
    "an attribute, not a literal": lambda s, c: setattr(
        s["cfg"]["model"], "adaptive_softmax_cutoff", "().__class__.__base__"
    ),
    # not code, but nothing that may be built either
    "a foreign architecture": lambda s, c: s["cfg"].update(model=foreign("[(32, 3)]")),
    "a foreign task": lambda s, c: s["cfg"]["task"].update(_name="speech_to_text", task="speech_to_text"),
    "settings within themselves": lambda s, c: s["cfg"].update(model=endless()),
    "no settings": lambda s, c: s.update(cfg=None, args=None),
    "no model's name": lambda s, c: s["cfg"].update(model={}),
    "layers without weights": lambda s, c: setattr(s["cfg"]["model"], "encoder_layers", 10**9),
}


@pytest.fixture(scope="session")
def poisoned(checkpoint, tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """By name: a folder with the poisoned checkpoint under every name that commands look for; the file it creates."""
    made = {}
    for name, poison in POISONS.items():
        folder = tmp_path_factory.mktemp("poison")
        state, ran = loading.load(checkpoint), folder / "payload_ran"
        poison(state, Code(ran))
        torch.save(state, folder / "checkpoint_best.pt")
        shutil.copy(folder / "checkpoint_best.pt", folder / "checkpoint_last.pt")
        made[name] = folder, ran
    return made


OPTIONS = ["--user-dir", str(ROOT / "fairseq_lasformer"), "--task", "document_translation", "--cpu"]
TRAINING = [*OPTIONS, "--arch", "transformer", *SIZES, "--share-all-embeddings", "--max-tokens", "200"]
TRAINING += ["--optimizer", "adam", "--lr", "0.002", "--max-update", "3"]


def resume(program: str, data: Path, folder: Path, out: Path) -> list:
    return [program, data, *TRAINING, "--save-dir", folder]


def finetune(program: str, data: Path, folder: Path, out: Path) -> list:
    return [
        program,
        data,
        *TRAINING,
        "--save-dir",
        out / "save",
        "--finetune-from-model",
        folder / "checkpoint_best.pt",
    ]


def hydra(program: str, data: Path, folder: Path, out: Path) -> list:
    words = {"common.user_dir": ROOT / "fairseq_lasformer", "task.data": data, "common.cpu": "true"}
    words |= {"checkpoint.save_dir": folder, "hydra.run.dir": out / "hydra", "optimization.max_update": 3}
    words |= {"task.max_source_positions": 200, "task.max_target_positions": 200, "optimization.lr": "[0.002]"}
    words |= {"task.source_lang": "xx", "task.target_lang": "yy", "dataset.max_tokens": 200}
    config = ["--config-dir", ROOT / "configs", "--config-name", "demo", "++model.select_modules=none"]
    return [program, *config, *(f"{name}={value}" for name, value in words.items())]


def generate(program: str, data: Path, folder: Path, out: Path) -> list:
    more = ["--valid-subset", "valid", "--max-tokens", 500] if program == "fairseq-validate" else []
    return [program, data, *OPTIONS, "--path", folder / "checkpoint_best.pt", *more]


def command(name: str, *words: str) -> Callable[..., list]:
    def made(program: str, data: Path, folder: Path, out: Path) -> list:
        places = {"DATA": data, "FOLDER": folder, "CHECKPOINT": folder / "checkpoint_best.pt", "OUT": out}
        return [program, name, *(places.get(w, out / w[4:] if w.startswith("OUT/") else w) for w in words)]

    return made


NONE = None  # reads no checkpoint
LASFORMER = {
    "corpus": NONE,
    "prepare": NONE,
    "score": NONE,
    "score terms": NONE,
    "doctor": NONE,
    "shortlist": NONE,
    "memory": NONE,
    "translate": command("translate", "CHECKPOINT", "OUT/text.txt", "--data", "DATA"),
    "serve": command("serve", "FOLDER", "--data", "DATA", "--port", "0"),
    "generate": command("generate", "DATA", "CHECKPOINT", "OUT/out", "--", "--cpu"),
    "score contrast": command("score", "contrast", "CHECKPOINT", "OUT/text", "--data", "DATA"),
    "score context": command("score", "context", "CHECKPOINT", "OUT/text", "--data", "DATA"),
    "report": command("report", "FOLDER", "-o", "OUT/r.html", "--document", "OUT/text.txt", "--data", "DATA"),
    "info": command("info", "CHECKPOINT"),
    "convert": command("convert", "CHECKPOINT", "OUT/out.pt"),
    "import": NONE,  # takes no checkpoint of fairseq's; see test_huggingface
    "upcycle": command("upcycle", "CHECKPOINT", "DATA", "OUT/out"),
    "align": NONE,
    "pack": command("pack", "CHECKPOINT", "OUT/packed", "--data", "DATA"),
    "prune": command("prune", "CHECKPOINT", "OUT/out.pt", "--groups", "decoder.0"),
    "average": command("average", "OUT/out.pt", "CHECKPOINT", "CHECKPOINT"),
    "back-translate": command("back-translate", "FOLDER", "DATA", "OUT/run.yaml"),
    "explain": command("explain", "FOLDER", "OUT/text.txt", "--data", "DATA"),
    "distil": command("distil", "FOLDER", "DATA", "OUT/student.yaml"),
    # these start fairseq-train or fairseq-hydra-train, processes that take seconds: see their own test
    "train": ...,
    "run": ...,
    "reproduce": ...,
    "ablate": ...,
}
FAIRSEQ: dict[str, tuple[Callable[..., list], ...]] = {
    "fairseq-preprocess": (),
    "fairseq-score": (),
    "fairseq-train": (resume, finetune),
    "fairseq-hydra-train": (hydra,),
    "fairseq-generate": (generate,),
    "fairseq-interactive": (generate,),
    "fairseq-validate": (generate,),
    "fairseq-eval-lm": (generate,),
}
ENTRIES = [("lasformer", name, made) for name, made in LASFORMER.items() if callable(made)]
ENTRIES += [(program, made.__name__, made) for program, ways in FAIRSEQ.items() for made in ways]


def test_no_command_is_forgotten():
    assert set(LASFORMER) == set(COMMANDS)
    installed = {e.name for e in entry_points(group="console_scripts") if e.name.startswith("fairseq-")}
    assert set(FAIRSEQ) == installed


def assert_refused(name: str, ran: Path, code: int, said: str) -> None:
    assert not ran.exists(), f"{name}: the payload ran"
    last = said.strip().splitlines()[-1] if said.strip() else ""
    assert code != 0 and "Traceback (most" not in said and "error: " in last, (name, code, said[-2000:])
    assert "refused" in last or "contains no settings" in last, (name, said[-2000:])
    assert "weights_only" not in said, name


@pytest.mark.command
@pytest.mark.parametrize(
    "program, name, made, unrestricted",
    [*((*entry, True) for entry in ENTRIES), (*next(one for one in ENTRIES if one[1] == "translate"), False)],
    ids=[*(f"{p} {n}" for p, n, _ in ENTRIES), "translate, as usual"],
)
def test_no_command_runs_what_a_checkpoint_holds(poisoned, prepared, tmp_path, program, name, made, unrestricted):
    """With torch told to load everything, which is less safe than its default; one command also with the default."""
    environment = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"} if unrestricted else {}
    (tmp_path / "text.txt").write_text("w1 w2\n")
    calls = [list(map(str, made(program, prepared, folder, tmp_path))) for folder, _ in poisoned.values()]
    words = ["python", "tests/enter.py", json.dumps(calls)]
    done = forkserver.execute(words, os.environ | {"OMP_NUM_THREADS": "1"} | environment, ROOT, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ends = json.loads(done.stdout.splitlines()[-1])
    for (poison, (_, ran)), (code, said) in zip(poisoned.items(), ends, strict=True):
        assert_refused(poison, ran, code, said)


@pytest.mark.command
@pytest.mark.parametrize("poison", ["a word", "bytes", "a pickle"])
def test_commands_that_start_a_training_refuse_it_too(poisoned, prepared, tmp_path, poison):
    """lasformer train; run, reproduce and ablate start the same programs by the same function."""
    folder, ran = poisoned[poison]
    shutil.copytree(folder, tmp_path / "model")
    model = ["--arch", "transformer", *SIZES, "--max-update", "3"]
    switch = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = run("lasformer", "train", prepared, tmp_path / "model", "--", *model, check=False, **switch)
    assert_refused(poison, ran, done.returncode, done.stderr)


def test_only_our_loader_is_bound():
    """Only compat binds fairseq's loader, which is replaced there; only checkpoints/ calls torch's."""
    for path in (ROOT / "fairseq_lasformer").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in ("fairseq.checkpoint_utils", "torch"):
                names = {alias.name for alias in node.names}
                assert not {name for name in names if name.startswith("load")}, path
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                assert path.parts[-2:] == ("checkpoints", "loading.py"), path
    assert checkpoint_utils.load_checkpoint_to_cpu is compat.load_checkpoint_to_cpu
    for name, module in list(sys.modules.items()):
        if name.startswith(("fairseq", "fairseq_lasformer")):
            for attribute in ("load_checkpoint_to_cpu", "load_model_ensemble_and_task"):
                bound = vars(module).get(attribute)
                assert bound is None or bound is getattr(checkpoint_utils, attribute), (name, attribute)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "empty"),
        (b"just a text file, no checkpoint\n", "not a torch checkpoint"),
        (b"\x1f\x8b\x08 a gzip file", "not a torch checkpoint"),
        (pickle.dumps({"model": 1}), "checkpoint"),
    ],
)
def test_other_files_are_called_what_they_are(tmp_path, content, reason):
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        loading.load(tmp_path / "c.pt")
    assert "\n" not in str(caught.value) and "contains code" not in str(caught.value)
    with pytest.raises(InputError, match="is a folder; it contains no checkpoint"):
        loading.load(tmp_path)
    (tmp_path / "checkpoint_last.pt").touch()
    with pytest.raises(InputError, match="is a folder; name the checkpoint in it: .*checkpoint_last.pt"):
        loading.load(tmp_path)


def test_damage_within_a_checkpoint_is_found(checkpoint, tmp_path):
    content = bytearray(checkpoint.read_bytes())
    for place in (len(content) // 3, len(content) // 2):
        broken = bytearray(content)
        broken[place] ^= 1
        (tmp_path / "c.pt").write_bytes(broken)
        with pytest.raises(InputError, match="damaged"):
            loading.load(tmp_path / "c.pt")
    broken = bytearray(content)
    broken[7] |= 0x08  # the first name in the archive is UTF-8, and is not
    broken[30] = 0x96
    (tmp_path / "c.pt").write_bytes(broken)
    with pytest.raises(InputError, match="damaged .*can't decode"):
        loading.load(tmp_path / "c.pt")
    state = loading.load(checkpoint)
    state["model"]["encoder.layers.0.fc1.weight"][0, 0] = float("nan")
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(InputError, match="encoder.layers.0.fc1.weight is not finite"):
        loading.load(tmp_path / "c.pt")


def test_settings_that_only_look_odd_are_taken(checkpoint, tmp_path):
    state = loading.load(checkpoint)
    model = state["cfg"]["model"]
    model.data, model.save_dir, model.adam_betas = "models (1)/data", "f(x)", "(0.9, 0.98)"
    model.encoder_layers_to_keep = "data-bin/mine, a.b-c"
    torch.save(state, tmp_path / "c.pt")
    assert loading.load(tmp_path / "c.pt")["cfg"]["model"].save_dir == "f(x)"
