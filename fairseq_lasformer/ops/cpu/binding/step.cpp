// One decoding step of a stack of decoder layers: projections, cache, selection, attention, feed-forward network.
// Definition: nn.stack.LayerStack.step, layer by layer in PyTorch.
//
// Tensors come in lists, the same number for each layer: see the constants. Those that do not apply are empty.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"
#include "packed.h"

namespace lasformer {
namespace {

// norms: weight and bias of each
enum { kSelfNorm, kCrossNorm, kFinalNorm, kNorms };
// linears: weight, scale, sums and bias of each; both selectors are float32, that of the self-attention queries and keys
enum { kQkv, kSelfOut, kCrossQ, kCrossOut, kFc1, kFc2, kSelfSelector, kCrossSelector, kLinears };
// stores: [N, C, W]; scales of keys and values in 8 bits, [N, C, heads], empty for those in float32
enum { kKey, kValue, kSelectorKey, kSourceKey, kSourceValue, kSourceSelectorKey, kKeyScale, kValueScale, kSourceKeyScale,
       kSourceValueScale, kStores };
// kappas of self- and cross-attention: that of a learned selector in millionths, or
constexpr int64_t kAsBelow = 0, kEvery = -1, kGiven = -2;

struct Slots {
  Tensor slots, counts;  // undefined: every key from start on
  bool chosen = false;   // selected, and so beginning with the row's own line, if there are own lines
};

// Write this step's part of every row, [R, from : from + W], into the newest slots of a store [N, C, W]; scales: those
// of an 8-bit store.
void append(const Tensor& rows, int64_t from, const Tensor& store, const Tensor& newest, const Tensor& scales = {}) {
  const int64_t width = store.size(2), beam = newest.numel(), stride = rows.size(1);
  const auto* slots = newest.const_data_ptr<int64_t>();
  const auto* source = rows.const_data_ptr<float>();
  const bool quantised = store.scalar_type() == at::kChar;
  const int64_t heads = quantised ? scales.size(2) : 1;
  for (int64_t i = 0; i < beam; ++i) {
    TORCH_CHECK(slots[i] >= 0 && slots[i] < store.size(1), "newest: beyond the last slot");
  }
  const auto write = [&](int64_t r) {
    const int64_t slot = slots[r % beam];
    const int64_t place = r / beam * store.size(1) + slot;
    const float* part = source + r * stride + from;
    if (quantised) {
      arithmetic().quantise_heads(part, heads, width / heads, store.mutable_data_ptr<int8_t>() + place * width,
                                  scales.mutable_data_ptr<float>() + place * heads);
    } else {
      std::copy_n(part, width, store.mutable_data_ptr<float>() + place * width);
    }
  };
  at::parallel_for(0, rows.size(0), grain(4 * width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) write(r);
  });
}

constexpr int64_t kPairs = 8;  // of dimensions that are rotated in a head, at most: nn/rotary.py

// Rotate the first dimensions of heads that follow each other, x [R, from : from + heads * width], in place.
void rotate(const Tensor& x, int64_t from, int64_t heads, int64_t width, const std::optional<Tensor>& rotation) {
  if (!rotation || width < kPairs) return;
  int64_t pairs = kPairs;
  while (pairs > width / kPairs) pairs /= 2;
  const int64_t every = kPairs / pairs;
  const auto* turns = rotation->const_data_ptr<float>();
  auto* all = x.mutable_data_ptr<float>();
  const auto row = [&](int64_t r) {
    for (int64_t h = 0; h < heads; ++h) {
      float* first = all + r * x.size(1) + from + h * width;
      float* second = first + pairs;
      for (int64_t i = 0; i < pairs; ++i) {
        const float* turn = turns + 2 * (r * kPairs + i * every + every / 2);
        const float a = first[i], b = second[i];
        first[i] = a * turn[0] - b * turn[1];
        second[i] = a * turn[1] + b * turn[0];
      }
    }
  };
  at::parallel_for(0, x.size(0), grain(8 * heads * pairs), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r);
  });
}

// Columns from : from + n of x [R, W].
Tensor columns(const Tensor& x, int64_t from, int64_t n) {
  Tensor out = at::empty({x.size(0), n}, x.options());
  const auto* source = x.const_data_ptr<float>();
  auto* to = out.mutable_data_ptr<float>();
  at::parallel_for(0, x.size(0), grain(4 * n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(source + r * x.size(1) + from, n, to + r * n);
    }
  });
  return out;
}

class Step {
 public:
  Step(TensorList norms, TensorList linears, TensorList stores, TensorList given, TensorList biases, TensorList own,
       const std::optional<Tensor>& rotation, at::IntArrayRef outputs, at::IntArrayRef kappas, at::IntArrayRef heads, const Tensor& table,
       const Tensor& newest, const Tensor& start, const Tensor& count, const Tensor& source_start, const Tensor& source_count, int64_t end, bool pre_norm,
       Activation activation, double eps)
      : norms_(norms), linears_(linears), stores_(stores), given_(given), biases_(biases), rotation_(rotation), outputs_(outputs),
        kappas_(kappas), heads_(heads), table_(table.slice(1, 0, end)), newest_(newest), start_(start), count_(count),
        source_start_(source_start), source_count_(source_count), end_(end), pre_norm_(pre_norm),
        activation_(activation), eps_(static_cast<float>(eps)) {
    const int64_t rows = table.size(0);
    every_ = {table_, count.to(at::kInt).repeat_interleave(rows / count.numel())};
    if (biases.empty()) return;
    for (int side = 0; side < 2; ++side) {
      const Tensor& number = side ? source_count : count;
      own_[side] = at::stack({own[2 * side], own[2 * side + 1]}, 1).contiguous();
      // among the keys of a range, an own line stands from the first one on; among selected keys, it comes first
      of_range_[side] = own_[side].clone();
      if (side) of_range_[1].select(1, 0).sub_(source_start.repeat_interleave(rows / source_start.numel()));
      of_chosen_[side] = own_[side].clone();
      of_chosen_[side].select(1, 0).zero_();
      const Tensor others = number.repeat_interleave(rows / number.numel()).sub(own[2 * side + 1]);
      logs_[side].resize(rows);
      for (int64_t r = 0; r < rows; ++r) {
        const auto n = static_cast<double>(std::max<int64_t>(1, others.const_data_ptr<int64_t>()[r]));
        logs_[side][r] = static_cast<float>(arithmetic().logarithm(n));
      }
    }
  }

  Tensor run(Tensor x) {
    const int64_t layers = static_cast<int64_t>(norms_.size()) / (2 * kNorms);
    Slots self, cross;
    for (int64_t l = 0; l < layers; ++l) {
      x = feed_forward(l, cross_attention(l, self_attention(l, x, self), cross));
    }
    return x;
  }

 private:
  const Tensor& store(int64_t layer, int64_t which) const { return stores_[layer * kStores + which]; }

  bool has(int64_t layer, int64_t which) const { return linears_[(layer * kLinears + which) * 4].numel() > 0; }

  Tensor linear(int64_t layer, int64_t which, const Tensor& x, After after = {}) const {
    const int64_t at = layer * kLinears + which, outputs = outputs_[at];
    const Packed weights =
        packed(linears_[4 * at], linears_[4 * at + 1], linears_[4 * at + 2], linears_[4 * at + 3], x.size(1), outputs);
    Tensor out = at::empty({x.size(0), outputs}, x.options());
    product(x.const_data_ptr<float>(), x.size(1), x.size(0), weights, out.mutable_data_ptr<float>(), after);
    return out;
  }

  Tensor norm(int64_t layer, int64_t which, const Tensor& x) const {
    Tensor out = at::empty_like(x);
    const int64_t at = 2 * (layer * kNorms + which);
    const auto *from = x.const_data_ptr<float>(), *weight = norms_[at].const_data_ptr<float>();
    const auto* bias = norms_[at + 1].const_data_ptr<float>();
    auto* to = out.mutable_data_ptr<float>();
    const int64_t width = x.size(1);
    at::parallel_for(0, x.size(0), grain(16 * width), [&](int64_t begin, int64_t end) {
      arithmetic().layer_norm(from + begin * width, end - begin, width, weight, bias, eps_, to + begin * width);
    });
    return out;
  }

  Tensor before(int64_t layer, int64_t which, const Tensor& x) const { return pre_norm_ ? norm(layer, which, x) : x; }

  Tensor after(int64_t layer, int64_t which, const Tensor& x) const { return pre_norm_ ? x : norm(layer, which, x); }

  // The keys that a layer reads: newly selected, given, or those of the layer below.
  void choose(int64_t layer, bool cross, const Tensor& q, Slots& kept) const {
    const int64_t kappa = kappas_[2 * layer + cross], end = cross ? store(layer, kSourceKey).size(1) : end_;
    if (kappa == kAsBelow) return;
    if (kappa == kGiven) {
      kept = {given_[4 * layer + 2 * cross], given_[4 * layer + 2 * cross + 1], true};
    } else if (kappa == kEvery || kappa >= kOne || (end <= kMinKeys && biases_.empty())) {
      kept = cross ? Slots{} : every_;
    } else {
      kept.chosen = true;
      const auto own = biases_.empty() ? std::nullopt : std::optional<Tensor>(own_[cross]);
      std::tie(kept.slots, kept.counts) =
          cross ? topk_indices(q, store(layer, kSourceSelectorKey), std::nullopt, source_start_, source_count_, kappa, own)
                : topk_indices(q, store(layer, kSelectorKey), table_, start_, count_, kappa, own);
    }
  }

  // What is added to the scores of each row's own line, instead of bias - log(number of others) to those of the others.
  Shift shift(int64_t layer, bool cross, const Slots& kept) const {
    if (biases_.empty()) return {};
    const auto* bias = biases_[2 * layer + cross].const_data_ptr<float>();
    const int64_t rows = table_.size(0), heads = heads_[cross];
    Tensor value = at::empty({rows, heads}, biases_[0].options());
    auto* to = value.mutable_data_ptr<float>();
    for (int64_t i = 0; i < rows * heads; ++i) to[i] = logs_[cross][i / heads] - bias[i % heads];
    return {kept.chosen ? of_chosen_[cross] : of_range_[cross], value};
  }

  Tensor attend(int64_t layer, bool cross, const Tensor& q, const Slots& kept) const {
    const int64_t key = cross ? kSourceKey : kKey, key_scale = cross ? kSourceKeyScale : kKeyScale;
    const Tensor &keys = store(layer, key), &values = store(layer, key + 1);
    const Tensor &key_scales = store(layer, key_scale), &value_scales = store(layer, key_scale + 1);
    const Shift added = shift(layer, cross, kept);
    if (!kept.slots.defined()) {
      return attend_range(q, keys, values, key_scales, value_scales, source_start_, source_count_, heads_[1], added);
    }
    const auto given = [](const Tensor& t) { return t.defined() ? std::optional<Tensor>(t) : std::nullopt; };
    return attend_kept(q, keys, values, kept.slots, kept.counts, heads_[cross], key_scales, value_scales,
                       given(added.own), given(added.value));
  }

  static Tensor scaled(Tensor q) { return q.mul_(std::pow(static_cast<double>(q.size(1)), -0.5)); }

  Tensor self_attention(int64_t l, const Tensor& x, Slots& kept) const {
    const Tensor y = before(l, kSelfNorm, x), all = linear(l, kQkv, y);
    const int64_t width = store(l, kKey).size(2);
    rotate(all, 0, 2 * heads_[0], width / heads_[0], rotation_);
    append(all, width, store(l, kKey), newest_, store(l, kKeyScale));
    append(all, 2 * width, store(l, kValue), newest_, store(l, kValueScale));
    Tensor query;
    if (has(l, kSelfSelector)) {
      const Tensor selector = linear(l, kSelfSelector, y);
      const int64_t narrow = selector.size(1) / 2;
      rotate(selector, 0, 2, narrow, rotation_);
      append(selector, narrow, store(l, kSelectorKey), newest_);
      query = scaled(columns(selector, 0, narrow));
    }
    choose(l, false, query, kept);
    const Tensor q = columns(all, 0, width);
    const Tensor out = attend(l, false, q, kept);
    return after(l, kSelfNorm, linear(l, kSelfOut, out, {Activation::kNone, x.const_data_ptr<float>()}));
  }

  Tensor cross_attention(int64_t l, const Tensor& x, Slots& kept) const {
    const Tensor y = before(l, kCrossNorm, x);
    Tensor query;
    if (has(l, kCrossSelector)) {
      query = linear(l, kCrossSelector, y);
      rotate(query, 0, 1, query.size(1), rotation_);
      query = scaled(query);
    }
    choose(l, true, query, kept);
    const Tensor q = linear(l, kCrossQ, y);
    rotate(q, 0, heads_[1], q.size(1) / heads_[1], rotation_);
    const Tensor out = attend(l, true, q, kept);
    return after(l, kCrossNorm, linear(l, kCrossOut, out, {Activation::kNone, x.const_data_ptr<float>()}));
  }

  Tensor feed_forward(int64_t l, const Tensor& x) const {
    const Tensor inner = linear(l, kFc1, before(l, kFinalNorm, x), {activation_, nullptr});
    return after(l, kFinalNorm, linear(l, kFc2, inner, {Activation::kNone, x.const_data_ptr<float>()}));
  }

  TensorList norms_, linears_, stores_, given_, biases_;
  const std::optional<Tensor>& rotation_;
  at::IntArrayRef outputs_, kappas_, heads_;
  const Tensor table_;
  const Tensor &newest_, &start_, &count_, &source_start_, &source_count_;
  const int64_t end_;
  const bool pre_norm_;
  const Activation activation_;
  const float eps_;
  Slots every_;
  // of the translation and of the source: the positions of own lines, and where they stand among the keys that are read;
  // the logarithm of each row's number of other keys
  Tensor own_[2], of_range_[2], of_chosen_[2];
  std::vector<float> logs_[2];
};

}  // namespace

// x [R, d] -> [R, d]. start, count: per item or per row; if per row, rows of an item are consecutive positions, each of
// which sees the earlier ones. heads: of self- and cross-attention; outputs: of each of `linears`; end: of the table's
// positions.
// biases: b_h of the heads of self- and cross-attention, [heads] each, two for each layer, or none; own: with them, the
// first position and the number of the keys of each row's own line, int64 [R] each, in the translation and in the source.
// rotation: of each row's line, float32 [R, 8, 2], see nn/rotary.py; the source's keys are rotated already.
Tensor decode_step(const Tensor& x, TensorList norms, TensorList linears, TensorList stores, TensorList given,
                   TensorList biases, TensorList own, const std::optional<Tensor>& rotation,
                   const Tensor& table, const Tensor& newest, const Tensor& start, const Tensor& count,
                   const Tensor& source_start, const Tensor& source_count, at::IntArrayRef kappas,
                   at::IntArrayRef outputs, at::IntArrayRef heads, int64_t end, bool pre_norm, int64_t activation,
                   double eps) {
  TORCH_CHECK(activation >= 0 && activation <= static_cast<int64_t>(Activation::kSwish), "activation: unknown");
  const auto layers = static_cast<int64_t>(norms.size()) / (2 * kNorms);
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kFloat && x.is_contiguous(), "x: expected contiguous float32 [R, d]");
  const int64_t items = source_count.numel();  // whose sources may be ranges of fewer ones
  TORCH_CHECK(table.dim() == 2 && table.size(0) == x.size(0) && items > 0 && x.size(0) % items == 0 &&
                  (count.numel() == items || count.numel() == x.size(0)) && newest.numel() == x.size(0) / items &&
                  end <= table.size(1),
              "table, newest, count: expected those of x's rows");
  const auto expected = [layers](size_t n, int64_t each) { return static_cast<int64_t>(n) == layers * each; };
  TORCH_CHECK(expected(linears.size(), 4 * kLinears) && expected(stores.size(), kStores) && expected(given.size(), 4) &&
                  expected(kappas.size(), 2) && expected(outputs.size(), kLinears) && heads.size() == 2,
              "lists: expected entries for ", layers, " layers");
  TORCH_CHECK((biases.empty() && own.empty()) || (expected(biases.size(), 2) && own.size() == 4),
              "biases, own: expected those of ", layers, " layers and the keys of lines, or neither");
  for (size_t i = 0; i < biases.size(); ++i) {
    TORCH_CHECK(biases[i].scalar_type() == at::kFloat && biases[i].is_contiguous() && biases[i].numel() == heads[i % 2],
                "biases: expected contiguous float32 [heads]");
  }
  for (const Tensor& t : own) {
    TORCH_CHECK(t.scalar_type() == at::kLong && t.numel() == x.size(0), "own: expected int64 [R]");
  }
  TORCH_CHECK(!rotation || (rotation->scalar_type() == at::kFloat && rotation->is_contiguous() &&
                            rotation->numel() == 2 * kPairs * x.size(0)),
              "rotation: expected contiguous float32 [R, 8, 2]");
  const int64_t sources = stores[kSourceKey].dim() == 3 ? std::max<int64_t>(1, stores[kSourceKey].size(0)) : items;
  TORCH_CHECK(items % sources == 0, "source_count: expected one number for each source, or more of each");
  for (size_t i = 0; i < stores.size(); ++i) {
    const Tensor& t = stores[i];
    const auto which = static_cast<int64_t>(i) % kStores;
    const bool of_source = which == kSourceKey || which == kSourceValue || which == kSourceSelectorKey ||
                           which == kSourceKeyScale || which == kSourceValueScale;
    const bool kept = which == kKey || which == kValue || which == kSourceKey || which == kSourceValue;
    TORCH_CHECK(t.numel() == 0 || (t.dim() == 3 && t.is_contiguous() && t.size(0) == (of_source ? sources : items) &&
                                   (t.scalar_type() == at::kFloat || (kept && t.scalar_type() == at::kChar))),
                "stores: expected contiguous float32 [N, C, W], or int8 for keys and values");
    const int64_t scales = which == kKey     ? kKeyScale
                           : which == kValue ? kValueScale
                           : which == kSourceKey ? kSourceKeyScale
                                                 : kSourceValueScale;
    if (kept && t.numel() > 0 && t.scalar_type() == at::kChar) {
      const Tensor& s = stores[i - which + scales];
      TORCH_CHECK(s.dim() == 3 && s.size(0) == t.size(0) && s.size(1) == t.size(1) && s.size(2) > 0 &&
                      t.size(2) % s.size(2) == 0,
                  "stores: 8-bit keys and values need scales [N, C, heads]");
    }
  }
  return Step(norms, linears, stores, given, biases, own, rotation, outputs, kappas, heads, table, newest, start, count, source_start,
              source_count, end, pre_norm, static_cast<Activation>(activation), eps)
      .run(x);
}

}  // namespace lasformer
