"""Training steps as CUDA graphs: a batch is padded to one of a few shapes, whose passes are captured once and replayed.

A step of the base model launches about 1,100 kernels, and each launch takes the host a few microseconds, longer than
computing a small batch. A graph launches as one kernel.

Values that change between replays are read on the device: the batch and its number of tokens, kappa, the seeds of
dropout, the scale of the loss. Decisions of the host have one graph per outcome: the shape, and which queries teach the
selectors.
"""

from __future__ import annotations

import logging
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq.distributed import LegacyDistributedDataParallel as LegacyDistributed
from torch import Tensor

from fairseq_lasformer.cannot import MIXTURES, refuse
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.nn.patterns.full import Full
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.ops import FunctionContext, RowSample, backend_for
from fairseq_lasformer.plugin.build import sampling, without_keys
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.records import Log, Sample

if TYPE_CHECKING:
    from fairseq.criterions import FairseqCriterion
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask

logger = logging.getLogger(__name__)

OPTION = "--cuda-graph-tokens"
MEMORY_OPTION = "--cuda-graph-memory"
MOST_GRAPHS = 256
CAPTURED = Selector, Full  # others decide on the host which keys are kept, or were not tried


def rounded(n: int) -> int:
    """Return the next of four sizes per power of two: …, 32, 40, 48, 56, 64, 80, …"""
    step = 1 << max(0, (n - 1).bit_length() - 3)
    return -(-n // step) * step


class Shape(NamedTuple):
    """Sizes of a batch: number of examples, and tokens of the longest one on each side."""

    examples: int
    source: int
    target: int

    @classmethod
    def of(cls, sample: Sample) -> Shape:
        """Return the sizes to which a batch is padded."""
        (n, source), target = sample["net_input"]["src_tokens"].shape, sample["target"].size(1)
        return cls(rounded(n), rounded(source), rounded(target))


class Batch:
    """A batch at a fixed place on the device, whose contents change.

    Args:
        pads: padding index of each side.
        left: whether padding precedes a source.
    """

    def __init__(self, shape: Shape, pads: tuple[int, int], left: bool, device: torch.device) -> None:
        n, source, target = shape
        self.pads, self.left = pads, left
        self.source, self.previous, self.target = (
            torch.empty(n, length, dtype=torch.int64, device=device) for length in (source, target, target)
        )
        self.lengths = torch.empty(n, dtype=torch.int64, device=device)
        self.n_tokens = torch.empty((), dtype=torch.int64, device=device)

    def fill(self, sample: Sample) -> None:
        """Copy a batch, padded; examples that are all padding have no tokens."""
        inputs = sample["net_input"]
        source, target = self.pads
        _fill(self.source, inputs["src_tokens"], source, self.left)
        _fill(self.previous, inputs["prev_output_tokens"], target, False)
        _fill(self.target, sample["target"], target, False)
        self.lengths.zero_()
        self.lengths[: inputs["src_lengths"].size(0)] = inputs["src_lengths"]
        self.n_tokens.fill_(sample["ntokens"])

    @property
    def sample(self) -> Sample:
        """The batch in the form of fairseq's criterion, with its number of tokens on the device."""
        inputs = {"src_tokens": self.source, "src_lengths": self.lengths, "prev_output_tokens": self.previous}
        return {"net_input": {**inputs, "padded": True}, "target": self.target, "ntokens": self.n_tokens}


def _fill(to: Tensor, tokens: Tensor, pad: int, left: bool) -> None:
    n, length = tokens.shape
    start = to.size(1) - length if left else 0
    to.fill_(pad)
    to[:n, start : start + length] = tokens


class _Gradients(NamedTuple):
    """Gradients shared by the graphs of all shapes: each writes those of its batch here.

    Attributes:
        parameters: the trained parameters.
        held: their gradients, in the order of :attr:`parameters`.
        d_loss: the gradient of the loss, which half precision scales.
    """

    parameters: list[Tensor]
    held: list[Tensor]
    d_loss: Tensor


class _Passes:
    """The captured passes of one key.

    Args:
        where: pool and stream of all captures. Blocks of a pool belong to the stream on which they were allocated, so
            that graphs captured on one stream share their memory.
    """

    def __init__(
        self,
        criterion: FairseqCriterion,
        model: BaseFairseqModel,
        batch: Batch,
        gradients: _Gradients,
        where: dict[str, Any],
    ) -> None:
        self.gradients = gradients
        # a longer text may replace the position tables; the captured passes keep reading these
        self.tables = [m.weights for m in model.modules() if isinstance(getattr(m, "weights", None), Tensor)]
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        device = gradients.d_loss.device
        # other threads, such as the data loader, may use the device meanwhile
        how = {**where, "capture_error_mode": "thread_local"}
        with torch.cuda.device(device):
            with torch.cuda.graph(self.forward, **how):
                loss, _, log = criterion(model, batch.sample)
            with torch.cuda.graph(self.backward, **how):
                found = torch.autograd.grad(loss, gradients.parameters, gradients.d_loss, allow_unused=True)
                self.used = [i for i, gradient in enumerate(found) if gradient is not None]
                torch._foreach_copy_([gradients.held[i] for i in self.used], [found[i] for i in self.used])
        self.loss = loss.detach()  # without its autograd graph, whose tensors the graphs of other shapes overwrite
        self.log = {name: value.detach() if isinstance(value, Tensor) else value for name, value in log.items()}


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, passes: _Passes, *parameters: Tensor) -> Tensor:
        ctx.passes = passes
        passes.forward.replay()
        return passes.loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionContext, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        passes = ctx.passes
        parameters, held, scale = passes.gradients
        scale.copy_(d_loss)
        passes.backward.replay()
        own = [torch.empty_like(held[i]) for i in passes.used]  # the next batch overwrites the shared ones
        torch._foreach_copy_(own, [held[i] for i in passes.used])
        gradients: list[Tensor | None] = [None] * len(parameters)
        for i, gradient in zip(passes.used, own):
            gradients[i] = gradient
        return None, *gradients


class GraphedCriterion:
    """A criterion whose forward and backward passes over small batches are CUDA graphs.

    The first batch of a shape is computed as usual, which compiles its kernels; the second is captured. Batches larger
    than ``most_tokens``, with a shape beyond the first :data:`MOST_GRAPHS`, or with one that would be captured when the
    graphs already have their share of the memory, are computed as usual.

    Args:
        criterion: called with model and batch; returns the loss, the sample size and a logging output.
        most_tokens: tokens of the longer side, as ``--max-tokens`` counts them.
        pads: padding index of each side.
        left: whether padding precedes a source.
        memory: share of the GPU's memory for all graphs.
    """

    def __init__(
        self, criterion: FairseqCriterion, most_tokens: int, pads: tuple[int, int], left: bool, memory: float = 1.0
    ) -> None:
        self.criterion, self.most_tokens, self.memory = criterion, most_tokens, memory
        self.pads, self.left = pads, left
        self.batches: dict[Shape, Batch] = {}
        self.passes: dict[tuple[Any, ...], _Passes | None] = {}
        self.gradients: _Gradients | None = None
        self.where: dict[str, Any] = {}
        self.held = 0  # bytes of the graphs' pool
        self.full = False

    def __call__(self, model: BaseFairseqModel, sample: Sample) -> tuple[Tensor, Any, Log]:
        """Return the criterion's result."""
        if max(sample["net_input"]["src_tokens"].numel(), sample["target"].numel()) > self.most_tokens:
            return self.criterion(model, sample)
        shape = Shape.of(sample)
        key = shape, samples(model, shape)
        new = key not in self.passes
        if (new and len(self.passes) == MOST_GRAPHS) or (self.full and self.passes.get(key) is None):
            return self.criterion(model, sample)
        if shape not in self.batches:
            self.batches[shape] = Batch(shape, self.pads, self.left, sample["target"].device)
        batch = self.batches[shape]
        batch.fill(sample)
        if new:
            self.passes[key] = None
            loss, _, log = self.criterion(model, batch.sample)
            return loss, sample["ntokens"], _counted(log, sample)
        passes = self.passes[key]
        if passes is None:
            passes = self.passes[key] = self._captured(model, batch)
            logger.debug("captured a training step of %d examples, %d and %d tokens", *shape)
        assert self.gradients is not None
        loss = _Replay.apply(passes, *self.gradients.parameters)
        log = {name: value.clone() if isinstance(value, Tensor) else value for name, value in passes.log.items()}
        return loss, sample["ntokens"], _counted(log, sample)

    def _captured(self, model: BaseFairseqModel, batch: Batch) -> _Passes:
        device = batch.target.device
        if self.gradients is None:
            self.where = {"pool": torch.cuda.graph_pool_handle(), "stream": torch.cuda.Stream(device)}
            parameters = [p for p in model.parameters() if p.requires_grad]
            d_loss = torch.empty((), dtype=torch.float32, device=device)
            self.gradients = _Gradients(parameters, [torch.empty_like(p) for p in parameters], d_loss)
        before = torch.cuda.memory_reserved(device)
        passes = _Passes(self.criterion, model, batch, self.gradients, self.where)
        self.held += max(0, torch.cuda.memory_reserved(device) - before)
        total = torch.cuda.get_device_properties(device).total_memory
        if not self.full and self.held > self.memory * total:
            self.full = True
            logger.info(
                "%s: the graphs of %d shapes take %.1f GB, more than %.0f%% of the GPU's memory (%s); batches of other "
                "shapes are computed without",
                *(OPTION, sum(p is not None for p in self.passes.values()) + 1, self.held / 1e9, 100 * self.memory),
                MEMORY_OPTION,
            )
        return passes


def _counted(log: Log, sample: Sample) -> Log:
    """Return a logging output with the batch's own counts, which the host knows."""
    n_tokens = sample["ntokens"]
    return {**log, "ntokens": n_tokens, "sample_size": n_tokens, "nsentences": sample["target"].size(0)}


def samples(model: BaseFairseqModel, shape: Shape) -> tuple[RowSample, ...]:
    """Return which queries teach each selector; the host picks them."""
    drawn = sampling(model.cfg, model.num_updates, next(model.parameters()).device)
    lengths = {"encoder": shape.source, "decoder": shape.target, "cross": shape.target}
    return tuple(
        drawn.sample(shape.examples, lengths[name.partition(".")[0]], selector.share)
        for name, selector in model.selectors()
    )


def check(
    model: BaseFairseqModel, criterion: FairseqCriterion, task: FairseqTask, device: torch.device, amp: bool
) -> None:
    """Reject what cannot be captured, because the host decides it in every step or has to ask the device.

    Args:
        task: the options of the task.
        amp: whether fairseq trains with ``--amp``.

    Raises:
        InputError: names it.
    """
    if device.type != "cuda" or backend_for(device, str(task.attention_backend)) != "triton":
        raise InputError(f"{OPTION}: requires a GPU with Triton, and --attention-backend auto or triton")
    if not isinstance(criterion, LabelSmoothedCrossEntropyWithSelection) or not hasattr(model, "patterns"):
        raise InputError(f"{OPTION}: requires --arch lasformer (or one of its presets) and this project's criterion")
    cfg, wrapped = model.cfg, getattr(model, "module", None)
    others = {
        MIXTURES: bool(cfg.moe_experts),
        "--group-drop": bool(cfg.group_drop),
        "--checkpoint-activations": bool(cfg.checkpoint_activations),
        "--quantization-aware": bool(task.quantization_aware),
        "--distil-from": criterion.teacher is not None,
        "--report-accuracy": bool(criterion.report_accuracy),
        "--sentence-avg": bool(criterion.sentence_avg),
        "--amp": amp,
        "--own-lines": bool(cfg.own_lines),
        "--positions line": str(cfg.positions) == "line",
        "several GPUs": not isinstance(wrapped, (NoneType, LegacyDistributed)),
        "this --select-pattern": bool(without_keys(cfg)) or any(type(p) not in CAPTURED for _, p in model.patterns()),
    }
    refuse(OPTION, others)
