"""Modules of a full pass that the CPU kernels compute instead of PyTorch.

Each row of their results depends on that row alone. The last bits of PyTorch's results also depend on the batch, its
padding, the number of threads and the processor's instructions.
"""

import torch
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.activations import KERNELS, Function
from fairseq_lasformer.nn.attentions import Attention
from fairseq_lasformer.nn.layers import TransformerLayer
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import PackedLinear, pack_linear


class Unsupported(Exception):
    """A layer that the kernels do not support; the message says why."""


class PackedProjection(nn.Module):
    """A linear layer in 8 bits that replaces an unquantised one.

    Args:
        layer: the linear layer; its weights are copied.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.packed = joined([layer], int8=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        return self.packed(x)


class FixedLinear(nn.Linear):
    """A linear layer that the kernels compute where no gradient is needed; packed on first use."""

    packed: PackedLinear | None = None
    of: tuple[tuple[int, int], ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        if not _computed(input):
            return super().forward(input)
        now = tuple((p.data_ptr(), p._version) for p in self.parameters())  # they may have moved or changed in place
        if self.packed is None or self.of != now:
            self.packed, self.of = joined([self], int8=False), now
        return self.packed(input)


class FixedNorm(nn.LayerNorm):
    """A layer normalisation that the kernels compute where no gradient is needed."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise [..., d]."""
        if not _computed(input):
            return super().forward(input)
        return ops.layer_norm(input, self.weight, self.bias, self.eps)


class FixedActivation(nn.Module):
    """An activation that the kernels compute where no gradient is needed.

    Args:
        function: one of :data:`KERNELS`.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to x of any shape."""
        return ops.activate(x, KERNELS[self.function]) if _computed(x) else self.function(x)


def _computed(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_grad_enabled()


def fixed(module: nn.Module | None) -> None:
    """Let the kernels compute a linear layer or a layer normalisation; its parameters stay in place."""
    for plain, other in ((nn.Linear, FixedLinear), (nn.LayerNorm, FixedNorm)):
        if type(module) is plain:
            module.__class__ = other


def joined(layers: list[nn.Linear], int8: bool) -> PackedLinear:
    """Pack linear layers with the same input as one layer."""
    if not layers:
        nothing = torch.empty(0)
        return PackedLinear(nothing, nothing, nothing.int(), nothing, 0)
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    weights: list[Tensor] = [layer.weight for layer in layers]
    return pack_linear(torch.cat(weights), torch.cat(biases) if biases else None, int8)


def quantise(layers: LayerStack) -> None:
    """Replace the linear layers, except the selectors', with 8-bit ones, in place."""
    for layer in layers:
        attentions: tuple[str, ...] = layer.attentions  # type: ignore[assignment]
        for holder in (layer, *(getattr(layer, name) for name in attentions)):
            for name, module in list(holder.named_children()):
                if isinstance(module, nn.Linear):
                    setattr(holder, name, PackedProjection(module))


def fix_encoder(layers: LayerStack) -> None:
    """Let the kernels compute all of an encoder's layers where no gradient is needed, in place.

    Raises:
        Unsupported: no kernel computes some part of a layer; nothing is changed.
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
    """Raise :class:`Unsupported` if the CPU kernels do not support a layer."""
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
