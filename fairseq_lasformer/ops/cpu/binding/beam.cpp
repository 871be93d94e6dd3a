// The best continuations of a beam. Definition: torch.topk over all hypotheses' words.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels.h"

namespace lasformer {
namespace {

struct Candidate {
  float score;
  int64_t index;
};

// Keeps the best candidates in order; ties go to the earlier one.
class Best {
 public:
  explicit Best(int64_t k) : k_(k) { list_.reserve(k); }
  bool full() const { return static_cast<int64_t>(list_.size()) == k_; }
  float least() const { return list_.back().score; }
  void add(float score, int64_t index) {
    if (score != score) score = -std::numeric_limits<float>::infinity();
    if (full()) {
      if (!(score > list_.back().score)) return;
      list_.pop_back();
    }
    const auto at = std::upper_bound(list_.begin(), list_.end(), score,
                                     [](float s, const Candidate& c) { return s > c.score; });
    list_.insert(at, {score, index});
  }
  const std::vector<Candidate>& list() const { return list_; }

 private:
  int64_t k_;
  std::vector<Candidate> list_;
};

}  // namespace

// lprobs [N, B, V] float32, past [N, B] or none, added to each hypothesis' scores.
// Returns the k highest sums of each item, descending, float32 [N, k], and their indices in [B * V], int64 [N, k].
std::tuple<Tensor, Tensor> top_candidates(const Tensor& lprobs_, const std::optional<Tensor>& past_, int64_t k) {
  TORCH_CHECK(lprobs_.dim() == 3 && lprobs_.scalar_type() == at::kFloat, "lprobs: expected float32 [N, B, V]");
  const int64_t items = lprobs_.size(0), beam = lprobs_.size(1), words = lprobs_.size(2);
  TORCH_CHECK(k > 0 && k <= beam * words, "k: expected 1 to the number of candidates");
  const Tensor lprobs = lprobs_.contiguous();
  Tensor past;
  if (past_) {
    TORCH_CHECK(past_->scalar_type() == at::kFloat && past_->dim() == 2 && past_->size(0) == items && past_->size(1) == beam,
                "past: expected float32 [N, B]");
    past = past_->contiguous();
  }
  Tensor scores = at::empty({items, k}, lprobs.options()), places = at::empty({items, k}, lprobs.options().dtype(at::kLong));
  const auto *all = lprobs.const_data_ptr<float>(), *sums = past.defined() ? past.const_data_ptr<float>() : nullptr;
  auto* score = scores.mutable_data_ptr<float>();
  auto* place = places.mutable_data_ptr<int64_t>();
  const Arithmetic& compute = arithmetic();
  at::parallel_for(0, items, grain(beam * words), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Best best(k);
      for (int64_t b = 0; b < beam; ++b) {
        const float* row = all + (i * beam + b) * words;
        const float before = sums ? sums[i * beam + b] : 0.f;
        for (int64_t w = 0; w < words; ++w) {
          if (best.full()) w = compute.next_above(row, w, words, before, best.least());
          if (w < words) best.add(row[w] + before, b * words + w);
        }
      }
      for (int64_t j = 0; j < k; ++j) {
        score[i * k + j] = best.list()[j].score;
        place[i * k + j] = best.list()[j].index;
      }
    }
  });
  return {scores, places};
}

}  // namespace lasformer
