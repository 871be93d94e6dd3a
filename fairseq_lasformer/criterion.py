"""Label-smoothed cross-entropy plus the selectors' supervision (eq 6): Loss = L_nmt + alpha * L_s, and the balance
losses of mixtures of experts.

fairseq reads the dataclass's annotations at run time: no ``from __future__ import annotations`` here.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.moe import statistics
from fairseq_lasformer.ops import KAPPA_ONE

# Keys of one selector's sums in a logging output: PREFIX + name + "/" + one of STATISTICS.
PREFIX = "selector/"
STATISTICS = ("kl", "mass", "recall", "queries")


@dataclass
class SelectionCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    selection_weight: float = field(
        default=0.01, metadata={"help": "weight of the selectors' supervision (alpha, eq 6); 0 trains without it"}
    )


@register_criterion("label_smoothed_cross_entropy_with_selection", dataclass=SelectionCriterionConfig)
class LabelSmoothedCrossEntropyWithSelection(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label-smoothed loss with alpha times the KL of every selector and every mixture's balance loss added.

    L_s is the mean over a selector's valid queries, summed over modules and groups. What is added is multiplied by the
    sample size, because fairseq divides the summed loss by it. Models with neither are trained as by fairseq's own.
    """

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float,
        selection_weight: float = 0.01,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if not 0 <= selection_weight < math.inf:
            raise InputError(f"--selection-weight {selection_weight}: expected a number, 0 or larger")
        if not 0 <= label_smoothing < 1:
            raise InputError(f"--label-smoothing {label_smoothing}: expected a share in [0, 1)")
        self.selection_weight = selection_weight

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, Any, dict[str, Any]]:
        """Loss (a sum), sample size, and the sums that :meth:`reduce_metrics` turns into log lines."""
        net_output = model(**sample["net_input"])
        loss, nll_loss = self.compute_loss(model, net_output, sample, reduce=reduce)
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            "nll_loss": nll_loss.data,
        }
        for name, given in net_output[1].get("supervision", {}).items():
            if self.selection_weight > 0:
                loss = loss + self.selection_weight * sample_size * given.kl / given.queries.clamp(min=1)
            for statistic in STATISTICS:
                logging_output[f"{PREFIX}{name}/{statistic}"] = getattr(given, statistic).data
        for name, balance in net_output[1].get("balance", {}).items():
            loss = loss + sample_size * balance.loss
            logging_output |= statistics.logged(name, balance)
        for name, kappa in net_output[1].get("kappa", {}).items():
            logging_output[f"{PREFIX}{name}/kappa"] = kappa * sample_size / KAPPA_ONE
        if self.report_accuracy:
            n_correct, total = self.compute_accuracy(model, net_output, sample)
            logging_output["n_correct"], logging_output["total"] = n_correct.data, total.data
        logging_output["loss"] = loss.data
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log lines: fairseq's own, the summed KL, kappa, mass and recall@k per selector and in the mean, and how
        evenly the experts of mixtures are used."""
        super().reduce_metrics(logging_outputs)
        statistics.log(logging_outputs)
        sample_size = sum(log["sample_size"] for log in logging_outputs)
        keys = [key for key in (logging_outputs[0] if logging_outputs else {}) if key.startswith(PREFIX)]
        sums = {key: sum(float(log.get(key, 0.0)) for log in logging_outputs) for key in keys}
        names = list(dict.fromkeys(key[len(PREFIX) :].split("/")[0] for key in keys))
        total_kl = 0.0
        means: dict[str, float] = {}
        for name in names:
            values = {"kappa": sums[f"{PREFIX}{name}/kappa"] / max(float(sample_size), 1.0)}
            if f"{PREFIX}{name}/queries" in sums:
                queries = max(sums[f"{PREFIX}{name}/queries"], 1.0)
                values |= {s: sums[f"{PREFIX}{name}/{s}"] / queries for s in ("kl", "mass", "recall")}
                total_kl += values.pop("kl")
            for statistic, value in values.items():
                metrics.log_scalar(f"{statistic}_{name.replace('.', '_')}", value, sample_size, round=4)
                means[statistic] = means.get(statistic, 0.0) + value / len(names)
        for statistic, value in means.items():
            metrics.log_scalar(statistic, value, sample_size, round=4)
        if "mass" in means:
            metrics.log_scalar("selection_kl", total_kl / math.log(2), sample_size, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def selector_sums(logging_output: dict[str, Any], statistic: str) -> dict[str, Tensor]:
    """One statistic of every selector in a logging output, by selector name."""
    suffix = "/" + statistic
    return {
        key[len(PREFIX) : -len(suffix)]: value
        for key, value in logging_output.items()
        if key.startswith(PREFIX) and key.endswith(suffix)
    }
