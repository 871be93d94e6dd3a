"""One self-contained page on training runs: curves, scores, cost against length, accuracy by distance, attention."""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.analysis.attention_view import sparse
from fairseq_lasformer.analysis.cost import checkpoint_cost, of_ours
from fairseq_lasformer.analysis.runs import Run, read_runs
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.metrics import METRICS
from fairseq_lasformer.files import atomic_write
from fairseq_lasformer.inference.attention import attention_of
from fairseq_lasformer.inference.checkpoints import load
from fairseq_lasformer.plugin.hub import from_pretrained

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
# Maximum number of tokens in the attention view: with more, the heat map is unreadable and the page heavy.
VIEW_TOKENS = 400


def report(
    paths: Sequence[Path],
    out: Path,
    document: Path | None = None,
    title: str = "Lasformer report",
    show: int = 3,
    data: Path | None = None,
) -> list[Run]:
    """Writes the report.

    Args:
        paths: see :func:`read_runs`.
        out: file to write.
        document: raw source text for the attention view; if None, the view is omitted.
        title: title of the page.
        show: number of documents in the attention view.
        data: prepared folder, if it is not the one a run was trained on.

    Returns:
        the runs in the report.

    Raises:
        InputError: as :func:`read_runs`; or a document or checkpoint cannot be read, or plotly is missing.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as e:
        raise InputError("the report needs plotly: pip install 'fairseq_lasformer[report]'") from e
    runs = read_runs(list(paths))
    figures = [
        f for f in (*curves(runs), cost_figure(runs), distance_figure(runs), *place_figures(runs)) if f is not None
    ]
    views = attention_views(runs, document, show, data) if document else []
    content = {"figures": [json.loads(f.to_json()) for f in figures], "views": views}
    page = (Path(__file__).with_name("report.html")).read_text(encoding="utf-8")
    values = {
        "TITLE": html.escape(title),
        "SCORES": score_table(runs),
        # no document may close the script element that contains it, or open another
        "DATA": json.dumps(content, ensure_ascii=False).replace("<", "\\u003c"),
        "PLOTLY": get_plotlyjs(),
    }
    # in a single pass, as the inserted text may itself contain such a placeholder
    atomic_write(out, re.sub(f"@({'|'.join(values)})@", lambda mark: values[mark[1]], page))
    return runs


def _figure(title: str, x: str, y: str) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        title=title, xaxis_title=x, yaxis_title=y, template="plotly_white", hovermode="x unified", height=380,
        margin={"l": 60, "r": 20, "t": 50, "b": 50},
    )  # fmt: skip
    return figure


def curves(runs: Sequence[Run]) -> list[Any]:
    """Loss, nll, KL, kappa, mass and expert load over updates; kappa and mass by module and group."""
    figures = []
    for title, keys, y in (
        ("Loss", ("loss", "nll_loss"), "bits per token"),
        ("Selection KL", ("selection_kl",), "bits per query"),
        ("κ by module", ("kappa_",), "share of keys kept"),
        ("Mass of the kept keys by module", ("mass_",), "share of attention"),
        ("Experts: highest load relative to the mean", ("moe_load_max_over_mean",), "ratio"),
    ):
        figure = _figure(title, "updates", y)
        for run in runs:
            for kind, lines in run.log.items():
                names = sorted(
                    {
                        k
                        for line in lines
                        for k in line
                        if k in keys or (keys[0].endswith("_") and k.startswith(keys[0]))
                    }
                )
                for name in names if kind in ("train_inner", "valid") else ():
                    points = [(line["num_updates"], line[name]) for line in lines if name in line]
                    label = f"{run.name}: {name}" + (" (valid)" if kind == "valid" else "")
                    x, values = zip(*points)
                    figure.add_scatter(x=x, y=values, name=label, mode="lines+markers" if kind == "valid" else "lines")
        if figure.data:
            figures.append(figure)
    return figures


def cost_figure(runs: Sequence[Run]) -> Any | None:
    """Cost of attention relative to the dense Transformer, by length, from the kappa reached (the paper's figure 2)."""
    figure = _figure("Cost of attention against length", "tokens", "relative to the dense Transformer, %")
    for run in runs:
        if run.checkpoint is None:
            continue
        if not of_ours(load(run.checkpoint)):
            continue  # fairseq's own architectures: their cost is 100 % by definition
        costs = [c for c in checkpoint_cost(run.checkpoint, LENGTHS) if c.module == "all"]
        for label, ratio in (("attention", "ratio"), ("with Q, K, V", "ratio_with_projections")):
            figure.add_scatter(
                x=[c.length for c in costs], y=[100 * getattr(c, ratio) for c in costs], name=f"{run.name}: {label}",
                mode="lines+markers", line={"dash": "solid" if label == "attention" else "dot"},
            )  # fmt: skip
    if not figure.data:
        return None
    figure.update_xaxes(type="log", tickvals=list(LENGTHS))
    figure.update_yaxes(rangemode="tozero")
    return figure


def distance_figure(runs: Sequence[Run]) -> Any | None:
    """Accuracy on context-dependent words, by distance of the deciding word (the demo's probe)."""
    figure = _figure("Accuracy by distance of the deciding word", "tokens before", "% right")
    for run in runs:
        shares = {k: v for k, v in run.scores.get("by_distance", {}).items() if v is not None}
        if shares:
            counts = [f"n = {run.scores.get('counts', {}).get(k, '?')}" for k in shares]
            figure.add_bar(x=list(shares), y=[100 * v for v in shares.values()], name=run.name, hovertext=counts)
    figure.update_yaxes(range=[0, 100])
    return figure if figure.data else None


def place_figures(runs: Sequence[Run]) -> list[Any]:
    """d-BLEU by length of the document and by quarter (``lasformer score --by-length --by-position``)."""
    figures = []
    for key, title in (("by_length", "d-BLEU by length of the document"), ("by_position", "d-BLEU by quarter")):
        figure = _figure(title, "", "d-BLEU")
        for run in runs:
            places = run.scores.get(key, {})
            if places:
                shown = [f"chrF {s['chrf']:.2f}, n = {s['documents']}" for s in places.values()]
                figure.add_bar(x=list(places), y=[s["d_bleu"] for s in places.values()], name=run.name, hovertext=shown)
        if figure.data:
            figures.append(figure)
    return figures


def score_table(runs: Sequence[Run]) -> str:
    """The scores of the runs side by side, as an HTML table; empty if no run has scores."""
    rows: list[tuple[str, list[str]]] = []
    scored = [r for r in runs if r.scores]
    labels = {key: metric.label for key, metric in METRICS.items()} | {"length_ratio": "length ratio"}
    for key, label in labels.items():
        rows.append((label, [_cell(r.scores.get(key), "{:.2f}") for r in scored]))
    for what in ("omitted", "added"):
        counts = [r.scores.get("omissions", {}).get(what) for r in scored]
        rows.append((f"lines {what}", [_cell(None if c is None else len(c), "{}") for c in counts]))
    kinds = dict.fromkeys(k for r in scored for k in r.scores.get("accuracy", {}))
    for kind in kinds:
        label = "context-dependent words" if kind == "all" else kind
        rows.append((f"{label}, % right", [_cell(r.scores.get("accuracy", {}).get(kind), "{:.1%}") for r in scored]))
    for part in ("TC", "CP", "PT", "TCP"):
        rows.append((part, [_cell(r.scores.get("tcp", {}).get(part), "{:.1f}") for r in scored]))
    rows.append(("κ, mean", [_cell(r.scores.get("kappa"), "{:.1%}") for r in scored]))
    rows = [(label, cells) for label, cells in rows if any(c != "–" for c in cells)]
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(r.name)}</th>" for r in scored)
    body = "".join(f"<tr><th>{html.escape(x)}</th>{''.join(f'<td>{c}</td>' for c in cells)}</tr>" for x, cells in rows)
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any, form: str) -> str:
    return "–" if value is None else form.format(value)


def attention_views(runs: Sequence[Run], document: Path, show: int, data: Path | None) -> list[dict[str, Any]]:
    """For each run with selection: tokens of a file's first documents and their translation, and what each attends to.

    Args:
        runs: the runs.
        document: raw source text.
        show: number of its documents to show.
        data: prepared folder, if it is not the one a run was trained on.
    """
    from fairseq_lasformer.data.documents import read_documents

    views = []
    for run in runs:
        if run.checkpoint is None:
            continue
        try:
            hub = from_pretrained(run.checkpoint.parent, run.checkpoint.name, data)
        except InputError as e:
            print(f"{run.name}: no attention view: {e}", file=sys.stderr)
            continue
        model = hub.models[0]
        if not hasattr(model, "selectors") or not list(model.selectors()):
            continue
        for number, sentences in enumerate(read_documents(document)[:show], 1):
            encoded: list[str] = []
            for sentence in map(hub.codec.encode_source, sentences):
                if encoded and sum(map(hub.codec.length, [*encoded, sentence])) > VIEW_TOKENS:
                    break
                encoded.append(sentence)
            source = hub.binarize(hub.codec.join(encoded))
            with torch.no_grad():
                target = hub.generate([source], beam=1, max_len_a=1.5, max_len_b=50)[0][0]["tokens"].cpu()
            seen = attention_of(model, source, target)
            views.append(
                {
                    "run": run.name,
                    "document": number,
                    "source": [hub.src_dict[int(i)] for i in source],
                    "target": [hub.tgt_dict[int(i)] for i in target],
                    "modules": {name: sparse(w) for name, w in seen.items()},
                }
            )
    return views
