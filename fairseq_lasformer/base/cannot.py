"""Exclusions: options of training and decoding that do not go together, and models that exclude options.

The page of commands shows :data:`CANNOT` as a table. Whoever refuses a combination calls :func:`refuse` with what it
found.
"""

from collections.abc import Mapping

from fairseq_lasformer.base.errors import InputError

MIXTURES = "mixtures of experts"
DELIGHT = "--delight"
FAIRSEQS = "fairseq's models (see lasformer convert)"

_LEAVE_OUT = "leave one of them out"

CANNOT: Mapping[str, Mapping[str, str]] = {
    "--cuda-graph": {
        MIXTURES: "expert sizes are read on the host",
        "an attention that summarises the source": "luna and linformer; leave it out",
        "an attention that keeps a state per hypothesis": "reformer, performer and rfa; leave it out",
    },
    "--reproducible": {
        "several models": "name one of them",
        FAIRSEQS: "convert them",
        "a GPU": "lasformer translate: add --device cpu; fairseq's tools: --cpu",
        "--shortlist": _LEAVE_OUT,
        "--sampling": _LEAVE_OUT,
        "--lm-path": _LEAVE_OUT,
        "--max-len-a": "with aligned lines, the limit is that of the longest text of a batch; use --max-len-b",
    },
    "--shortlist": {
        FAIRSEQS: "convert them",
        "--constraints": _LEAVE_OUT,
        "--lm-path": _LEAVE_OUT,
        "--print-alignment": _LEAVE_OUT,
        "a prescribed translation": _LEAVE_OUT,
    },
    "--align-sentences": {"--match-source-len": "add --align-sentences no"},
    "--expert-parallel": {
        "another --ddp-backend": "use --ddp-backend legacy_ddp",
        "--fp16 that flattens gradients": "add --fp16-no-flatten-grads",
        "--amp": "use --fp16 with --fp16-no-flatten-grads, or --bf16",
        "--store-ema": _LEAVE_OUT,
        "--use-bmuf": _LEAVE_OUT,
        "--zero-sharding": _LEAVE_OUT,
        "--optimizer composite": "use --optimizer expert_adam",
    },
    "--tie-groups": {MIXTURES: "layers differ", DELIGHT: "layers differ"},
    "--fewer-heads": {DELIGHT: "its attention has one head"},
    "--output-bias": {"another --embedding than lookup": _LEAVE_OUT},
    "--position-table": {
        "--encoder-learned-pos": "it applies to sinusoidal positions",
        "--decoder-learned-pos": "it applies to sinusoidal positions",
    },
}
"""By option, what it excludes, and why or what to do instead. Layers that no kernel computes also exclude
``--reproducible``, ``--decode-dtype int8`` and ``--cache-dtype int8``; :class:`nn.decoding.packed_modules.Unsupported`
names them."""


def refuse(option: str, settings: Mapping[str, object]) -> None:
    """Refuse an option beside what it excludes.

    Args:
        option: a key of :data:`CANNOT`, which is in use.
        settings: by name of what it excludes, whether it is there; what is not looked at is left out.

    Raises:
        InputError: names all that is there, each with what :data:`CANNOT` says of it.
    """
    excluded = CANNOT[option]
    if named := [f"{what} ({excluded[what]})" for what, there in settings.items() if there]:
        raise InputError(f"{option}: not with {', '.join(named)}")


def table() -> str:
    """Return :data:`CANNOT` as a Markdown table."""
    rows = [(option, "; ".join(f"{what}: {why}" for what, why in its.items())) for option, its in CANNOT.items()]
    return "\n".join(["| option | not with |", "|---|---|", *(f"| {option} | {its} |" for option, its in rows), ""])
