"""Runs of fairseq-hydra-train on a configuration file, with output in a log file and a progress bar."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from fairseq_lasformer.analysis.runs import started
from fairseq_lasformer.base.errors import InputError, Interrupted
from fairseq_lasformer.base.machine import machine, start
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.experiments.yaml_file import read_yaml, words


def read_config(path: Path) -> DictConfig:
    """Read a configuration, composed of the groups that it names and with all interpolations resolved.

    ``${oc.env:PWD}`` is the working directory.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such configuration")
    try:
        with _working_directory():
            cfg = DictConfig(OmegaConf.to_container(composed(path), resolve=True))
        str(cfg.task.data), str(cfg.checkpoint.save_dir), int(cfg.optimization.max_update)
    except Exception as e:  # YAML's, Hydra's and OmegaConf's own errors have no common class
        raise InputError(f"{path}: not a training configuration ({str(e).splitlines()[0]})") from e
    return cfg


def composed(path: Path, overrides: Sequence[str] = ()) -> DictConfig:
    """Compose a configuration from the groups that it names, with interpolations left unresolved."""
    # Hydra's version base is global to the process, and fairseq's code expects this one
    with initialize_config_dir(str(path.resolve().parent), version_base="1.1"):
        return compose(path.stem, overrides=list(overrides))


def systems_of(config: Path) -> dict[str, tuple[str, ...]]:
    """Return the systems of a configuration, each with the Hydra overrides by which it differs from ``lasformer``."""
    path = config.with_name("systems.yaml")
    others = read_yaml(path).get(config.stem, {}) if path.is_file() else {}
    if not isinstance(others, dict):
        raise InputError(f"{path}: {config.stem}: expected names, each with a list of overrides")
    return {"lasformer": ()} | {str(name): words(path, f"{config.stem}.{name}", of) for name, of in others.items()}


@contextmanager
def _working_directory() -> Iterator[None]:
    """Set ``$PWD`` to the actual working directory, as ``os.chdir`` does not update it."""
    with mock.patch.dict(os.environ, PWD=os.getcwd()):
        yield


def override(key: str, value: object) -> str:
    """Return a Hydra override, quoted so that any value is taken literally; paths may contain special characters."""
    quoted = re.sub(r"(\\*)'", r"\1\1\'", str(value))
    quoted = re.sub(r"(\\+)$", r"\1\1", quoted).replace("${", "\\${")
    return f"{key}='{quoted}'"


def train(config: Path, overrides: Sequence[str], log: Path, what: str) -> None:
    """Train with the given configuration, resuming from its last checkpoint if there is one.

    Args:
        overrides: Hydra overrides, such as ``optimization.max_update=50``; see :func:`override`.
        log: log file; output is appended.
        what: name of the system, for the progress bar.
    """
    named = [o.lstrip("+").split("=", 1) for o in overrides]
    total = int(next((v for k, v in reversed(named) if k == "optimization.max_update"), 0))
    total = total or int(read_config(config).optimization.max_update)
    command = [str(Path(sys.executable).with_name("fairseq-hydra-train")), "--config-dir", str(config.resolve().parent)]
    plugin = [override("common.user_dir", Path(__file__).parents[1])]
    command += ["--config-name", config.stem, *plugin, *overrides]
    follow(command, log, total, what)


def follow(command: Sequence[str], log: Path, total: int, what: str) -> None:
    """Run fairseq-train or fairseq-hydra-train with JSON log lines, and show its progress.

    Args:
        log: log file; output is appended, after a line that says what runs where.
        total: number of updates.
        what: name of the system, for the progress bar.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, "a", encoding="utf-8", buffering=1) as file,  # by line: output up to a kill is also logged
        progress_bar(total=total, desc=f"training {what}", unit=" updates") as bar,
        start(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PWD": os.getcwd()}
        ) as process,
    ):
        file.write(started(command, machine()))
        reader = _Reader(bar, total)
        interrupted = 0
        while True:
            try:
                for line in process.stdout or ():
                    file.write(line)
                    reader.read(line)
                break
            except KeyboardInterrupt:
                interrupted += 1
                if interrupted > 1:
                    process.kill()
                    continue
                process.send_signal(signal.SIGINT)  # already received, unless only this process was signalled
                bar.write("interrupted: saving after this update; press Ctrl-C again to stop at once", file=sys.stderr)
    if interrupted:
        saved = f"saved after {reader.saved} updates" if reader.saved else f"nothing was saved since {_latest(log)}"
        raise Interrupted(f"training {what} was interrupted: {saved}; the same command resumes it")
    if process.returncode:
        reason = reader.reason or reader.last
        if process.returncode < 0:  # by whatever ran short, most often memory
            reason = f"ended by {signal.Signals(-process.returncode).name}; the same command resumes it"
        raise InputError(f"training {what} failed; see {log}: {reason}")


def _latest(log: Path) -> str:
    """Return the last checkpoint next to a log, in words."""
    last = log.parent / "checkpoint_last.pt"
    return f"{last}" if last.exists() else "the beginning"


class _Reader:
    """Reader of a training's output: for the bar, for the user, and for the reason of a failure.

    Args:
        total: number of updates.
    """

    def __init__(self, bar: tqdm, total: int) -> None:
        self.bar, self.total = bar, total
        self.last = self.reason = self.saved = ""
        self.begun = False
        self.parameters = 0
        self.batches = 1
        self.shown: dict[str, Any] = {}

    def read(self, line: str) -> None:
        """Process a line."""
        bar, last = self.bar, line.strip()
        self.last = last or self.last
        if last.startswith(("error: ", "Could not ", "Key '", "Error merging override")):
            self.reason = self.reason or last.removeprefix("error: ")  # later lines are hints, or from other workers
        if '"num_updates"' in line and '"update"' in line:
            fields = json.loads(line[line.index("{") :])
            if not self.begun:  # time is counted from here: not that of starting, compiling and updates before a resume
                self.begun = True
                bar.initial, bar.start_t = int(fields["num_updates"]), time.time()
                bar.last_print_t = bar.start_t  # otherwise, tqdm takes it for a bar that was never shown
            bar.update(int(fields["num_updates"]) - bar.n)
            self.shown |= {"nll": fields["nll_loss"], "kappa": fields.get("kappa", "-")}
            bar.set_postfix(self.shown, refresh=False)
        elif '"valid_nll_loss"' in line:
            fields = json.loads(line[line.index("{") :])
            self.shown["valid"] = fields["valid_nll_loss"]
            bar.update(max(0, int(fields["valid_num_updates"]) - bar.n))
        elif (match := re.search(r"[Ll]oaded checkpoint .* @ (\d+) updates", line)) and int(match[1]):
            bar.write(f"resumed at update {int(match[1]):,}", file=sys.stderr)
        elif match := re.search(r"num\. (?:shared )?model params: ([\d,]+)", line):
            self.parameters = max(self.parameters, int(match[1].replace(",", "")))
        elif match := re.search(r"'update_freq': \[(\d+)", line):
            self.batches = int(match[1])
        elif match := re.search(r"first batch: ([\d.]+) seconds", line):
            bar.write(estimate(self.parameters, float(match[1]), self.batches, self.total), file=sys.stderr)
        elif match := re.match(r"interrupted: saved after (\d+) updates", line):
            self.saved = match[1]


def estimate(parameters: int, seconds: float, batches: int, updates: int) -> str:
    """Return an estimate of how long a training will take, in words.

    Args:
        seconds: duration of its first batch, which is as slow as any: kappa falls later.
        batches: batches per update.
        updates: number of updates.
    """
    minutes = seconds * batches * updates / 60
    days = minutes / 1440
    duration = f"{minutes:.0f} minutes"
    if days > 2:
        duration = f"{days:.0f} days"
    elif minutes > 120:
        duration = f"{minutes / 60:.1f} hours"
    what = f"{parameters / 1e6:.1f} million parameters; the first batch took {seconds:.1f} s"
    estimated = f"{what}: {updates:,} updates of {batches} would take {duration} at most"
    if days > 1:
        estimated += (
            "; smaller: --arch lasformer_small or lasformer_tiny, --max-update, --update-freq, or --small-corpus"
        )
    return estimated
