"""Bars that ``make gpu`` is held to: what a decoding step of the base model may take on a GPU, with pass or miss.

They were set for an H100 or H200 in bfloat16. A step of 5 rows is that of one document, one of 160 rows that of 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """A figure that a section of the benchmark finds, and its limit.

    Attributes:
        what: the figure, for the reader.
        section, case, system, metric: where it is found.
        limit: the largest value, or with ``least`` the smallest.
        per: system that the value is divided by; empty for none.
    """

    what: str
    section: str
    case: str
    system: str
    metric: str
    limit: float
    least: bool = False
    per: str = ""


SPEED = "tokens_per_second"
BARS = (
    Bar("160 rows: tokens/s (0.80 ms a step)", "decoding", "160 rows, T=4096", "lasformer_graph", SPEED, 40_000, True),
    Bar("5 rows: tokens/s (0.40 ms a step)", "one_document", "T=4096", "lasformer_graph", SPEED, 2_500, True),
    Bar("160 rows: ms of attention to the kept keys", "kernels", "step, 160 rows, T=4096", "attend", "ms", 0.028),
    Bar(
        *("96 sentences: of fairseq's tokens/s", "one_document", "sentences, 96", "lasformer_graph"),
        *(SPEED, 1.0, True, "transformer"),
    ),
    Bar(
        *("a text of 1,024 tokens: of a dense graph's tokens/s", "one_document", "end_to_end, 1024"),
        *("lasformer_graph", SPEED, 1.0, True, "lasformer_dense_graph"),
    ),
    Bar(
        *("full pass of 4,096 tokens: ms, of flex_attention's", "kernels", "full pass, T=4096", "tiles", "ms", 1.0),
        *(False, "flex_attention, the same keys"),
    ),
)


def judged(results: Mapping[str, Any], bars: Sequence[Bar] = BARS) -> list[str]:
    """Return a line for each bar: pass, miss, or not measured.

    Args:
        results: the benchmark's, by section, as in gpu.json.
    """
    lines = []
    for bar in bars:
        rows = results.get(bar.section, {}).get("rows", [])
        values = {row["system"]: row["value"] for row in rows if (row["case"], row["metric"]) == (bar.case, bar.metric)}
        value, of = values.get(bar.system), values.get(bar.per, 0) if bar.per else 1.0
        sign = "at least" if bar.least else "at most"
        if value is None or not of:
            lines.append(f"not measured  {bar.what}: {sign} {bar.limit:,g}")
            continue
        found = value / of
        passes = found >= bar.limit if bar.least else found <= bar.limit
        lines.append(f"{'pass' if passes else 'miss'}  {bar.what}: {found:,.4g}, {sign} {bar.limit:,g}")
    return lines
