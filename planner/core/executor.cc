#include "planner/core/executor.h"

#include <algorithm>

// The distribution's oneTBB is not instrumented, so the thread sanitizer
// reports false races in it; plain threads replace it there.
#if defined(__SANITIZE_THREAD__)
#define PIPELOOM_PLAIN_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PIPELOOM_PLAIN_THREADS 1
#endif
#endif

#ifdef PIPELOOM_PLAIN_THREADS
#include <atomic>
#include <thread>
#include <vector>
#else
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace pipeloom::planner {

void ParallelFor(int32_t threads, int32_t count,
                 const std::function<void(int32_t)>& body) {
  threads = std::min(threads, count);
  if (threads <= 1) {
    for (int32_t i = 0; i < count; ++i) body(i);
    return;
  }
#ifdef PIPELOOM_PLAIN_THREADS
  std::atomic<int32_t> next = 0;
  const auto work = [&] {
    for (int32_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::jthread> others;
  for (int32_t t = 1; t < threads; ++t) others.emplace_back(work);
  work();
#else
  // More threads than the machine has would give a warning on stderr.
  tbb::task_arena arena(std::min(threads, tbb::info::default_concurrency()));
  arena.execute([&] {
    tbb::parallel_for(
        int32_t{0}, count, [&](int32_t i) { body(i); },
        tbb::simple_partitioner());
  });
#endif
}

}  // namespace pipeloom::planner
