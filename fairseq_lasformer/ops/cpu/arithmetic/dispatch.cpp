// The compiled targets that this processor can use, and the one in use.
#include <atomic>
#include <cstring>

#include "arithmetic.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace lasformer {

#if defined(__x86_64__)
#define LASFORMER_TARGETS(each) each(avx512_vnni) each(avx512) each(avx2_vnni) each(avx2) each(plain) each(plain_fused)
#elif defined(__aarch64__)
#define LASFORMER_TARGETS(each) each(neon_dotprod) each(plain)
#else
#define LASFORMER_TARGETS(each) each(plain)
#endif

#define LASFORMER_DECLARE(name) \
  namespace name {              \
  extern const Arithmetic table; \
  }
LASFORMER_TARGETS(LASFORMER_DECLARE)

#define LASFORMER_ADDRESS(name) &name::table,
const Arithmetic* const kTargets[] = {LASFORMER_TARGETS(LASFORMER_ADDRESS) nullptr};

namespace {

bool is(const Arithmetic& target, const char* name) { return std::strcmp(target.name, name) == 0; }

const Arithmetic* best() {
  for (const Arithmetic* const* t = kTargets; *t; ++t) {
    if (available(**t)) return *t;
  }
  return &plain::table;
}

std::atomic<const Arithmetic*> chosen{nullptr};

}  // namespace

bool available(const Arithmetic& target) {
  if (is(target, "plain") || is(target, "plain_fused")) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (is(target, "avx512_vnni")) return avx512 && __builtin_cpu_supports("avx512vnni");
  if (is(target, "avx512")) return avx512;
  if (is(target, "avx2_vnni")) return avx2 && __builtin_cpu_supports("avxvnni");
  if (is(target, "avx2")) return avx2;
#elif defined(__aarch64__) && defined(__linux__)
  if (is(target, "neon_dotprod")) return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__aarch64__) && defined(__APPLE__)
  if (is(target, "neon_dotprod")) return true;  // every 64-bit Apple processor that runs macOS has it
#endif
  return false;
}

const Arithmetic& arithmetic() {
  const Arithmetic* own = chosen.load(std::memory_order_relaxed);
  if (!own) {
    own = best();
    chosen.store(own, std::memory_order_relaxed);
  }
  return *own;
}

bool choose(const char* name) {
  if (!*name) {
    chosen.store(best());
    return true;
  }
  for (const Arithmetic* const* t = kTargets; *t; ++t) {
    if (is(**t, name) && available(**t)) {
      chosen.store(*t);
      return true;
    }
  }
  return false;
}

}  // namespace lasformer
