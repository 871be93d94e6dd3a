// Row by row over blocks of attention scores (CPUs, float32). Definitions: rows.py.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace lasformer {
namespace {

void check_block(const Tensor& x, const char* name) {
  TORCH_CHECK(x.dim() == 4 && x.scalar_type() == at::kFloat && x.is_contiguous(), name,
              ": expected contiguous float32 [B, H, R, N]");
}

// The shape of scores [B, H, R, N] and their mask of allowed keys, bool [B or 1, R, N] or none.
Block block(const Tensor& scores, const std::optional<Tensor>& mask = std::nullopt) {
  Block b{scores.size(1), scores.size(2), scores.size(3), nullptr, 0};
  if (!mask) return b;
  TORCH_CHECK(mask->scalar_type() == at::kBool && mask->dim() == 3 && mask->is_contiguous() &&
                  (mask->size(0) == scores.size(0) || mask->size(0) == 1) && mask->size(1) == b.rows &&
                  mask->size(2) == b.keys,
              "allowed: expected contiguous bool [B or 1, R, N]");
  b.allowed = reinterpret_cast<const uint8_t*>(mask->const_data_ptr<bool>());
  b.allowed_stride = mask->size(0) == 1 ? 0 : b.rows * b.keys;
  return b;
}

void check_mean(const Tensor& x, int64_t size) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.is_contiguous() && x.numel() == size,
              "mean: expected contiguous float32 [B, R, N]");
}

// Scores and the tensors that go with them: d_weights of the same shape, lse and delta [B, H, R].
void check_scores(const Tensor& scores, const Tensor& d_weights, const Tensor& lse, const Tensor& delta) {
  check_block(scores, "scores");
  check_block(d_weights, "d_weights");
  TORCH_CHECK(d_weights.sizes() == scores.sizes(), "d_weights: expected the shape of scores");
  for (const Tensor* each : {&lse, &delta}) {
    TORCH_CHECK(each->scalar_type() == at::kFloat && each->is_contiguous() &&
                    each->numel() == scores.size(0) * scores.size(1) * scores.size(2),
                "lse, delta: expected contiguous float32 [B, H, R]");
  }
}

}  // namespace

// Log probabilities of scores [R, N] float32. Definition: torch's log_softmax.
Tensor log_softmax(const Tensor& scores_) {
  TORCH_CHECK(scores_.dim() == 2 && scores_.scalar_type() == at::kFloat, "scores: expected float32 [R, N]");
  const Tensor scores = scores_.contiguous();
  Tensor out = at::empty(scores.sizes(), scores.options());
  const int64_t n = scores.size(1);
  const auto* from = scores.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, scores.size(0), grain(16 * n), [&](int64_t begin, int64_t end) {
    arithmetic().log_softmax(from + begin * n, end - begin, n, to + begin * n);
  });
  return out;
}

// scores [B, H, R, N] become their softmax over the keys that the mask allows (0 in rows without any). Its sum over the
// heads, times share, is added to mean [B, R, N], if there is one. Returns the log-normalisers [B, H, R], +inf in rows
// without keys.
Tensor row_softmax(Tensor& scores, const std::optional<Tensor>& mask, const std::optional<Tensor>& mean, double share) {
  check_block(scores, "scores");
  const Block b = block(scores, mask);
  const int64_t batch = scores.size(0);
  if (mean) check_mean(*mean, batch * b.rows * b.keys);
  Tensor norms = at::empty({batch, b.heads, b.rows}, scores.options());
  auto *all = scores.mutable_data_ptr<float>(), *lse = norms.mutable_data_ptr<float>();
  auto* sums = mean ? mean->mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, batch * b.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> bias(b.keys);
    arithmetic().row_softmax(b, all, sums, static_cast<float>(share), lse, begin, end, bias.data());
  });
  return norms;
}

// weights [B, H, R, N] become weights * (d_mean - their mean under the weights): the gradient of the scores.
void softmax_gradient(Tensor& weights, const Tensor& d_mean) {
  check_block(weights, "weights");
  const Block b = block(weights);
  const int64_t batch = weights.size(0);
  check_mean(d_mean, batch * b.rows * b.keys);
  auto* all = weights.mutable_data_ptr<float>();
  const auto* gradient = d_mean.const_data_ptr<float>();
  at::parallel_for(0, batch * b.heads * b.rows, 1,
                   [&](int64_t begin, int64_t end) { arithmetic().softmax_gradient(b, all, gradient, begin, end); });
}

// Sum over the heads of exp(min(scores - lse, most)) * (d_weights - delta), 0 where not allowed: [B, R, N].
Tensor mask_gradient(const Tensor& scores, const Tensor& lse, const Tensor& d_weights, const Tensor& delta,
                     const std::optional<Tensor>& mask, double most) {
  check_scores(scores, d_weights, lse, delta);
  const Block b = block(scores, mask);
  Tensor sums = at::zeros({scores.size(0), b.rows, b.keys}, scores.options());
  const auto *all = scores.const_data_ptr<float>(), *d_all = d_weights.const_data_ptr<float>();
  const auto *norms = lse.const_data_ptr<float>(), *deltas = delta.const_data_ptr<float>();
  auto* out = sums.mutable_data_ptr<float>();
  at::parallel_for(0, scores.size(0) * b.rows, 1, [&](int64_t begin, int64_t end) {
    arithmetic().mask_gradient(b, all, norms, d_all, deltas, static_cast<float>(most), out, begin, end);
  });
  return sums;
}

// Own lines int64 [B, R, 2] of the rows of scores [B, H, R, N].
const int64_t* check_own(const Tensor& scores, const Tensor& own) {
  check_block(scores, "scores");
  TORCH_CHECK(own.scalar_type() == at::kLong && own.is_contiguous() && own.numel() == 2 * scores.size(0) * scores.size(2),
              "own: expected contiguous int64 [B, R, 2]");
  return own.const_data_ptr<int64_t>();
}

// Visit the scores of each row's own line: visit(row of all heads, its first score, their number).
template <typename Visit>
void each_own(const Tensor& scores, const Tensor& own, Visit visit) {
  const int64_t heads = scores.size(1), rows = scores.size(2), keys = scores.size(3);
  const int64_t* lines = check_own(scores, own);
  at::parallel_for(0, scores.size(0) * heads * rows, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t* line = lines + 2 * (at / (heads * rows) * rows + at % rows);
      const int64_t first = std::clamp<int64_t>(line[0], 0, keys), stop = std::clamp<int64_t>(line[0] + line[1], first, keys);
      visit(at, at * keys + first, stop - first);
    }
  });
}

// Add shift [B, H, R] to the scores [B, H, R, N] of each row's own line.
void shift_own(Tensor& scores, const Tensor& own, const Tensor& shift) {
  TORCH_CHECK(shift.scalar_type() == at::kFloat && shift.is_contiguous() && shift.numel() * scores.size(3) == scores.numel(),
              "shift: expected contiguous float32 [B, H, R]");
  auto* all = scores.mutable_data_ptr<float>();
  const auto* added = shift.const_data_ptr<float>();
  each_own(scores, own, [&](int64_t at, int64_t from, int64_t n) {
    for (int64_t j = 0; j < n; ++j) all[from + j] += added[at];
  });
}

// Sum of the scores [B, H, R, N] of each row's own line, [B, H, R].
Tensor sum_own(const Tensor& scores, const Tensor& own) {
  Tensor out = at::empty({scores.size(0), scores.size(1), scores.size(2)}, scores.options());
  auto* sums = out.mutable_data_ptr<float>();
  const auto* all = scores.const_data_ptr<float>();
  each_own(scores, own, [&](int64_t at, int64_t from, int64_t n) {
    float sum = 0.f;
    for (int64_t j = 0; j < n; ++j) sum += all[from + j];
    sums[at] = sum;
  });
  return out;
}

// scores become the weights P, d_weights (dO . V) the gradient of the scores, P (dO . V - delta).
void kept_gradient(Tensor& scores, Tensor& d_weights, const Tensor& lse, const Tensor& delta, const Tensor& keep) {
  check_scores(scores, d_weights, lse, delta);
  const Block b = block(scores, keep);
  auto *all = scores.mutable_data_ptr<float>(), *d_all = d_weights.mutable_data_ptr<float>();
  const auto *norms = lse.const_data_ptr<float>(), *deltas = delta.const_data_ptr<float>();
  at::parallel_for(0, scores.size(0) * b.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> bias(b.keys);
    arithmetic().kept_gradient(b, all, d_all, norms, deltas, begin, end, bias.data());
  });
}

}  // namespace lasformer
