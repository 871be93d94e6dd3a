// Dropout by a hash of row, place and seed: the same in every pass, thread and process. Definition: ops/dropout.py.
#pragma once

#include "arithmetic.h"
#include "lanes.h"

namespace lasformer {
namespace LASFORMER_TARGET {

constexpr uint32_t kRow = 0x9E3779B1u, kPlace = 0x85EBCA77u;

// The number of a place: murmur3's last steps. W: a number, or a vector of them.
template <typename W>
inline W hashed(W x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

// Factor of a place: 0, or the scale of those that are kept.
inline float dropout_factor(const Dropout& d, int64_t row, int64_t place) {
  const uint32_t number = hashed(static_cast<uint32_t>(row) * kRow + static_cast<uint32_t>(place) * kPlace + d.seed);
  return number >= d.least ? d.scale : 0.f;
}

// Rows [from, to) of x [R, N] times their factors, plus `added` if it is not null.
void dropout(const Dropout& d, const float* x, const float* added, int64_t from, int64_t to, int64_t n, float* out) {
  Words places;
  for (int i = 0; i < kWide; ++i) places[i] = static_cast<uint32_t>(i) * kPlace;
  const Words scale = reinterpret_cast<Words>(vector(d.scale));
  for (int64_t row = from; row < to; ++row) {
    const int64_t at = row * n;
    Words place = places + (static_cast<uint32_t>(row) * kRow + d.seed);
    each(
        n,
        [&](int64_t i) {
          const Words kept = reinterpret_cast<Words>(hashed(place) >= d.least);
          const Vector y = load(x + at + i) * from_bits(kept & scale);
          store(out + at + i, added ? load(added + at + i) + y : y);
          place += kWide * kPlace;
        },
        [&](int64_t i) {
          const float y = x[at + i] * dropout_factor(d, row, i);
          out[at + i] = added ? added[at + i] + y : y;
        });
  }
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
