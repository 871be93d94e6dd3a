// Registers the CPU kernels with PyTorch.
#include <torch/library.h>

#include <string>
#include <vector>

#include "kernels.h"

namespace {

// Names of the compiled instruction sets that this processor has, best first.
std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const auto* const* t = lasformer::kTargets; *t; ++t) {
    if (lasformer::available(**t)) names.emplace_back((*t)->name);
  }
  return names;
}

// Use the instruction set of this name, or the best, from now on; returns the one in use.
std::string use_instructions(const std::string& name) {
  TORCH_CHECK(lasformer::choose(name.c_str()), "this processor, or this build, lacks the instructions of ", name);
  return lasformer::arithmetic().name;
}

}  // namespace

TORCH_LIBRARY(fairseq_lasformer, m) {
  m.def("instruction_sets() -> str[]", instruction_sets);
  m.def("instructions_in_use() -> str", [] { return std::string(lasformer::arithmetic().name); });
  m.def("use_instructions(str name) -> str", use_instructions);
  m.def("borrowed_functions() -> str[]", lasformer::borrowed);
  m.def("topk_indices(Tensor q, Tensor keys, Tensor? table, Tensor start, Tensor count, int kappa,"
        " Tensor? own=None) -> (Tensor, Tensor)");
  m.def("topk_scored(Tensor scores, Tensor start, Tensor count, int kappa, Tensor? own=None) -> (Tensor, Tensor)");
  m.def("attend_kept(Tensor q, Tensor keys, Tensor values, Tensor slots, Tensor kept, int heads,"
        " Tensor? key_scales=None, Tensor? value_scales=None, Tensor? own=None, Tensor? shift=None) -> Tensor");
  m.def("quantise_heads(Tensor x, int heads) -> (Tensor, Tensor)");
  m.def("packed_linear(Tensor x, Tensor weight, Tensor scale, Tensor sums, Tensor bias, int outputs) -> Tensor");
  m.def("activate(Tensor x, int activation) -> Tensor");
  m.def("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor");
  m.def("log_softmax(Tensor scores) -> Tensor");
  m.def("dense_attention(Tensor q, Tensor keys, Tensor values, Tensor start, Tensor count, int heads,"
        " Tensor? own=None, Tensor? shift=None) -> Tensor");
  m.def("top_candidates(Tensor lprobs, Tensor? past, int k) -> (Tensor, Tensor)");
  m.def("advance(Tensor scores, Tensor words, Tensor parents, Tensor unused, Tensor n_ended, int end,"
        " bool ends_exhausted) -> Tensor[]");
  m.def("decode_step(Tensor x, Tensor[] norms, Tensor[] linears, Tensor[] stores, Tensor[] given, Tensor[] biases,"
        " Tensor[] own, Tensor? rotation, Tensor table, Tensor newest, Tensor start, Tensor count, Tensor source_start,"
        " Tensor source_count, int[] kappas, int[] outputs, int[] heads, int end, bool pre_norm, int activation, float eps) -> Tensor");
  m.def("gather_forward(Tensor q, Tensor k, Tensor v, Tensor slots, Tensor kept, float dropout, int seed,"
        " Tensor? own=None, Tensor? shift=None) -> (Tensor, Tensor)");
  m.def("gather_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor slots, Tensor kept, Tensor out, Tensor lse,"
        " float dropout, int seed, Tensor? own=None, Tensor? shift=None) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("dropout(Tensor x, Tensor? added, float p, int seed) -> Tensor");
  m.def("row_softmax(Tensor(a!) scores, Tensor? mask, Tensor(b!)? mean, float share) -> Tensor");
  m.def("softmax_gradient(Tensor(a!) weights, Tensor d_mean) -> ()");
  m.def("mask_gradient(Tensor scores, Tensor lse, Tensor d_weights, Tensor delta, Tensor? allowed, float most)"
        " -> Tensor");
  m.def("kept_gradient(Tensor(a!) scores, Tensor(b!) d_weights, Tensor lse, Tensor delta, Tensor keep) -> ()");
  m.def("shift_own(Tensor(a!) scores, Tensor own, Tensor shift) -> ()");
  m.def("sum_own(Tensor scores, Tensor own) -> Tensor");
}

TORCH_LIBRARY_IMPL(fairseq_lasformer, CPU, m) {
  m.impl("topk_indices", &lasformer::topk_indices);
  m.impl("topk_scored", &lasformer::topk_scored);
  m.impl("attend_kept", &lasformer::attend_kept);
  m.impl("quantise_heads", &lasformer::quantise_heads);
  m.impl("packed_linear", &lasformer::packed_linear);
  m.impl("activate", &lasformer::activate);
  m.impl("layer_norm", &lasformer::layer_norm);
  m.impl("log_softmax", &lasformer::log_softmax);
  m.impl("dense_attention", &lasformer::dense_attention);
  m.impl("top_candidates", &lasformer::top_candidates);
  m.impl("advance", &lasformer::advance);
  m.impl("decode_step", &lasformer::decode_step);
  m.impl("gather_forward", &lasformer::gather_forward);
  m.impl("gather_backward", &lasformer::gather_backward);
  m.impl("dropout", &lasformer::dropout);
  m.impl("row_softmax", &lasformer::row_softmax);
  m.impl("softmax_gradient", &lasformer::softmax_gradient);
  m.impl("mask_gradient", &lasformer::mask_gradient);
  m.impl("kept_gradient", &lasformer::kept_gradient);
  m.impl("shift_own", &lasformer::shift_own);
  m.impl("sum_own", &lasformer::sum_own);
}
