// Attention over kept keys in training, forward and backward, on CPUs. Definition: reference.selected_attention.
//
// Layout: q [B, H, Q, D], k, v [B, H, K, D], so that the keys and values of a head stay in a core's cache; out, d_out
// [B, Q, H, D], as the next projection reads and saves it; slots [B * Q, m] and their number kept [B * Q], shared by
// all heads.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "kernels.h"

namespace lasformer {
namespace {

void check_gather(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slots, const Tensor& kept, double p) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
              "q, k: expected [B, H, Q, D] and [B, H, K, D]");
  TORCH_CHECK(v.sizes() == k.sizes(), "v: expected the keys' shape");
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "q, k, v: expected one type");
  TORCH_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16, "q: expected float32 or bfloat16");
  const int64_t rows = q.size(0) * q.size(2);
  TORCH_CHECK(slots.dim() == 2 && slots.scalar_type() == at::kInt && slots.size(0) == rows && slots.is_contiguous(),
              "slots: expected contiguous int32 [B * Q, m]");
  TORCH_CHECK(kept.scalar_type() == at::kInt && kept.numel() == rows && kept.is_contiguous(), "kept: expected int32 [B * Q]");
  TORCH_CHECK(p >= 0 && p < 1, "p: expected a probability in [0, 1)");
  const auto *all = slots.const_data_ptr<int32_t>(), *number = kept.const_data_ptr<int32_t>();
  int64_t largest = -1;
  for (int64_t r = 0; r < rows; ++r) {
    TORCH_CHECK(number[r] >= 0 && number[r] <= slots.size(1), "kept: exceeds the number of slots");
    for (int32_t j = 0; j < number[r]; ++j) {
      // as unsigned, a negative slot is a large one
      largest = std::max<int64_t>(largest, static_cast<uint32_t>(all[r * slots.size(1) + j]));
    }
  }
  TORCH_CHECK(largest < k.size(2), "slots: beyond the last key");
}

// The shape of a call, its slots, own lines and dropout; the caller fills in its numbers.
Gather gather(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slots, const Tensor& kept, double p,
              int64_t seed, const std::optional<Tensor>& own, const std::optional<Tensor>& shift) {
  Gather g{};
  g.batch = q.size(0), g.heads = q.size(1), g.queries = q.size(2), g.keys = k.size(2), g.width = q.size(3);
  g.q = q.const_data_ptr(), g.k = k.const_data_ptr(), g.v = v.const_data_ptr();
  g.slots = slots.const_data_ptr<int32_t>(), g.most = slots.size(1), g.counts = kept.const_data_ptr<int32_t>();
  g.dropout = drawn(p, seed);
  TORCH_CHECK(own.has_value() == shift.has_value(), "own, shift: expected both or neither");
  if (own) {
    TORCH_CHECK(own->scalar_type() == at::kLong && own->is_contiguous() && own->numel() == 2 * g.batch * g.queries &&
                    shift->scalar_type() == at::kFloat && shift->is_contiguous() &&
                    shift->numel() == g.batch * g.heads * g.queries,
                "own, shift: expected contiguous int64 [B * Q, 2] and float32 [B, H, Q]");
    g.own = own->const_data_ptr<int64_t>();
    g.shift = shift->const_data_ptr<float>();
  }
  return g;
}

}  // namespace

// Returns out [B, Q, H, D], in q's type, and the log-normalisers, float32 [B, H, Q] (+inf for rows without keys).
std::tuple<Tensor, Tensor> gather_forward(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& slots,
                                          const Tensor& kept, double p, int64_t seed, const std::optional<Tensor>& own,
                                          const std::optional<Tensor>& shift) {
  check_gather(q_, k_, v_, slots, kept, p);
  const Tensor q = q_.contiguous(), k = k_.contiguous(), v = v_.contiguous();
  Gather g = gather(q, k, v, slots, kept, p, seed, own, shift);
  Tensor out = at::empty({g.batch, g.queries, g.heads, g.width}, q.options());
  Tensor lse = at::empty({g.batch, g.heads, g.queries}, q.options().dtype(at::kFloat));
  g.out = out.mutable_data_ptr();
  g.lse = lse.mutable_data_ptr<float>();
  at::parallel_for(0, g.batch * g.heads * g.queries, 64, [&](int64_t begin, int64_t end) {
    std::vector<float> work(gather_work(g));
    while (begin < end) {  // the rows of a head within the chunk
      const int64_t head = begin / g.queries, from = begin % g.queries, to = std::min(g.queries, from + end - begin);
      arithmetic().gather_forward(type_of(q), g, head, from, to, work.data());
      begin += to - from;
    }
  });
  return {out, lse};
}

// The gradients of q, k, v and shift; the last is empty without own lines.
std::tuple<Tensor, Tensor, Tensor, Tensor> gather_backward(const Tensor& d_out_, const Tensor& q_, const Tensor& k_,
                                                   const Tensor& v_, const Tensor& slots, const Tensor& kept,
                                                   const Tensor& out_, const Tensor& lse, double p, int64_t seed,
                                                   const std::optional<Tensor>& own, const std::optional<Tensor>& shift) {
  check_gather(q_, k_, v_, slots, kept, p);
  const Tensor d_out = d_out_.contiguous(), q = q_.contiguous(), k = k_.contiguous(), v = v_.contiguous();
  const Tensor out = out_.contiguous();
  const auto expected = q.transpose(1, 2).sizes().vec();
  TORCH_CHECK(d_out.sizes() == expected && out.sizes() == expected && d_out.scalar_type() == q.scalar_type() &&
                  out.scalar_type() == q.scalar_type(), "d_out, out: expected [B, Q, H, D], in the type of q");
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous() && lse.numel() * q.size(3) == q.numel(),
              "lse: expected float32 [B, H, Q]");
  Tensor dq = at::empty_like(q), dk = at::zeros(k.sizes(), k.options().dtype(at::kFloat)), dv = at::zeros_like(dk);
  Gather g = gather(q, k, v, slots, kept, p, seed, own, shift);
  g.out = const_cast<void*>(out.const_data_ptr());  // read
  g.lse = const_cast<float*>(lse.const_data_ptr<float>());
  g.d_out = d_out.const_data_ptr();
  g.dq = dq.mutable_data_ptr();
  g.dk = dk.mutable_data_ptr<float>();
  g.dv = dv.mutable_data_ptr<float>();
  Tensor d_shift = at::empty(own ? lse.sizes() : at::IntArrayRef{0}, lse.options());
  g.d_shift = d_shift.mutable_data_ptr<float>();
  at::parallel_for(0, g.batch * g.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> work(gather_work(g));
    for (int64_t head = begin; head < end; ++head) arithmetic().gather_backward(type_of(q), g, head, work.data());
  });
  return {dq, dk.to(k.scalar_type()), dv.to(v.scalar_type()), d_shift};
}

}  // namespace lasformer
