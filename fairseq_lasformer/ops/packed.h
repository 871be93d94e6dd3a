// Products of rows with packed weights, float32 and int8. Definition: reference.linear_int8, and torch's linear.
//
// Weights [N, K] lie in panels of 16 outputs: float32 [N / 16][K][16], int8 [N / 16][K / 4][16][4], the layout of
// AVX512-VNNI, both filled up with 0. Rows are quantised one by one to 8 bits, q + 128 in [1, 255]; the products of 8-bit
// numbers are exact in int32 on every processor, so that all instruction sets give the same result.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lasformer {

constexpr int64_t kPanel = 16;  // outputs of a panel: a vector of 64 bytes

enum class Isa : int64_t { kBest = 0, kPlain = 1, kAvx2 = 2, kVnni = 3 };

// A packed linear layer. `quantised` is null for float32, `weight` for int8.
struct Packed {
  const float* weight = nullptr;
  const int8_t* quantised = nullptr;
  const float* scale = nullptr;   // [N], of the weights of an output
  const int32_t* sums = nullptr;  // [N], 128 times the sum of an output's quantised weights
  const float* bias = nullptr;    // [N] or null
  int64_t outputs = 0, inputs = 0;
  int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  int64_t quads() const { return (inputs + 3) / 4; }
};

// What is done to a product before it is stored.
struct After {
  bool relu = false;
  const float* add = nullptr;  // [R, N], the residual
};

// A packed layer from its tensors: weight, scale, sums and bias, of which those that do not apply are empty.
Packed packed(const at::Tensor& weight, const at::Tensor& scale, const at::Tensor& sums, const at::Tensor& bias,
              int64_t inputs, int64_t outputs);

// out [R, N] = x [R, K] * weights + bias, then `after`. x has rows of `stride` numbers.
void product(const float* x, int64_t stride, int64_t rows, const Packed& weights, float* out, After after = {},
             Isa isa = Isa::kBest);

}  // namespace lasformer
