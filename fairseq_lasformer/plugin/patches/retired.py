"""Options that no longer exist: fairseq's tools say in one line what to use instead. For one release."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from fairseq import options

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.patches import wrap

RETIRED = {
    "--cuda-graph-tokens": "leave it out; training steps are no longer captured",
    "--cuda-graph-memory": "leave it out; training steps are no longer captured",
    "--attention-length": "leave it out; parts with context do better beyond the training length",
    "--upsample-long": "leave it out; it lost more on usual documents than it won on longer ones",
    "--positions": "leave it out; with --own-lines, positions are counted from the beginning of each line",
    "--quantization-aware": "leave it out; models lost nothing in 8 bits without it",
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
