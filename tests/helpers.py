"""Helpers of several tests: small models, commands, a small corpus, trainings, and cases for the operations."""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import forkserver
import pytest
import torch
import yaml
from fairseq import options, tasks
from fairseq.data import Dictionary, indexed_dataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

from fairseq_lasformer import ops
from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.nn.moe import MixtureOfExperts, MoeConfig
from fairseq_lasformer.ops import (
    KAPPA_ONE,
    AttentionMask,
    backends,
    cpu,
)
from fairseq_lasformer.plugin.model import LasformerModel

ROOT = Path(__file__).resolve().parent.parent
BUILT = {ROOT / "docs/api.md", ROOT / "docs/commands.md"}
"""Pages that ``make docs`` builds, and nobody commits."""

SMALL = {
    f"{part}_{k}": v
    for part in ("encoder", "decoder")
    for k, v in {"embed_dim": 32, "ffn_embed_dim": 48, "attention_heads": 4, "layers": 3}.items()
} | {
    "select_dim": 8,
    "select_share": 2,
    "dropout": 0.0,
    "share_all_embeddings": True,
    "max_source_positions": 512,
    "max_target_positions": 512,
}


def tokens(*shape: int, pad_left: tuple[int, ...] = (), pad_right: tuple[int, ...] = ()) -> torch.Tensor:
    """Draw random words [B, N]; row i begins with pad_left[i] and ends with pad_right[i] padding symbols."""
    t = torch.randint(4, 64, shape)
    for i, n in enumerate(pad_left):
        t[i, :n] = 1
    for i, n in enumerate(pad_right):
        if n:
            t[i, -n:] = 1
    return t


def assert_steps_are_a_full_pass(model: LasformerModel, src: torch.Tensor, prev: torch.Tensor) -> torch.Tensor:
    """Check that decoding ``prev`` [B, N] step by step gives the result of one pass, and return it."""
    with torch.no_grad():
        encoded = model.encoder(src, src.ne(1).sum(1))
        full = model.decoder(prev, encoded)[0]
        state: dict = {}
        steps = [
            model.decoder(prev[:, : i + 1], encoded, incremental_state=state)[0][:, 0] for i in range(prev.size(1))
        ]
    torch.testing.assert_close(torch.stack(steps, 1), full, rtol=1e-4, atol=1e-5)
    return full


def run(*command: object, check: bool = True, **env: str) -> subprocess.CompletedProcess:
    """Run a command of this environment (``python …``, ``lasformer …``, ``fairseq-train …``) from the repository."""
    program, *args = map(str, command)
    if program.endswith(".sh"):
        path = str(ROOT / program)
    else:
        path = sys.executable if program == "python" else str(Path(sys.executable).with_name(program))
    always = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    if env or program.endswith(".sh") or args[0].startswith("-"):
        whole = os.environ | always | env
        done = subprocess.run([path, *args], cwd=ROOT, capture_output=True, text=True, env=whole, timeout=500)
    else:
        with TemporaryDirectory() as folder:
            done = forkserver.execute([program, *args], os.environ | always, ROOT, Path(folder))
    assert not check or done.returncode == 0, (
        f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done


def assert_beams_decode_alike(
    model: LasformerModel, definition: LasformerModel, longest: int = 40, steps: int = 30, within: float = 0.0
) -> None:
    """Check that decoding with reordered beams and finishing documents equals one pass over each hypothesis.

    Args:
        definition: a model with the same weights, for the passes.
        longest: tokens of the source.
        steps: tokens of the translation.
        within: largest relative error of decoding in 8 bits; 0: equal up to rounding.
    """
    src, tgt, beam = tokens(2, longest, pad_left=(0, longest // 5)), tokens(6, steps), 3
    order = torch.arange(2).repeat_interleave(beam)
    with torch.no_grad():
        encoder_out = model.encoder.reorder_encoder_out(model.encoder(src), order)
        assert encoder_out["encoder_out"][0].size(1) == 2  # the source is stored once per item
        state: dict = {}
        history, n = tgt[:, :1], 2
        for i in range(1, steps):
            step = model.decoder(history, encoder_out=encoder_out, incremental_state=state)[0]
            full = definition.decoder(history, encoder_out=definition.encoder(src[-n:].repeat_interleave(beam, 0)))[0]
            if within:
                assert (step[:, -1] - full[:, -1]).norm() < within * full[:, -1].norm()
            else:
                torch.testing.assert_close(step[:, -1], full[:, -1], rtol=1e-4, atol=1e-5)
            order = torch.randint(beam, (n, beam)) + torch.arange(n)[:, None] * beam
            if i == steps // 2:  # the first document is finished
                order, n = order[1:], 1
            order = order.view(-1)
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            history = torch.cat([history[order], tgt[: order.numel(), i : i + 1]], 1)
        assert encoder_out["encoder_out"][0].size(1) == 1


def write_corpus(folder: Path, name: str, n_documents: int, seed: int = 0, longest: int = 8) -> Path:
    """Write a copy task in raw form (xx -> yy, words upper-cased); return the prefix."""
    generator = torch.Generator().manual_seed(seed)
    sides: tuple[list[str], list[str]] = ([], [])
    for _ in range(n_documents):
        sentences = []
        for _ in range(int(torch.randint(1, longest + 1, (1,), generator=generator))):
            n = int(torch.randint(2, 7, (1,), generator=generator))
            sentences.append(" ".join(f"w{int(i)}" for i in torch.randint(0, 30, (n,), generator=generator)))
        sides[0].append("".join(s + "\n" for s in sentences))
        sides[1].append("".join(s.upper() + "\n" for s in sentences))
    folder.mkdir(parents=True, exist_ok=True)
    for language, side in zip(("xx", "yy"), sides):
        (folder / f"{name}.{language}").write_text("\n".join(side), encoding="utf-8")
    return folder / name


SPLITS = {"train": 60, "valid": 6, "test": 9}


SIZES = [
    f"--{p}-{k}"
    for p in ("encoder", "decoder")
    for k in ("embed-dim=32", "ffn-embed-dim=32", "layers=2", "attention-heads=2")
]


MODEL = ["--arch", "lasformer", *SIZES, "--select-share", "2", "--select-dim", "8", "--sparsity-step", "0.01"]


def train(
    data: Path, save: Path, *options: object, model=MODEL, check: bool = True, **env: str
) -> subprocess.CompletedProcess:
    criterion = ["--criterion", "label_smoothed_cross_entropy_with_selection"]
    return run(
        *("fairseq-train", data, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"),
        *("--save-dir", save, "--max-tokens", 200, "--optimizer", "adam", "--lr", 0.002, "--clip-norm", 1.0),
        *("--no-epoch-checkpoints", "--log-format", "json", "--log-interval", 1, "--seed", 1, "--share-all-embeddings"),
        *(criterion if "--criterion" not in options else []),
        *model,
        *options,
        check=check,
        **env,
    )


def log_lines(done: subprocess.CompletedProcess, kind: str = "train_inner") -> list[dict]:
    lines = (done.stdout + done.stderr).splitlines()
    # "| train_inner | {…}" from fairseq-train, "[train_inner][INFO] - {…}" from fairseq-hydra-train
    found = [re.search(rf"[|\[] ?{kind}(?: \||\]\[INFO\] -) (\{{.*\}})", line) for line in lines]
    return [json.loads(match[1]) for match in found if match]


def state(folder: Path) -> dict:
    return loading.load(folder / "checkpoint_last.pt")


def run_python(code: str, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=clean | env, capture_output=True, text=True)
    return done.stdout.strip() + done.stderr.strip()


CUDA = torch.cuda.is_available()


HERE = {
    "reference": True,
    "cpu": cpu.kernels() is not None,
    "triton": backends.triton_kernels("decode") is not None,
}


BACKENDS = [name for name, here in HERE.items() if here]


PDC = ROOT.parent / "shared" / "data" / "pdc"


@torch.no_grad()  # threads have their own
def steps(model, src, prev, n_beams: int) -> torch.Tensor:
    """Return all words' scores, step by step, with ``n_beams`` copies of each hypothesis: [B * n_beams, N, words]."""
    order = torch.arange(src.size(0)).repeat_interleave(n_beams)
    encoded = model.encoder.reorder_encoder_out(model.encoder(src, src.ne(1).sum(1)), order)
    state: dict = {}
    prev = prev[order]
    return torch.stack(
        [model.decoder(prev[:, : i + 1], encoded, incremental_state=state)[0][:, 0] for i in range(prev.size(1))], 1
    )


def save_model(path, build, kappa: float, shift: float = 0.0, **options):
    model = build(kappa=kappa, **options)
    with torch.no_grad():
        model.decoder.embed_tokens.weight.add_(shift)
    cfg = {k: v for k, v in vars(model.cfg).items() if isinstance(v, (str, int, float, bool))}
    flat = {
        f"{p}_{k}": v
        for p in ("encoder", "decoder")
        for k, v in vars(getattr(model.cfg, p)).items()
        if isinstance(v, (str, int, float))
    }
    torch.save({"model": model.state_dict(), "cfg": {"model": {"_name": "lasformer"} | cfg | flat}}, path)
    return model


B, H, D, S = 2, 3, 4, 3


def case(n_queries: int, n_keys: int, causal: bool, padding: str | None, dtype=torch.double):
    def leaf(*shape):
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    key_padding = None
    if padding:
        key_padding = torch.zeros(B, n_keys, dtype=torch.bool)
        if padding == "left":
            key_padding[0, :5] = True
        elif padding == "right":
            key_padding[1, -4:] = True
        else:
            key_padding[1] = True
    allowed = AttentionMask(key_padding, causal)
    projections = [leaf(B, H, n, D) for n in (n_queries, n_keys, n_keys)]
    selector = [leaf(B, n, S) for n in (n_queries, n_keys)]
    mask = ops.topk_mask(*selector, allowed, 300_000)
    return *projections, *selector, mask, allowed, allowed.full(B, n_queries, n_keys, mask.device)


SHAPES = [pytest.param(37, 37, True, p, id=f"causal-{p}") for p in (None, "left", "right", "all")] + [
    pytest.param(37, 41, False, p, id=f"cross-{p}") for p in (None, "left", "right", "all")
]


def mixture(dim=6, ffn_dim=8, dtype=torch.float64, workers=None, **options) -> MixtureOfExperts:
    """Build a mixture whose gate prefers some experts to others."""
    chosen = {"n_experts": 4, "backend": "loop"} | {k.removeprefix("moe_"): v for k, v in options.items()}
    cfg = MoeConfig(**{"n_experts" if k == "experts" else k: v for k, v in chosen.items()})
    layer = MixtureOfExperts(cfg, dim, ffn_dim, workers).to(dtype)
    for name, p in layer.gate.named_parameters():
        if "threshold" not in name:
            torch.nn.init.normal_(p)
    return layer


def skip_unless_here(backend):
    if backend == "cpu" and cpu.kernels() is None or backend == "triton" and backends.triton_kernels("decode") is None:
        pytest.skip(f"no {backend} kernels on this machine")


ALPHA, SMOOTHING, LR = 0.5, 0.1, 0.1


def trainer_of(data: Path, *more: object, alpha: float = ALPHA) -> Trainer:
    """Build fairseq's trainer with a small selecting model, plain gradient descent and no dropout."""
    words = [data, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu", "--seed", 1]
    words += ["--arch", "lasformer", *SIZES, "--select-share", 1, "--select-dim", 8, "--share-all-embeddings"]
    words += ["--criterion", "label_smoothed_cross_entropy_with_selection", "--selection-weight", alpha]
    words += ["--label-smoothing", SMOOTHING, "--dropout", 0, "--optimizer", "sgd", "--lr", LR, "--max-tokens", 100]
    args = options.parse_args_and_arch(options.get_training_parser(), [str(w) for w in [*words, *more]])
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(1)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    for _, selector in trainer.model.selectors():
        selector.kappa.fill_(KAPPA_ONE // 2)
    trainer.lr_step(1)
    return trainer


def batches(task: Any) -> list[dict[str, Any]]:
    """Return the batches of the longest documents: two of different sizes, with padding."""
    task.load_dataset("train")
    found = task.get_batch_iterator(task.datasets["train"], max_tokens=100, max_positions=(500, 500))
    chosen = list(found.next_epoch_itr(shuffle=False))[-12::9]
    assert len(chosen) == 2 and chosen[0]["ntokens"] != chosen[1]["ntokens"]
    return chosen


def small_tvsub(files: Path) -> dict[str, Any]:
    """Return ``examples/tvsub.yaml`` at a small size; write its corpus to a folder, compressed with xz."""
    for split, n in (("train", 20), ("valid", 3), ("test", 4)):
        prefix = write_corpus(files, f"tvsub.{split}", n, seed=n)
        for own, language in (("xx", "zh"), ("yy", "en")):
            text = (files / f"{prefix.name}.{own}").read_bytes().replace(b"w1 ", b"w1\t", 1)
            (files / f"{prefix.name}.{language}.xz").write_bytes(lzma.compress(text))
    example = yaml.safe_load((ROOT / "examples/tvsub.yaml").read_text())
    small = {"max_update": 2, "max_tokens": 300, "update_freq": 1, "save_every": 2, "save_minutes": 0.0}
    example["prepare"] |= {"size": 60, "limit": 60}
    example["training"] |= small
    example["fairseq"] = [str(word) for word in SIZES]
    for system in example["systems"].values():
        system["training"] = system.get("training", {}) | small
        system["fairseq"] = [word for word in system["fairseq"] if not word.startswith(("--total", "--end"))]
    return example


def read_split(folder: Path, split: str, language: str, pair: str = "xx-yy") -> list[str]:
    dictionary = Dictionary.load(str(folder / f"dict.{language}.txt"))
    data = indexed_dataset.make_dataset(str(folder / f"{split}.{pair}.{language}"), "mmap")
    return [dictionary.string(data[i]) for i in range(len(data))]


def recipe(place: str) -> str:
    """Return the block of CONTRIBUTING.md that begins with this place."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    (block,) = re.findall(rf"```text\n# fairseq_lasformer/{place}\n(.*?)```", page, re.S)
    return block
