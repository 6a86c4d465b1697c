// Huge pages for arrays of megabytes that are about to be written for the first
// time: one page fault for 2 MiB instead of 512. A hint; changes no result, and
// does nothing on systems without such a call.
#ifndef PIPELOOM_EMULATOR_STEP_HUGE_PAGES_H_
#define PIPELOOM_EMULATOR_STEP_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pipeloom::emulator {

// Advises the system to use huge pages for the whole ones of a range.
inline void AdviseHugePages(void* data, size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage;
  const uintptr_t last = (begin + bytes) / kPage * kPage;
  if (last > first) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#else
  static_cast<void>(data);
  static_cast<void>(bytes);
#endif
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_HUGE_PAGES_H_
