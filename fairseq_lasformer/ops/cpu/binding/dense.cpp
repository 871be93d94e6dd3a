// Dense attention of a full pass (float32): products with an item's keys and values as packed layers, so that a row's
// sums have the same order in every batch. Definition: torch's scaled_dot_product_attention.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels.h"

namespace lasformer {
namespace {

constexpr int64_t kBlock = 48;  // rows whose weights are in the cache at a time

// Lays rows [n, width], `stride` apart, out as the weights of a packed layer of n outputs.
void pack_rows(const float* x, int64_t stride, int64_t n, int64_t width, float* to) {
  for (int64_t from = 0; from < n; from += kPanel, to += kPanel * width) {
    for (int64_t lane = 0; lane < kPanel; ++lane) {
      const float* row = x + std::min(from + lane, n - 1) * stride;  // padded with the last one
      for (int64_t i = 0; i < width; ++i) to[i * kPanel + lane] = row[i];
    }
  }
}

// The same for the columns: a packed layer of n inputs.
void pack_columns(const float* x, int64_t stride, int64_t n, int64_t width, float* to) {
  for (int64_t from = 0; from < width; from += kPanel) {
    const int64_t there = std::min(kPanel, width - from);
    for (int64_t j = 0; j < n; ++j, to += kPanel) {
      std::copy_n(x + j * stride + from, there, to);
      std::fill(to + there, to + kPanel, 0.f);
    }
  }
}

int64_t padded(int64_t n) { return (n + kPanel - 1) / kPanel * kPanel; }

}  // namespace

// q [B, Q, W], keys and values [B, K, W]: attention to the keys start to start + count - 1 of each item; 0 without keys.
Tensor dense_attention(const Tensor& q_, const Tensor& keys_, const Tensor& values_, const Tensor& start_,
                       const Tensor& count_, int64_t heads, const std::optional<Tensor>& own,
                       const std::optional<Tensor>& shift) {
  for (const Tensor* t : {&q_, &keys_, &values_}) {
    TORCH_CHECK(t->dim() == 3 && t->scalar_type() == at::kFloat && t->size(0) == q_.size(0) && t->size(2) == q_.size(2),
                "q, keys, values: expected float32 [B, Q or K, W]");
  }
  TORCH_CHECK(values_.size(1) == keys_.size(1), "values: expected as many as keys");
  TORCH_CHECK(heads > 0 && q_.size(2) % heads == 0, "heads: must divide the width");
  const Tensor q = q_.contiguous(), keys = keys_.contiguous(), values = values_.contiguous();
  const Tensor start = start_.contiguous(), count = count_.contiguous();
  const int64_t items = q.size(0), rows = q.size(1), n_keys = keys.size(1), width = q.size(2), head_width = width / heads;
  check_positions(start, count, items, n_keys, kOne);
  TORCH_CHECK(own.has_value() == shift.has_value(), "own, shift: expected both or neither");
  const int64_t* lines = own_lines(own, start, count, items * rows);
  if (shift) {
    TORCH_CHECK(shift->scalar_type() == at::kFloat && shift->is_contiguous() && shift->numel() == items * heads * rows,
                "shift: expected contiguous float32 [B, H, Q]");
  }
  const auto* shifts = shift ? shift->const_data_ptr<float>() : nullptr;
  const float factor = 1.f / std::sqrt(static_cast<float>(head_width));
  Tensor out = at::empty(q.sizes(), q.options());
  const auto *queries = q.const_data_ptr<float>(), *all_keys = keys.const_data_ptr<float>();
  const auto* all_values = values.const_data_ptr<float>();
  const auto *first = start.const_data_ptr<int64_t>(), *number = count.const_data_ptr<int64_t>();
  auto* result = out.mutable_data_ptr<float>();
  const Arithmetic& compute = arithmetic();
  at::parallel_for(0, items * heads, grain(2 * rows * n_keys * head_width), [&](int64_t begin, int64_t end) {
    std::vector<float> packed_keys(padded(n_keys) * head_width), packed_values(n_keys * padded(head_width));
    std::vector<float> scaled(kBlock * head_width), weights(kBlock * n_keys), sums(kBlock * head_width), lse(kBlock);
    std::vector<float> bias(n_keys);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t item = task / heads, from = task % heads * head_width, n = number[item];
      const int64_t place = (item * n_keys + first[item]) * width + from;
      if (n == 0) {
        for (int64_t r = 0; r < rows; ++r) std::fill_n(result + (item * rows + r) * width + from, head_width, 0.f);
        continue;
      }
      pack_rows(all_keys + place, width, n, head_width, packed_keys.data());
      pack_columns(all_values + place, width, n, head_width, packed_values.data());
      Packed scorer, mixer;
      scorer.weight = packed_keys.data();
      scorer.outputs = n;
      scorer.inputs = head_width;
      mixer.weight = packed_values.data();
      mixer.outputs = head_width;
      mixer.inputs = n;
      for (int64_t r = 0; r < rows; r += kBlock) {
        const int64_t height = std::min(kBlock, rows - r);
        const float* own = queries + (item * rows + r) * width + from;
        float* to = result + (item * rows + r) * width + from;
        for (int64_t i = 0; i < height; ++i) {
          for (int64_t c = 0; c < head_width; ++c) scaled[i * head_width + c] = own[i * width + c] * factor;
        }
        compute.product({scaled.data(), head_width, height, nullptr, nullptr, scorer, weights.data(), {}}, 0, scorer.groups());
        for (int64_t i = 0; lines && i < height; ++i) {
          const int64_t *line = lines + 2 * (item * rows + r + i), begin = line[0] - first[item];
          const float added = shifts[task * rows + r + i];
          for (int64_t j = 0; j < line[1]; ++j) weights[i * n + begin + j] += added;
        }
        compute.row_softmax({1, height, n, nullptr, 0}, weights.data(), nullptr, 0.f, lse.data(), 0, height, bias.data());
        compute.product({weights.data(), n, height, nullptr, nullptr, mixer, sums.data(), {}}, 0, mixer.groups());
        for (int64_t i = 0; i < height; ++i) std::copy_n(&sums[i * head_width], head_width, to + i * width);
      }
    }
  });
  return out;
}

}  // namespace lasformer
