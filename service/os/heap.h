// The heap of a process that serves for weeks.
#ifndef PIPELOOM_SERVICE_OS_HEAP_H_
#define PIPELOOM_SERVICE_OS_HEAP_H_

#include <malloc.h>

#include <algorithm>
#include <thread>

namespace pipeloom::service {

// Bounds the number of the C library's arenas to that of cores. By itself it
// makes one for each thread, up to eight a core, and memory that is free in one
// is of no use to the threads of others.
inline void UseFewArenas() {
#ifdef M_ARENA_MAX
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  mallopt(M_ARENA_MAX, std::max(2, cores));
#endif
}

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_HEAP_H_
