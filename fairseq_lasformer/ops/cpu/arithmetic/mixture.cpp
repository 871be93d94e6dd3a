// Measures two targets' functions on small inputs, in turns; some milliseconds in all.
#include "mixture.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace lasformer {
namespace {

constexpr int kRounds = 8;       // of which the first warms up
constexpr double kFaster = 0.93;  // share of the first target's time that the second may take, to be called faster
constexpr int64_t kKeys = 1024, kWidth = 64, kRows = 16, kQueries = 64, kKept = 32;
constexpr int64_t kApart = kKeys / kKept;

// Inputs of a training and of a decoding step, of one head; the numbers are of no importance.
struct Inputs {
  Inputs() {
    uint32_t state = 1;
    const auto next = [&] { return state = state * 1664525u + 1013904223u; };
    const auto fill = [&](std::vector<float>& into, int64_t n) {
      into.resize(n);
      for (float& x : into) x = static_cast<float>(next() >> 8) / (1 << 23) - 1.f;
    };
    fill(keys, kKeys * kWidth);
    fill(values, kKeys * kWidth);
    fill(queries, kQueries * kWidth);
    fill(scores, kRows * kKeys);
    fill(other, kRows * kKeys);
    fill(delta, kQueries);
    slots.resize(kQueries * kKept);
    for (int64_t i = 0; i < kQueries; ++i) {
      for (int64_t j = 0; j < kKept; ++j) {
        slots[i * kKept + j] = static_cast<int32_t>(j * kApart + (next() >> 8) % kApart);
      }
    }
    counts.assign(kQueries, kKept);
    allowed.resize(kRows * kKeys);
    for (uint8_t& a : allowed) a = next() >> 31;
    lse.assign(kQueries, 7.f);
    out.assign(kQueries * kWidth, 0.f);
    d_out.assign(kQueries * kWidth, 0.01f);
    gradients.assign((kQueries + 2 * kKeys) * kWidth, 0.f);
    work.assign(std::max<int64_t>(4 * kWidth + 2 * (kKept + kTurn), kRows * (kKeys + kTurn)), 0.f);
    first.resize(kRows * kKeys);
    second.resize(kRows * kKeys);
    found.resize(kKeys);
  }

  Gather gather() {
    float* d = gradients.data();
    return {1, 1, kQueries, kKeys, kWidth, queries.data(), keys.data(), values.data(), slots.data(), kKept, counts.data(),
            nullptr, nullptr, nullptr, Dropout{1, 0, 0.f}, out.data(), lse.data(), d_out.data(), d, d + kQueries * kWidth, d + (kQueries + kKeys) * kWidth};
  }

  Block block() const { return {1, kRows, kKeys, allowed.data(), 0}; }

  // Copies of the scores and of the other numbers, for functions that change them.
  void copy() {
    first = scores;
    second = other;
  }

  std::vector<float> keys, values, queries, scores, other, delta, lse, out, d_out, gradients, work, first, second;
  std::vector<int32_t> slots, counts;
  std::vector<uint8_t> allowed;
  std::vector<uint64_t> found;
};

void score(const Arithmetic& a, Inputs& in) {
  a.score(Type::kFloat, in.queries.data(), in.keys.data(), nullptr, 0, kKeys, kWidth, in.first.data());
}
void candidates(const Arithmetic& a, Inputs& in) {
  for (int64_t r = 0; r < kRows; ++r) a.candidates(in.scores.data() + r * kKeys, kKeys, 0.9f, in.found.data());
}
void attend(const Arithmetic& a, Inputs& in) {
  const Kept kept{in.queries.data(), in.keys.data(), in.values.data(), nullptr, nullptr, in.slots.data(), kKept, 0,
                  in.counts.data(), kRows, kWidth, kWidth, kTurn, nullptr, nullptr, in.out.data()};
  a.attend(Type::kFloat, kept, 0, 1, 0.125f, in.work.data());
}
void gather_forward(const Arithmetic& a, Inputs& in) {
  a.gather_forward(Type::kFloat, in.gather(), 0, 0, kQueries, in.work.data());
}
void gather_backward(const Arithmetic& a, Inputs& in) { a.gather_backward(Type::kFloat, in.gather(), 0, in.work.data()); }
void row_softmax(const Arithmetic& a, Inputs& in) {
  in.copy();
  a.row_softmax(in.block(), in.first.data(), in.second.data(), 1.f, in.out.data(), 0, kRows, in.work.data());
}
void softmax_gradient(const Arithmetic& a, Inputs& in) {
  in.copy();
  a.softmax_gradient(in.block(), in.first.data(), in.second.data(), 0, kRows);
}
void mask_gradient(const Arithmetic& a, Inputs& in) {
  a.mask_gradient(in.block(), in.scores.data(), in.lse.data(), in.other.data(), in.delta.data(), 1.f, in.first.data(), 0, kRows);
}
void kept_gradient(const Arithmetic& a, Inputs& in) {
  in.copy();
  a.kept_gradient(in.block(), in.first.data(), in.second.data(), in.lse.data(), in.delta.data(), 0, kRows, in.work.data());
}

// Inputs of a layer in 8 bits, for as many rows as a batch of sentences has in a decoding step.
struct Numbers {
  explicit Numbers(int64_t bytes)
      : weights(kWidth8 * kWidth8, 3), numbers(kRows8 * kWidth8 * bytes, 1), scales(kRows8, 1.f), scale(kWidth8, 1.f),
        out(kRows8 * kWidth8), sums(kWidth8, 0) {
    packed.quantised = weights.data();
    packed.scale = scale.data();
    packed.sums = sums.data();
    packed.outputs = packed.inputs = kWidth8;
  }

  static constexpr int64_t kRows8 = 64, kWidth8 = 512;
  std::vector<int8_t> weights;
  std::vector<uint8_t> numbers;
  std::vector<float> scales, scale, out;
  std::vector<int32_t> sums;
  Packed packed;
};

void product(const Arithmetic& a, Numbers& in) {
  const Product task{nullptr, 0, Numbers::kRows8, in.numbers.data(), in.scales.data(), in.packed, in.out.data(), {}};
  a.product(task, 0, in.packed.groups());
}

template <typename In>
bool is_faster(void (*probe)(const Arithmetic&, In&), const Arithmetic& own, const Arithmetic& rival, In& in) {
  using Clock = std::chrono::steady_clock;
  const Arithmetic* const both[2] = {&own, &rival};
  double best[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < 2; ++i) {
      const auto begin = Clock::now();
      probe(*both[i], in);
      const std::chrono::duration<double> taken = Clock::now() - begin;
      if (round) best[i] = std::min(best[i], taken.count());
    }
  }
  return best[1] < kFaster * best[0];
}

}  // namespace

#define LASFORMER_CONTEST(function)                              \
  if (is_faster(function, table, rival, in)) {                   \
    table.function = rival.function;                             \
    borrowed.push_back(std::string(rival.name) + "." #function); \
  }

Mixture& Mixture::borrow(const Arithmetic& rival) {
  Inputs in;
  LASFORMER_CONTEST(score)
  LASFORMER_CONTEST(candidates)
  LASFORMER_CONTEST(attend)
  LASFORMER_CONTEST(gather_forward)
  LASFORMER_CONTEST(gather_backward)
  LASFORMER_CONTEST(row_softmax)
  LASFORMER_CONTEST(softmax_gradient)
  LASFORMER_CONTEST(mask_gradient)
  LASFORMER_CONTEST(kept_gradient)
  return *this;
}

Mixture& Mixture::borrow_product(const Arithmetic& rival) {
  if (table.number_bytes != rival.number_bytes || table.number_shift != rival.number_shift) return *this;
  Numbers in(table.number_bytes);
  LASFORMER_CONTEST(product)
  return *this;
}

#undef LASFORMER_CONTEST

}  // namespace lasformer
