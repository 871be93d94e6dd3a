// Compares 8-bit products by matrix tiles with those of `plain` and `avx512_vnni`, bit by bit, on an emulated processor without
// an operating system; prints to port 0xe9. Built and run by scripts/emulate_amx.sh.
#include "../../fairseq_lasformer/ops/cpu/arithmetic/arithmetic.h"

using namespace lasformer;

namespace lasformer {
namespace plain {
extern const Arithmetic table;
}
namespace avx512_vnni {
extern const Arithmetic table;
}
namespace avx512_amx {
extern const Arithmetic table;
}
}  // namespace lasformer

// What the arithmetic needs of the C library; volatile, so that gcc does not call them from themselves.
extern "C" {
void* memcpy(void* to, const void* from, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<volatile char*>(to)[i] = static_cast<const char*>(from)[i];
  return to;
}
void* memmove(void* to, const void* from, size_t n) {
  if (to < from) return memcpy(to, from, n);
  while (n--) static_cast<volatile char*>(to)[n] = static_cast<const char*>(from)[n];
  return to;
}
void* memset(void* to, int value, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<volatile char*>(to)[i] = static_cast<char>(value);
  return to;
}
float logf(float x) { return x; }  // of other functions; never called
}

namespace {

void print(const char* text) {
  for (; *text; ++text) asm volatile("outb %0, $0xe9" : : "a"(*text));
}

void print(int64_t n) {
  char digits[24] = {};
  char* at = digits + 23;
  do {
    *--at = static_cast<char>('0' + n % 10);
    n /= 10;
  } while (n);
  print(at);
}

uint32_t state = 1;
float next() {
  state = state * 1664525u + 1013904223u;
  return static_cast<float>(static_cast<int32_t>(state >> 8) - (1 << 23)) / (1 << 23);
}

char* unused;
template <typename T>
T* numbers(int64_t n) {
  T* made = reinterpret_cast<T*>(unused);
  unused += (n * sizeof(T) + 63) / 64 * 64;
  return made;
}

// Products of a layer by each table, and how many differ.
int64_t wrong(int64_t rows, int64_t inputs, int64_t outputs) {
  unused = reinterpret_cast<char*>(0x2000000);  // nothing else is there
  Packed weights;
  weights.inputs = inputs;
  weights.outputs = outputs;
  const int64_t all = weights.panels() * kPanel, padded = weights.quads() * 4;
  auto* x = numbers<float>(rows * inputs);
  for (int64_t i = 0; i < rows * inputs; ++i) x[i] = next();
  auto* eight = numbers<int8_t>(all * padded);
  for (int64_t i = 0; i < all * padded; ++i) eight[i] = static_cast<int8_t>(127.9f * next());
  auto* sums = numbers<int32_t>(all);
  auto* scale = numbers<float>(all);
  for (int64_t o = 0; o < all; ++o) {
    sums[o] = 0;
    scale[o] = 1.f;
    for (int64_t i = 0; i < padded; ++i) {
      sums[o] += 128 * eight[((o / kPanel * (padded / 4) + i / 4) * kPanel + o % kPanel) * 4 + i % 4];
    }
  }
  weights.quantised = eight;
  weights.scale = scale;
  weights.sums = sums;
  const Arithmetic* const tables[] = {&plain::table, &avx512_vnni::table, &avx512_amx::table};
  float* results[3];
  for (int t = 0; t < 3; ++t) {
    auto* quantised = numbers<char>(rows * padded * tables[t]->number_bytes);
    auto* scales = numbers<float>(rows);
    results[t] = numbers<float>(rows * outputs);
    tables[t]->quantise(x, inputs, rows, inputs, quantised, padded, scales);
    tables[t]->product({x, inputs, rows, quantised, scales, weights, results[t], {}}, 0, weights.groups());
  }
  int64_t found = 0;
  for (int64_t i = 0; i < rows * outputs; ++i) {
    uint32_t bits[3];
    for (int t = 0; t < 3; ++t) memcpy(&bits[t], results[t] + i, 4);
    found += bits[0] != bits[1] || bits[0] != bits[2] || bits[0] == 0x7fc00000;
  }
  return found;
}

}  // namespace

extern "C" __attribute__((section(".text.start"))) void start() {
  const int64_t shapes[][3] = {{5, 64, 33},    {16, 64, 16},   {17, 64, 48},     {31, 128, 32},  {32, 64, 64},    {39, 128, 90},
                               {53, 192, 33},  {64, 512, 512}, {160, 512, 2048}, {47, 132, 40},  {200, 2048, 130}};
  int64_t all = 0, bad = 0;
  for (const auto& [rows, inputs, outputs] : shapes) {
    all += rows * outputs;
    bad += wrong(rows, inputs, outputs);
  }
  print(all);
  print(" sums, ");
  print(bad);
  print(" differ\n");
  asm volatile("cli; hlt");
}
