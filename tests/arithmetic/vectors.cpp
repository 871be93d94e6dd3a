// Computes everything that the CPU kernels' arithmetic offers, from numbers that depend on nothing but integers, with every
// instruction set that the processor has, and compares each with `plain`.
//
//   vectors          compare; print a checksum of the integer results, the same on every architecture
//
// Built and run by scripts/test_arm.sh, for this machine and, in an emulator, for aarch64.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../fairseq_lasformer/ops/cpu/arithmetic/arithmetic.h"

using namespace lasformer;

namespace {

uint32_t state = 1;

// Between -1 and 1, by a linear congruence.
float next() {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) / (1 << 23);
}

std::vector<float> numbers(int64_t n) {
  std::vector<float> x(n);
  for (float& y : x) y = next();
  return x;
}

std::vector<uint16_t> halved(const std::vector<float>& x) {  // bfloat16, cut off
  std::vector<uint16_t> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &x[i], 4);
    y[i] = static_cast<uint16_t>(bits >> 16);
  }
  return y;
}

struct Shape {
  int64_t rows, inputs, outputs;
};

struct Results {
  std::vector<std::vector<float>> floats;  // within rounding of each other
  std::vector<int64_t> integers;           // equal
};

Results results(const Arithmetic& compute) {
  state = 1;
  Results all;
  for (const auto& [rows, k, n] : {Shape{5, 64, 33}, {7, 37, 130}, {1, 4, 16}, {13, 130, 16}, {16, 64, 16}, {39, 128, 90}, {53, 192, 33}, {40, 132, 40}}) {
    const std::vector<float> x = numbers(rows * k), bias = numbers(n), add = numbers(rows * n);
    Packed weights;
    weights.inputs = k;
    weights.outputs = n;
    const int64_t outputs = weights.panels() * kPanel, padded = weights.quads() * 4;
    const std::vector<float> panels = numbers(outputs * k);
    std::vector<int8_t> eight(outputs * padded);
    for (int8_t& w : eight) w = static_cast<int8_t>(std::lrintf(127.f * next()));
    std::vector<int32_t> sums(outputs, 0);
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t i = 0; i < padded; ++i) {
        sums[o] += 128 * eight[((o / kPanel * (padded / 4) + i / 4) * kPanel + o % kPanel) * 4 + i % 4];
      }
    }
    const std::vector<float> ones(outputs, 1.f);
    std::vector<char> quantised(rows * padded * compute.number_bytes);
    std::vector<float> scales(rows), out(rows * n);
    compute.quantise(x.data(), k, rows, k, quantised.data(), padded, scales.data());
    for (float scale : scales) all.integers.push_back(static_cast<int64_t>(scale * 1e9f));
    for (float& scale : scales) scale = 1.f;  // the sums themselves
    weights.quantised = eight.data();
    weights.scale = ones.data();
    weights.sums = sums.data();
    compute.product({x.data(), k, rows, quantised.data(), scales.data(), weights, out.data(), {}}, 0, weights.groups());
    for (float y : out) all.integers.push_back(static_cast<int64_t>(y));
    Packed exact;
    exact.inputs = k;
    exact.outputs = n;
    exact.weight = panels.data();
    exact.bias = bias.data();
    for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSwish}) {
      compute.product({x.data(), k, rows, nullptr, nullptr, exact, out.data(), {activation, add.data()}}, 0, exact.groups());
      all.floats.push_back(out);
    }
  }
  {
    const std::vector<float> x = numbers(3 * 70), weight = numbers(70), bias = numbers(70);
    std::vector<float> out(3 * 70);
    compute.layer_norm(x.data(), 3, 70, weight.data(), bias.data(), 1e-5f, out.data());
    all.floats.push_back(out);
  }
  for (const int64_t width : {64, 20}) {
    const int64_t slots = 50, rows = 3, heads = 2, most = 11;
    const std::vector<float> q = numbers(rows * heads * width), keys = numbers(slots * heads * width);
    const std::vector<float> values = numbers(slots * heads * width);
    const std::vector<uint16_t> keys16 = halved(keys), values16 = halved(values);
    std::vector<int32_t> chosen, counts = {11, 0, 6};
    for (int64_t i = 0; i < rows * most; ++i) chosen.push_back(static_cast<int32_t>((i * 7) % slots));
    std::vector<float> out(q.size()), weights(rows * heads * (most + kTurn)), scores(slots);
    const float factor = 1.f / std::sqrt(static_cast<float>(width));
    Kept kept{q.data(), keys.data(), values.data(), nullptr, nullptr, chosen.data(), most, 0, counts.data(), rows, heads * width, width, 4, nullptr, nullptr, out.data()};
    compute.attend(Type::kFloat, kept, 0, heads, factor, weights.data());
    all.floats.push_back(out);
    const std::vector<int64_t> own = {0, 4, 0, 0, 2, 3};  // the first slot of a row's own line, and their number
    const std::vector<float> shift = numbers(rows * heads);
    kept.own = own.data(), kept.shift = shift.data();
    compute.attend(Type::kFloat, kept, 0, heads, factor, weights.data());
    all.floats.push_back(out);
    kept.own = nullptr;
    kept.keys = keys16.data(), kept.values = values16.data();
    compute.attend(Type::kBFloat16, kept, 0, heads, factor, weights.data());
    all.floats.push_back(out);
    compute.score(Type::kFloat, q.data(), keys.data(), nullptr, 1, slots, heads * width, scores.data());
    scores[0] = 0.f;
    all.floats.push_back(scores);
    for (float& s : scores) s = std::nearbyint(s * 16.f) / 16.f;
    std::vector<uint64_t> found(slots);
    const int64_t n = compute.candidates(scores.data(), slots, 0.5f, found.data());
    all.integers.insert(all.integers.end(), found.begin(), found.begin() + n);
    all.integers.push_back(compute.next_above(scores.data(), 3, slots, 0.5f, 2.f));
    // training: two heads, eight queries
    const int64_t queries = 8, size = heads * queries * width;
    const std::vector<float> tq = numbers(size), d_out = numbers(size);
    std::vector<int32_t> tslots, tcounts;
    for (int64_t i = 0; i < queries; ++i) {
      tcounts.push_back(static_cast<int32_t>(i % 6));
      for (int64_t j = 0; j < 6; ++j) tslots.push_back(static_cast<int32_t>((i * 5 + j * 7) % slots));
    }
    Gather g{};
    g.batch = 1, g.heads = heads, g.queries = queries, g.keys = slots, g.width = width;
    g.q = tq.data(), g.k = keys.data(), g.v = values.data(), g.slots = tslots.data(), g.most = 6, g.counts = tcounts.data();
    g.dropout = {3, 1u << 30, 4.f / 3.f};
    std::vector<float> result(size), lse(heads * queries), dq(size), dk(heads * slots * width), dv(dk.size());
    std::vector<float> work(gather_work(g));
    g.out = result.data(), g.lse = lse.data(), g.d_out = d_out.data(), g.dq = dq.data(), g.dk = dk.data(), g.dv = dv.data();
    for (int64_t h = 0; h < heads; ++h) {
      compute.gather_forward(Type::kFloat, g, h, 0, queries, work.data());
      compute.gather_backward(Type::kFloat, g, h, work.data());
    }
    for (const auto& each : {result, lse, dq, dk, dv}) all.floats.push_back(each);
    std::vector<int64_t> lines;
    for (int64_t i = 0; i < queries; ++i) lines.insert(lines.end(), {i * 5 % slots, i});
    const std::vector<float> added = numbers(heads * queries);
    std::vector<float> d_added(added.size());
    g.own = lines.data(), g.shift = added.data(), g.d_shift = d_added.data();
    for (int64_t h = 0; h < heads; ++h) {
      compute.gather_forward(Type::kFloat, g, h, 0, queries, work.data());
      compute.gather_backward(Type::kFloat, g, h, work.data());
    }
    for (const auto& each : {result, lse, dq, dk, dv, d_added}) all.floats.push_back(each);
  }
  {
    const Block b{2, 3, 41, nullptr, 0};
    std::vector<uint8_t> allowed(3 * 41);
    for (size_t i = 0; i < allowed.size(); ++i) allowed[i] = i % 3 != 0;
    Block masked = b;
    masked.allowed = allowed.data();
    const std::vector<float> scores = numbers(2 * 3 * 41), d = numbers(2 * 3 * 41), lse = numbers(6), delta = numbers(6);
    std::vector<float> x = scores, mean(3 * 41, 0.f), norms(6), bias(41), sums(3 * 41, 0.f), y = scores, dy = d;
    compute.row_softmax(masked, x.data(), mean.data(), 0.5f, norms.data(), 0, 3, bias.data());
    compute.mask_gradient(masked, scores.data(), lse.data(), d.data(), delta.data(), 1.f, sums.data(), 0, 3);
    compute.kept_gradient(masked, y.data(), dy.data(), lse.data(), delta.data(), 0, 3, bias.data());
    for (const auto& each : {x, mean, norms, sums, y, dy}) all.floats.push_back(each);
    compute.softmax_gradient(b, x.data(), mean.data(), 0, 6);
    all.floats.push_back(x);
  }
  return all;
}

bool close(float a, float b) {
  if (a == b || (a != a && b != b)) return true;
  return std::fabs(a - b) <= 2e-5f * (1.f + std::fabs(b));
}

}  // namespace

int main() {
  const Arithmetic* plain = nullptr;
  for (const Arithmetic* const* t = kTargets; *t; ++t) {
    if (!std::strcmp((*t)->name, "plain")) plain = *t;
  }
  const Results expected = results(*plain);
  uint64_t checksum = 0;
  for (int64_t x : expected.integers) checksum = checksum * 1099511628211u + static_cast<uint64_t>(x);
  int wrong = 0;
  for (const Arithmetic* const* t = kTargets; *t; ++t) {
    if (!available(**t)) {
      std::printf("%s: not on this processor\n", (*t)->name);
      continue;
    }
    const Results found = results(**t);
    int64_t count = 0, bad = found.integers != expected.integers;
    for (size_t i = 0; i < expected.floats.size(); ++i) {
      for (size_t j = 0; j < expected.floats[i].size(); ++j, ++count) bad += !close(found.floats[i][j], expected.floats[i][j]);
    }
    std::printf("%s: %zu integers, %lld floats, %lld wrong\n", (*t)->name, found.integers.size(),
                static_cast<long long>(count), static_cast<long long>(bad));
    wrong += bad != 0;
  }
  std::printf("checksum %016llx\n", static_cast<unsigned long long>(checksum));
  return wrong;
}
