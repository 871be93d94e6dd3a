// Sixteen float32 lanes in as many registers as the target needs: the same sums, in the same order, on every target.
//
// Contractions are off (ops/cpu/build.py): fused operations are written as multiply_add.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lasformer {
namespace LASFORMER_TARGET {

#if defined(__AVX512F__)
constexpr int kParts = 1;
#elif defined(__AVX__)
constexpr int kParts = 2;
#else
constexpr int kParts = 4;
#endif
constexpr int kLanes = 16, kWide = kLanes / kParts;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

typedef float Vector __attribute__((vector_size(4 * kWide)));
typedef int32_t Integers __attribute__((vector_size(4 * kWide)));
typedef uint32_t Words __attribute__((vector_size(4 * kWide)));
typedef uint16_t Shorts __attribute__((vector_size(2 * kWide)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Quad __attribute__((vector_size(16)));

// Numbers of 16 bits, by their bits.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

#if defined(LASFORMER_FUSED)
// The result of a fused instruction without one: product and sum in double, whose last bit then records whether
// anything was rounded away ("round to odd", Boldo and Melquiond 2008), so that the rounding to float is that of the exact sum.
inline Vector multiply_add(Vector a, Vector b, Vector c) {
  typedef double Doubles __attribute__((vector_size(8 * kWide)));
  typedef int64_t Bits __attribute__((vector_size(8 * kWide)));
  const Doubles product = __builtin_convertvector(a, Doubles) * __builtin_convertvector(b, Doubles);  // exact
  const Doubles term = __builtin_convertvector(c, Doubles), none = {}, sum = product + term, back = sum - product;
  const Doubles lost = (product - (sum - back)) + (term - back);
  Bits bits;
  std::memcpy(&bits, &sum, sizeof bits);
  const Bits inexact = (lost > none) | (lost < none), away = (lost > none) == (sum > none), even = (bits & 1) == 0;
  bits += inexact & even & ((away & 2) - 1);  // 1 away from zero, or 1 towards it
  Doubles odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return __builtin_convertvector(odd, Vector);
}

inline float multiply_add(float a, float b, float c) {
  return multiply_add(Vector{a}, Vector{b}, Vector{c})[0];
}
#else
inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

inline float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
#endif

inline Vector vector(float x) { return x - Vector{}; }  // not Vector{} + x, which changes -0 and so is computed

// A vector from memory with any alignment.
inline Vector load(const float* from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Vector from_bits(Words bits) {
  Vector x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline Vector load(const BFloat16* from) {
  Shorts bits;
  std::memcpy(&bits, from, sizeof bits);
  return from_bits(__builtin_convertvector(bits, Words) << 16);
}

inline Vector load(const Half* from) {
  Shorts bits;
  std::memcpy(&bits, from, sizeof bits);
  const Words x = __builtin_convertvector(bits, Words);
  // the exponent is 112 too small until the product; infinity and NaN have the largest one of both types
  const Vector scaled = from_bits((x & 0x7fffu) << 13) * 0x1p112f;
  Words all;
  std::memcpy(&all, &scaled, sizeof all);
  const Words special = reinterpret_cast<Words>((x & 0x7c00u) == 0x7c00u);
  return from_bits(all | (special & 0x7f800000u) | ((x & 0x8000u) << 16));
}

inline Vector load(const int8_t* from) {
#if defined(__AVX512F__)
  const auto wide = reinterpret_cast<Integers>(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  const auto wide = reinterpret_cast<Integers>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  typedef int8_t Bytes __attribute__((vector_size(kWide)));
  typedef int16_t Words16 __attribute__((vector_size(2 * kWide)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  // in two steps: in one, gcc 12 takes the numbers one by one
  const Integers wide = __builtin_convertvector(__builtin_convertvector(bytes, Words16), Integers);
#endif
  return __builtin_convertvector(wide, Vector);
}

inline float single(float x) { return x; }
inline float single(int8_t x) { return x; }

inline float single(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

inline float single(Half x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13, sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  float y;
  std::memcpy(&y, &magnitude, sizeof y);
  y *= 0x1p112f;
  uint32_t bits;
  std::memcpy(&bits, &y, sizeof bits);
  if ((x.bits & 0x7c00) == 0x7c00) bits |= 0x7f800000u;
  bits |= sign;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

inline void store(float* to, float x) { *to = x; }

// Rounded to the nearest, ties to even.
inline void store(BFloat16* to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  to->bits = x != x ? uint16_t{0x7fc0} : static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }

struct Lanes {
  Vector part[kParts];
};

template <typename T>
inline Lanes lanes(const T* from) {
  Lanes x;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) x.part[p] = load(from + p * kWide);
  return x;
}

inline Lanes all(float x) {
  Lanes y;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) y.part[p] = vector(x);
  return y;
}

inline void store(float* to, const Lanes& x) {
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) store(to + p * kWide, x.part[p]);
}

inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes y;
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) y.part[p] = multiply_add(a.part[p], b.part[p], c.part[p]);
  return y;
}

inline Quad low(Eight x) { return __builtin_shufflevector(x, x, 0, 1, 2, 3); }
inline Quad high(Eight x) { return __builtin_shufflevector(x, x, 4, 5, 6, 7); }

// Lanes i and i + 8 combined, then i and i + 4.
template <typename Combine>
inline Quad fold(const Lanes& x, Combine combine) {
#if defined(__AVX512F__)
  const Vector v = x.part[0];
  const Eight eight = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  return combine(low(eight), high(eight));
#elif defined(__AVX__)
  const Eight eight = combine(x.part[0], x.part[1]);
  return combine(low(eight), high(eight));
#else
  return combine(combine(x.part[0], x.part[2]), combine(x.part[1], x.part[3]));
#endif
}

struct Add {
  template <typename V>
  V operator()(V a, V b) const {
    return a + b;
  }
};

// The larger one; b where a is NaN.
struct Larger {
  template <typename V>
  V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

inline Quad folded(const Lanes& x) { return fold(x, Add()); }

inline float sum(Quad q) { return (q[0] + q[2]) + (q[1] + q[3]); }

// The sums of four folded rows, each in the order of `sum`.
inline Quad sums(Quad a, Quad b, Quad c, Quad d) {
  const Quad ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
  const Quad cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
  return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

// The value at an address, as a vector or one number, like `like`.
template <typename T>
inline Vector take(const T* from, Vector) {
  return load(from);
}
template <typename T>
inline float take(const T* from, float) {
  return single(*from);
}

// Sum of f(x[i]) over n numbers: in lanes, the rest one by one. f takes and returns a vector, or a float, by index.
template <typename F>
inline float reduce(int64_t n, F f) {
  Lanes total = all(0.f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) total.part[p] = f(total.part[p], i + p * kWide);
  }
  float y = sum(folded(total));
  for (; i < n; ++i) y = f(y, i);
  return y;
}

// f(i, whole) for every vector of 16 lanes, then for the rest one by one.
template <typename F, typename G>
inline void each(int64_t n, F vectors, G singles) {
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide) vectors(i);
  for (; i < n; ++i) singles(i);
}

template <typename T>
inline float dot(const float* a, const T* b, int64_t n) {
  return reduce(n, [=](auto y, int64_t i) { return multiply_add(take(a + i, y), take(b + i, y), y); });
}

// The products of one row with four others, each as `dot` has it.
template <typename T>
inline Quad dots(const float* a, const T* const b[4], int64_t n) {
  Lanes total[4] = {all(0.f), all(0.f), all(0.f), all(0.f)};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Vector x = load(a + i + p * kWide);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) total[r].part[p] = multiply_add(x, load(b[r] + i + p * kWide), total[r].part[p]);
    }
  }
  Quad y = sums(folded(total[0]), folded(total[1]), folded(total[2]), folded(total[3]));
  for (; i < n; ++i) {
    for (int r = 0; r < 4; ++r) y[r] = multiply_add(a[i], single(b[r][i]), y[r]);
  }
  return y;
}

template <typename T>
inline void add_scaled(float* to, float weight, const T* x, int64_t n) {
  const Vector w = vector(weight);
  each(
      n, [&](int64_t i) { store(to + i, multiply_add(w, load(x + i), load(to + i))); },
      [&](int64_t i) { to[i] = multiply_add(weight, single(x[i]), to[i]); });
}

inline float largest(const float* x, int64_t n) {
  Lanes top = all(-kInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) top.part[p] = Larger()(load(x + i + p * kWide), top.part[p]);
  }
  const Quad q = fold(top, Larger());
  float y = Larger()(Larger()(q[0], q[2]), Larger()(q[1], q[3]));
  for (; i < n; ++i) y = Larger()(x[i], y);
  return y;
}

// exp for x <= 0 (Cephes' polynomial, error below 2 ulp; x at least -87). NaN stays. V: a vector or a float.
inline Vector splat(float x, Vector) { return vector(x); }
inline float splat(float x, float) { return x; }
inline Vector power_of_two(Vector n) {
  return from_bits(reinterpret_cast<Words>((__builtin_convertvector(n, Integers) + 127) << 23));
}
inline float power_of_two(float n) {
  // NaN cannot become an integer; its product is NaN in any case
  const uint32_t bits = static_cast<uint32_t>((n == n ? static_cast<int32_t>(n) : 0) + 127) << 23;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}

template <typename V>
inline V exp_negative(V x) {
  const V least = splat(-87.f, x), round = splat(12582912.f, x);  // 1.5 * 2^23: adding it rounds to an integer
  x = x < least ? least : x;
  const V n = (x * 1.44269504088896341f + round) - round;
  x = multiply_add(n, splat(-0.693359375f, x), x);
  x = multiply_add(n, splat(2.12194440e-4f, x), x);
  V y = splat(1.9875691500e-4f, x);
  y = multiply_add(y, x, splat(1.3981999507e-3f, x));
  y = multiply_add(y, x, splat(8.3334519073e-3f, x));
  y = multiply_add(y, x, splat(4.1665795894e-2f, x));
  y = multiply_add(y, x, splat(1.6666665459e-1f, x));
  y = multiply_add(y, x, splat(5.0000001201e-1f, x));
  return (multiply_add(y * x, x, x) + 1.f) * power_of_two(n);
}

// exp, 0 where it would underflow: for all x below 88.
template <typename V>
inline V exp_or_zero(V x) {
  const V y = exp_negative(x);
  return x < splat(-87.f, x) ? splat(0.f, x) : y;
}

// 1 / (1 + exp(-x)).
template <typename V>
inline V sigmoid(V x) {
  const V none = splat(0.f, x), e = exp_or_zero(x < none ? x : -x);
  return (x < none ? e : splat(1.f, x)) / (e + 1.f);
}

// The error function (Abramowitz and Stegun 7.1.26, error below 1.5e-7).
template <typename V>
inline V erf(V x) {
  const V none = splat(0.f, x), size = x < none ? -x : x, t = splat(1.f, x) / multiply_add(size, splat(0.3275911f, x), splat(1.f, x));
  V y = splat(1.061405429f, x);
  y = multiply_add(y, t, splat(-1.453152027f, x));
  y = multiply_add(y, t, splat(1.421413741f, x));
  y = multiply_add(y, t, splat(-0.284496736f, x));
  y = multiply_add(y, t, splat(0.254829592f, x));
  y = splat(1.f, x) - y * t * exp_or_zero(-(size * size));
  return x < none ? -y : y;
}

// NaN stays NaN.
template <typename V>
inline V activated(V x, Activation activation) {
  const V none = splat(0.f, x);
  switch (activation) {
    case Activation::kRelu: return x < none ? none : x;
    case Activation::kGelu: return x * splat(0.5f, x) * (erf(x * splat(0.70710678f, x)) + 1.f);
    case Activation::kGeluTanh:  // tanh(y) = 2 sigmoid(2 y) - 1
      return x * sigmoid(x * multiply_add(x * x, splat(1.59576912f * 0.044715f, x), splat(1.59576912f, x)));
    case Activation::kSwish: return x * sigmoid(x);
    default: return x;
  }
}

// log of a positive number in double, error below 1e-15: the same bits everywhere, which std::log does not guarantee.
inline double logarithm(double x) {
  if (!(x <= std::numeric_limits<double>::max())) return x;  // infinity and NaN
  int64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  int64_t exponent = (bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffLL) | (1023LL << 52);
  double y;
  std::memcpy(&y, &bits, sizeof y);
  if (y > 1.4142135623730951) {
    y *= 0.5;
    ++exponent;
  }
  const double s = (y - 1.0) / (y + 1.0), z = s * s;
  double sum = 1.0 / 21.0;
  for (int k = 19; k > 0; k -= 2) sum = sum * z + 1.0 / k;
  return 2.0 * s * sum + static_cast<double>(exponent) * 0.6931471805599453;
}

// x becomes x * factor.
inline void scale(float* x, int64_t n, float factor) {
  each(n, [&](int64_t i) { store(x + i, load(x + i) * factor); }, [&](int64_t i) { x[i] *= factor; });
}

// Scores become exp(score - top); where that would underflow, 0 if kZero, otherwise exp(-87). Returns their sum.
template <bool kZero = false>
inline float exponentials(float* x, int64_t n, float top) {
  return reduce(n, [=](auto total, int64_t i) {
    const auto score = take(x + i, total) - top;
    const auto y = kZero ? exp_or_zero(score) : exp_negative(score);
    store(x + i, y);
    return total + y;
  });
}

}  // namespace LASFORMER_TARGET
}  // namespace lasformer
