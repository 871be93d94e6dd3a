"""Settings allowed in a checkpoint: plain values, and nothing that fairseq or omegaconf would run.

A checkpoint is data from a stranger. fairseq evaluates some settings as Python, omegaconf resolves ``${…}``, and hydra
builds whatever architecture and task the settings name. So allowed settings are listed here; all others are refused.
"""

import ast
import re
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import GenerationConfig
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import State

SCALARS = (type(None), bool, int, float, str)
CONTAINERS = (list, tuple, dict, Namespace)

# Read by fairseq with eval or literal_eval: (0.9, 0.98), "1000,5000", {}, True
EVALUATED = frozenset(
    [
        *("adam_betas", "adamax_betas", "adafactor_eps", "lamb_betas", "wer_args"),
        *("adaptive_softmax_cutoff", "adaptive_input_cutoff", "character_filters"),
        *("encoder_xformers_att_config", "decoder_xformers_att_config", "left_pad_source", "left_pad_target"),
        *("pipeline_balance", "pipeline_encoder_balance", "pipeline_decoder_balance"),
        *("pipeline_devices", "pipeline_encoder_devices", "pipeline_decoder_devices"),
    ]
)
# Never evaluated, and a folder may legitimately be named "model (1)".
PATHS = frozenset(
    {
        "data",
        "save_dir",
        "user_dir",
        "restore_file",
        "finetune_from_model",
        "distil_from",
        "tensorboard_logdir",
        "log_file",
        "path",
    }
)
ARCHITECTURES = re.compile(r"(lasformer|transformer)(_\w+)?")
FOREIGN = ("pretrained", "pipeline")  # transformer_from_pretrained_xlm and the like read files that the settings name
TASKS = frozenset({"document_translation", "translation", "language_modeling"})

# In a setting that is read as a word, but parses as Python: calls, and expressions of unbounded time or memory.
_FORBIDDEN = (
    ast.Call, ast.Lambda, ast.NamedExpr, ast.JoinedStr, ast.Await, ast.Yield, ast.YieldFrom,
    ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Mult, ast.Pow, ast.LShift, ast.Mod,
)  # fmt: skip
_LONGEST, _DEEPEST, _MOST = 10_000, 20, 100_000  # characters of a string; nesting; values
_OTHERS = re.compile(r"\w*embed_path|load_pretrained_\w+|pretrained_\w+|\w+_from_pretrained\w*")
"""Settings that name files which fairseq reads while it builds a model; the weights are in the checkpoint itself."""


def check_settings(state: State, path: str | Path) -> None:
    """Reject a checkpoint whose settings are not plain values, or whose model or task is neither ours nor fairseq's.

    Args:
        state: the loaded checkpoint, not yet seen by fairseq.
        path: where it comes from, for the message.
    """
    for part, expected in (("cfg", dict), ("args", Namespace)):
        if type(state.get(part)) not in (type(None), expected):
            raise InputError(f"{path}: refused, its settings are of type {type(state[part]).__name__}")
    for part in ("cfg", "args"):
        for number, (name, value) in enumerate(_values(state.get(part), part)):
            if problem := "too many settings" if number > _MOST else _problem(name, value):
                raise InputError(f"{path}: refused, {problem}")
    typed = OmegaConf.structured(GenerationConfig)
    for name, value in (item for settings in settings_of(state, "generation") for item in settings.items()):
        if name not in typed or (value is False and typed[name] is None):  # print_alignment was a switch once
            continue
        try:
            setattr(typed, name, value)
        except ValidationError:
            raise InputError(
                f"{path}: refused, its setting generation.{name} is {str(value)[:60]!r}, which is no value of "
                f"fairseq-generate's --{name.replace('_', '-')}"
            ) from None
    for kind, name in _named(state):
        if not isinstance(name, str) or not _known(kind, name):
            raise InputError(
                f"{path}: refused, its {kind} {str(name)[:60]!r} is neither this project's nor fairseq's transformer"
            )


def settings_of(state: State, part: str) -> list[dict[str, Any]]:
    """Return the settings of a checkpoint's model, task or generation, from ``cfg`` and from ``args``."""
    parts = [(state.get("cfg") or {}).get(part), state.get("args")]
    values = [vars(part) if isinstance(part, Namespace) else part for part in parts]
    return [settings for settings in values if isinstance(settings, dict)]


def drop_other_files(state: State) -> None:
    """Forget which other files were read when a model was first built; reading them again would change nothing.

    Also that a translation was once prescribed: ``score_reference`` belongs to a command.
    """
    for settings in settings_of(state, "model"):
        settings.update({name: None for name in settings if _OTHERS.fullmatch(str(name))})
    for settings in settings_of(state, "generation"):
        if "score_reference" in settings:
            settings["score_reference"] = False


FORMER = ("select_window", "moe_every", "moe_backend", "supervise_all_above", "no_align_sentences")
"""Settings of version 0.2 that later versions do not have, and would read otherwise."""


def check_version(state: State, path: str | Path) -> None:
    """Reject a checkpoint of an earlier version: settings of 0.2 have other names, own lines had gates, and positions
    were apart from them."""
    if any(str(name).endswith(".line_gate") for name in state["model"]):
        raise InputError(
            f"{path}: its own lines have gates, as those of version 0.3.0.dev0; use it with commit 2ee9ace"
        )
    for settings in settings_of(state, "model"):
        if "positions" in settings and (settings["positions"] == "line") != bool(settings.get("own_lines")):
            raise InputError(f"{path}: positions or attention alone go by lines; use it with commit c451627")
    for name in FORMER:
        if any(name in settings for part in ("model", "task") for settings in settings_of(state, part)):
            raise InputError(f"{path}: of version 0.2 of this package (it sets {name}); use it with that version")


def _problem(name: str, value: object) -> str:
    """Return what is wrong with one setting; empty if nothing is."""
    if type(value) not in SCALARS:
        return f"its setting {name} is of type {type(value).__name__}; settings are numbers and words"
    last = re.sub(r"[\[\]\d]+$", "", name).rpartition(".")[2]
    if isinstance(value, str):
        path_like = last in PATHS
        literal = _is_literal if last in EVALUATED else _is_word
        if "${" in value or len(value) > _LONGEST or (not path_like and not literal(value)):
            return f"its setting {name} contains code: {value[:60]!r}; a checkpoint's settings are numbers and words"
    return ""


def _values(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every value in nested settings that is not a container, and every key, as (path, value)."""
    kind = type(value)
    if kind not in CONTAINERS:
        yield name, value
        return
    if depth == _DEEPEST:
        yield name, object()  # of a type that is refused; a pickle may contain itself
        return
    if kind is Namespace:
        value, kind = vars(value), dict
    if kind is dict:
        for key, item in value.items():
            yield f"{name} (a key)", key
            yield from _values(item, f"{name}.{key if type(key) in SCALARS else '?'}", depth + 1)
    else:
        for i, item in enumerate(value):
            yield from _values(item, f"{name}[{i}]", depth + 1)


def _is_literal(text: str) -> bool:
    """Return whether evaluating it gives a number, a word, or lists and tables of those."""
    if not text.strip():
        return True
    try:
        ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_word(text: str) -> bool:
    """Return whether evaluating it would fail, or do nothing worth mentioning."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True  # eval would fail as well
    except (MemoryError, RecursionError):
        return False
    return not any(isinstance(node, _FORBIDDEN) for node in ast.walk(tree))


def _named(state: State) -> Iterator[tuple[str, Any]]:
    """Yield the architectures and tasks that fairseq would look up, as ("architecture" or "task", name)."""
    cfg, args = state.get("cfg"), state.get("args")
    if type(cfg) is dict:
        for kind, names in (("architecture", ("_name", "arch")), ("task", ("_name", "task"))):
            part = cfg.get("model" if kind == "architecture" else kind)
            settings = vars(part) if type(part) is Namespace else part
            if settings is None:
                continue
            # without a name, fairseq takes the only key of the settings for one
            tables = [settings[name] for name in names if settings.get(name)] if type(settings) is dict else []
            for name in tables or [next(iter(settings), "") if type(settings) is dict else settings]:
                yield kind, name
    if type(args) is Namespace:
        yield "architecture", getattr(args, "arch", "")
        yield "task", getattr(args, "task", "translation")


def _known(kind: str, name: str) -> bool:
    if kind == "task":
        return name in TASKS
    registry: Any = getattr(sys.modules.get("fairseq.models"), "ARCH_MODEL_NAME_REGISTRY", {})
    model = registry.get(name, name)  # for an architecture that a user has registered, its model
    return ARCHITECTURES.fullmatch(model) is not None and not any(word in model for word in FOREIGN)
