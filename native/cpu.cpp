#include "cpu.hpp"

#include <stdexcept>
#if defined(HEADWAY_X86)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace headway {

namespace portable { extern const Kernels kernels; }
#if defined(HEADWAY_X86)
namespace avx2 { extern const Kernels kernels; }
namespace avx512 { extern const Kernels kernels; }
namespace amx { extern const Kernels kernels; }
#endif

namespace {

#if defined(HEADWAY_X86)
// The matrix unit has registers so large that the system hands them out on request only, to the whole process.
bool may_use_amx() {
#if defined(__linux__)
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // bf16, tiles, int8
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kNeeded) != kNeeded) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> found;
#if defined(HEADWAY_X86)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
    if (__builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni") && __builtin_cpu_supports("avx512bf16") && may_use_amx())
      found.push_back(&amx::kernels);
    found.push_back(&avx512::kernels);
  }
  if (has_avx2) found.push_back(&avx2::kernels);
#endif
  found.push_back(&portable::kernels);
  return found;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* k : usable()) names.emplace_back(k->name);
  return names;
}

const Kernels& kernels_for(const std::string& isa) {
  std::string known;
  for (const Kernels* k : usable()) {
    if (isa == "auto" || isa == k->name) return *k;
    known += known.empty() ? k->name : std::string(", ") + k->name;
  }
  throw std::invalid_argument("instruction set '" + isa + "' is not available here; this processor has: " + known);
}

}  // namespace headway
