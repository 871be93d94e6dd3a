"""Label-smoothed cross-entropy plus the selectors' supervision and the balance losses of mixtures of experts.

Loss = L_nmt + alpha * L_s (arXiv 2309.14174, eq 6).

fairseq reads the dataclass's annotations at run time: no ``from __future__ import annotations`` here.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import fairseq_option
from fairseq_lasformer.base.records import Log, Sample
from fairseq_lasformer.plugin.log_lines import (
    SELECTION,
    log_distillation,
    log_routers,
    log_selection,
    router_sums,
    selection_sums,
)
from fairseq_lasformer.plugin.training.teacher import Teacher


@dataclass
class SelectionCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    selection_weight: float = fairseq_option(
        0.01, "weight of the selectors' supervision (alpha, eq 6); 0 trains without it"
    )
    distil_from: str = fairseq_option(
        "", "checkpoint of a teacher with the same dictionaries; its predictions are learned"
    )
    distil_weight: float = fairseq_option(
        0.5, "weight of the teacher's predictions; the rest is the weight of the reference"
    )
    distil_top: int = fairseq_option(16, "number of the teacher's most likely words that are learned")


@register_criterion("label_smoothed_cross_entropy_with_selection", dataclass=SelectionCriterionConfig)
class LabelSmoothedCrossEntropyWithSelection(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label-smoothed loss plus alpha times the KL of every selector and the balance loss of every mixture.

    With a teacher, the translation loss in training is (1 - w) times fairseq's plus w times the cross-entropy with the
    teacher's most likely words; the validation loss is fairseq's.

    L_s is averaged over a selector's valid queries and summed over modules and groups. The added terms are multiplied
    by the sample size, because fairseq divides the summed loss by it. Models with neither selectors nor mixtures are
    trained exactly as with fairseq's criterion.
    """

    def __init__(
        self,
        task: FairseqTask,
        sentence_avg: bool,
        label_smoothing: float,
        selection_weight: float = 0.01,
        ignore_prefix_size: int = 0,
        report_accuracy: bool = False,
        distil_from: str = "",
        distil_weight: float = 0.5,
        distil_top: int = 16,
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if not 0 <= selection_weight < math.inf:
            raise InputError(f"--selection-weight {selection_weight}: expected a number, 0 or larger")
        if not 0 <= label_smoothing < 1:
            raise InputError(f"--label-smoothing {label_smoothing}: expected a share in [0, 1)")
        if not 0 <= distil_weight <= 1:
            raise InputError(f"--distil-weight {distil_weight}: expected a share, 0 to 1")
        self.selection_weight, self.distil_weight = selection_weight, distil_weight
        self.teacher = Teacher(distil_from, task, distil_top) if distil_from else None

    def forward(self, model: BaseFairseqModel, sample: Sample, reduce: bool = True) -> tuple[Tensor, Any, Log]:
        """Return the loss (a sum), the sample size, and the sums that :meth:`reduce_metrics` turns into log lines."""
        net_output = model(**sample["net_input"])
        loss, nll_loss = self.compute_loss(model, net_output, sample, reduce=reduce)
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
            "nll_loss": nll_loss.data,
        }
        if self.teacher is not None and model.training:
            words = model.get_normalized_probs(net_output, log_probs=True)
            distilled = self.teacher.loss(words, sample, self.padding_idx)
            loss = torch.lerp(loss, distilled, self.distil_weight)
            logging_output["distil_loss"] = distilled.data
        extra = net_output[1]
        supervision = extra.get("supervision", {})
        if self.selection_weight > 0 and supervision:
            kl, queries = (torch.stack(column) for column in zip(*((s.kl, s.queries) for s in supervision.values())))
            loss = loss + (self.selection_weight * sample_size * kl / queries.clamp(min=1)).sum()
        elif supervision and torch.is_grad_enabled():
            # untaught selectors get gradients of 0: DistributedDataParallel waits for the gradient of every parameter
            loss = loss + 0.0 * sum(p.sum() for _, selector in model.selectors() for p in selector.parameters())
        for name, stats in extra.get("router_stats", {}).items():
            loss = loss + sample_size * stats.loss
            logging_output |= router_sums(name, stats)
        sums = selection_sums(supervision, extra.get("kappa", {}), sample_size)
        if sums is not None:
            logging_output[SELECTION] = sums
        if self.report_accuracy:
            n_correct, total = self.compute_accuracy(model, net_output, sample)
            logging_output["n_correct"], logging_output["total"] = n_correct.data, total.data
        logging_output["loss"] = loss.data
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[Log]) -> None:
        """Log fairseq's metrics, those of the selectors, and how evenly the experts of mixtures are used."""
        super().reduce_metrics(logging_outputs)
        log_distillation(logging_outputs)
        log_routers(logging_outputs)
        log_selection(logging_outputs)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


def require_supervision(model: BaseFairseqModel, criterion: FairseqCriterion) -> None:
    """Refuse to train a selecting model with a criterion that neither supervises nor tracks its selectors.

    Raises:
        InputError: the model selects and the criterion does not support that.
    """
    if isinstance(criterion, LabelSmoothedCrossEntropyWithSelection) or not hasattr(model, "selectors"):
        return
    if list(model.selectors()):
        raise InputError(
            f"criterion {type(criterion).__name__}: the selectors would learn nothing and kappa would stay at 1; use "
            "--criterion label_smoothed_cross_entropy_with_selection, or --select-modules none"
        )
