// Dropout by a hash (CPUs, float32). Definition: ops/dropout.py.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "kernels.h"

namespace lasformer {

Dropout drawn(double p, int64_t seed) {
  TORCH_CHECK(p >= 0 && p < 1, "p: expected a probability in [0, 1), not ", p);
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(p * 4294967296.0),
          p > 0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.f};
}

// x [..., N] with its numbers multiplied by 0 or 1 / (1 - p), plus `added` of the same shape, if there is one.
Tensor dropout(const Tensor& x_, const std::optional<Tensor>& added_, double p, int64_t seed) {
  TORCH_CHECK(x_.dim() > 0 && x_.scalar_type() == at::kFloat, "x: expected float32 [..., N]");
  TORCH_CHECK(p > 0, "p: expected a probability above 0");
  const Tensor x = x_.contiguous();
  Tensor added;
  if (added_) {
    TORCH_CHECK(added_->scalar_type() == at::kFloat && added_->sizes() == x.sizes(), "added: expected float32 as x");
    added = added_->contiguous();
  }
  Tensor out = at::empty(x.sizes(), x.options());
  const int64_t n = x.size(-1), rows = n ? x.numel() / n : 0;
  const Dropout how = drawn(p, seed);
  const auto* from = x.const_data_ptr<float>();
  const auto* more = added.defined() ? added.const_data_ptr<float>() : nullptr;
  auto* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, rows, grain(8 * n), [&](int64_t begin, int64_t end) {
    arithmetic().dropout(how, from, more, begin, end, n, to);
  });
  return out;
}

}  // namespace lasformer
