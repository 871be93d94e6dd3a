// The operators of `torch.ops.fairseq_lasformer` (library.cpp registers them; shapes and types are at the definitions).
//
// ATen/ATen.h takes longer to compile than the kernels do: each file includes the operators of ATen that it uses, and
// all files are compiled as one (ops/cpu/build.py), which reads those headers once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "../arithmetic/arithmetic.h"

namespace lasformer {

using at::Tensor;
using at::TensorList;

constexpr int64_t kOne = 1000000;  // kappa = 1, in millionths
constexpr int64_t kMinKeys = 10;   // arXiv 2309.14174, 3.2: k_i = min(n_i, max(10, ceil(kappa n_i)))

// Multiplications that are worth a second thread: waking it and waiting for it costs a few microseconds, or thousands
// if other work keeps its core busy.
constexpr int64_t kWorthwhile = 1 << 19;

// Minimum number of pieces of a loop per thread; work: multiplications per piece.
inline int64_t grain(int64_t work) { return work >= kWorthwhile ? 1 : kWorthwhile / (work > 0 ? work : 1); }

// The arithmetic's name for a tensor's type.
inline Type type_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat: return Type::kFloat;
    case at::kBFloat16: return Type::kBFloat16;
    case at::kHalf: return Type::kHalf;
    case at::kChar: return Type::kInt8;
    default: TORCH_CHECK(false, "expected float32, bfloat16, float16 or int8, not ", t.scalar_type());
  }
}

// cached.cpp
std::tuple<Tensor, Tensor> topk_indices(const Tensor& q, const Tensor& keys, const std::optional<Tensor>& table,
                                        const Tensor& start, const Tensor& count, int64_t kappa,
                                        const std::optional<Tensor>& own);
std::tuple<Tensor, Tensor> topk_scored(const Tensor& scores, const Tensor& start, const Tensor& count, int64_t kappa,
                                       const std::optional<Tensor>& own);
// What is added to the scores of each row's own line, float32 [R, heads], and where it stands among the row's keys, int64
// [R, 2]: the first one and their number. Undefined without own lines.
struct Shift {
  Tensor own, value;
};
Tensor attend_kept(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& slots, const Tensor& kept,
                   int64_t heads, const std::optional<Tensor>& key_scales, const std::optional<Tensor>& value_scales,
                   const std::optional<Tensor>& own = std::nullopt, const std::optional<Tensor>& shift = std::nullopt);
// Attention of all rows of an item over the keys from its start on. Scales: undefined, or of 8-bit keys and values.
Tensor attend_range(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& key_scales,
                    const Tensor& value_scales, const Tensor& start, const Tensor& count, int64_t heads,
                    const Shift& shift);
// Check that positions start to start + count - 1 of N entries are below `end`.
void check_positions(const Tensor& start, const Tensor& count, int64_t n, int64_t end, int64_t kappa);
// Own lines int64 [R, 2], the first position and the number of each row, within the allowed ones; null without.
const int64_t* own_lines(const std::optional<Tensor>& own, const Tensor& start, const Tensor& count, int64_t rows);
std::tuple<Tensor, Tensor> quantise_heads(const Tensor& x, int64_t heads);

// dense.cpp
Tensor dense_attention(const Tensor& q, const Tensor& keys, const Tensor& values, const Tensor& start, const Tensor& count,
                       int64_t heads, const std::optional<Tensor>& own, const std::optional<Tensor>& shift);

// packed.cpp
Tensor packed_linear(const Tensor& x, const Tensor& weight, const Tensor& scale, const Tensor& sums, const Tensor& bias,
                     int64_t outputs);
Tensor activate(const Tensor& x, int64_t activation);
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);

// step.cpp
Tensor decode_step(const Tensor& x, TensorList norms, TensorList linears, TensorList stores, TensorList given,
                   TensorList biases, TensorList own, const std::optional<Tensor>& rotation, const Tensor& table,
                   const Tensor& newest, const Tensor& start, const Tensor& count, const Tensor& source_start, const Tensor& source_count, at::IntArrayRef kappas,
                   at::IntArrayRef outputs, at::IntArrayRef heads, int64_t end, bool pre_norm, int64_t activation,
                   double eps);

// beam.cpp
std::tuple<Tensor, Tensor> top_candidates(const Tensor& lprobs, const std::optional<Tensor>& past, int64_t k);
std::vector<Tensor> advance(const Tensor& scores, const Tensor& words, const Tensor& parents, const Tensor& unused,
                            const Tensor& n_ended, int64_t end, bool ends_exhausted);

// dropout.cpp
// Dropout with probability p. The mask is a function of the seed.
Dropout drawn(double p, int64_t seed);
Tensor dropout(const Tensor& x, const std::optional<Tensor>& added, double p, int64_t seed);

// gather.cpp
std::tuple<Tensor, Tensor> gather_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& slots,
                                          const Tensor& kept, double p, int64_t seed, const std::optional<Tensor>& own,
                                          const std::optional<Tensor>& shift);
std::tuple<Tensor, Tensor, Tensor, Tensor> gather_backward(const Tensor& d_out, const Tensor& q, const Tensor& k, const Tensor& v,
                                                   const Tensor& slots, const Tensor& kept, const Tensor& out,
                                                   const Tensor& lse, double p, int64_t seed,
                                                   const std::optional<Tensor>& own, const std::optional<Tensor>& shift);

// rows.cpp
Tensor log_softmax(const Tensor& scores);
Tensor row_softmax(Tensor& scores, const std::optional<Tensor>& mask, const std::optional<Tensor>& mean, double share);
void softmax_gradient(Tensor& weights, const Tensor& d_mean);
Tensor mask_gradient(const Tensor& scores, const Tensor& lse, const Tensor& d_weights, const Tensor& delta,
                     const std::optional<Tensor>& mask, double most);
void kept_gradient(Tensor& scores, Tensor& d_weights, const Tensor& lse, const Tensor& delta, const Tensor& keep);
void shift_own(Tensor& scores, const Tensor& own, const Tensor& shift);
Tensor sum_own(const Tensor& scores, const Tensor& own);

}  // namespace lasformer
