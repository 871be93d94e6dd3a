// Attention over cached keys in a decoding step. Definition: reference.attend_kept.
#pragma once

#include "arithmetic.h"
#include "lanes.h"

namespace lasformer {
namespace LASFORMER_TARGET {

constexpr int64_t kAhead = 6;  // prefetch distance, in kept keys

template <typename T>
inline void fetch(const T* at, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(at + i);
}

// to += the sum of weights[j] * values[j], j by j. kWidth: n, or 0 for any.
template <int64_t kWidth, typename T>
inline void add_values(float* to, const float* weights, const T* const* values, int64_t count, int64_t n) {
  if constexpr (kWidth > 0) {
    constexpr int kVectors = kWidth / kWide;
    Vector sum[kVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) sum[c] = load(to + c * kWide);
    for (int64_t j = 0; j < count; ++j) {
      const Vector weight = vector(weights[j]);
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) sum[c] = multiply_add(weight, load(values[j] + c * kWide), sum[c]);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) store(to + c * kWide, sum[c]);
  } else {
    for (int64_t j = 0; j < count; ++j) add_scaled(to, weights[j], values[j], n);
  }
}

// The numbers of a row's heads in 8 bits, with one scale per head; NaN where a head contains NaN or infinity.
void quantise_heads(const float* x, int64_t heads, int64_t head_width, int8_t* out, float* scales) {
  for (int64_t h = 0; h < heads; ++h, x += head_width, out += head_width) {
    float most = 0.f, check = 0.f;
    for (int64_t i = 0; i < head_width; ++i) {
      most = Larger()(x[i] < 0.f ? -x[i] : x[i], most);
      check += x[i] - x[i];  // not 0 for NaN and infinity
    }
    const bool finite = check == 0.f;
    const float inverse = finite && most > 0.f ? 127.f / most : 0.f;
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
    for (int64_t i = 0; i < head_width; ++i) {
      out[i] = finite ? static_cast<int8_t>(static_cast<int32_t>((x[i] * inverse + kRound) - kRound)) : int8_t{0};
    }
    scales[h] = finite ? most / 127.f : std::numeric_limits<float>::quiet_NaN();
  }
}

// The rows mostly keep the same keys, so they take turns with a few keys at a time, which the first row brings into the
// cache. Within a turn, all heads process four keys at a time, so that memory is read in order.
template <int64_t kWidth, typename T>
void attend_rows(const Kept& k, int64_t h0, int64_t h1, float factor, float* weights) {
  const int64_t head_width = kWidth ? kWidth : k.head_width, heads = h1 - h0, from = h0 * head_width;
  const int64_t span = heads * head_width, all_heads = k.width / head_width;
  const T *keys = static_cast<const T*>(k.keys) + from, *values = static_cast<const T*>(k.values) + from;
  int64_t most = 0;
  for (int64_t r = 0; r < k.rows; ++r) {
    most = k.counts[r] > most ? k.counts[r] : most;
    std::memset(k.out + r * k.width + from, 0, span * sizeof(float));
  }
  const auto slot = [&](int64_t r, int64_t j) { return k.slots ? k.slots[r * k.slot_stride + j] : k.first + j; };
  // of up to four 8-bit keys or values; 1 for other types
  const auto scales_of = [&](const float* scales, int64_t r, int64_t j, int64_t count, int64_t h) {
    Quad found = {1.f, 1.f, 1.f, 1.f};
    if constexpr (sizeof(T) == 1) {
      for (int64_t i = 0; i < count; ++i) found[i] = scales[slot(r, j + i) * all_heads + h0 + h];
    }
    return found;
  };
  // visit(row, first of up to four keys, their number, where they are)
  const auto by_turns = [&](const T* all_of, const float* scales, auto visit) {
    for (int64_t block = 0; block < most; block += k.turn) {
      for (int64_t r = 0; r < k.rows; ++r) {
        const int64_t end = block + k.turn < k.counts[r] ? block + k.turn : k.counts[r];
        for (int64_t j = block; j < end; j += 4) {
          const int64_t count = end - j < 4 ? end - j : 4;
          const T* four[4];
          for (int64_t i = 0; i < count; ++i) {
            four[i] = all_of + slot(r, j + i) * k.width;
            if (j + i + kAhead < k.counts[r]) {
              const int64_t next = slot(r, j + i + kAhead);
              fetch(all_of + next * k.width, span);
              if constexpr (sizeof(T) == 1) fetch(scales + next * all_heads + h0, heads);
            }
          }
          visit(r, j, count, four);
        }
      }
    }
  };
  by_turns(keys, k.key_scales, [&](int64_t r, int64_t j, int64_t count, const T* const* four) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* query = k.q + r * k.width + from + h * head_width;
      float* to = weights + (r * heads + h) * most + j;
      if (count == 4) {
        const T* const own[4] = {four[0] + h * head_width, four[1] + h * head_width, four[2] + h * head_width,
                                 four[3] + h * head_width};
        Quad found = dots(query, own, head_width) * factor;
        if constexpr (sizeof(T) == 1) found *= scales_of(k.key_scales, r, j, 4, h);
        std::memcpy(to, &found, sizeof found);
      } else {
        const Quad scales = scales_of(k.key_scales, r, j, count, h);
        for (int64_t i = 0; i < count; ++i) {
          to[i] = factor * dot(query, four[i] + h * head_width, head_width) * scales[i];
        }
      }
    }
  });
  for (int64_t i = 0; i < k.rows * heads; ++i) {
    const int64_t r = i / heads, n = k.counts[r];
    if (n == 0) continue;
    float* w = weights + i * most;
    if (k.own) {
      const float shift = k.shift[r * all_heads + h0 + i % heads];
      float* own = w + k.own[2 * r];
      for (int64_t j = 0; j < k.own[2 * r + 1]; ++j) own[j] += shift;
    }
    scale(w, n, 1.f / exponentials(w, n, largest(w, n)));
  }
  by_turns(values, k.value_scales, [&](int64_t r, int64_t j, int64_t count, const T* const* four) {
    for (int64_t h = 0; h < heads; ++h) {
      const T* own[4];
      for (int64_t i = 0; i < count; ++i) own[i] = four[i] + h * head_width;
      const float* own_weights = weights + (r * heads + h) * most + j;
      float scaled[4];
      if constexpr (sizeof(T) == 1) {
        const Quad scales = scales_of(k.value_scales, r, j, count, h);
        for (int64_t i = 0; i < count; ++i) scaled[i] = own_weights[i] * scales[i];
        own_weights = scaled;
      }
      add_values<kWidth>(k.out + r * k.width + from + h * head_width, own_weights, own, count, head_width);
    }
  });
}

template <typename T>
void attend_rows(const Kept& k, int64_t h0, int64_t h1, float factor, float* weights) {
  return k.head_width == 64 ? attend_rows<64, T>(k, h0, h1, factor, weights)
                            : attend_rows<0, T>(k, h0, h1, factor, weights);
}

void attend(Type type, const Kept& k, int64_t h0, int64_t h1, float factor, float* weights) {
  switch (type) {
    case Type::kFloat: return attend_rows<float>(k, h0, h1, factor, weights);
    case Type::kBFloat16: return attend_rows<BFloat16>(k, h0, h1, factor, weights);
    case Type::kHalf: return attend_rows<Half>(k, h0, h1, factor, weights);
    case Type::kInt8: return attend_rows<int8_t>(k, h0, h1, factor, weights);
  }
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
