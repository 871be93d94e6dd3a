"""Modules of a full pass that the CPU kernels compute, in the place of PyTorch.

Each row of what they compute depends on that row alone. PyTorch's last bits depend on the batch, its padding, the
number of threads and the processor's instructions, too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.activations import KERNELS, Function
from fairseq_lasformer.nn.attentions import Attention
from fairseq_lasformer.nn.layers import TransformerLayer
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import PackedLinear, pack_linear, quantise_linear


class Unsupported(Exception):
    """A layer that the kernels do not compute; the message says why."""


class PackedProjection(nn.Module):
    """A linear layer in 8 bits, in the place of one in other numbers.

    Args:
        layer: the linear layer; its weights are copied.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        on_cpu = layer.weight.device.type == "cpu"
        self.packed = joined([layer], int8=True) if on_cpu else quantise_linear(layer.weight, layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return self.packed(x)


class FixedLinear(nn.Linear):
    """A linear layer that the kernels compute where no gradient is asked for; packed when it is first needed."""

    packed: PackedLinear | None = None
    of: tuple[tuple[int, int], ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        if not _computed(input):
            return super().forward(input)
        now = tuple((p.data_ptr(), p._version) for p in self.parameters())  # they may have moved, or changed in place
        if self.packed is None or self.of != now:
            self.packed, self.of = joined([self], int8=False), now
        return self.packed(input)


class FixedNorm(nn.LayerNorm):
    """A layer normalisation that the kernels compute where no gradient is asked for."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        if not _computed(input):
            return super().forward(input)
        return ops.layer_norm(input, self.weight, self.bias, self.eps)


class FixedActivation(nn.Module):
    """An activation that the kernels compute where no gradient is asked for.

    Args:
        function: one of :data:`KERNELS`.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Of x, of any shape."""
        return ops.activate(x, KERNELS[self.function]) if _computed(x) else self.function(x)


def _computed(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()


def fixed(module: nn.Module | None) -> None:
    """Let the kernels compute a linear layer or a layer normalisation; their parameters stay where they are."""
    for plain, other in ((nn.Linear, FixedLinear), (nn.LayerNorm, FixedNorm)):
        if type(module) is plain:
            module.__class__ = other


def joined(layers: list[nn.Linear], int8: bool) -> PackedLinear:
    """Linear layers with the same input as one, packed."""
    if not layers:
        nothing = torch.empty(0)
        return PackedLinear(nothing, nothing, nothing.int(), nothing, 0)
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    weights: list[Tensor] = [layer.weight for layer in layers]
    return pack_linear(torch.cat(weights), torch.cat(biases) if biases else None, int8)


def quantise(layers: LayerStack) -> None:
    """Replace the linear layers, other than the selectors', by 8-bit ones, in place."""
    for layer in layers:
        attentions: tuple[str, ...] = layer.attentions  # type: ignore[assignment]
        for holder in (layer, *(getattr(layer, name) for name in attentions)):
            for name, module in list(holder.named_children()):
                if isinstance(module, nn.Linear):
                    setattr(holder, name, PackedProjection(module))


def fix_encoder(layers: LayerStack) -> None:
    """Let the kernels compute all of an encoder's layers where no gradient is asked for, in place.

    Raises:
        Unsupported: a layer has something that no kernel computes; then nothing is changed.
    """
    for layer in layers:
        check_layer(layer)  # type: ignore[arg-type]
    for layer in layers:
        for module in layer.modules():
            fixed(module)
        if not isinstance(layer.activation_fn, FixedActivation):
            layer.activation_fn = FixedActivation(layer.activation_fn)  # type: ignore[arg-type]
    for _, pattern in layers.patterns():
        pattern.reproducible = True


def check_layer(layer: TransformerLayer) -> None:
    """Raise :class:`Unsupported` if the CPU's kernels do not compute a layer."""
    check_parts(layer)
    for name, parameter in layer.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Unsupported(f"{parameter.dtype} on {parameter.device} ({name})".replace("torch.", ""))


def check_parts(layer: TransformerLayer) -> None:
    """Raise :class:`Unsupported` if a layer has a part that no kernel computes."""
    if layer.moe is not None or layer.fc1 is None:
        raise Unsupported("mixtures of experts")
    if not isinstance(layer.transformation, nn.Identity):
        raise Unsupported("DeLighT's transformations")
    if not isinstance(layer.activation_fn, FixedActivation) and layer.activation_fn not in KERNELS:
        raise Unsupported("this activation")
    for name in layer.attentions:
        attention: Attention = getattr(layer, name)
        if not attention.packable:
            raise Unsupported(f"the attention {_name(attention)}")
        if attention.selector is not None and not attention.selector.packable:
            raise Unsupported(f"the pattern {_name(attention.selector)}")


def _name(module: Attention | Pattern) -> str:
    return getattr(module, "name", type(module).__name__)
