// Row by row over blocks of attention scores, so that a row is read once while it is in the cache. Definitions: rows.py.
#pragma once

#include <cmath>

#include "arithmetic.h"
#include "lanes.h"

namespace lasformer {
namespace LASFORMER_TARGET {

// Keys that row r of an item may use, one byte per key, or null for every key.
inline const uint8_t* allowed(const Block& b, int64_t item, int64_t r) {
  return b.allowed ? b.allowed + item * b.allowed_stride + r * b.keys : nullptr;
}

// 0 for every key that a row may use, -inf for the others: unlike a branch, adding it to scores is vectorised.
inline void fill_bias(const uint8_t* row, int64_t keys, float* bias) {
  if (!row) {
    std::memset(bias, 0, keys * sizeof(float));
    return;
  }
  const float none[2] = {-kInfinity, 0.f};
  for (int64_t j = 0; j < keys; ++j) bias[j] = none[row[j]];
}

void row_softmax(const Block& b, float* scores, float* mean, float share, float* lse, int64_t from, int64_t to, float* bias) {
  for (int64_t place = from; place < to; ++place) {
    const int64_t item = place / b.rows, r = place % b.rows;
    fill_bias(allowed(b, item, r), b.keys, bias);
    for (int64_t h = 0; h < b.heads; ++h) {
      const int64_t at = (item * b.heads + h) * b.rows + r;
      float* x = scores + at * b.keys;
      // NaN among the scores: the row is NaN, not a row without keys
      Integers undefined = {};
      bool odd = false;
      each(
          b.keys,
          [&](int64_t j) {
            const Vector own = load(bias + j), y = own < Vector{} ? own : load(x + j);
            undefined |= y != y;
            store(x + j, y);
          },
          [&](int64_t j) {
            x[j] = bias[j] < 0.f ? bias[j] : x[j];
            odd |= x[j] != x[j];
          });
      for (int i = 0; i < kWide; ++i) odd |= undefined[i] != 0;
      const float top = odd ? std::numeric_limits<float>::quiet_NaN() : largest(x, b.keys);
      if (top == -kInfinity) {
        std::memset(x, 0, b.keys * sizeof(float));
        lse[at] = kInfinity;
        continue;
      }
      const float total = exponentials<true>(x, b.keys, top);
      lse[at] = top + std::log(total);
      scale(x, b.keys, 1.f / total);
      if (mean) add_scaled(mean + place * b.keys, share, x, b.keys);
    }
  }
}

// Log probabilities of rows [R, N].
void log_softmax(const float* x, int64_t rows, int64_t n, float* out) {
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    const float top = largest(x, n);
    const float total = reduce(n, [=](auto sum, int64_t i) { return sum + exp_or_zero(take(x + i, sum) - top); });
    const float norm = static_cast<float>(logarithm(total));
    each(
        n, [&](int64_t i) { store(out + i, (load(x + i) - top) - norm); }, [&](int64_t i) { out[i] = (x[i] - top) - norm; });
  }
}

void softmax_gradient(const Block& b, float* weights, const float* d_mean, int64_t from, int64_t to) {
  for (int64_t place = from; place < to; ++place) {
    const int64_t item = place / (b.heads * b.rows), r = place % b.rows;
    const float* g = d_mean + (item * b.rows + r) * b.keys;
    float* x = weights + place * b.keys;
    const float mean = dot(x, g, b.keys);
    each(
        b.keys, [&](int64_t j) { store(x + j, load(x + j) * (load(g + j) - mean)); },
        [&](int64_t j) { x[j] *= g[j] - mean; });
  }
}

void mask_gradient(const Block& b, const float* scores, const float* lse, const float* d_weights, const float* delta,
                   float most, float* out, int64_t from, int64_t to) {
  for (int64_t place = from; place < to; ++place) {
    const int64_t item = place / b.rows, r = place % b.rows;
    float* sum = out + place * b.keys;
    for (int64_t h = 0; h < b.heads; ++h) {
      const int64_t own = (item * b.heads + h) * b.rows + r;
      const float *x = scores + own * b.keys, *d = d_weights + own * b.keys, norm = lse[own], shift = delta[own];
      if (norm == kInfinity) continue;  // a row without keys
      const auto gradient = [&](auto s, auto grad, auto before) {
        s = s - norm;
        const auto limit = splat(most, s);
        return multiply_add(exp_or_zero(s < limit ? s : limit), grad - shift, before);
      };
      each(
          b.keys, [&](int64_t j) { store(sum + j, gradient(load(x + j), load(d + j), load(sum + j))); },
          [&](int64_t j) { sum[j] = gradient(x[j], d[j], sum[j]); });
    }
    if (const uint8_t* mine = allowed(b, item, r)) {
      for (int64_t j = 0; j < b.keys; ++j) sum[j] = mine[j] ? sum[j] : 0.f;
    }
  }
}

void kept_gradient(const Block& b, float* scores, float* d_weights, const float* lse, const float* delta, int64_t from,
                   int64_t to, float* bias) {
  for (int64_t place = from; place < to; ++place) {
    const int64_t item = place / b.rows, r = place % b.rows;
    fill_bias(allowed(b, item, r), b.keys, bias);
    for (int64_t h = 0; h < b.heads; ++h) {
      const int64_t at = (item * b.heads + h) * b.rows + r;
      float *x = scores + at * b.keys, *d = d_weights + at * b.keys;
      const float norm = lse[at], shift = delta[at];
      const auto weight = [&](auto s, auto own) {
        s = s - norm + own;
        return exp_or_zero(s < splat(0.f, s) ? s : splat(0.f, s));
      };
      each(
          b.keys,
          [&](int64_t j) {
            const Vector w = weight(load(x + j), load(bias + j));
            store(x + j, w);
            store(d + j, w * (load(d + j) - shift));
          },
          [&](int64_t j) {
            x[j] = weight(x[j], bias[j]);
            d[j] = x[j] * (d[j] - shift);
          });
    }
  }
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
