// Attention over kept keys in training, forward and backward, on CPUs. Definition: reference.selected_attention.
//
// Layout: q [B, H, Q, D], k, v [B, H, K, D], so that the keys and values of a head stay in a core's cache; out, d_out
// [B, Q, H, D], as the projection after them reads and saves it; slots [B * Q, m] and their number kept [B * Q], shared by
// all heads. Every row reads its own keys: neighbouring rows share
// too few of them for tiles. A head belongs to one thread in the backward pass, which adds to its dk and dv: no atomics,
// and the same sums in the same order on every run.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <vector>

#include "cpu_math.h"
#include "kernels.h"

namespace lasformer {
namespace {

constexpr int64_t kAhead = 6;  // prefetch distance, in kept keys

// Whether a weight survives dropout, and by what it is scaled: the same in both passes. Definition: through.noise.
struct Dropout {
  uint32_t seed, least;
  float scale;
  Dropout(double p, int64_t seed)
      : seed(static_cast<uint32_t>(seed)),
        least(static_cast<uint32_t>(p * 4294967296.0)),
        scale(static_cast<float>(1.0 / (1.0 - p))) {}
  float operator()(int64_t row, int32_t slot) const {
    uint32_t x = static_cast<uint32_t>(row) * 0x9E3779B1u + static_cast<uint32_t>(slot) * 0x85EBCA77u + seed;
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    x ^= x >> 16;
    return x >= least ? scale : 0.f;
  }
};

template <typename T>
inline void fetch(const T* at, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(at + i);
}

template <typename T>
inline void load(const T* from, float* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

template <typename T>
inline void add_scaled(float* sum, float weight, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * static_cast<float>(x[i]);
}

struct Shape {
  int64_t batch, heads, queries, keys, width;
  explicit Shape(const Tensor& q, const Tensor& k)
      : batch(q.size(0)), heads(q.size(1)), queries(q.size(2)), keys(k.size(2)), width(q.size(3)) {}
  // Where query i of a head (of all items) is in out and d_out, in elements.
  int64_t out(int64_t head, int64_t i) const {
    return ((head / heads * queries + i) * heads + head % heads) * width;
  }
};

void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slots, const Tensor& kept) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
              "q, k: expected [B, H, Q, D] and [B, H, K, D]");
  TORCH_CHECK(v.sizes() == k.sizes(), "v: expected the keys' shape");
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "q, k, v: expected one type");
  TORCH_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16, "q: expected float32 or bfloat16");
  const int64_t rows = q.size(0) * q.size(2);
  TORCH_CHECK(slots.dim() == 2 && slots.scalar_type() == at::kInt && slots.size(0) == rows && slots.is_contiguous(),
              "slots: expected contiguous int32 [B * Q, m]");
  TORCH_CHECK(kept.scalar_type() == at::kInt && kept.numel() == rows && kept.is_contiguous(), "kept: expected int32 [B * Q]");
  const auto *all = slots.const_data_ptr<int32_t>(), *number = kept.const_data_ptr<int32_t>();
  int64_t largest = -1;
  for (int64_t r = 0; r < rows; ++r) {
    TORCH_CHECK(number[r] >= 0 && number[r] <= slots.size(1), "kept: more slots than there are");
    for (int32_t j = 0; j < number[r]; ++j) {
      // as unsigned, a negative slot is a large one
      largest = std::max<int64_t>(largest, static_cast<uint32_t>(all[r * slots.size(1) + j]));
    }
  }
  TORCH_CHECK(largest < k.size(2), "slots: beyond the keys there are");
}

// The kernels' inner loops are compiled for the usual width of a head, and for any other.
template <int64_t kWidth, typename T>
void forward_rows(const Shape& shape, int64_t head, int64_t from, int64_t to, const T* q, const T* k, const T* v,
                  const int32_t* slots, int64_t most, const int32_t* kept, const Dropout* dropout, T* out, float* lse) {
  const int64_t width = kWidth ? kWidth : shape.width, item = head / shape.heads;
  const float scale = 1.f / std::sqrt(static_cast<float>(width));
  const T *keys = k + head * shape.keys * width, *values = v + head * shape.keys * width;
  std::vector<float> query(width), sum(width), weights(most);
  for (int64_t i = from; i < to; ++i) {
    const int64_t row = item * shape.queries + i, place = head * shape.queries + i;
    const int32_t* own = slots + row * most;
    const int64_t n = kept[row];
    T* result = out + shape.out(head, i);
    std::fill(sum.begin(), sum.end(), 0.f);
    if (n == 0) {
      lse[place] = std::numeric_limits<float>::infinity();
      std::fill(result, result + width, static_cast<T>(0.f));
      continue;
    }
    load(q + place * width, query.data(), width);
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < n; ++j) {
      if (j + kAhead < n) fetch(keys + own[j + kAhead] * width, width);
      weights[j] = scale * dot(query.data(), keys + own[j] * width, width);
      top = std::max(top, weights[j]);
    }
    float total = 0.f;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < n; ++j) {
      weights[j] = exp_negative(weights[j] - top);
      total += weights[j];
    }
    lse[place] = top + std::log(total);
    const float norm = 1.f / total;
    for (int64_t j = 0; j < n; ++j) {
      if (j + kAhead < n) fetch(values + own[j + kAhead] * width, width);
      const float noise = dropout ? (*dropout)(place, own[j]) : 1.f;
      add_scaled(sum.data(), weights[j] * norm * noise, values + own[j] * width, width);
    }
    for (int64_t c = 0; c < width; ++c) result[c] = static_cast<T>(sum[c]);
  }
}

template <int64_t kWidth, typename T>
void backward_head(const Shape& shape, int64_t head, const T* d_out, const T* q, const T* k, const T* v,
                   const int32_t* slots, int64_t most, const int32_t* kept, const T* out, const float* lse,
                   const Dropout* dropout, T* dq, float* dk, float* dv) {
  const int64_t width = kWidth ? kWidth : shape.width, item = head / shape.heads;
  const float scale = 1.f / std::sqrt(static_cast<float>(width));
  const int64_t start = head * shape.keys * width;
  const T *keys = k + start, *values = v + start;
  dk += start;
  dv += start;
  std::vector<float> query(width), d_row(width), d_query(width), weights(most), d_scores(most);
  for (int64_t i = 0; i < shape.queries; ++i) {
    const int64_t row = item * shape.queries + i, place = head * shape.queries + i;
    const int32_t* own = slots + row * most;
    const int64_t n = kept[row];
    std::fill(d_query.begin(), d_query.end(), 0.f);
    load(q + place * width, query.data(), width);
    load(d_out + shape.out(head, i), d_row.data(), width);
    const float delta = dot(d_row.data(), out + shape.out(head, i), width), norm = lse[place];
    for (int64_t j = 0; j < n; ++j) {
      if (j + kAhead < n) {
        fetch(keys + own[j + kAhead] * width, width);
        fetch(values + own[j + kAhead] * width, width);
      }
      weights[j] = scale * dot(query.data(), keys + own[j] * width, width) - norm;
      d_scores[j] = dot(d_row.data(), values + own[j] * width, width);
    }
    if (dropout) {
      for (int64_t j = 0; j < n; ++j) {
        const float noise = (*dropout)(place, own[j]), weight = exp_negative(weights[j] < 0.f ? weights[j] : 0.f);
        d_scores[j] = weight * (noise * d_scores[j] - delta) * scale;
        weights[j] = weight * noise;
      }
    } else {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) {
        weights[j] = exp_negative(weights[j] < 0.f ? weights[j] : 0.f);
        d_scores[j] = weights[j] * (d_scores[j] - delta) * scale;
      }
    }
    for (int64_t j = 0; j < n; ++j) {
      if (j + kAhead < n) {
        fetch(dk + own[j + kAhead] * width, width);
        fetch(dv + own[j + kAhead] * width, width);
      }
      const int64_t at = own[j] * width;
      add_scaled(dv + at, weights[j], d_row.data(), width);
      add_scaled(dk + at, d_scores[j], query.data(), width);
      add_scaled(d_query.data(), d_scores[j], keys + at, width);
    }
    for (int64_t c = 0; c < width; ++c) dq[place * width + c] = static_cast<T>(d_query[c]);
  }
}

}  // namespace

// Returns out [B, Q, H, D], in q's type, and the log-normalisers, float32 [B, H, Q] (+inf for rows without keys).
std::tuple<Tensor, Tensor> gather_forward(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& slots,
                                          const Tensor& kept, double p, int64_t seed) {
  check(q_, k_, v_, slots, kept);
  const Tensor q = q_.contiguous(), k = k_.contiguous(), v = v_.contiguous();
  const Shape shape(q, k);
  Tensor out = at::empty({shape.batch, shape.queries, shape.heads, shape.width}, q.options());
  Tensor lse = at::empty({shape.batch, shape.heads, shape.queries}, q.options().dtype(at::kFloat));
  TORCH_CHECK(p >= 0 && p < 1, "p: expected a probability in [0, 1)");
  const Dropout dropout(p, seed);
  const auto *chosen = slots.const_data_ptr<int32_t>(), *number = kept.const_data_ptr<int32_t>();
  const int64_t rows = shape.batch * shape.heads * shape.queries;
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, q.scalar_type(), "gather_forward", [&] {
    const auto *qs = q.const_data_ptr<scalar_t>(), *ks = k.const_data_ptr<scalar_t>(), *vs = v.const_data_ptr<scalar_t>();
    auto* result = out.mutable_data_ptr<scalar_t>();
    auto* norms = lse.mutable_data_ptr<float>();
    at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      while (begin < end) {  // the rows of a head within the chunk
        const int64_t head = begin / shape.queries, from = begin % shape.queries;
        const int64_t to = std::min(shape.queries, from + end - begin);
        const auto run = shape.width == 64 ? forward_rows<64, scalar_t> : forward_rows<0, scalar_t>;
        run(shape, head, from, to, qs, ks, vs, chosen, slots.size(1), number, p > 0 ? &dropout : nullptr, result, norms);
        begin += to - from;
      }
    });
  });
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> gather_backward(const Tensor& d_out_, const Tensor& q_, const Tensor& k_,
                                                   const Tensor& v_, const Tensor& slots, const Tensor& kept,
                                                   const Tensor& out_, const Tensor& lse, double p, int64_t seed) {
  check(q_, k_, v_, slots, kept);
  const Tensor d_out = d_out_.contiguous(), q = q_.contiguous(), k = k_.contiguous(), v = v_.contiguous();
  const Tensor out = out_.contiguous();
  const auto expected = q.transpose(1, 2).sizes().vec();
  TORCH_CHECK(d_out.sizes() == expected && out.sizes() == expected && d_out.scalar_type() == q.scalar_type() &&
                  out.scalar_type() == q.scalar_type(), "d_out, out: expected [B, Q, H, D], in the type of q");
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous() && lse.numel() * q.size(3) == q.numel(),
              "lse: expected float32 [B, H, Q]");
  const Shape shape(q, k);
  Tensor dq = at::empty_like(q), dk = at::zeros(k.sizes(), k.options().dtype(at::kFloat)), dv = at::zeros_like(dk);
  TORCH_CHECK(p >= 0 && p < 1, "p: expected a probability in [0, 1)");
  const Dropout dropout(p, seed);
  const auto *chosen = slots.const_data_ptr<int32_t>(), *number = kept.const_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, q.scalar_type(), "gather_backward", [&] {
    const auto run = shape.width == 64 ? backward_head<64, scalar_t> : backward_head<0, scalar_t>;
    at::parallel_for(0, shape.batch * shape.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        run(shape, head, d_out.const_data_ptr<scalar_t>(), q.const_data_ptr<scalar_t>(), k.const_data_ptr<scalar_t>(),
            v.const_data_ptr<scalar_t>(), chosen, slots.size(1), number, out.const_data_ptr<scalar_t>(),
            lse.const_data_ptr<float>(), p > 0 ? &dropout : nullptr, dq.mutable_data_ptr<scalar_t>(),
            dk.mutable_data_ptr<float>(), dv.mutable_data_ptr<float>());
      }
    });
  });
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type())};
}

}  // namespace lasformer
