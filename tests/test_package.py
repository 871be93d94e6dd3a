"""Import of the package: nothing changes, little is loaded, and the public names are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from helpers import ROOT, run_python
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fairseq_lasformer


@pytest.mark.command
def test_threads_wait_briefly_unless_the_user_has_chosen():
    ask = "import os; from fairseq_lasformer.plugin import register; register(); "
    ask += "print(os.environ.get('GOMP_SPINCOUNT'), os.environ.get('OMP_WAIT_POLICY'))"
    assert run_python(ask) == "5000 None"
    ask = ask.replace("plugin import register; register()", "base.machine import wait_briefly; wait_briefly()")
    assert run_python(ask, OMP_WAIT_POLICY="ACTIVE") == "None ACTIVE"
    assert run_python(ask, GOMP_SPINCOUNT="7") == "7 None"
    # torch reads it when it is loaded: afterwards it would only mislead
    assert run_python("import torch; " + ask) == "None None"


@pytest.mark.parametrize("missing", ["torch", "fairseq"])
def test_without_torch_or_fairseq_one_line_says_what_to_install(tmp_path, missing):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})")
    program = Path(sys.executable).with_name("lasformer")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([program, "info", "model.pt"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith(f"error: fairseq_lasformer needs {missing}") and "scripts/setup.sh" in done.stderr


@pytest.mark.command
def test_the_wheel_holds_all_files_and_decodes_without_a_compiler(trained_folder, tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    with_kernels = os.environ | {"LASFORMER_WHEEL": "1"}
    subprocess.run([*pip, str(source)], check=True, capture_output=True, env=with_kernels)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    ends = ["configs/demo.yaml", "scripts/train.sh", "examples/demo.py", "data/demo/generate.py", "LICENSE"]
    package = [str(p.relative_to(ROOT)) for p in (ROOT / "fairseq_lasformer").rglob("*") if p.is_file()]
    ends += [name for name in package if "__pycache__" not in name and not name.endswith(".so")]
    assert len(ends) > 100 and [end for end in ends if not any(name.endswith(end) for name in names)] == []
    unpacked, cache, tools = tmp_path / "unpacked", tmp_path / "cache", tmp_path / "bin"
    zipfile.ZipFile(wheel).extractall(unpacked)
    tools.mkdir()
    environment = {"PATH": str(tools), "PYTHONPATH": str(unpacked), "TORCH_EXTENSIONS_DIR": str(cache)}
    code = "import runpy, sys; from fairseq_lasformer.ops import cpu; "
    code += "print(cpu.__file__, cpu.instruction_sets() != [], file=sys.stderr); "
    code += "runpy.run_module('fairseq_lasformer', run_name='__main__')"
    translate = [sys.executable, "-c", code, "translate", str(trained_folder)]
    done = subprocess.run(translate, input="w1 w2\n", env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr
    assert f"{unpacked}/fairseq_lasformer/ops/cpu/__init__.py True" in done.stderr and not cache.exists()


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


BLOCKED = "import sys; sys.modules['torch'] = sys.modules['fairseq'] = None; "


@pytest.mark.parametrize(
    "name", ["text.documents", "data.prepare", "data.corpora.recipes", "evaluation.scores", "cli.main"]
)
def test_text_needs_no_torch(name):
    done = python(f"{BLOCKED}import fairseq_lasformer.{name}")
    assert done.returncode == 0, done.stderr


@pytest.mark.command
def test_importing_changes_nothing():
    code = """
import os, sys
hook, environment = sys.excepthook, dict(os.environ)
import fairseq_lasformer
assert sys.excepthook is hook and dict(os.environ) == environment
assert not {"torch", "fairseq"} & sys.modules.keys()
from fairseq import checkpoint_utils, file_io
functions = checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.save_checkpoint, file_io.PathManager.copy
from fairseq_lasformer import LasformerModel, SelectedAttention, Selector, ops
assert functions == (
    checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.save_checkpoint, file_io.PathManager.copy
)
assert sys.excepthook is hook
from fairseq_lasformer.plugin import register
register()
assert checkpoint_utils.load_checkpoint_to_cpu is not functions[0] and sys.excepthook is hook
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.command
def test_a_users_script_sees_its_own_tracebacks(tmp_path):
    script = f"""
import sys
from argparse import Namespace
from fairseq.utils import import_user_module
import_user_module(Namespace(user_dir={str(ROOT / "fairseq_lasformer")!r}))
from fairseq.tasks import TASK_REGISTRY
assert "document_translation" in TASK_REGISTRY
from fairseq_lasformer.base.errors import InputError
raise InputError("mine")
"""
    done = python(script)
    assert "Traceback" in done.stderr and done.stderr.strip().endswith("InputError: mine")


def test_public_names_are_all_there():
    for name in fairseq_lasformer.__all__:
        assert getattr(fairseq_lasformer, name) is not None
    assert set(fairseq_lasformer.__all__) <= set(dir(fairseq_lasformer))
    with pytest.raises(AttributeError, match="no attribute 'Transformer'"):
        fairseq_lasformer.Transformer  # noqa: B018
    assert (ROOT / "fairseq_lasformer/py.typed").exists()


def test_help_does_not_wait_for_torch():
    """A person waits half a second at most; here, modules are counted, as a busy machine's clock proves little."""
    code = (
        "import sys; sys.argv = ['lasformer', '--help']\ntry:\n    from fairseq_lasformer.cli.main import run; run()\n"
    )
    code += "except SystemExit:\n    print(sorted({'torch', 'fairseq', 'numpy', 'sacrebleu'} & sys.modules.keys()))"
    assert python(code).stdout.splitlines()[-1] == "[]"


def test_torch_is_not_needed_to_be_told_that_it_is_missing(tmp_path):
    code = f"{BLOCKED}from fairseq_lasformer.plugin import register\nregister()"
    last = python(code).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: fairseq_lasformer needs ") and "scripts/setup.sh" in last


def test_what_is_installed_is_listed_with_hashes():
    """constraints.txt (make lock) fits setup.py: every requirement is there, in a version that it allows."""
    listed = {}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    for entry in re.split(r"\n(?=\S)", "\n".join(lines)):
        found = re.match(r"([A-Za-z0-9._-]+)==(\S+) ", entry)
        assert found and "--hash=sha256:" in entry, entry[:80]
        listed[canonicalize_name(found[1])] = found[2]
    told = metadata.requires("fairseq_lasformer") or []
    wanted = [Requirement(text.partition(";")[0]) for text in told if "bench" not in text]
    assert len(wanted) > 30
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        assert name in listed and requirement.specifier.contains(listed[name]), f"{requirement}: run make lock"
    fairseq = (ROOT / "constraints-fairseq.txt").read_text()
    assert "fairseq-fixed==0.12.3.1" in fairseq and fairseq.count("--hash=sha256:") == 2


@pytest.mark.command
def test_fairseq_is_imported_without_side_effects_and_without_what_only_other_tasks_call():
    code = """
import logging, sys
from fairseq_lasformer import LasformerModel, from_pretrained
from fairseq_lasformer.documents.hub import load_model
assert logging.root.level == logging.WARNING and not logging.root.handlers
assert not [name for name in sys.modules if name.partition(".")[0] in ("sklearn", "pandas")]
from fairseq.criterions import sentence_prediction
from fairseq.tasks import audio_classification
assert sentence_prediction.f1_score([0, 1, 1], [0, 1, 0]) == 2 / 3
assert abs(sentence_prediction.pearsonr([1, 2, 3], [2, 4, 7]).statistic - 0.9934) < 1e-3
assert audio_classification.sklearn_metrics.roc_curve([0, 1], [0.2, 0.8])[1].tolist() == [0.0, 1.0, 1.0]
import scipy.stats, sklearn.metrics
assert sklearn.metrics.f1_score is not sentence_prediction.f1_score and scipy.stats.__file__
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
