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
#elif defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lasformer {

#if defined(__x86_64__)
#define LASFORMER_TARGETS(each) \
  each(avx512_amx) each(avx512_vnni) each(avx512) each(avx2_vnni) each(avx2) each(plain) each(plain_fused)
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

// The widest target; beside tiles, the product that is faster without; beside 512 bits, the functions that are faster in 256.
const Mixture& best() {
  static const Mixture mixture = [] {
    Mixture made(*widest());
    const std::string own = made.table.name;
    const Arithmetic *without = find("avx512_vnni"), *narrow = find("avx2");
    if (own == "avx512_amx" && without) made.borrow_product(*without);
    if (own.starts_with("avx512") && narrow) made.borrow(*narrow);
    return made;
  }();
  return mixture;
}

// Mixtures that were chosen; kept, as other threads may still use an earlier one.
std::mutex lock;
std::list<Mixture> mixtures;
std::atomic<const Mixture*> chosen{nullptr};

#if defined(__x86_64__)
// Whether the processor has tiles, and Linux grants them to this process, as it must be asked to.
bool has_tiles() {
#if defined(__linux__)
  static const bool granted = [] {
    constexpr unsigned kTileBit = 1u << 24, kInt8Bit = 1u << 25;  // of leaf 7
    constexpr long kRequest = 0x1023, kTileData = 18;              // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTileBit) || !(d & kInt8Bit)) return false;
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}
#endif

}  // namespace

bool available(const Arithmetic& target) {
  if (is(target, "plain") || is(target, "plain_fused")) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (is(target, "avx512_amx")) return avx512 && __builtin_cpu_supports("avx512vnni") && has_tiles();
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
  const Mixture* own = chosen.load();
  if (!own) chosen.store(own = &best());
  return own->table;
}

std::vector<std::string> borrowed() {
  arithmetic();
  return chosen.load()->borrowed;
}

bool choose(const char* name_) {
  const std::string name = name_;
  if (name.empty()) {
    chosen.store(&best());
    return true;
  }
  const auto plus = name.find('+');
  const bool mixed = plus != std::string::npos;
  const Arithmetic* own = find(name.substr(0, plus));
  const Arithmetic* rival = mixed ? find(name.substr(plus + 1)) : nullptr;
  if (!own || (mixed && !rival)) return false;
  const std::lock_guard<std::mutex> guard(lock);
  Mixture& mixture = mixtures.emplace_back(*own);
  if (rival && rival != own) mixture.borrow_product(*rival).borrow(*rival);
  chosen.store(&mixture);
  return true;
}

}  // namespace lasformer
