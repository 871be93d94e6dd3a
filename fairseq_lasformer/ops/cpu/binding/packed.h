// Packed linear layers from tensors; see arithmetic/arithmetic.h for their layout.
#pragma once

#include <ATen/core/Tensor.h>

#include "../arithmetic/arithmetic.h"

namespace lasformer {

// A packed layer from its tensors weight, scale, sums and bias; those that do not apply are empty.
Packed packed(const at::Tensor& weight, const at::Tensor& scale, const at::Tensor& sums, const at::Tensor& bias,
              int64_t inputs, int64_t outputs);

// out [R, N] = x [R, K] * weights + bias, then `after`. x has rows of `stride` numbers.
void product(const float* x, int64_t stride, int64_t rows, const Packed& weights, float* out, After after = {});

}  // namespace lasformer
