// Scores of a selector's keys and the keys likely to be kept. Definitions: reference.topk_indices, torch.topk.
#pragma once

#include "arithmetic.h"
#include "lanes.h"

namespace lasformer {
namespace LASFORMER_TARGET {

template <typename T>
void score_keys(const float* query, const T* keys, const int32_t* table, int64_t from, int64_t to, int64_t width, float* out) {
  const auto key = [=](int64_t j) { return keys + (table ? table[j] : j) * width; };
  int64_t j = from;
  for (; j + 4 <= to; j += 4) {
    const T* const four[4] = {key(j), key(j + 1), key(j + 2), key(j + 3)};
    const Quad found = dots(query, four, width);
    std::memcpy(out + j, &found, sizeof found);
  }
  for (; j < to; ++j) out[j] = dot(query, key(j), width);
}

void score(Type type, const float* query, const void* keys, const int32_t* table, int64_t from, int64_t to, int64_t width,
           float* out) {
  switch (type) {
    case Type::kFloat: return score_keys(query, static_cast<const float*>(keys), table, from, to, width, out);
    case Type::kBFloat16: return score_keys(query, static_cast<const BFloat16*>(keys), table, from, to, width, out);
    case Type::kHalf: return score_keys(query, static_cast<const Half*>(keys), table, from, to, width, out);
    case Type::kInt8: return;  // selectors' keys are not quantised
  }
}

// Bits of the lanes in which x is not below bound (NaN is not).
inline uint32_t not_below(Vector x, Vector bound) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ);
#elif defined(__AVX__)
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_NLT_UQ)));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kWide; ++i) bits |= static_cast<uint32_t>(!(x[i] < bound[i])) << i;
  return bits;
#endif
}

// Sort key with the score in the high bits and the complement of the index in the low bits: larger is better, ties go
// to the lower index, NaN is last.
inline uint64_t sort_key(float value, int64_t index) {
  value += 0.f;  // -0 equals +0
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits = value != value ? 0u : (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
  return (static_cast<uint64_t>(bits) << 32) | static_cast<uint32_t>(~static_cast<uint32_t>(index));
}

// Sort keys of the scores that are not below guess, in the order of the scores; returns their number.
int64_t candidates(const float* scores, int64_t n, float guess, uint64_t* out) {
  const Vector bound = vector(guess);
  int64_t count = 0, i = 0;
  for (; i + kWide <= n; i += kWide) {
    for (uint32_t bits = not_below(load(scores + i), bound); bits; bits &= bits - 1) {
      const int64_t at = i + __builtin_ctz(bits);
      out[count++] = sort_key(scores[at], at);
    }
  }
  for (; i < n; ++i) {
    if (!(scores[i] < guess)) out[count++] = sort_key(scores[i], i);
  }
  return count;
}

// The first index, starting at `from`, at which row + before is above the bound; n if there is none.
int64_t next_above(const float* row, int64_t from, int64_t n, float before, float bound) {
  int64_t i = from;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes x = lanes(row + i);
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) x.part[p] += before;
    const Quad top = fold(x, Larger());
    if (top[0] > bound || top[1] > bound || top[2] > bound || top[3] > bound) break;
  }
  for (; i < n; ++i) {
    if (row[i] + before > bound) return i;
  }
  return n;
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
