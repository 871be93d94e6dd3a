"""Functions of fairseq that are replaced when the plugin is registered, a module for each reason."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(holder: Any, name: str, around: Callable[..., Any]) -> None:
    """Let a function of fairseq be called through one of ours. Repeated calls have no effect.

    Args:
        holder: module or class with the function.
        around: called with the original function, then with the arguments.
    """
    original = getattr(holder, name)
    earlier = getattr(original, "_patches", ())
    if around in earlier:
        return

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    patched._patches = (*earlier, around)  # type: ignore[attr-defined]
    setattr(holder, name, patched)


def install(tools: bool) -> None:
    """Install all patches.

    Args:
        tools: whether one of fairseq's own tools is running, rather than a user's script.
    """
    from fairseq_lasformer.plugin.patches import (
        compat,
        diverged,
        expert_parallel,
        short_lines,
        timed_checkpoints,
        tool_options,
    )

    for module in (compat, diverged, expert_parallel, short_lines):
        module.install()
    tool_options.install(tools)
    if tools:
        timed_checkpoints.install()
