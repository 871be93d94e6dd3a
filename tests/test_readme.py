"""Every command of the documentation as printed, in miniature: smaller sizes replace the printed ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import launcher
import pytest
import yaml
from helpers import BUILT, ROOT, run, small_tvsub

from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.cli.main import COMMANDS, main

# in reading order: later ones use what the first ones make
FIRST = ("README.md", "data/README.md", "docs/training.md", "docs/alignment.md")
# side by side: these translate, and these train
LANES = (
    ("docs/translate.md", "docs/serve.md", "docs/report.md", "docs/scale.md"),
    ("docs/fairseq.md", "docs/reproduce.md", "docs/moe.md", "docs/import.md", "docs/students.md"),
)
RUN = (*FIRST, *LANES[0], *LANES[1])
FOLDER = [ROOT / "CONTRIBUTING.md", *({*(ROOT / "docs").rglob("*.md")} - BUILT)]
OTHERS = sorted(name for path in FOLDER if (name := str(path.relative_to(ROOT))) not in RUN)
PAGES = (*RUN, *OTHERS)


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


SIZES = [
    f"model.{p}_{k}"
    for p in ("encoder", "decoder")
    for k in ("embed_dim=32", "ffn_embed_dim=32", "layers=2", "attention_heads=2")
]
SHORT = "optimization.max_update=2 ++lr_scheduler.warmup_updates=1"
TINY = f"{SHORT} {' '.join('++' + s for s in SIZES)} ++model.select_dim=8 ++model.select_share=2"
FLAGS = "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 32 --decoder-embed-dim 32"
SHORT_LINES = "--repair 0 --sentence-max-len-a 0.5 --sentence-max-len-b 2"
DEMO = "optimization.max_update=2 lr_scheduler.total_num_update=3 lr_scheduler.warmup_updates=1"
# Printed text and its replacement. Each must be found, so none outlives its command.
MINIATURE = [
    (r"^git clone <this repository> fairseq_lasformer && cd fairseq_lasformer$", "test -f Makefile"),
    (r"^make demo\b", f'make demo ARGS="--documents 14 {DEMO}"'),
    (r"^make test\b", "make --dry-run test"),  # which includes this test
    (r"(lasformer prepare data-bin/mine .* --limit 1024)$", r"\1 --size 200"),
    (
        r"^(.venv/bin/lasformer train data-bin/mine checkpoints/mine)$",
        r"\1 --arch lasformer_tiny --max-tokens 2000 --update-freq 1 --max-update 2 --word-dropout 0",
    ),
    (r"(--arch lasformer_dense_tiny)$", r"\1 --max-tokens 2000 --update-freq 1 --max-update 2 --word-dropout 0"),
    (r"^(.venv/bin/lasformer upcycle \S+ data-bin/mine .*)$", r"\1 --updates 2"),
    (
        r"^(.venv/bin/python examples/upcycling.py).*$",
        rf"\1 --documents 14 --seeds 1 --systems dense,dense_upcycled --updates 2 {DEMO}",
    ),
    (r"lasformer_small --max-update 1000(00)? -- --select-share 2", f"lasformer_tiny --max-update 2 -- {FLAGS}"),
    (
        r"^(\.venv/bin/lasformer serve checkpoints/mine --port) 5000$",
        rf"\1 {(port := free_port())} > served 2>&1 & server=$!; trap 'kill $server' EXIT\n"
        rf"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.5; kill -0 $server; done",
    ),
    (r"lasformer run examples/own_data.yaml", "lasformer run own_data.yaml"),
    (r"(lasformer report .* --document .*)$", r"\1 --show 1"),
    (
        # a hardly trained model runs every line to its limit
        r"^(.venv/bin/lasformer generate data-bin/mine \S+ mine.de.*)$",
        rf"\1 --beam 2 --shards 2 -- {SHORT_LINES}",
    ),
    (r"^(.venv/bin/lasformer generate data-bin/mine \S+ (cluster|corpus).de .*)$", rf"\1 --beam 1 -- {SHORT_LINES}"),
    (r"(--path checkpoints/mine/checkpoint_best.pt) --beam 5 --cpu$", rf"\1 --beam 2 --cpu {SHORT_LINES}"),
    (r"(benchmarks alignment )", r"\1--ways free,aligned --beam 1 "),
    (r"--arch lasformer \\", r"--arch lasformer_tiny \\"),
    (r"--arch lasformer_moe", f"--arch lasformer_moe {FLAGS}"),
    (r"--max-update 100(000)?\b", "--max-update 2"),
    (r"(--config-name demo)", rf"\1 {DEMO}"),
    (r"GPUS=8 (scripts/run.sh ted_en-de lasformer)", rf"GPUS=0 MAX_UPDATE=2 BEAM=1 SIZE=200 \1 {TINY}"),
    (r"distributed_training.distributed_world_size=16\"", f'distributed_training.distributed_world_size=1 {TINY}"'),
    (
        r"distributed_training.distributed_world_size=16$",
        # on a CPU fairseq does not take torchrun's own word for the rank
        f"distributed_training.distributed_world_size=2 ++distributed_training.distributed_backend=gloo {TINY} "
        "++distributed_training.distributed_init_method=env:// "
        "'++distributed_training.distributed_rank=${oc.env:RANK}' "
        "++distributed_training.distributed_no_spawn=true",
    ),
    (r"common.fp16=true", "++common.cpu=true"),
    (r"--nnodes=2 --nproc-per-node=8", "--nnodes=1 --nproc-per-node=2"),
    (r"node0:29500", f"127.0.0.1:{free_port()}"),
    (r"127.0.0.1:29500", f"127.0.0.1:{free_port()}"),
    (r"(--table 7)", rf"\1 --values 1 --set {DEMO.replace(' ', ' --set ')}"),
    (r"(benchmarks compact runs/\S+.*)$", r"\1 --repeat 1"),
    (r"^(.venv/bin/python examples/demo.py --config demo_paper --out \S+)$", rf"\1 --documents 14 {DEMO}"),
    # the paper's demo stands in for these; tests/nn trains DeFINE and DeLighT
    (
        r"^.venv/bin/python examples/demo.py --systems lasformer_define,lasformer .*$",
        "cp -r runs/demo_paper runs/demo_define",
    ),
    (r"^.venv/bin/python examples/demo.py --systems lasformer_delight,lasformer_deep .*$", "true"),
    (r"(benchmarks compact runs/demo_define) runs/demo_delight", r"\1"),
    # tests/test_benchmarks.py runs its script without a GPU
    (r"^make gpu\b", "make --dry-run gpu"),
]


def miniature(block: str, used: dict[str, int]) -> str:
    """Return a block with small sizes instead of the printed ones; count the replacements that were needed."""
    for pattern, instead in MINIATURE:
        block, n = re.subn(pattern, instead, block, flags=re.M)
        used[pattern] = used.get(pattern, 0) + n
    return block


def execute(text: str, clone: Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{clone.parent / 'bin'}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(command, cwd=clone, env=environment | {"PWD": str(clone)}, capture_output=True, text=True)


def virtual_environment(clone: Path) -> None:
    """Make the clone's own .venv, which uses the packages installed in this one and cannot change them."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    mark = Path(sys.prefix) / ".ready"
    if mark.exists():
        shutil.copy2(mark, clone / ".venv/.ready")
    (site,) = (clone / ".venv/lib").glob("python3*/site-packages")
    (site / "a_clone.pth").write_text(f"{clone}\n")
    (site / "b_borrowed.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for script in (Path(sys.prefix) / "bin").iterdir():
        if script.is_file() and (text := script.read_bytes()).startswith(f"#!{sys.prefix}/bin/python".encode()):
            there = clone / ".venv/bin" / script.name
            there.write_bytes(b"#!" + bytes(clone / ".venv/bin/python") + b"\n" + text.partition(b"\n")[2])
            there.chmod(0o755)


def workplace(top: Path) -> Path:
    """Return a clone with the documents that a reader is asked to provide, all of them short."""
    clone = top / "fairseq_lasformer"
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in filter(None, tracked.stdout.split("\n")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    virtual_environment(clone)
    run("python", ROOT / "data/demo/generate.py", clone / "raw", "--documents", 30)
    raw = clone / "raw"
    for language in ("en", "de"):
        shutil.move(raw / f"valid.{language}", raw / f"dev.{language}")
    document = "\n".join((raw / "test.en").read_text().split("\n\n")[0].splitlines()[:6]) + "\n"
    (raw / "other.en").write_text(document)
    (clone / "letter.en").write_text(document)
    (clone / "letters").mkdir()
    for name in ("letter.txt", "letters/a.txt"):
        (clone / name).write_text(document)
    (clone / "terms.tsv").write_text("soon\tbald\n")
    (clone / "letters.en").write_text("\t".join(document.splitlines()) + "\n")
    example = (clone / "examples/own_data.yaml").read_text()
    for printed, short in (
        ("test: raw/test", "test: raw/other"),
        ("size: 32000", "size: 200"),
        ("training: {}", "training: {max_update: 2}"),
        ("beam: 5", "beam: 1"),
    ):
        assert printed in example
        example = example.replace(printed, short)
    (clone / "own_data.yaml").write_text(example)
    (clone / "examples/tvsub.yaml").write_text(yaml.safe_dump(small_tvsub(clone / "downloads"), sort_keys=False))
    # run.sh finds its corpus unpacked
    ted = clone / "data-bin" / "ted_en-de" / "raw"
    ted.mkdir(parents=True)
    for name in ("train", "dev", "test"):
        for language in ("en", "de"):
            documents = (raw / f"{name}.{language}").read_text().split("\n\n")[:3]
            (ted / f"{name}.{language}").write_text("\n\n".join(d.strip() for d in documents) + "\n")
    done = Progress(ted, key_of("corpus", "ted"))
    done.begin()
    done.finish("build")
    # a cluster's commands: the one starts the job, the other its tasks
    (top / "bin").mkdir()
    for name, script in (("sbatch", 'while [ "$1" != --wrap ]; do shift; done; bash -c "$2"'), ("srun", 'exec "$@"')):
        (top / "bin" / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
        (top / "bin" / name).chmod(0o755)
    return clone


def run_pages(pages: Sequence[str], clone: Path, used: dict[str, int]) -> None:
    """Run the commands of some pages, one after the other, and their Python code."""
    for page in pages:
        for block in blocks(page, "bash"):
            text = miniature(block, used)
            done = execute(text, clone)
            assert done.returncode == 0, f"{page}:\n{block}\nas\n{text}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
        for number, block in enumerate(blocks(page, "python")):
            snippet = clone / f"snippet_{Path(page).stem}_{number}.py"
            snippet.write_text(block)
            done = execute(f".venv/bin/python {snippet.name}", clone)
            assert done.returncode == 0 and done.stdout.strip(), f"{page}:\n{block}\n{done.stderr[-2000:]}"


@contextmanager
def launching(clone: Path) -> Iterator[None]:
    """Let commands of the clone's .venv start without importing torch and fairseq, which takes seconds each time."""
    python, environment = clone / ".venv/bin/python", os.environ | {"OMP_NUM_THREADS": "1"}
    with TemporaryDirectory(prefix="run") as folder:  # a socket's path is short
        path = f"{folder}/commands"
        for there in (clone / ".venv/bin").iterdir():
            if there.name == "lasformer" or there.name.startswith("fairseq-"):
                there.write_text(launcher.script(str(python), path, there.name))
        with subprocess.Popen([python, ROOT / "tests/launcher.py", path], cwd=clone, env=environment) as server:
            try:
                yield
            finally:
                server.kill()


@pytest.mark.command
@pytest.mark.timeout(1500)
def test_every_command_runs_as_printed(tmp_path):
    clone, used = workplace(tmp_path), dict[str, int]()
    with launching(clone):
        run_all(clone, used)


def run_all(clone: Path, used: dict[str, int]) -> None:
    """Run the commands of all pages."""
    run_pages(FIRST, clone, used)
    with ThreadPoolExecutor() as pool:
        for lane in [pool.submit(run_pages, pages, clone, used) for pages in (*LANES, OTHERS)]:
            lane.result()
    assert [pattern for pattern, n in used.items() if not n] == []
    for made in ("runs/demo/report.json", "mine.de", "mine.html", "checkpoints/mine/scores.json", "report.html"):
        assert (clone / made).exists(), made
    assert (clone / "runs/ted_en-de/lasformer/scores.json").exists()
    check_demo(clone)


def check_demo(clone: Path) -> None:
    """The report of the demo that the README ran, and the same demo again, which has nothing left to do."""
    report = json.loads((clone / "runs/demo/report.json").read_text())
    assert set(report["systems"]) == {"sentence", "lasformer"}
    for system in report["systems"].values():
        assert system["documents"] and 0 <= system["d_bleu"] <= 100
        assert "all" in system["accuracy"] and system["by_distance"]
    assert report["systems"]["sentence"]["kappa"] == 1.0 and report["systems"]["lasformer"]["kappa"] < 1.0
    assert report["systems"]["lasformer"]["kappa_by_module"]["decoder"] is None
    again = execute(f".venv/bin/python examples/demo.py --documents 14 {DEMO}", clone)
    assert "already done" in again.stderr and "kappa, cross" in again.stdout and "seconds:" in again.stdout
    assert json.loads((clone / "runs/demo/report.json").read_text())["systems"] == report["systems"]
    measured = json.loads((clone / "runs/bench/compact.json").read_text())["rows"]
    figures = {(row["system"], row["metric"]): row["value"] for row in measured}
    paper = json.loads((clone / "runs/demo_paper/report.json").read_text())
    assert figures["lasformer", "d-BLEU"] == paper["systems"]["lasformer"]["d_bleu"]
    assert all(row["value"] > 0 for row in measured if row["compared"]) and len(figures) == 12
    demo = clone / "runs/demo"
    call = ".venv/bin/lasformer info runs/demo/lasformer/checkpoint_last.pt --lengths 512,1024 --json cost.json"
    assert "all" in execute(call, clone).stdout
    rows = json.loads((clone / "cost.json").read_text())["rows"]
    assert {row["module"] for row in rows} == {"encoder", "decoder", "cross", "all", "model"}
    assert all(0 < row["ratio"] <= 1.2 for row in rows)
    files = f"{demo}/raw/test.de {demo}/sentence.de {demo}/lasformer.de"
    assert "lasformer" in execute(f"scripts/score.sh {files} --json scores.json", clone).stdout
    scores = json.loads((clone / "scores.json").read_text())["systems"]
    assert scores["lasformer"]["d_bleu"] == report["systems"]["lasformer"]["d_bleu"]


def check_options(command: str, capsys: pytest.CaptureFixture) -> None:
    """Every option of a command that is named must be one of it."""
    words = command.split()[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    assert name in COMMANDS, command
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    known = capsys.readouterr().out
    for option in re.findall(r"(?<!\S)--[a-z][\w-]*", command.split(" -- ")[0]):
        assert option in known or option in name.split(), command


@pytest.mark.parametrize("page", PAGES)
def test_options_named_in_running_text_exist(page, capsys):
    """Commands within a sentence."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
    spans = [" ".join(s.split()) for s in re.findall(r"`([^`]+)`", text)]
    commands = [s for s in spans if s.startswith("lasformer ")]
    assert commands or page != "README.md"
    for command in commands:
        check_options(command, capsys)


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_that_are_not_run_exist(page, capsys):
    """Commands in blocks of text: too large to run, or not for this machine; they may go on in the next line."""
    for block in blocks(page, "text"):
        for command in re.findall(r"^(?:\.venv/bin/)?lasformer (?:\\\n|.)*$", block, re.M):
            check_options(command.replace("\\\n", " ").split("#")[0], capsys)


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {t for page in PAGES for t in re.findall(r"`make ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"))}
    assert named and named <= targets


def test_the_readme_begins_with_the_two_commands_of_a_fresh_machine():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120 and len(text.split()) <= 900
    first = [line.split("#")[0].strip() for line in blocks("README.md", "bash")[0].splitlines()]
    assert first[1:] == ["make demo", "make test"] and first[0].startswith("git clone ")
