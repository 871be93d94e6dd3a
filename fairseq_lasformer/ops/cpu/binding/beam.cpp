// The best continuations of a beam, and the hypotheses that go on. Definitions: ops/beams.py.
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

// Candidates float32, int64, int64 [N, k], unused bool [N, B], n_ended int64 [N, 1]; results in the definition's order.
std::vector<Tensor> advance(const Tensor& scores_, const Tensor& words_, const Tensor& parents_, const Tensor& unused_,
                            const Tensor& n_ended_, int64_t end, bool ends_exhausted) {
  const int64_t items = unused_.size(0), beam = unused_.size(1), k = words_.size(1);
  TORCH_CHECK(scores_.scalar_type() == at::kFloat && words_.scalar_type() == at::kLong && parents_.scalar_type() == at::kLong,
              "candidates: expected float32, int64 and int64");
  TORCH_CHECK(unused_.scalar_type() == at::kBool && n_ended_.scalar_type() == at::kLong && k >= beam, "expected k >= B");
  for (const Tensor* t : {&scores_, &words_, &parents_}) {
    TORCH_CHECK(t->dim() == 2 && t->size(0) == items && t->size(1) == k, "candidates: expected [N, k]");
  }
  TORCH_CHECK(n_ended_.numel() == items, "n_ended: expected [N, 1]");
  const Tensor scores = scores_.contiguous(), words = words_.contiguous(), parents = parents_.contiguous(),
               unused = unused_.contiguous(), n_ended = n_ended_.contiguous();
  const auto number = words.options();
  const auto empty = [&](const at::TensorOptions& type) { return at::empty({items, beam}, type); };
  std::vector<Tensor> on = {empty(number), empty(scores.options()), empty(unused.options()), at::empty({items, 1}, number),
                            empty(number), empty(number),           empty(number),           empty(number)};
  int64_t* out[8];
  for (const int i : {0, 3, 4, 5, 6, 7}) out[i] = on[i].mutable_data_ptr<int64_t>();
  auto* score = on[1].mutable_data_ptr<float>();
  auto* idle = on[2].mutable_data_ptr<bool>();
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < items; ++i) {
    const float* s = scores.const_data_ptr<float>() + i * k;
    const int64_t *w = words.const_data_ptr<int64_t>() + i * k, *p = parents.const_data_ptr<int64_t>() + i * k;
    const bool* free = unused.const_data_ptr<bool>() + i * beam;
    int64_t rank = n_ended.const_data_ptr<int64_t>()[i], at = 0;
    bool any = false, exhausted = true;
    for (int64_t j = 0; j < k; ++j) exhausted = exhausted && (s[j] == kNever || w[j] == end);
    for (int64_t j = 0; j < beam; ++j) {
      const bool counted = w[j] == end && s[j] != kNever && !free[j];
      rank += counted;
      any = any || counted;
      out[5][i * beam + j] = counted && rank <= beam ? p[j] : -1;
    }
    out[3][i] = ends_exhausted && exhausted && any ? beam : rank;
    // in the order of the candidates, but those that have ended come last
    for (const bool last : {false, true}) {
      for (int64_t j = 0; j < k && at < beam; ++j) {
        if (((w[j] == end && s[j] != kNever) || (j < beam && free[j])) != last) continue;
        const int64_t to = i * beam + at++;
        out[0][to] = w[j];
        score[to] = s[j];
        idle[to] = last;
        out[4][to] = p[j];
        out[6][to] = j;
        out[7][to] = i * beam + p[j];
      }
    }
  }
  return on;
}

}  // namespace lasformer
