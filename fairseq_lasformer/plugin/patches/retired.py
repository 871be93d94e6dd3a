"""Options that no longer exist: fairseq's tools say in one line what to use instead. For one release."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from fairseq import options

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.plugin.patches import wrap

RETIRED = {
    "--select-window": "use --select-pattern window:N",
    "--moe-every": "use --moe-layers N or N,M",
    "--moe-backend": "leave it out; the faster way is chosen",
    "--supervise-all-above": "use --supervise-rows N (at every kappa), all, or auto (all above 0.35, then 512)",
    "--no-align-sentences": "use --align-sentences no",
}


def install() -> None:
    """Look for retired options before fairseq's parser does, which would only call them unrecognised."""
    wrap(options, "parse_args_and_arch", _advise)


def _advise(original: Callable[..., Any], parser: Any, input_args: Sequence[str] | None = None, **more: Any) -> Any:
    for word in sys.argv[1:] if input_args is None else input_args:
        name = str(word).partition("=")[0]
        if name in RETIRED:
            raise InputError(f"{name}: no longer exists; {RETIRED[name]}")
    return original(parser, input_args=input_args, **more)
