#include "service/os/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "service/os/usual_priorities.h"

namespace pipeloom::service {
namespace {

constexpr int kLeast = 19;  // Niceness of the lowest priority.

// Whether UseUsualPriorities was called; global, as it holds for the process.
std::atomic<bool> usual{false};

// The kernel's struct sched_attr, first version; the C library has none.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0;  // The slice of SCHED_OTHER in ns.
  uint64_t deadline = 0;
  uint64_t period = 0;
};

}  // namespace

void UseUsualPriorities() { usual = true; }

void MakeWayForServing(Background kind) {
  if (usual) return;
  const bool search = kind == Background::kSearch;
  // Since Linux 6.12, a thread that wakes up preempts a thread with a longer
  // slice (usual: 3 ms); with an equal slice it may wait for the rest of that
  // slice, whatever the niceness. Older kernels use niceness alone.
  SchedulingAttributes attributes;
  attributes.nice =
      std::min(kLeast, getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())) +
                           (search ? 10 : 5));
  attributes.runtime = search ? 100'000'000 : 10'000'000;
  if (syscall(SYS_sched_setattr, 0, &attributes, 0) != 0) {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), attributes.nice);
  }
}

void AnswerAtOnce() {
  if (usual) return;
  SchedulingAttributes attributes;
  attributes.nice = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  attributes.runtime = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace pipeloom::service
