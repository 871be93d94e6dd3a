"""A decoding step that is captured once in a CUDA graph and replayed, so that its kernels launch as one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class CudaGraphStep:
    """Replays a function of one tensor whose other inputs and outputs stay in place.

    The first call of a version runs the function eagerly, which compiles its kernels; the second captures it. Without a
    GPU nothing is captured: the function of the first call is called again, on the same tensor.
    """

    def __init__(self) -> None:
        self.version: int | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, function: Callable[[Tensor], Tensor], x: Tensor, version: int, n_rows: int) -> Tensor:
        """Return ``function(x)`` for x [R', d], R' <= R; rows from R' on are ignored.

        Args:
            function: maps [R, d] to [R, d].
            x: [R', d].
            version: a number that changes whenever a tensor that the function reads or writes has moved.
            n_rows: number of rows that the function takes (R), constant within a version.
        """
        if version != self.version:
            self.version, self.graph, self.function = version, None, function
            self.x = x.new_zeros(n_rows, x.size(1))
            self.x[: x.size(0)] = x
            return function(self.x)[: x.size(0)]
        self.x[: x.size(0)] = x
        if not x.is_cuda:
            return self.function(self.x)[: x.size(0)]
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.out = function(self.x)
            self.graph = graph
        self.graph.replay()
        return self.out[: x.size(0)].clone()
