// Attention over kept keys in training, forward and backward. Definition: reference.selected_attention.
//
// Every row reads its own keys: neighbouring rows share too few of them for tiles. In the backward pass, one thread per
// head adds to its dk and dv: no atomics, and the same sums in the same order on every run.
#pragma once

#include <cmath>

#include "arithmetic.h"
#include "attention.h"
#include "dropout.h"
#include "lanes.h"

namespace lasformer {
namespace LASFORMER_TARGET {

template <typename T>
inline void widen(const T* from, float* to, int64_t n) {
  each(n, [&](int64_t i) { store(to + i, load(from + i)); }, [&](int64_t i) { to[i] = single(from[i]); });
}

// Offset of query i of a head (of all items) in out and d_out, in elements.
inline int64_t out_place(const Gather& g, int64_t head, int64_t i) {
  return ((head / g.heads * g.queries + i) * g.heads + head % g.heads) * g.width;
}

// Products of a row with the keys in its slots.
template <typename T>
inline void products(const float* row, const T* all_of, const int32_t* slots, int64_t n, int64_t width, float* out) {
  const auto place = [=](int64_t j) { return all_of + slots[j] * width; };
  int64_t j = 0;
  for (; j + 4 <= n; j += 4) {
    const T* four[4];
    for (int64_t i = 0; i < 4; ++i) {
      four[i] = place(j + i);
      if (j + i + kAhead < n) fetch(place(j + i + kAhead), width);
    }
    const Quad found = dots(row, four, width);
    std::memcpy(out + j, &found, sizeof found);
  }
  for (; j < n; ++j) out[j] = dot(row, place(j), width);
}

// Add to the scores of a query's own line.
inline void shift_own(const Gather& g, int64_t row, const int32_t* slots, int64_t n, float shift, float* scores) {
  const auto first = static_cast<uint32_t>(g.own[2 * row]), count = static_cast<uint32_t>(g.own[2 * row + 1]);
  for (int64_t j = 0; j < n; ++j) scores[j] += static_cast<uint32_t>(slots[j]) - first < count ? shift : 0.f;
}

template <int64_t kWidth, typename T>
void forward_rows(const Gather& g, int64_t head, int64_t from, int64_t to, float* work) {
  const int64_t width = kWidth ? kWidth : g.width, item = head / g.heads;
  const float factor = 1.f / std::sqrt(static_cast<float>(width));
  const T *q = static_cast<const T*>(g.q), *keys = static_cast<const T*>(g.k) + head * g.keys * width;
  const T* values = static_cast<const T*>(g.v) + head * g.keys * width;
  float *query = work, *sum = work + width, *weights = work + 2 * width;
  for (int64_t i = from; i < to; ++i) {
    const int64_t row = item * g.queries + i, place = head * g.queries + i, n = g.counts[row];
    const int32_t* own = g.slots + row * g.most;
    T* result = static_cast<T*>(g.out) + out_place(g, head, i);
    std::memset(sum, 0, width * sizeof(float));
    if (n > 0) {
      widen(q + place * width, query, width);
      products(query, keys, own, n, width, weights);
      scale(weights, n, factor);
      if (g.own) shift_own(g, row, own, n, g.shift[place], weights);
      const float top = largest(weights, n), total = exponentials(weights, n, top);
      g.lse[place] = top + std::log(total);
      scale(weights, n, 1.f / total);
      if (g.dropout.scale > 0.f) {
        for (int64_t j = 0; j < n; ++j) weights[j] *= dropout_factor(g.dropout, place, own[j]);
      }
      for (int64_t j = 0; j < n; j += 4) {
        const int64_t count = n - j < 4 ? n - j : 4;
        const T* four[4];
        for (int64_t c = 0; c < count; ++c) {
          four[c] = values + own[j + c] * width;
          if (j + c + kAhead < n) fetch(values + own[j + c + kAhead] * width, width);
        }
        add_values<kWidth>(sum, weights + j, four, count, width);
      }
    } else {
      g.lse[place] = kInfinity;
    }
    for (int64_t c = 0; c < width; ++c) store(result + c, sum[c]);
  }
}

template <int64_t kWidth, typename T>
void backward_head(const Gather& g, int64_t head, float* work) {
  const int64_t width = kWidth ? kWidth : g.width, item = head / g.heads, start = head * g.keys * width;
  const float factor = 1.f / std::sqrt(static_cast<float>(width));
  const T *q = static_cast<const T*>(g.q), *keys = static_cast<const T*>(g.k) + start;
  const T *values = static_cast<const T*>(g.v) + start, *d_out = static_cast<const T*>(g.d_out);
  const T* out = static_cast<const T*>(g.out);
  T* dq = static_cast<T*>(g.dq);
  float *dk = g.dk + start, *dv = g.dv + start;
  float *query = work, *d_row = work + width, *d_query = work + 2 * width;
  float *weights = work + 4 * width, *d_scores = weights + g.most + kTurn;
  for (int64_t i = 0; i < g.queries; ++i) {
    const int64_t row = item * g.queries + i, place = head * g.queries + i, n = g.counts[row];
    const int32_t* own = g.slots + row * g.most;
    std::memset(d_query, 0, width * sizeof(float));
    widen(q + place * width, query, width);
    widen(d_out + out_place(g, head, i), d_row, width);
    const float delta = dot(d_row, out + out_place(g, head, i), width), norm = g.lse[place];
    products(query, keys, own, n, width, weights);
    products(d_row, values, own, n, width, d_scores);
    if (g.own) shift_own(g, row, own, n, g.shift[place] / factor, weights);
    const auto gradient = [&](auto s, auto d, auto kept) {
      s = multiply_add(s, splat(factor, s), splat(-norm, s));
      const auto weight = exp_negative(s < splat(0.f, s) ? s : splat(0.f, s));
      return weight * (kept * d - delta) * factor;
    };
    const auto survivors = [&](auto s, auto kept) {
      s = multiply_add(s, splat(factor, s), splat(-norm, s));
      return exp_negative(s < splat(0.f, s) ? s : splat(0.f, s)) * kept;
    };
    if (g.dropout.scale > 0.f) {
      for (int64_t j = 0; j < n; ++j) {
        const float s = weights[j], kept = dropout_factor(g.dropout, place, own[j]);
        d_scores[j] = gradient(s, d_scores[j], kept);
        weights[j] = survivors(s, kept);
      }
    } else {
      each(
          n,
          [&](int64_t j) {
            const Vector s = load(weights + j), one = vector(1.f);
            store(d_scores + j, gradient(s, load(d_scores + j), one));
            store(weights + j, survivors(s, one));
          },
          [&](int64_t j) {
            const float s = weights[j];
            d_scores[j] = gradient(s, d_scores[j], 1.f);
            weights[j] = survivors(s, 1.f);
          });
    }
    if (g.own) {
      const auto first = static_cast<uint32_t>(g.own[2 * row]), mine = static_cast<uint32_t>(g.own[2 * row + 1]);
      float sum = 0.f;
      for (int64_t j = 0; j < n; ++j) sum += static_cast<uint32_t>(own[j]) - first < mine ? d_scores[j] : 0.f;
      g.d_shift[place] = sum / factor;
    }
    for (int64_t j = 0; j < n; j += 4) {
      const int64_t count = n - j < 4 ? n - j : 4;
      const T* four[4];
      for (int64_t c = 0; c < count; ++c) {
        const int64_t at = own[j + c] * width;
        four[c] = keys + at;
        if (j + c + kAhead < n) {
          fetch(dk + own[j + c + kAhead] * width, width);
          fetch(dv + own[j + c + kAhead] * width, width);
        }
        add_scaled(dv + at, weights[j + c], d_row, width);
        add_scaled(dk + at, d_scores[j + c], query, width);
      }
      add_values<kWidth>(d_query, d_scores + j, four, count, width);
    }
    for (int64_t c = 0; c < width; ++c) store(dq + place * width + c, d_query[c]);
  }
}

template <typename T>
void forward_rows(const Gather& g, int64_t head, int64_t from, int64_t to, float* work) {
  return g.width == 64 ? forward_rows<64, T>(g, head, from, to, work) : forward_rows<0, T>(g, head, from, to, work);
}

void gather_forward(Type type, const Gather& g, int64_t head, int64_t from, int64_t to, float* work) {
  return type == Type::kFloat ? forward_rows<float>(g, head, from, to, work)
                              : forward_rows<BFloat16>(g, head, from, to, work);
}

template <typename T>
void backward_head(const Gather& g, int64_t head, float* work) {
  return g.width == 64 ? backward_head<64, T>(g, head, work) : backward_head<0, T>(g, head, work);
}

void gather_backward(Type type, const Gather& g, int64_t head, float* work) {
  return type == Type::kFloat ? backward_head<float>(g, head, work) : backward_head<BFloat16>(g, head, work);
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
