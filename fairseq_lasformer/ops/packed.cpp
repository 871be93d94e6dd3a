// Linear layers with packed weights; see packed.h.
#include "packed.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lasformer {
namespace {

constexpr int64_t kPanels = 4;   // panels of a tile
constexpr int64_t kTileRows = 6; // rows of a tile: 6 x 4 sums of 64 bytes, and the weights, fill 32 registers

// The best instruction set of this processor for 8-bit products.
Isa best_isa() {
#if defined(__x86_64__)
  static const Isa found = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") ? Isa::kVnni
                           : __builtin_cpu_supports("avx2")                                           ? Isa::kAvx2
                                                                                                      : Isa::kPlain;
  return found;
#else
  return Isa::kPlain;
#endif
}

typedef float Lanes __attribute__((vector_size(64), aligned(4)));

template <int kR, int kP>
void tile_float(const float* x, int64_t stride, const float* weight, int64_t panel, int64_t k, float* out) {
  // every loop over sums is unrolled: with a variable index they would not stay in registers
  Lanes sum[kR][kP];
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) sum[r][p] = Lanes{};
  }
  for (int64_t i = 0; i < k; ++i) {
    Lanes w[kP];
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) w[p] = *reinterpret_cast<const Lanes*>(weight + p * panel + i * kPanel);
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      const float value = x[r * stride + i];
#pragma GCC unroll 4
      for (int p = 0; p < kP; ++p) sum[r][p] += value * w[p];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kP; ++p) *reinterpret_cast<Lanes*>(out + (r * kP + p) * kPanel) = sum[r][p];
  }
}

typedef float Half __attribute__((vector_size(32), aligned(4)));

// The same sums, in the same order, with registers of 32 bytes: gcc keeps 64-byte vectors on the stack where there are
// no such registers. One panel at a time: 6 x 2 sums, two weights and a value fill 15 of 16 registers.
template <int kR, int kP>
void tile_float_narrow(const float* x, int64_t stride, const float* weight, int64_t panel, int64_t k, float* out) {
  for (int p = 0; p < kP; ++p) {
    Half sum[kR][2];
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) sum[r][0] = sum[r][1] = Half{};
    const float* at = weight + p * panel;
    for (int64_t i = 0; i < k; ++i, at += kPanel) {
      const Half low = *reinterpret_cast<const Half*>(at), high = *reinterpret_cast<const Half*>(at + 8);
#pragma GCC unroll 6
      for (int r = 0; r < kR; ++r) {
        const float value = x[r * stride + i];
        sum[r][0] += value * low;
        sum[r][1] += value * high;
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      *reinterpret_cast<Half*>(out + (r * kP + p) * kPanel) = sum[r][0];
      *reinterpret_cast<Half*>(out + (r * kP + p) * kPanel + 8) = sum[r][1];
    }
  }
}

template <int kR, int kP>
void tile_plain(const uint8_t* x, int64_t stride, const int8_t* weight, int64_t panel, int64_t quads, const int32_t*,
                int32_t* out) {
  for (int r = 0; r < kR; ++r) {
    for (int p = 0; p < kP; ++p) {
      int32_t sum[kPanel] = {};
      for (int64_t i = 0; i < quads; ++i) {
        for (int64_t o = 0; o < kPanel; ++o) {
          for (int64_t j = 0; j < 4; ++j) {
            sum[o] += (static_cast<int32_t>(x[r * stride + 4 * i + j]) - 128) * weight[p * panel + (i * kPanel + o) * 4 + j];
          }
        }
      }
      std::memcpy(out + (r * kP + p) * kPanel, sum, sizeof sum);
    }
  }
}

#if defined(__x86_64__)
template <int kR, int kP>
__attribute__((target("avx2"))) void tile_avx2(const uint8_t* x, int64_t stride, const int8_t* weight, int64_t panel,
                                               int64_t quads, const int32_t*, int32_t* out) {
  for (int p = 0; p < kP; ++p) {
    for (int r = 0; r < kR; ++r) {
      __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int64_t i = 0; i < quads; ++i) {
        int32_t four;
        std::memcpy(&four, x + r * stride + 4 * i, 4);
        // 16-bit products: those of maddubs would saturate
        const __m128i wide = _mm_cvtepi8_epi16(_mm_cvtsi32_si128(four ^ static_cast<int32_t>(0x80808080u)));
        const __m256i value = _mm256_broadcastq_epi64(wide);
        const auto* at = reinterpret_cast<const __m128i*>(weight + p * panel + i * kPanel * 4);
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          sum[c] = _mm256_add_epi32(sum[c], _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(at + c)), value));
        }
      }
      for (int c = 0; c < 4; ++c) {
        alignas(32) int32_t halves[8];
        _mm256_store_si256(reinterpret_cast<__m256i*>(halves), sum[c]);
        for (int o = 0; o < 4; ++o) out[(r * kP + p) * kPanel + 4 * c + o] = halves[2 * o] + halves[2 * o + 1];
      }
    }
  }
}

template <int kR, int kP>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) void tile_vnni(
    const uint8_t* x, int64_t stride, const int8_t* weight, int64_t panel, int64_t quads, const int32_t* sums,
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
    for (int p = 0; p < kP; ++p) w[p] = _mm512_loadu_si512(weight + p * panel + i * kPanel * 4);
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
#endif

using TileFloat = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*);
using TileInt8 = void (*)(const uint8_t*, int64_t, const int8_t*, int64_t, int64_t, const int32_t*, int32_t*);

// Tiles by number of rows (1 to 6) and of panels (1 to 4).
#define LASFORMER_TILES(name)                                       \
  {{name<1, 1>, name<1, 2>, name<1, 3>, name<1, 4>},                \
   {name<2, 1>, name<2, 2>, name<2, 3>, name<2, 4>},                \
   {name<3, 1>, name<3, 2>, name<3, 3>, name<3, 4>},                \
   {name<4, 1>, name<4, 2>, name<4, 3>, name<4, 4>},                \
   {name<5, 1>, name<5, 2>, name<5, 3>, name<5, 4>},                \
   {name<6, 1>, name<6, 2>, name<6, 3>, name<6, 4>}}

const TileFloat (&float_tiles(Isa isa))[kTileRows][kPanels] {
#if defined(__AVX512F__)
  constexpr bool wide_registers = true;
#else
  constexpr bool wide_registers = false;
#endif
  static const TileFloat wide[kTileRows][kPanels] = LASFORMER_TILES(tile_float);
  static const TileFloat narrow[kTileRows][kPanels] = LASFORMER_TILES(tile_float_narrow);
  return wide_registers && (isa == Isa::kBest || isa == Isa::kVnni) ? wide : narrow;
}

const TileInt8 (&int8_tiles(Isa isa))[kTileRows][kPanels] {
  static const TileInt8 plain[kTileRows][kPanels] = LASFORMER_TILES(tile_plain);
#if defined(__x86_64__)
  static const TileInt8 avx2[kTileRows][kPanels] = LASFORMER_TILES(tile_avx2);
  static const TileInt8 vnni[kTileRows][kPanels] = LASFORMER_TILES(tile_vnni);
  if (isa == Isa::kVnni) return vnni;
  if (isa == Isa::kAvx2) return avx2;
#endif
  return plain;
}

#undef LASFORMER_TILES

// A row's 8-bit numbers q + 128, and what they are to be multiplied by; NaN if the row holds NaN or infinity.
float quantise(const float* x, int64_t n, uint8_t* out, int64_t padded) {
  float most = 0.f, check = 0.f;
#pragma omp simd reduction(max : most) reduction(+ : check)
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]);
    most = size > most ? size : most;
    check += x[i] - x[i];  // not 0 for NaN and infinity
  }
  if (!(check == 0.f)) {
    std::fill(out, out + padded, uint8_t{128});
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float inverse = most > 0.f ? 127.f / most : 0.f;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(x[i] * inverse)) + 128);
  std::fill(out + n, out + padded, uint8_t{128});
  return most / 127.f;
}

}  // namespace

void product(const float* x, int64_t stride, int64_t rows, const Packed& weights, float* out, After after,
             Isa isa) {
  const int64_t n = weights.outputs, k = weights.inputs, quads = weights.quads(), panels = weights.panels();
  const int64_t groups = (panels + kPanels - 1) / kPanels;
  std::vector<uint8_t> numbers;
  std::vector<float> scales;
  const bool quantised = weights.quantised != nullptr;
  if (quantised) {
    numbers.resize(rows * quads * 4);
    scales.resize(rows);
    at::parallel_for(0, rows, 32, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) scales[r] = quantise(x + r * stride, k, &numbers[r * quads * 4], quads * 4);
    });
  }
  const auto& tiles8 = int8_tiles(isa == Isa::kBest ? best_isa() : isa);
  const auto& tiles = float_tiles(isa);
  at::parallel_for(0, groups, 1, [&](int64_t begin, int64_t end) {
    alignas(64) float sum[kTileRows * kPanels * kPanel];
    alignas(64) int32_t whole[kTileRows * kPanels * kPanel];
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * kPanels, count = std::min(kPanels, panels - first), from = first * kPanel;
      const int64_t width = std::min(count * kPanel, n - from);
      for (int64_t r = 0; r < rows; r += kTileRows) {
        const int64_t height = std::min(kTileRows, rows - r);
        if (quantised) {
          tiles8[height - 1][count - 1](&numbers[r * quads * 4], quads * 4, weights.quantised + first * quads * 4 * kPanel,
                                        quads * 4 * kPanel, quads, weights.sums + from, whole);
        } else {
          tiles[height - 1][count - 1](x + r * stride, stride, weights.weight + first * k * kPanel, k * kPanel, k, sum);
        }
        for (int64_t i = 0; i < height; ++i) {
          float* row = out + (r + i) * n + from;
          const float* own = sum + i * count * kPanel;
          const int32_t* own8 = whole + i * count * kPanel;
          if (quantised) {
            const float scale = scales[r + i];
#pragma omp simd
            for (int64_t c = 0; c < width; ++c) row[c] = static_cast<float>(own8[c]) * (scale * weights.scale[from + c]);
          } else {
            std::memcpy(row, own, width * sizeof(float));
          }
          if (weights.bias) {
#pragma omp simd
            for (int64_t c = 0; c < width; ++c) row[c] += weights.bias[from + c];
          }
          if (after.relu) {
#pragma omp simd
            for (int64_t c = 0; c < width; ++c) row[c] = row[c] < 0.f ? 0.f : row[c];  // NaN stays
          }
          if (after.add) {
            const float* add = after.add + (r + i) * n + from;
#pragma omp simd
            for (int64_t c = 0; c < width; ++c) row[c] += add[c];
          }
        }
      }
    }
  });
}

Packed packed(const at::Tensor& weight, const at::Tensor& scale, const at::Tensor& sums, const at::Tensor& bias,
              int64_t inputs, int64_t outputs) {
  Packed p;
  p.inputs = inputs;
  p.outputs = outputs;
  const bool quantised = weight.scalar_type() == at::kChar;
  TORCH_CHECK(quantised || weight.scalar_type() == at::kFloat, "weight: expected packed float32 or int8");
  TORCH_CHECK(weight.is_contiguous() && weight.numel() == p.panels() * kPanel * (quantised ? p.quads() * 4 : inputs),
              "weight: not packed for ", inputs, " inputs and ", outputs, " outputs");
  if (quantised) {
    const int64_t padded = p.panels() * kPanel;
    TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.is_contiguous() && scale.numel() == padded, "scale: expected float32 [N]");
    TORCH_CHECK(sums.scalar_type() == at::kInt && sums.is_contiguous() && sums.numel() == padded, "sums: expected int32 [N]");
    p.quantised = weight.const_data_ptr<int8_t>();
    p.scale = scale.const_data_ptr<float>();
    p.sums = sums.const_data_ptr<int32_t>();
  } else {
    p.weight = weight.const_data_ptr<float>();
  }
  if (bias.numel() > 0) {
    TORCH_CHECK(bias.scalar_type() == at::kFloat && bias.is_contiguous() && bias.numel() == outputs, "bias: expected float32 [N]");
    p.bias = bias.const_data_ptr<float>();
  }
  return p;
}

// x [R, K] float32, any number of rows -> [R, N]. isa: 0 the processor's best, 1 plain, 2 AVX2, 3 AVX512-VNNI.
Tensor packed_linear(const Tensor& x_, const Tensor& weight, const Tensor& scale, const Tensor& sums, const Tensor& bias,
                     int64_t outputs, int64_t isa) {
  TORCH_CHECK(x_.dim() == 2 && x_.scalar_type() == at::kFloat, "x: expected float32 [R, K]");
  TORCH_CHECK(isa >= 0 && isa <= static_cast<int64_t>(best_isa()), "isa: this processor does not have it");
  const Tensor x = x_.contiguous();
  const Packed weights = packed(weight, scale, sums, bias, x.size(1), outputs);
  Tensor out = at::empty({x.size(0), outputs}, x.options());
  product(x.const_data_ptr<float>(), x.size(1), x.size(0), weights, out.mutable_data_ptr<float>(), {}, static_cast<Isa>(isa));
  return out;
}

}  // namespace lasformer
