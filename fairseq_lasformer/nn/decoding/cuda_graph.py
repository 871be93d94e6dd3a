"""Decoding step captured once in a CUDA graph and replayed, so that its kernels launch as one."""

from collections.abc import Callable

import torch
from torch import Tensor


class CudaGraphStep:
    """Replay of a function of one tensor whose other inputs and outputs stay in place.

    The first call runs the function eagerly, which compiles its kernels; the second captures it. Without a GPU, nothing
    is captured: the function is called again, on the same tensor.
    """

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, function: Callable[[Tensor], Tensor], x: Tensor, n_rows: int, eager: bool = False) -> Tensor:
        """Return ``function(x)`` for x [R', d], R' <= R; rows from R' on are ignored.

        Args:
            function: maps [R, d] to [R, d]; it reads and writes the same tensors in every call.
            x: [R', d].
            n_rows: number of rows that the function takes (R).
            eager: whether to run the function itself, because it fills a tensor that the captured one only reads.
        """
        eager = eager or self.x is None
        if self.x is None:
            self.x = x.new_zeros(n_rows, x.size(1))
        self.x[: x.size(0)] = x
        if eager or not x.is_cuda:
            return function(self.x)[: x.size(0)]
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            # PyTorch's own capture stream belongs to the GPU that was current at the first capture
            with torch.cuda.device(x.device), torch.cuda.graph(graph, stream=torch.cuda.Stream(x.device)):
                self.out = function(self.x)
            self.graph = graph
        self.graph.replay()
        return self.out[: x.size(0)].clone()
