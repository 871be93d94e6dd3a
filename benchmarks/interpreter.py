"""Triton's interpreter with the bfloat16 of a GPU: rounded to nearest even, and multiplied as numbers.

Unpatched (3.9), the interpreter truncates float32 where a GPU rounds it, and multiplies bfloat16's bits as integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_HALF = (tl.bfloat16, tl.float16)


def exact_bfloat16() -> None:
    """Fix the interpreter; repeated calls have no effect. Without ``TRITON_INTERPRET=1`` nothing uses it."""
    original = interpreter._convert_float
    if hasattr(original, "original"):
        return

    def convert(x: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            bits = np.ascontiguousarray(x).astype(np.float32).view(np.uint32)
            rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
            quiet = (bits >> 16) | 0x40  # NaN stays NaN
            return np.where(np.isnan(bits.view(np.float32)), quiet, rounded).astype(np.uint16).reshape(np.shape(x))
        if (source, target) == (tl.bfloat16, tl.float32):
            return (np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16).reshape(np.shape(x))
        return original(x, source, target, mode)

    def numbers(x: Any) -> Any:
        if x.dtype.scalar == tl.bfloat16:
            return convert(x.data, tl.bfloat16, tl.float32, None).view(np.float32)
        return x.data.astype(np.float32)

    real_dot = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        if a.dtype.scalar in _HALF and b.dtype.scalar in _HALF:
            product = np.matmul(numbers(a), numbers(b), dtype=np.float32)
            return interpreter.TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)
        return real_dot(self, a, b, d, precision, imprecise)

    convert.original = original  # type: ignore[attr-defined]
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = create_dot
