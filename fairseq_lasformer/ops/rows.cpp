// Row by row over blocks of attention scores, so that a row is read once while it is in the cache (CPUs, float32).
// Definitions: rows.py.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "cpu_math.h"
#include "kernels.h"

namespace lasformer {
namespace {

// bool [B or 1, R, N] or none: the row of an item, or null if every key is allowed.
struct Allowed {
  const bool* data = nullptr;
  int64_t batch_stride = 0, rows = 0, keys = 0;
  Allowed(const std::optional<Tensor>& mask, int64_t batch, int64_t rows, int64_t keys) : rows(rows), keys(keys) {
    if (!mask) return;
    TORCH_CHECK(mask->scalar_type() == at::kBool && mask->dim() == 3 && mask->is_contiguous() &&
                    (mask->size(0) == batch || mask->size(0) == 1) && mask->size(1) == rows && mask->size(2) == keys,
                "allowed: expected contiguous bool [B or 1, R, N]");
    data = mask->const_data_ptr<bool>();
    batch_stride = mask->size(0) == 1 ? 0 : rows * keys;
  }
  const bool* row(int64_t item, int64_t r) const { return data ? data + item * batch_stride + r * keys : nullptr; }
};

// 0 for every key that a row may use, -inf for the others: added to scores, unlike a branch, it is vectorised.
inline void fill_bias(const bool* row, int64_t keys, float* bias) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  const float none[2] = {-std::numeric_limits<float>::infinity(), 0.f};
  for (int64_t j = 0; j < keys; ++j) bias[j] = row ? none[bytes[j]] : 0.f;
}

// exp, 0 where it would underflow: for all x below 88.
inline float exp_or_zero(float x) {
  const float y = exp_negative(x);
  return x < -87.f ? 0.f : y;
}

void check_block(const Tensor& x, const char* name) {
  TORCH_CHECK(x.dim() == 4 && x.scalar_type() == at::kFloat && x.is_contiguous(), name,
              ": expected contiguous float32 [B, H, R, N]");
}

void check_mean(const Tensor& x, int64_t size) {
  TORCH_CHECK(x.scalar_type() == at::kFloat && x.is_contiguous() && x.numel() == size,
              "mean: expected contiguous float32 [B, R, N]");
}

// Scores and what is computed beside them: d_weights of the same shape, lse and delta [B, H, R].
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

// scores [B, H, R, N] become their softmax over the keys that the mask allows (0 in rows without any). Its sum over the
// heads, times share, is added to mean [B, R, N], if there is one. Returns the log-normalisers [B, H, R], +inf in rows
// without keys.
Tensor row_softmax(Tensor& scores, const std::optional<Tensor>& mask, const std::optional<Tensor>& mean, double share) {
  check_block(scores, "scores");
  const int64_t batch = scores.size(0), heads = scores.size(1), rows = scores.size(2), keys = scores.size(3);
  if (mean) check_mean(*mean, batch * rows * keys);
  const Allowed allowed(mask, batch, rows, keys);
  Tensor norms = at::empty({batch, heads, rows}, scores.options());
  auto *all = scores.mutable_data_ptr<float>(), *lse = norms.mutable_data_ptr<float>();
  auto* sums = mean ? mean->mutable_data_ptr<float>() : nullptr;
  const auto factor = static_cast<float>(share);
  at::parallel_for(0, batch * rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> bias(keys);
    for (int64_t place = begin; place < end; ++place) {
      const int64_t item = place / rows, r = place % rows;
      fill_bias(allowed.row(item, r), keys, bias.data());
      const float* own = bias.data();
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (item * heads + h) * rows + r;
        float *x = all + at * keys, top = -std::numeric_limits<float>::infinity(), total = 0.f;
        int32_t undefined = 0;  // NaN among the scores: the row is NaN, not a row without keys
#pragma omp simd reduction(max : top) reduction(| : undefined)
        for (int64_t j = 0; j < keys; ++j) {
          x[j] = own[j] < 0.f ? own[j] : x[j];
          undefined |= x[j] != x[j];
          top = x[j] > top ? x[j] : top;
        }
        if (undefined) {
          top = std::numeric_limits<float>::quiet_NaN();
        } else if (top == -std::numeric_limits<float>::infinity()) {
          std::fill(x, x + keys, 0.f);
          lse[at] = std::numeric_limits<float>::infinity();
          continue;
        }
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < keys; ++j) {
          x[j] = exp_or_zero(x[j] - top);
          total += x[j];
        }
        lse[at] = top + std::log(total);
        const float norm = 1.f / total;
#pragma omp simd
        for (int64_t j = 0; j < keys; ++j) x[j] *= norm;
        if (!sums) continue;
        float* sum = sums + place * keys;
#pragma omp simd
        for (int64_t j = 0; j < keys; ++j) sum[j] += factor * x[j];
      }
    }
  });
  return norms;
}

// weights [B, H, R, N] become weights * (d_mean - their mean under the weights): the gradient of the scores.
void softmax_gradient(Tensor& weights, const Tensor& d_mean) {
  check_block(weights, "weights");
  const int64_t batch = weights.size(0), heads = weights.size(1), rows = weights.size(2), keys = weights.size(3);
  check_mean(d_mean, batch * rows * keys);
  auto* all = weights.mutable_data_ptr<float>();
  const auto* gradient = d_mean.const_data_ptr<float>();
  at::parallel_for(0, batch * heads * rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      const int64_t item = place / (heads * rows), r = place % rows;
      const float* g = gradient + (item * rows + r) * keys;
      float* x = all + place * keys;
      float mean = 0.f;
#pragma omp simd reduction(+ : mean)
      for (int64_t j = 0; j < keys; ++j) mean += x[j] * g[j];
#pragma omp simd
      for (int64_t j = 0; j < keys; ++j) x[j] *= g[j] - mean;
    }
  });
}

// Sum over the heads of exp(min(scores - lse, most)) * (d_weights - delta), 0 where not allowed: [B, R, N].
Tensor mask_gradient(const Tensor& scores, const Tensor& lse, const Tensor& d_weights, const Tensor& delta,
                     const std::optional<Tensor>& mask, double most) {
  check_scores(scores, d_weights, lse, delta);
  const int64_t batch = scores.size(0), heads = scores.size(1), rows = scores.size(2), keys = scores.size(3);
  const Allowed allowed(mask, batch, rows, keys);
  Tensor found = at::zeros({batch, rows, keys}, scores.options());
  const auto *all = scores.const_data_ptr<float>(), *d_all = d_weights.const_data_ptr<float>();
  const auto *norms = lse.const_data_ptr<float>(), *deltas = delta.const_data_ptr<float>();
  auto* sums = found.mutable_data_ptr<float>();
  const auto limit = static_cast<float>(most);
  at::parallel_for(0, batch * rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      const int64_t item = place / rows, r = place % rows;
      float* sum = sums + place * keys;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t own = (item * heads + h) * rows + r;
        const float *x = all + own * keys, *d = d_all + own * keys, norm = norms[own], shift = deltas[own];
        if (norm == std::numeric_limits<float>::infinity()) continue;  // a row without keys
#pragma omp simd
        for (int64_t j = 0; j < keys; ++j) {
          const float s = x[j] - norm;
          sum[j] += exp_or_zero(s < limit ? s : limit) * (d[j] - shift);
        }
      }
      if (const bool* mine = allowed.row(item, r)) {
        for (int64_t j = 0; j < keys; ++j) sum[j] = mine[j] ? sum[j] : 0.f;
      }
    }
  });
  return found;
}

// scores become the weights P, d_weights (dO . V) the gradient of the scores, P (dO . V - delta).
void kept_gradient(Tensor& scores, Tensor& d_weights, const Tensor& lse, const Tensor& delta, const Tensor& keep) {
  check_scores(scores, d_weights, lse, delta);
  const int64_t batch = scores.size(0), heads = scores.size(1), rows = scores.size(2), keys = scores.size(3);
  const Allowed kept(keep, batch, rows, keys);
  auto *all = scores.mutable_data_ptr<float>(), *d_all = d_weights.mutable_data_ptr<float>();
  const auto *norms = lse.const_data_ptr<float>(), *deltas = delta.const_data_ptr<float>();
  at::parallel_for(0, batch * rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> bias(keys);
    for (int64_t place = begin; place < end; ++place) {
      const int64_t item = place / rows, r = place % rows;
      fill_bias(kept.row(item, r), keys, bias.data());
      const float* own = bias.data();
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = (item * heads + h) * rows + r;
        float *x = all + at * keys, *d = d_all + at * keys;
        const float norm = norms[at], shift = deltas[at];
#pragma omp simd
        for (int64_t j = 0; j < keys; ++j) {
          const float s = x[j] - norm + own[j];
          x[j] = exp_or_zero(s < 0.f ? s : 0.f);
          d[j] = x[j] * (d[j] - shift);
        }
      }
    }
  });
}

}  // namespace lasformer
