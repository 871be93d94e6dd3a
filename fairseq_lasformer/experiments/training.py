"""Runs fairseq-hydra-train on a configuration file, its output in a log, its progress in a bar."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tqdm import tqdm

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.processes import start


def read_config(path: Path) -> Any:
    """A configuration, composed of the groups that it names; ``${oc.env:PWD}`` in it is the working directory.

    Raises:
        InputError: no such file, or no configuration of a training.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such configuration")
    try:
        with _working_directory():
            cfg = OmegaConf.create(OmegaConf.to_container(composed(path), resolve=True))
        str(cfg.task.data), str(cfg.checkpoint.save_dir), int(cfg.optimization.max_update)
    except Exception as e:  # YAML's, Hydra's and OmegaConf's own errors have no common class
        raise InputError(f"{path}: not the configuration of a training ({str(e).splitlines()[0]})") from e
    return cfg


def composed(path: Path) -> Any:
    """A configuration, composed of the groups that it names, its interpolations as they stand."""
    # Hydra keeps the version for the whole process, and fairseq's code is of this one
    with initialize_config_dir(str(path.resolve().parent), version_base="1.1"):
        return compose(path.stem)


@contextmanager
def _working_directory() -> Iterator[None]:
    """``$PWD`` as it is: ``os.chdir`` leaves it behind."""
    with mock.patch.dict(os.environ, PWD=os.getcwd()):
        yield


def override(key: str, value: object) -> str:
    """One of Hydra's overrides, quoted so that its grammar takes every value as it is: paths hold what they like."""
    quoted = re.sub(r"(\\*)'", r"\1\1\'", str(value))
    quoted = re.sub(r"(\\+)$", r"\1\1", quoted).replace("${", "\\${")
    return f"{key}='{quoted}'"


def train(config: Path, overrides: Sequence[str], log: Path, what: str) -> None:
    """Trains as ``config`` says, from its last checkpoint if there is one.

    Args:
        overrides: Hydra's, such as ``optimization.max_update=50``; see :func:`override`. log: is continued.
            what: is being trained, for the progress bar.

    Raises:
        InputError: the training failed; what its log says is quoted.
    """
    named = [o.lstrip("+").split("=", 1) for o in overrides]
    total = int(next((v for k, v in reversed(named) if k == "optimization.max_update"), 0))
    total = total or int(read_config(config).optimization.max_update)
    command = [str(Path(sys.executable).with_name("fairseq-hydra-train")), "--config-dir", str(config.resolve().parent)]
    own = [override("common.user_dir", Path(__file__).parents[1])]
    command += ["--config-name", config.stem, *own, *overrides]
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, "a", encoding="utf-8") as file,
        tqdm(total=total, desc=f"training {what}", unit=" updates") as bar,
        start(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PWD": os.getcwd()}
        ) as process,
    ):
        last = reason = ""
        for line in process.stdout or ():
            file.write(line)
            last = line.strip() or last
            if last.startswith(("error: ", "Could not ", "Key '", "Error merging override")):
                reason = reason or last.removeprefix("error: ")  # what follows are hints, or other workers' last words
            if '"num_updates"' in line and '"update"' in line:
                fields = json.loads(line[line.index("{") :])
                bar.update(int(fields["num_updates"]) - bar.n)
                bar.set_postfix(nll=fields["nll_loss"], kappa=fields.get("kappa", "-"), refresh=False)
    if process.returncode:
        raise InputError(f"training {what} failed; see {log}: {reason or last}")
