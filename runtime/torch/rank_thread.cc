#include "runtime/torch/rank_thread.h"

#include <chrono>
#include <ctime>

#ifdef __linux__
#include <sched.h>
#endif

namespace pipeloom::runtime {

std::vector<int> CoresFor([[maybe_unused]] size_t ranks) {
  std::vector<int> cores;
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int c = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(static_cast<size_t>(c), &allowed)) cores.push_back(c);
  }
  if (cores.size() != ranks) cores.clear();
#endif
  return cores;
}

void KeepToCore([[maybe_unused]] int core) {
#ifdef __linux__
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(core), &one);
  // If this fails, the thread still runs, only less evenly.
  static_cast<void>(sched_setaffinity(0, sizeof one, &one));
#endif
}

double ThreadSeconds() {
#ifdef CLOCK_THREAD_CPUTIME_ID
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0) {
    return static_cast<double>(now.tv_sec) +
           1e-9 * static_cast<double>(now.tv_nsec);
  }
#endif
  return WallSeconds();
}

double WallSeconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace pipeloom::runtime
