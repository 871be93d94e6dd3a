// The compiled targets that this processor can use, and the one in use.
#include <atomic>
#include <cstring>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "arithmetic.h"
#include "mixture.h"

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

const Arithmetic* find(const std::string& name) {
  for (const Arithmetic* const* t = kTargets; *t; ++t) {
    if (is(**t, name.c_str()) && available(**t)) return *t;
  }
  return nullptr;
}

const Arithmetic* widest() {
  for (const Arithmetic* const* t = kTargets; *t; ++t) {
    if (available(**t)) return *t;
  }
  return &plain::table;
}

// The widest target; beside 512 bits, the functions that are faster in 256.
const Mixture& best() {
  static const Mixture mixture = [] {
    const Arithmetic *own = widest(), *rival = find("avx2");
    return std::strncmp(own->name, "avx512", 6) == 0 && rival ? Mixture(*own, *rival) : Mixture(*own, *own);
  }();
  return mixture;
}

std::atomic<const Arithmetic*> chosen{nullptr};
std::atomic<const Mixture*> mixed{nullptr};  // if the chosen one is a mixture

void use(const Mixture& mixture) {
  mixed.store(&mixture);
  chosen.store(&mixture.table);
}

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
  const Arithmetic* own = chosen.load();
  if (!own) {
    use(best());
    own = chosen.load();
  }
  return *own;
}

std::vector<std::string> borrowed() {
  arithmetic();
  const Mixture* mixture = mixed.load();
  return mixture ? mixture->borrowed : std::vector<std::string>();
}

bool choose(const char* name_) {
  const std::string name = name_;
  if (name.empty()) {
    use(best());
    return true;
  }
  const auto plus = name.find('+');
  const Arithmetic* own = find(name.substr(0, plus));
  if (!own) return false;
  if (plus == std::string::npos) {
    mixed.store(nullptr);
    chosen.store(own);
    return true;
  }
  const Arithmetic* rival = find(name.substr(plus + 1));
  if (!rival) return false;
  static std::mutex lock;
  static std::list<Mixture> made;  // kept: other threads may still use an earlier one
  const std::lock_guard<std::mutex> guard(lock);
  use(made.emplace_back(*own, *rival));
  return true;
}

}  // namespace lasformer
