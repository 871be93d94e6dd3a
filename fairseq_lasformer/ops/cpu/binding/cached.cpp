// Key selection and attention over cached keys on CPUs. Definitions: reference.topk_indices, reference.attend_kept.
//
// Layout: R rows (hypotheses), `beam` consecutive rows per item; keys and values [N, C, W] with C slots per item.
// Position j of a row is in slot table[row][j], or in slot j if there is no table.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels.h"

namespace lasformer {
namespace {

using std::int32_t;
using std::int64_t;

constexpr int64_t kRowBlock = 32;   // rows of an item that read its keys in turn
constexpr int64_t kKeyBlock = 256;  // keys scored per task: 64 KiB at 64 floats each, shared by the rows of an item

int64_t keep_count(int64_t n, int64_t kappa) {
  return std::min(n, std::max(kMinKeys, (n * kappa + kOne - 1) / kOne));
}

struct Scratch {
  std::vector<uint64_t> candidates, order;
  std::vector<float> sample, others;
};

// The range of a row's own line among its positions; without own lines, none.
struct Range {
  int64_t first, count;
};

Range own_of(const int64_t* own, int64_t row) { return own ? Range{own[2 * row], own[2 * row + 1]} : Range{0, 0}; }

// Write the indices of the `keep` highest of n scores to out, ascending. A threshold estimated from a sample narrows
// the candidates in one pass; if it admits too few, all scores become candidates, so the result is exact.
void highest(const float* scores, int64_t n, int64_t keep, int32_t* out, Scratch& scratch) {
  if (keep >= n) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
    return;
  }
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float guess = kNone;
  if (n >= 1024) {
    const int64_t m = std::max<int64_t>(256, n / 16), stride = n / m;
    const double expected = static_cast<double>(keep) * m / n;
    const auto rank = static_cast<int64_t>(expected + 3.0 * std::sqrt(expected) + 3.0);
    if (rank < m) {
      auto& sample = scratch.sample;
      sample.resize(m);
      for (int64_t i = 0; i < m; ++i) {
        const float s = scores[i * stride];
        sample[i] = s != s ? kNone : s;
      }
      std::nth_element(sample.begin(), sample.begin() + rank, sample.end(), std::greater<float>());
      guess = sample[rank];
    }
  }
  auto& some = scratch.candidates;
  some.resize(n);
  int64_t count = arithmetic().candidates(scores, n, guess, some.data());
  if (count < keep) count = arithmetic().candidates(scores, n, kNone, some.data());
  auto& order = scratch.order;
  order.assign(some.begin(), some.begin() + count);
  std::nth_element(order.begin(), order.begin() + (keep - 1), order.end(), std::greater<uint64_t>());
  const uint64_t last = order[keep - 1];
  for (int64_t i = 0, kept = 0; kept < keep; ++i) {
    if (some[i] >= last) out[kept++] = static_cast<int32_t>(~static_cast<uint32_t>(some[i]));
  }
}

// Select the kept slots by score; the allowed positions of row r are start to start + count - 1 of entry r / each. Those
// of its own line, if there are any, come first, and are not counted by kappa. scores: of all positions, or of each row's
// allowed ones.
void choose(const float* scores, int64_t stride, bool of_allowed, const int32_t* table, int64_t table_stride,
            const int64_t* start, const int64_t* count, int64_t each, const int64_t* own, int64_t kappa, int64_t rows, int64_t most,
            int32_t* slots, int32_t* kept) {
  at::parallel_for(0, rows, grain(16 * stride), [&](int64_t begin, int64_t end) {
    Scratch scratch;
    for (int64_t r = begin; r < end; ++r) {
      const Range mine = own_of(own, r);
      const int64_t s = r / each, first = start[s], n = count[s] - mine.count, keep = keep_count(n, kappa);
      const int64_t before = mine.count ? mine.first - first : n;  // of the others, those before the own line
      const float* row = scores + r * stride + (of_allowed ? 0 : first);
      if (before < n) {
        scratch.others.assign(row, row + before);
        scratch.others.insert(scratch.others.end(), row + before + mine.count, row + count[s]);
        row = scratch.others.data();
      }
      int32_t* out = slots + r * most;
      const auto slot = [&](int64_t j) { return table ? table[r * table_stride + j] : static_cast<int32_t>(j); };
      for (int64_t i = 0; i < mine.count; ++i) *out++ = slot(mine.first + i);
      highest(row, n, keep, out, scratch);
      for (int64_t i = 0; i < keep; ++i) out[i] = slot(first + out[i] + (out[i] < before ? 0 : mine.count));
      std::fill(out + keep, slots + (r + 1) * most, -1);
      kept[r] = static_cast<int32_t>(mine.count + keep);
    }
  });
}

int64_t widest(const Tensor& count, int64_t rows, const int64_t* own, int64_t kappa) {
  int64_t most = 1;
  const auto* n = count.const_data_ptr<int64_t>();
  const int64_t each = own ? rows / count.numel() : 1;
  for (int64_t r = 0; r < count.numel() * each; ++r) {
    const int64_t mine = own_of(own, r).count;
    most = std::max(most, mine + keep_count(n[r / each] - mine, kappa));
  }
  return most;
}

// The tensor with the rows of each outermost entry contiguous, as the kernels require.
Tensor dense(const Tensor& t) {
  return t.dim() == 3 && t.stride(2) == 1 && t.stride(1) == t.size(2) ? t : t.contiguous();
}

void check_rows(const Tensor& q, const Tensor& keys) {
  TORCH_CHECK(q.dim() == 2 && q.scalar_type() == at::kFloat, "q: expected float32 [R, W]");
  TORCH_CHECK(keys.dim() == 3 && keys.size(2) == q.size(1), "keys: expected [N, C, W], as wide as q");
  TORCH_CHECK(keys.size(0) > 0 && q.size(0) % keys.size(0) == 0, "q: its rows must be a multiple of the keys' N");
}

// The number of consecutive rows that share a range, each within one of n items.
int64_t rows_of_each(int64_t rows, int64_t n, int64_t ranges) {
  TORCH_CHECK(ranges > 0 && ranges % n == 0 && rows % ranges == 0,
              "start, count: expected one number for each of N, or more of each");
  return rows / ranges;
}

// Slots int32 [R, >= n]: the first n of each row (or each[r], if given) are used and must be below `slots`.
void check_slots(const Tensor& table, int64_t rows, int64_t n, const int32_t* each, int64_t slots) {
  TORCH_CHECK(table.dim() == 2 && table.scalar_type() == at::kInt, "slots: expected int32 [R, n]");
  TORCH_CHECK(table.size(0) == rows && table.size(1) >= n, "slots: fewer rows or columns than are used");
  const auto* all = table.const_data_ptr<int32_t>();
  int64_t largest = -1;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t used = each ? each[r] : n;
    TORCH_CHECK(used >= 0 && used <= table.size(1), "kept: exceeds the number of slots");
    const int32_t* row = all + r * table.stride(0);
    // as unsigned, a negative slot is a large one
    for (int64_t j = 0; j < used; ++j) largest = std::max<int64_t>(largest, static_cast<uint32_t>(row[j]));
  }
  TORCH_CHECK(largest < slots, "slots: beyond the ", slots, " existing ones");
}

}  // namespace

void check_positions(const Tensor& start, const Tensor& count, int64_t n, int64_t end, int64_t kappa) {
  TORCH_CHECK(start.scalar_type() == at::kLong && count.scalar_type() == at::kLong, "start, count: expected int64");
  TORCH_CHECK(start.numel() == n && count.numel() == n, "start, count: expected one number for each of N");
  TORCH_CHECK(kappa > 0 && kappa <= kOne, "kappa: expected millionths in (0, 1000000]");
  const auto *first = start.const_data_ptr<int64_t>(), *number = count.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < n; ++s) {
    TORCH_CHECK(first[s] >= 0 && number[s] >= 0 && first[s] <= end && number[s] <= end - first[s],
                "start, count: positions beyond the ", end, " existing ones");
  }
}

// Own lines int64 [R, 2], the first position and the number of each row, as pointer; null without.
const int64_t* own_lines(const std::optional<Tensor>& own, const Tensor& start, const Tensor& count, int64_t rows) {
  if (!own) return nullptr;
  TORCH_CHECK(own->scalar_type() == at::kLong && own->is_contiguous() && own->dim() == 2 && own->size(0) == rows &&
                  own->size(1) == 2,
              "own: expected contiguous int64 [R, 2]");
  const auto *mine = own->const_data_ptr<int64_t>(), *first = start.const_data_ptr<int64_t>();
  const auto* number = count.const_data_ptr<int64_t>();
  const int64_t each = rows / start.numel();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = mine[2 * r] - first[r / each], n = mine[2 * r + 1];
    TORCH_CHECK(n == 0 || (n > 0 && from >= 0 && n <= number[r / each] && from <= number[r / each] - n),
                "own: beyond the allowed positions");
  }
  return mine;
}

// The same from precomputed scores [R, K] float32; R / N rows per item, slots are positions.
std::tuple<Tensor, Tensor> topk_scored(const Tensor& scores_, const Tensor& start_, const Tensor& count_,
                                         int64_t kappa, const std::optional<Tensor>& own_) {
  TORCH_CHECK(scores_.dim() == 2 && scores_.scalar_type() == at::kFloat, "scores: expected float32 [R, K]");
  const Tensor scores = scores_.stride(1) == 1 ? scores_ : scores_.contiguous();
  const Tensor start = start_.contiguous(), count = count_.contiguous();
  TORCH_CHECK(start.numel() > 0 && scores.size(0) % start.numel() == 0, "scores: their rows must be a multiple of N");
  check_positions(start, count, start.numel(), scores.size(1), kappa);
  const int64_t rows = scores.size(0);
  const int64_t* own = own_lines(own_, start, count, rows);
  const int64_t most = widest(count, rows, own, kappa);
  Tensor slots = at::empty({rows, most}, scores.options().dtype(at::kInt)), kept = at::empty({rows}, slots.options());
  choose(scores.const_data_ptr<float>(), scores.stride(0), false, nullptr, 0, start.const_data_ptr<int64_t>(),
         count.const_data_ptr<int64_t>(), rows / start.numel(), own, kappa, rows, most, slots.mutable_data_ptr<int32_t>(),
         kept.mutable_data_ptr<int32_t>());
  return {slots, kept};
}

// start, count: per item, per row, or for as many consecutive rows each as there are of one item's.
std::tuple<Tensor, Tensor> topk_indices(const Tensor& q_, const Tensor& keys_, const std::optional<Tensor>& table_,
                                        const Tensor& start_, const Tensor& count_, int64_t kappa,
                                        const std::optional<Tensor>& own_) {
  check_rows(q_, keys_);
  const Tensor q = q_.contiguous(), keys = dense(keys_), start = start_.contiguous(), count = count_.contiguous();
  std::optional<Tensor> table;
  if (table_) table = table_->dim() == 2 && table_->stride(1) == 1 ? *table_ : table_->contiguous();
  const int64_t rows = q.size(0), width = q.size(1), n = keys.size(0), beam = rows / n;
  const int64_t ranges = start.numel(), each = rows_of_each(rows, n, ranges);
  check_positions(start, count, ranges, table ? table->size(1) : keys.size(1), kappa);
  const int64_t* own = own_lines(own_, start, count, rows);
  const int64_t longest = std::max<int64_t>(1, count.max().item<int64_t>()), most = widest(count, rows, own, kappa);
  if (table) check_slots(*table, rows, start.add(count).max().item<int64_t>(), nullptr, keys.size(1));
  Tensor scores = at::empty({rows, longest}, q.options()), slots = at::empty({rows, most}, q.options().dtype(at::kInt));
  Tensor kept = at::empty({rows}, slots.options());
  const auto *first = start.const_data_ptr<int64_t>(), *number = count.const_data_ptr<int64_t>();
  const int32_t* paths = table ? table->const_data_ptr<int32_t>() : nullptr;
  const int64_t path_stride = table ? table->stride(0) : 0, blocks = (longest + kKeyBlock - 1) / kKeyBlock;
  const auto* queries = q.const_data_ptr<float>();
  auto* result = scores.mutable_data_ptr<float>();
  const auto* all = static_cast<const char*>(keys.const_data_ptr());
  const int64_t item_bytes = keys.stride(0) * keys.element_size(), key_bytes = width * keys.element_size();
  // rows of an item vary fastest because they read the same block of keys
  at::parallel_for(0, n * blocks * beam, grain(std::min(longest, kKeyBlock) * width), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t s = task / (blocks * beam), block = task / beam % blocks, r = s * beam + task % beam;
      const int64_t start_of = first[r / each], to = std::min((block + 1) * kKeyBlock, number[r / each]);
      arithmetic().score(type_of(keys), queries + r * width, all + s * item_bytes + (paths ? 0 : start_of * key_bytes),
                         paths ? paths + r * path_stride + start_of : nullptr, block * kKeyBlock, to, width,
                         result + r * longest);
    }
  });
  choose(result, longest, true, paths, path_stride, first, number, each, own, kappa, rows, most,
         slots.mutable_data_ptr<int32_t>(), kept.mutable_data_ptr<int32_t>());
  return {slots, kept};
}

// Attention of R rows over their kept slots; without slots, over `counts` of them from `first` on, one for each range.
Tensor attend_slots(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& key_scales,
                    const Tensor& value_scales, const Tensor& slots, const int64_t* first, int64_t ranges,
                    const int32_t* counts, int64_t heads, const Shift& shift) {
  if (shift.own.defined()) {
    TORCH_CHECK(shift.own.scalar_type() == at::kLong && shift.own.is_contiguous() && shift.own.numel() == 2 * q.size(0) &&
                    shift.value.scalar_type() == at::kFloat && shift.value.is_contiguous() &&
                    shift.value.numel() == q.size(0) * heads,
                "own, shift: expected contiguous int64 [R, 2] and float32 [R, heads]");
    const auto* own = shift.own.const_data_ptr<int64_t>();
    for (int64_t r = 0; r < q.size(0); ++r) {
      TORCH_CHECK(own[2 * r + 1] == 0 || (own[2 * r] >= 0 && own[2 * r + 1] > 0 && own[2 * r] <= counts[r] - own[2 * r + 1]),
                  "own: beyond the kept keys");
    }
  }
  const auto* own = shift.own.defined() ? shift.own.const_data_ptr<int64_t>() : nullptr;
  const auto* shifts = own ? shift.value.const_data_ptr<float>() : nullptr;
  const bool quantised = keys.scalar_type() == at::kChar;
  for (const Tensor* scales : {&key_scales, &value_scales}) {
    TORCH_CHECK(!quantised || (scales->defined() && scales->scalar_type() == at::kFloat && scales->is_contiguous() &&
                               scales->numel() == keys.size(0) * keys.size(1) * heads),
                "scales: expected contiguous float32 [N, C, heads] with 8-bit keys and values");
  }
  const auto* scales_of_keys = quantised ? key_scales.const_data_ptr<float>() : nullptr;
  const auto* scales_of_values = quantised ? value_scales.const_data_ptr<float>() : nullptr;
  const int64_t item_scales = quantised ? keys.size(1) * heads : 0;
  // the rows that share a range are read together; several ranges may be of one item
  const int64_t items = first ? ranges : keys.size(0), each = items / keys.size(0);
  const int64_t width = q.size(1), head_width = width / heads, beam = q.size(0) / items;
  const float scale = 1.f / std::sqrt(static_cast<float>(head_width));
  Tensor out = at::empty_like(q);
  if (q.size(0) == 0) return out;
  const auto* queries = q.const_data_ptr<float>();
  const auto* chosen = slots.defined() ? slots.const_data_ptr<int32_t>() : nullptr;
  const int64_t slot_stride = slots.defined() ? slots.stride(0) : 0, most = *std::max_element(counts, counts + q.size(0));
  auto* result = out.mutable_data_ptr<float>();
  const auto *all_keys = static_cast<const char*>(keys.const_data_ptr());
  const auto *all_values = static_cast<const char*>(values.const_data_ptr());
  const int64_t key_bytes = keys.stride(0) * keys.element_size(), value_bytes = values.stride(0) * values.element_size();
  const int64_t blocks = (beam + kRowBlock - 1) / kRowBlock, most_rows = std::min(beam, kRowBlock);
  at::parallel_for(0, items * blocks * heads, grain(2 * most_rows * most * head_width), [&](int64_t begin, int64_t end) {
    std::vector<float> weights(most_rows * std::min(heads, end - begin) * (most + kTurn));
    while (begin < end) {  // the heads of a block of an item's rows within the chunk
      const int64_t s = begin / heads / blocks, block = begin / heads % blocks, row = s * beam + block * kRowBlock;
      const int64_t h0 = begin % heads, h1 = std::min(heads, h0 + end - begin);
      // consecutive keys are read once for all rows while the four of a turn are in the fastest cache
      const int64_t item = s / each;
      const Kept kept{queries + row * width, all_keys + item * key_bytes, all_values + item * value_bytes,
                      scales_of_keys + item * item_scales, scales_of_values + item * item_scales,
                      chosen ? chosen + row * slot_stride : nullptr, slot_stride, first ? first[s] : 0, counts + row,
                      std::min(kRowBlock, beam - block * kRowBlock), width, head_width, chosen ? kTurn : 4,
                      own ? own + 2 * row : nullptr, own ? shifts + row * heads : nullptr, result + row * width};
      arithmetic().attend(type_of(keys), kept, h0, h1, scale, weights.data());
      begin += h1 - h0;
    }
  });
  return out;
}

Tensor attend_kept(const Tensor& q_, const Tensor& keys_, const Tensor& values_, const Tensor& slots_,
                    const Tensor& kept_, int64_t heads, const std::optional<Tensor>& key_scales,
                    const std::optional<Tensor>& value_scales, const std::optional<Tensor>& own,
                    const std::optional<Tensor>& shift) {
  check_rows(q_, keys_);
  TORCH_CHECK(values_.sizes() == keys_.sizes() && values_.scalar_type() == keys_.scalar_type(),
              "values: expected the keys' shape and type");
  TORCH_CHECK(heads > 0 && q_.size(1) % heads == 0, "heads: must divide the width");
  TORCH_CHECK(kept_.scalar_type() == at::kInt && kept_.numel() == q_.size(0), "kept: expected int32 [R]");
  const Tensor q = q_.contiguous(), keys = dense(keys_), values = dense(values_), kept = kept_.contiguous();
  const Tensor slots = slots_.dim() == 2 && slots_.stride(1) == 1 ? slots_ : slots_.contiguous();
  const auto* counts = kept.const_data_ptr<int32_t>();
  check_slots(slots, q.size(0), 0, counts, keys.size(1));
  TORCH_CHECK(own.has_value() == shift.has_value(), "own, shift: expected both or neither");
  return attend_slots(q, keys, values, key_scales.value_or(Tensor()), value_scales.value_or(Tensor()), slots, nullptr, 0,
                      counts, heads, {own.value_or(Tensor()), shift.value_or(Tensor())});
}

Tensor attend_range(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& key_scales,
                    const Tensor& value_scales, const Tensor& start, const Tensor& count, int64_t heads,
                    const Shift& shift) {
  const int64_t ranges = count.numel(), each = rows_of_each(q.size(0), keys.size(0), ranges);
  std::vector<int32_t> counts(q.size(0));
  for (int64_t r = 0; r < q.size(0); ++r) counts[r] = static_cast<int32_t>(count.const_data_ptr<int64_t>()[r / each]);
  return attend_slots(q, keys, values, key_scales, value_scales, {}, start.const_data_ptr<int64_t>(), ranges,
                      counts.data(), heads, shift);
}

// x [..., heads * D] float32 in 8 bits, and one scale per head, float32 [..., heads]. Definition: reference.quantised.
std::tuple<Tensor, Tensor> quantise_heads(const Tensor& x_, int64_t heads) {
  TORCH_CHECK(x_.dim() > 0 && x_.scalar_type() == at::kFloat && heads > 0 && x_.size(-1) % heads == 0,
              "x: expected float32 [..., heads * D]");
  const Tensor x = x_.contiguous();
  const int64_t width = x.size(-1), rows = width ? x.numel() / width : 0;
  auto shape = x.sizes().vec();
  shape.back() = heads;
  Tensor numbers = at::empty(x.sizes(), x.options().dtype(at::kChar)), scales = at::empty(shape, x.options());
  const auto* from = x.const_data_ptr<float>();
  auto* to = numbers.mutable_data_ptr<int8_t>();
  auto* factors = scales.mutable_data_ptr<float>();
  at::parallel_for(0, rows, grain(4 * width), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      arithmetic().quantise_heads(from + r * width, heads, width / heads, to + r * width, factors + r * heads);
    }
  });
  return {numbers, scales};
}

}  // namespace lasformer
