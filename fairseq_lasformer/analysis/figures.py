"""Charts of the report page: training curves, cost by length, scores by position.

A run has one colour in all charts; its lines differ in their dashes. The page draws titles and legends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairseq_lasformer.analysis.cost import of_ours, state_cost
from fairseq_lasformer.analysis.runs import Run
from fairseq_lasformer.checkpoints.loading import load

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
# legible on white and on black, and distinguishable for the colour-blind
COLOURS = ("#2a9d8f", "#e07a3f", "#7b78d8", "#d4568b", "#8a9a2f", "#3f8fd0", "#b07d4a", "#8d8d95")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MODULES = ("encoder", "decoder", "cross")


class Chart(NamedTuple):
    """One chart.

    Attributes:
        note: what a reader has to know; may be empty.
        figure: Plotly's figure, without the colours of text and background, which the page sets.
    """

    title: str
    note: str
    figure: Any


@dataclass(frozen=True)
class _Curve:
    title: str
    key: str  # its name in the log; the prefix, if there is one name for each group of layers
    unit: str
    note: str
    by_group: bool = False


CURVES = (
    _Curve("Loss", "nll_loss", "bits per token", "Negative log likelihood; lower is better."),
    _Curve(
        "Selection loss",
        "selection_kl",
        "bits per query",
        "KL divergence between the full attention and the selector's, which learns from it.",
    ),
    _Curve("Keys kept (κ)", "kappa", "% of the keys", "By attention module; every query keeps this share.", True),
    _Curve(
        "Attention on the kept keys",
        "mass",
        "% of the attention",
        "How much of the full attention falls on the kept keys; above the threshold, κ shrinks.",
        True,
    ),
    _Curve("Load of the experts", "moe_load_max_over_mean", "ratio", "Highest load of an expert relative to the mean."),
)


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Return all charts for which the runs have data."""
    made: Iterable[Chart | None] = (
        *(curve(runs, which) for which in CURVES),
        cost_chart(runs),
        distance_chart(runs),
        *(
            place_chart(runs, key, title)
            for key, title in (
                ("by_length", "d-BLEU by length of the document"),
                ("by_position", "d-BLEU by quarter of the document"),
            )
        ),
    )
    return [chart for chart in made if chart is not None and chart.figure.data]


def _figure(x: str, y: str) -> Any:
    import plotly.graph_objects as go

    axis = {"automargin": True, "title": {"standoff": 8}}
    figure = go.Figure(layout={"template": "none", "hovermode": "x unified", "showlegend": False})
    figure.update_layout(margin={"l": 10, "r": 14, "t": 28, "b": 10}, xaxis=axis, yaxis=axis, bargap=0.25)
    figure.update_layout(xaxis_title_text=x, yaxis_title_text=y)
    return figure


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _name(runs: Sequence[Run], run: Run, what: str) -> str:
    """Return the name of a line; the run's name is left out if there is only one run."""
    return what if len(runs) == 1 and what else f"{run.name}, {what}" if what else run.name


def curve(runs: Sequence[Run], which: _Curve) -> Chart:
    """Plot one value over updates: thin in training, with markers in validation, or a line per module and group."""
    figure = _figure("updates", which.unit)
    for i, run in enumerate(runs):
        if which.by_group:
            _groups(figure, run, which, _colour(i), runs)
            continue
        for kind, what in (("train_inner", "training"), ("valid", "validation")):
            points = [(line["num_updates"], line[which.key]) for line in run.log.get(kind, []) if which.key in line]
            validation = kind == "valid"
            line = {"color": _colour(i), "width": 2.4 if validation else 1.2}
            mode = "lines+markers" if validation else "lines"
            _add(figure, points, _name(runs, run, what), mode=mode, line=line, opacity=1 if validation else 0.6)
    figure.update_yaxes(**({"range": [0, 104]} if which.by_group else {"rangemode": "tozero"}))
    return Chart(which.title, which.note, figure)


def _add(figure: Any, points: Sequence[tuple[float, float]], name: str, **style: Any) -> None:
    if points:
        x, y = zip(*points)
        figure.add_scatter(x=list(x), y=list(y), name=name, **style)


def _groups(figure: Any, run: Run, which: _Curve, colour: str, runs: Sequence[Run]) -> None:
    """Add a line for each module, and for each group of layers in it, of the shares seen in training."""
    lines = run.log.get("train_inner", [])
    for module, dash in zip(MODULES, DASHES):
        groups = sorted(
            {
                int(name.rpartition("_")[2])
                for line in lines
                for name in line
                if name.startswith(f"{which.key}_{module}_")
            }
        )
        for group in groups:
            name = f"{which.key}_{module}_{group}"
            points = [(line["num_updates"], 100 * line[name]) for line in lines if name in line]
            what = f"{module}, group {group + 1}" if len(groups) > 1 else module
            style = {"color": colour, "dash": dash, "width": max(1.0, 2.2 - 0.4 * group)}
            _add(figure, points, _name(runs, run, what), mode="lines", line=style)


def cost_chart(runs: Sequence[Run]) -> Chart:
    """Plot attention's cost relative to the dense Transformer, by length, at the kappa reached (paper's figure 2)."""
    figure = _figure("tokens", "cost relative to dense, %")
    for i, run in enumerate(runs):
        if run.checkpoint is None:
            continue
        state = load(run.checkpoint)
        if not of_ours(state):
            continue  # fairseq's own architectures: their cost is 100 % by definition
        costs = [c for c in state_cost(state, LENGTHS) if c.module == "all"]
        for label, ratio, dash in (
            ("attention", "ratio", "solid"),
            ("with Q, K, V", "ratio_with_projections", "dot"),
        ):
            figure.add_scatter(
                x=[c.length for c in costs], y=[100 * getattr(c, ratio) for c in costs],
                name=_name(runs, run, label), mode="lines+markers", line={"color": _colour(i), "dash": dash},
            )  # fmt: skip
    figure.update_xaxes(type="log", tickvals=list(LENGTHS), ticktext=[f"{n:,}" for n in LENGTHS])
    figure.update_yaxes(rangemode="tozero")
    note = "Multiply-accumulates at the κ reached; with Q, K, V: including the projections, as in the paper."
    return Chart("Cost of attention by length", note, figure)


def _bars(runs: Sequence[Run], y: str, places: Callable[[Run], dict[str, tuple[float, str]]], x: str = "") -> Any:
    figure = _figure(x, y)
    for i, run in enumerate(runs):
        found = places(run)
        if found:
            values, labels = zip(*found.values())
            figure.add_bar(
                x=list(found), y=list(values), name=run.name, customdata=list(labels), marker={"color": _colour(i)},
                hovertemplate="%{y:.1f} (%{customdata})",
            )  # fmt: skip
    return figure


def distance_chart(runs: Sequence[Run]) -> Chart:
    """Plot accuracy on context-dependent words, by distance of the deciding word (the demo's probe)."""

    def places(run: Run) -> dict[str, tuple[float, str]]:
        counts = run.scores.get("counts", {})
        shares = run.scores.get("by_distance", {})
        return {k: (100 * v, f"n = {counts.get(k, '?')}") for k, v in shares.items() if v is not None}

    figure = _bars(runs, "% right", places, "distance of the deciding word, tokens")
    figure.update_yaxes(range=[0, 104])
    figure.update_xaxes(type="category")
    return Chart("Words that need context, by distance", "Distance of a word from the word that decides it.", figure)


def place_chart(runs: Sequence[Run], key: str, title: str) -> Chart:
    """Plot d-BLEU by length of the document or by quarter (``lasformer score --by-length --by-position``)."""

    def places(run: Run) -> dict[str, tuple[float, str]]:
        found = run.scores.get(key, {})
        return {k: (s["d_bleu"], f"chrF {s['chrf']:.1f}, {s['documents']} documents") for k, s in found.items()}

    return Chart(title, "", _bars(runs, "d-BLEU", places))
