// Products of rows with packed weights, float32 and int8, and layer normalisation. Definitions: torch's linear and
// layer_norm, reference.linear_int8. Products of 8-bit numbers are exact in int32.
#pragma once

#include <cmath>

#include "arithmetic.h"
#include "lanes.h"
#include "tiles.h"

namespace lasformer {
namespace LASFORMER_TARGET {

// Rows and panels of a tile: its sums, the weights and a value fill the registers (32 of AVX-512 and NEON, otherwise 16).
#if defined(__AVX512F__)
constexpr int kRows = 6, kAside = 4;
#elif defined(__AVX__) || defined(__aarch64__)
constexpr int kRows = 6, kAside = 1;
#else
constexpr int kRows = 3, kAside = 1;
#endif

constexpr int64_t kFetch = 24;       // lines of weights that are fetched ahead
constexpr int64_t kStream = 4 << 20;  // bytes of weights above which they are assumed to come from memory

// A row's 8-bit numbers q as the instructions take them, plus kShift.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
typedef uint8_t Number;
constexpr int kShift = 128;
#elif defined(__AVX2__)
typedef int16_t Number;
constexpr int kShift = 0;
#else
typedef int8_t Number;
constexpr int kShift = 0;
#endif

template <int kR, int kP>
void tile_float(const float* x, int64_t stride, const float* weight, int64_t panel, int64_t k, float* out) {
  // every loop over sums is unrolled: with a variable index, they would not stay in registers
  Lanes sum[kR][kP];
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) sum[r][p] = all(0.f);
  }
  for (int64_t i = 0; i < k; ++i) {
    Lanes w[kP];
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) {
      __builtin_prefetch(weight + p * panel + (i + kFetch) * kPanel);
      w[p] = lanes(weight + p * panel + i * kPanel);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      const Lanes value = all(x[r * stride + i]);
#pragma GCC unroll 4
      for (int p = 0; p < kP; ++p) sum[r][p] = multiply_add(value, w[p], sum[r][p]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) store(out + (r * kP + p) * kPanel, sum[r][p]);
  }
}

#if defined(__AVX512VNNI__)

template <int kR, int kP>
void tile_int8(const Number* x, int64_t stride, const int8_t* weight, int64_t panel, int64_t quads, const int32_t* sums,
               int32_t* out) {
  __m512i sum[kR][kP];
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) sum[r][p] = _mm512_setzero_si512();
  }
  for (int64_t i = 0; i < quads; ++i) {
    __m512i w[kP];
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) {
      __builtin_prefetch(weight + p * panel + (i + kFetch) * kPanel * 4);
      w[p] = _mm512_loadu_si512(weight + p * panel + i * kPanel * 4);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * stride + 4 * i, 4);
      const __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int p = 0; p < kP; ++p) {
        // as an intrinsic, gcc 12 copies every sum to the stack and back
        asm("vpdpbusd %2, %1, %0" : "+v"(sum[r][p]) : "v"(value), "v"(w[p]));
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kP; ++p) {
    const __m512i shift = _mm512_loadu_si512(sums + p * kPanel);  // of the 128 that is added to the rows
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      _mm512_storeu_si512(out + (r * kP + p) * kPanel, _mm512_sub_epi32(sum[r][p], shift));
    }
  }
}

#elif defined(__AVXVNNI__)

// The same with registers of 32 bytes, a panel in two halves of 8 outputs.
template <int kR>
inline void panel_int8(const Number* x, int64_t stride, const int8_t* weight, int64_t quads, const int32_t* sums,
                       int32_t* out, int64_t out_stride) {
  __m256i sum[kR][2];
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
  for (int64_t i = 0; i < quads; ++i) {
    __builtin_prefetch(weight + (i + kFetch) * kPanel * 4);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + i * kPanel * 4 + 32 * half));
#pragma GCC unroll 6
      for (int r = 0; r < kR; ++r) {
        int32_t four;
        std::memcpy(&four, x + r * stride + 4 * i, 4);
        asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum[r][half]) : "x"(_mm256_set1_epi32(four)), "x"(w));
      }
    }
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const __m256i shift = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + 8 * half));
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + r * out_stride + 8 * half),
                          _mm256_sub_epi32(sum[r][half], shift));
    }
  }
}

#elif defined(__AVX2__)

#if defined(__AVX512BW__)
typedef __m512i Wide;
inline Wide widened(const int8_t* w) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w))); }

// Adds the products of four numbers with two registers of weights.
inline void add_products(Wide& first, Wide& second, Wide low, Wide high, const Number* four) {
  int64_t bits;
  std::memcpy(&bits, four, 8);
  const Wide value = _mm512_set1_epi64(bits);
  first = _mm512_add_epi32(first, _mm512_madd_epi16(low, value));
  second = _mm512_add_epi32(second, _mm512_madd_epi16(high, value));
}
#else
typedef __m256i Wide;
inline Wide widened(const int8_t* w) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w))); }

inline void add_products(Wide& first, Wide& second, Wide low, Wide high, const Number* four) {
  struct Bytes {
    Number four[4];
  };
  Wide value, products;
  // as intrinsics, gcc 12 takes all rows' products before it adds any, and moves the sums to the stack
  asm("vpbroadcastq %4, %2\n\tvpmaddwd %2, %5, %3\n\tvpaddd %3, %0, %0\n\tvpmaddwd %2, %6, %2\n\tvpaddd %2, %1, %1"
      : "+x"(first), "+x"(second), "=&x"(value), "=&x"(products)
      : "m"(*reinterpret_cast<const Bytes*>(four)), "x"(low), "x"(high));
}
#endif
constexpr int kOutputs = sizeof(Wide) / 8;  // of a register: four numbers of 16 bits each

// Products and sums of two in 16 bits: the weights are widened once for all rows, the rows when they are quantised. Two
// registers of outputs at a time, so that their sums stay in registers.
template <int kR>
inline void panel_int8(const Number* x, int64_t stride, const int8_t* weight, int64_t quads, const int32_t*, int32_t* out,
                       int64_t out_stride) {
  for (int from = 0; from < kPanel; from += 2 * kOutputs) {
    Wide sum[kR][2];
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) sum[r][0] = sum[r][1] = Wide{};
    const int8_t* at = weight + 4 * from;
    for (int64_t i = 0; i < quads; ++i, at += kPanel * 4) {
      __builtin_prefetch(at + kFetch * kPanel * 4);
      const Wide low = widened(at), high = widened(at + 4 * kOutputs);
#pragma GCC unroll 6
      for (int r = 0; r < kR; ++r) {
        add_products(sum[r][0], sum[r][1], low, high, x + r * stride + 4 * i);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      int32_t pairs[4 * kOutputs];
      std::memcpy(pairs, &sum[r][0], sizeof(Wide));
      std::memcpy(pairs + 2 * kOutputs, &sum[r][1], sizeof(Wide));
      for (int o = 0; o < 2 * kOutputs; ++o) out[r * out_stride + from + o] = pairs[2 * o] + pairs[2 * o + 1];
    }
  }
}

#elif defined(__ARM_FEATURE_DOTPROD)

template <int kR>
inline void panel_int8(const Number* x, int64_t stride, const int8_t* weight, int64_t quads, const int32_t*, int32_t* out,
                       int64_t out_stride) {
  int32x4_t sum[kR][4];
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) sum[r][c] = vdupq_n_s32(0);
  }
  for (int64_t i = 0; i < quads; ++i) {
    int8x16_t w[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) w[c] = vld1q_s8(weight + i * kPanel * 4 + 16 * c);
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * stride + 4 * i, 4);
      const int8x16_t value = vreinterpretq_s8_s32(vdupq_n_s32(four));
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) sum[r][c] = vdotq_s32(sum[r][c], w[c], value);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) vst1q_s32(out + r * out_stride + 4 * c, sum[r][c]);
  }
}

#else

template <int kR>
inline void panel_int8(const Number* x, int64_t stride, const int8_t* weight, int64_t quads, const int32_t*, int32_t* out,
                       int64_t out_stride) {
  for (int r = 0; r < kR; ++r) {
    int32_t sum[kPanel] = {};
    for (int64_t i = 0; i < quads; ++i) {
      const int8_t* w = weight + i * kPanel * 4;
      const Number* value = x + r * stride + 4 * i;
      for (int o = 0; o < kPanel; ++o) {
        for (int j = 0; j < 4; ++j) sum[o] += value[j] * w[4 * o + j];
      }
    }
    std::memcpy(out + r * out_stride, sum, sizeof sum);
  }
}

#endif

#if !defined(__AVX512VNNI__)
template <int kR, int kP>
void tile_int8(const Number* x, int64_t stride, const int8_t* weight, int64_t panel, int64_t quads, const int32_t* sums,
               int32_t* out) {
  for (int p = 0; p < kP; ++p) {
    panel_int8<kR>(x, stride, weight + p * panel, quads, sums + p * kPanel, out + p * kPanel, kP * kPanel);
  }
}
#endif

// Tiles by number of rows and of panels.
struct FloatTiles {
  using Pointer = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*);
  template <int kR, int kP>
  static constexpr Pointer tile = tile_float<kR, kP>;
};
struct Int8Tiles {
  using Pointer = void (*)(const Number*, int64_t, const int8_t*, int64_t, int64_t, const int32_t*, int32_t*);
  template <int kR, int kP>
  static constexpr Pointer tile = tile_int8<kR, kP>;
};

template <typename Tiles, int kR = kRows, int kP = kAside>
inline typename Tiles::Pointer tile_of(int64_t rows, int64_t aside) {
  if (rows < kR) {
    if constexpr (kR > 1) return tile_of<Tiles, kR - 1, kP>(rows, aside);
  }
  if (aside < kP) {
    if constexpr (kP > 1) return tile_of<Tiles, kR, kP - 1>(rows, aside);
  }
  return Tiles::template tile<kR, kP>;
}

void product(const Product& task, int64_t from_group, int64_t to_group) {
  const Packed& weights = task.weights;
  const Number* numbers = static_cast<const Number*>(task.numbers);
  const int64_t n = weights.outputs, k = weights.inputs, quads = weights.quads();
  const int64_t first = from_group * kPanels, last = to_group * kPanels < weights.panels() ? to_group * kPanels : weights.panels();
  alignas(64) float sum[kRows * kAside * kPanel];
  constexpr int64_t kWhole = kRows * kAside > kTiledRows * kTiledPanels ? kRows * kAside : kTiledRows * kTiledPanels;
  alignas(64) int32_t whole[kWhole * kPanel];
  const bool tiled = weights.quantised && tiled_rows(task.rows, quads) > 0;
  if (tiled) configure_tiles();
  // adjacent panels read a row less often; if weights are read once, memory is fastest in order
  const bool once = task.rows <= kRows && (weights.quantised || n * k * 4 > kStream);
  const int64_t most = tiled ? kTiledPanels : once ? 1 : kAside;
  for (int64_t panel = first; panel < last; panel += most) {
    const int64_t aside = last - panel < most ? last - panel : most, from = panel * kPanel;
    const int64_t width = aside * kPanel < n - from ? aside * kPanel : n - from;
    for (int64_t r = 0, height; r < task.rows; r += height) {
      const int64_t left = task.rows - r, by_tiles = tiled ? tiled_rows(left, quads) : 0;
      height = by_tiles ? by_tiles : left < kRows ? left : kRows;
      if (weights.quantised) {
        const Number* own = numbers + r * quads * 4;
        const int8_t* theirs = weights.quantised + panel * quads * 4 * kPanel;
        if (by_tiles) {
          tiled_int8(height, aside, own, quads * 4, theirs, quads * 4 * kPanel, quads, weights.sums + from, whole);
        } else {
          tile_of<Int8Tiles>(height, aside)(own, quads * 4, theirs, quads * 4 * kPanel, quads, weights.sums + from, whole);
        }
      } else {
        tile_of<FloatTiles>(height, aside)(task.x + r * task.stride, task.stride, weights.weight + panel * k * kPanel,
                                           k * kPanel, k, sum);
      }
      for (int64_t i = 0; i < height; ++i) {
        float* row = task.out + (r + i) * n + from;
        const float* own = sum + i * aside * kPanel;
        const int32_t* own8 = whole + i * aside * kPanel;
        const float* add = task.after.add ? task.after.add + (r + i) * n + from : nullptr;
        const float factor = weights.quantised ? task.scales[r + i] : 0.f;
        const Activation activation = task.after.activation;
        each(
            width,
            [&](int64_t c) {
              Vector y;
              if (weights.quantised) {
                Integers exact;
                std::memcpy(&exact, own8 + c, sizeof exact);
                y = __builtin_convertvector(exact, Vector) * (factor * load(weights.scale + from + c));
              } else {
                y = load(own + c);
              }
              if (weights.bias) y += load(weights.bias + from + c);
              y = activated(y, activation);
              if (add) y += load(add + c);
              store(row + c, y);
            },
            [&](int64_t c) {
              float y = weights.quantised ? static_cast<float>(own8[c]) * (factor * weights.scale[from + c]) : own[c];
              if (weights.bias) y += weights.bias[from + c];
              y = activated(y, activation);
              if (add) y += add[c];
              row[c] = y;
            });
      }
    }
  }
  if (tiled) release_tiles();
}

// A row's 8-bit numbers q + kShift, and their scale; NaN if the row contains NaN or infinity.
void quantise(const float* x, int64_t stride, int64_t rows, int64_t n, void* numbers, int64_t padded, float* scales) {
  Number* out = static_cast<Number*>(numbers);
  for (int64_t r = 0; r < rows; ++r, x += stride, out += padded) {
    // not 0 for NaN and infinity
    const float check = reduce(n, [x](auto y, int64_t i) { return y + (take(x + i, y) - take(x + i, y)); });
    if (!(check == 0.f)) {
      for (int64_t i = 0; i < padded; ++i) out[i] = kShift;
      scales[r] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    Vector tops = Vector{};
    float most = 0.f;
    each(
        n,
        [&](int64_t i) {
          const Vector y = load(x + i);
          tops = Larger()(y < Vector{} ? -y : y, tops);
        },
        [&](int64_t i) { most = Larger()(x[i] < 0.f ? -x[i] : x[i], most); });
    for (int i = 0; i < kWide; ++i) most = Larger()(static_cast<float>(tops[i]), most);
    const float inverse = most > 0.f ? 127.f / most : 0.f;
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
    each(
        n,
        [&](int64_t i) {
          const Vector y = (load(x + i) * inverse + kRound) - kRound;
          typedef Number Numbers __attribute__((vector_size(kWide * sizeof(Number))));
          const Numbers all = __builtin_convertvector(__builtin_convertvector(y, Integers) + kShift, Numbers);
          std::memcpy(out + i, &all, sizeof all);
        },
        [&](int64_t i) {
          out[i] = static_cast<Number>(static_cast<int32_t>((x[i] * inverse + kRound) - kRound) + kShift);
        });
    for (int64_t i = n; i < padded; ++i) out[i] = kShift;
    scales[r] = most / 127.f;
  }
}

void layer_norm(const float* x, int64_t rows, int64_t n, const float* weight, const float* bias, float eps, float* out) {
  for (int64_t r = 0; r < rows; ++r, x += n, out += n) {
    const float total = reduce(n, [x](auto y, int64_t i) { return y + take(x + i, y); });
    const float mean = total / static_cast<float>(n);
    const float squares = reduce(n, [x, mean](auto y, int64_t i) {
      const auto away = take(x + i, y) - mean;
      return multiply_add(away, away, y);
    });
    const float factor = 1.f / std::sqrt(squares / static_cast<float>(n) + eps);
    each(
        n,
        [&](int64_t i) {
          store(out + i, multiply_add((load(x + i) - mean) * factor, load(weight + i), load(bias + i)));
        },
        [&](int64_t i) { out[i] = multiply_add((x[i] - mean) * factor, weight[i], bias[i]); });
  }
}

void activate(const float* x, int64_t n, Activation activation, float* out) {
  each(
      n, [&](int64_t i) { store(out + i, activated(load(x + i), activation)); },
      [&](int64_t i) { out[i] = activated(x[i], activation); });
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
