// Arithmetic of the CPU kernels, on pointers and without PyTorch, compiled once for each instruction set.
//
// arithmetic.cpp is compiled several times, each time for another target (ops/cpu/build.py); every copy fills one table of
// functions, and `arithmetic()` (dispatch.cpp) returns the table to use on this processor. No function here starts a
// thread or allocates: the binding (ops/cpu/binding) divides the work and owns the memory.
//
// Sums run over 16 lanes on every target, folded in the same order (lanes.h), with fused multiply-adds where the target has
// them, so that all targets except `plain` on x86-64 give the same bits in float32; integers are exact everywhere.
// `plain_fused` is `plain` with fused multiply-adds in software, for the same bits even there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lasformer {

// Types of keys and values.
enum class Type : int32_t { kFloat, kBFloat16, kHalf, kInt8 };  // kInt8: only in a decoding cache

constexpr int64_t kPanel = 16;   // outputs of a panel of packed weights: a vector of 64 bytes
constexpr int64_t kPanels = 4;   // panels of a group: `product` computes whole groups
constexpr int64_t kTurn = 64;    // keys that the rows of an item read in turn

// A packed linear layer. Weights [N, K] are in panels of 16 outputs: float32 [N / 16][K][16], int8
// [N / 16][K / 4][16][4], the layout of AVX512-VNNI, both padded with 0. `quantised` is null for float32, `weight` for int8.
struct Packed {
  const float* weight = nullptr;
  const int8_t* quantised = nullptr;
  const float* scale = nullptr;   // [N], of the weights of an output
  const int32_t* sums = nullptr;  // [N], 128 times the sum of an output's quantised weights
  const float* bias = nullptr;    // [N] or null
  int64_t outputs = 0, inputs = 0;
  int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
  int64_t groups() const { return (panels() + kPanels - 1) / kPanels; }
  int64_t quads() const { return (inputs + 3) / 4; }
};

// Activations between the layers of a feed-forward network, numbered as in ops/cpu/packed.py.
enum class Activation : int64_t { kNone, kRelu, kGelu, kGeluTanh, kSwish };

// Operations on a product before it is stored.
struct After {
  Activation activation = Activation::kNone;
  const float* add = nullptr;  // [R, N], the residual
};

// out [R, N] = x [R, K] * weights + bias, then `after`. x has rows of `stride` numbers; for int8, they are the output
// of `quantise`.
struct Product {
  const float* x;
  int64_t stride, rows;
  const void* numbers;  // [R, 4 quads], each of `number_bytes`
  const float* scales;     // [R]
  Packed weights;
  float* out;
  After after;
};

// Attention of the rows of one item over kept slots of its keys and values [C, W]; see reference.attend_kept.
struct Kept {
  const float* q;  // [rows, W]
  const void *keys, *values;
  const float *key_scales, *value_scales;  // [C, heads], of 8-bit keys and values
  const int32_t* slots;  // of row r: slots + r * slot_stride; null: `first`, first + 1, ...
  int64_t slot_stride, first;
  const int32_t* counts;  // [rows], number of slots of each row
  int64_t rows, width, head_width, turn;
  const int64_t* own;  // [rows, 2], the first of the slots of a row's own line and their number; null: none
  const float* shift;  // [rows, heads], added to the scores of those
  float* out;  // [rows, W]
};

// Dropout by a hash: what has a number below `least` is dropped, the rest is multiplied by `scale` (0: no dropout).
struct Dropout {
  uint32_t seed, least;
  float scale;
};

// Attention over kept keys in training; see gather.py. q [B, H, Q, D], k, v [B, H, K, D], out [B, Q, H, D], slots
// [B * Q, most], counts [B * Q], lse [B, H, Q]; one type except for lse, dk and dv, which are float32.
struct Gather {
  int64_t batch, heads, queries, keys, width;
  const void *q, *k, *v;
  const int32_t* slots;
  int64_t most;
  const int32_t* counts;
  const int64_t* own;  // [B * Q, 2], the first key of a query's own line and their number; null: none
  const float* shift;  // [B, H, Q], added to the scores of those
  float* d_shift;
  Dropout dropout;
  void* out;
  float* lse;
  const void* d_out;
  void* dq;
  float *dk, *dv;
};

// Blocks of attention scores [B, H, R, N] and their mask of allowed keys, bytes [B or 1, R, N] or null.
struct Block {
  int64_t heads, rows, keys;
  const uint8_t* allowed;
  int64_t allowed_stride;  // of an item; 0 if all items share it
};

struct Arithmetic {
  const char* name;
  // of a quantised row's numbers, 8 bits in the form that the target's instructions take: bytes, and what is added
  int64_t number_bytes, number_shift;

  // products.h
  void (*quantise)(const float* x, int64_t stride, int64_t rows, int64_t n, void* out, int64_t padded, float* scales);
  void (*product)(const Product& p, int64_t from_group, int64_t to_group);
  void (*layer_norm)(const float* x, int64_t rows, int64_t n, const float* weight, const float* bias, float eps, float* out);
  void (*activate)(const float* x, int64_t n, Activation activation, float* out);
  double (*logarithm)(double x);

  // selection.h: scores of keys [from, to) of a row; candidates of the highest; words above a bound
  void (*score)(Type type, const float* query, const void* keys, const int32_t* table, int64_t from, int64_t to,
                int64_t width, float* out);
  int64_t (*candidates)(const float* scores, int64_t n, float guess, uint64_t* out);
  int64_t (*next_above)(const float* row, int64_t from, int64_t n, float before, float bound);

  // attention.h: 8-bit numbers of a cache, one scale per head; attention, heads h0 to h1 - 1;
  // weights has rows * (h1 - h0) * (most + kTurn) numbers
  void (*quantise_heads)(const float* x, int64_t heads, int64_t head_width, int8_t* out, float* scales);
  void (*attend)(Type type, const Kept& kept, int64_t h0, int64_t h1, float scale, float* weights);

  // gather.h: work has gather_work(shape) numbers
  void (*gather_forward)(Type type, const Gather& g, int64_t head, int64_t from, int64_t to, float* work);
  void (*gather_backward)(Type type, const Gather& g, int64_t head, float* work);

  // dropout.h: rows [from, to) of x [R, N]; added: null, or what is added to them
  void (*dropout)(const Dropout& d, const float* x, const float* added, int64_t from, int64_t to, int64_t n, float* out);

  // rows.h: rows [from, to) of all items (and heads, for softmax_gradient); bias has `keys` numbers
  void (*row_softmax)(const Block& b, float* scores, float* mean, float share, float* lse, int64_t from, int64_t to,
                      float* bias);
  void (*softmax_gradient)(const Block& b, float* weights, const float* d_mean, int64_t from, int64_t to);
  void (*mask_gradient)(const Block& b, const float* scores, const float* lse, const float* d_weights, const float* delta,
                        float most, float* out, int64_t from, int64_t to);
  void (*kept_gradient)(const Block& b, float* scores, float* d_weights, const float* lse, const float* delta,
                        int64_t from, int64_t to, float* bias);
  void (*log_softmax)(const float* x, int64_t rows, int64_t n, float* out);
};

inline int64_t gather_work(const Gather& g) { return 4 * g.width + 2 * (g.most + kTurn); }

// The compiled tables, best first, terminated by null.
extern const Arithmetic* const kTargets[];

// Whether this processor has a target's instructions.
bool available(const Arithmetic& target);

// The table in use: the best, or the one chosen last.
const Arithmetic& arithmetic();

// The functions of another target in that table, see mixture.h.
std::vector<std::string> borrowed();

// Use the target of this name, or the best for an empty one; of "A+B", A with the functions of B that are measured to be
// faster. False if there is none, or the processor lacks it.
bool choose(const char* name);

}  // namespace lasformer
