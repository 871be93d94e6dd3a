// Linear layers with packed weights. Definitions: torch's linear, reference.linear_int8.
#include "packed.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <vector>

#include "kernels.h"

namespace lasformer {

void product(const float* x, int64_t stride, int64_t rows, const Packed& weights, float* out, After after) {
  const Arithmetic& compute = arithmetic();
  const int64_t padded = weights.quads() * 4, row = padded * compute.number_bytes;
  std::vector<uint8_t> numbers;
  std::vector<float> scales;
  if (weights.quantised) {
    numbers.resize(rows * row);
    scales.resize(rows);
    at::parallel_for(0, rows, grain(4 * weights.inputs), [&](int64_t begin, int64_t end) {
      compute.quantise(x + begin * stride, stride, end - begin, weights.inputs, &numbers[begin * row], padded, &scales[begin]);
    });
  }
  const Product task{x, stride, rows, numbers.data(), scales.data(), weights, out, after};
  const int64_t work = rows * weights.inputs * kPanels * kPanel;
  at::parallel_for(0, weights.groups(), grain(work), [&](int64_t begin, int64_t end) { compute.product(task, begin, end); });
}

Packed packed(const at::Tensor& weight, const at::Tensor& scale, const at::Tensor& sums, const at::Tensor& bias,
              int64_t inputs, int64_t outputs) {
  Packed p;
  p.inputs = inputs;
  p.outputs = outputs;
  const bool quantised = weight.scalar_type() == at::kChar;
  TORCH_CHECK(quantised || weight.scalar_type() == at::kFloat, "weight: expected packed float32 or int8");
  TORCH_CHECK(weight.is_contiguous() && weight.numel() == p.panels() * kPanel * (quantised ? p.quads() * 4 : inputs),
              "weight: not packed for ", inputs, " inputs and ", outputs, " outputs");
  if (quantised) {
    const int64_t padded = p.panels() * kPanel;
    TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.is_contiguous() && scale.numel() == padded, "scale: expected float32 [N]");
    TORCH_CHECK(sums.scalar_type() == at::kInt && sums.is_contiguous() && sums.numel() == padded, "sums: expected int32 [N]");
    p.quantised = weight.const_data_ptr<int8_t>();
    p.scale = scale.const_data_ptr<float>();
    p.sums = sums.const_data_ptr<int32_t>();
  } else {
    p.weight = weight.const_data_ptr<float>();
  }
  if (bias.numel() > 0) {
    TORCH_CHECK(bias.scalar_type() == at::kFloat && bias.is_contiguous() && bias.numel() == outputs, "bias: expected float32 [N]");
    p.bias = bias.const_data_ptr<float>();
  }
  return p;
}

// x [R, K] float32, any number of rows -> [R, N].
Tensor packed_linear(const Tensor& x_, const Tensor& weight, const Tensor& scale, const Tensor& sums, const Tensor& bias,
                     int64_t outputs) {
  TORCH_CHECK(x_.dim() == 2 && x_.scalar_type() == at::kFloat, "x: expected float32 [R, K]");
  const Tensor x = x_.contiguous();
  const Packed weights = packed(weight, scale, sums, bias, x.size(1), outputs);
  Tensor out = at::empty({x.size(0), outputs}, x.options());
  product(x.const_data_ptr<float>(), x.size(1), x.size(0), weights, out.mutable_data_ptr<float>());
  return out;
}

// Layer normalisation of x [..., N] float32. Definition: torch's layer_norm.
Tensor layer_norm(const Tensor& x_, const Tensor& weight, const Tensor& bias, double eps) {
  TORCH_CHECK(x_.dim() > 0 && x_.scalar_type() == at::kFloat, "x: expected float32 [..., N]");
  const Tensor x = x_.contiguous();
  const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
  for (const Tensor* t : {&weight, &bias}) {
    TORCH_CHECK(t->scalar_type() == at::kFloat && t->is_contiguous() && t->numel() == n, "weight, bias: expected float32 [N]");
  }
  Tensor out = at::empty(x.sizes(), x.options());
  const auto *from = x.const_data_ptr<float>(), *factors = weight.const_data_ptr<float>();
  const auto* shifts = bias.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, rows, grain(16 * n), [&](int64_t begin, int64_t end) {
    arithmetic().layer_norm(from + begin * n, end - begin, n, factors, shifts, static_cast<float>(eps), to + begin * n);
  });
  return out;
}

// An activation of x, float32. Definitions: nn.activations.
Tensor activate(const Tensor& x_, int64_t activation) {
  TORCH_CHECK(activation >= 0 && activation <= static_cast<int64_t>(Activation::kSwish), "activation: unknown");
  TORCH_CHECK(x_.scalar_type() == at::kFloat, "x: expected float32");
  const Tensor x = x_.contiguous();
  Tensor out = at::empty(x.sizes(), x.options());
  const auto* from = x.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), grain(16), [&](int64_t begin, int64_t end) {
    arithmetic().activate(from + begin, end - begin, static_cast<Activation>(activation), to + begin);
  });
  return out;
}

}  // namespace lasformer
