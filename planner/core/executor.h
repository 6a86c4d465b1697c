// Data parallelism for searches: the same calls are made for any number of
// threads, so results do not depend on it.
#ifndef PIPELOOM_PLANNER_CORE_EXECUTOR_H_
#define PIPELOOM_PLANNER_CORE_EXECUTOR_H_

#include <cstdint>
#include <functional>

namespace pipeloom::planner {

// Calls body(0) .. body(count - 1), at most `threads` of them at a time, and
// returns when all are done. With threads <= 1 the calls are made on this
// thread, in order. REQUIRES: the calls do not touch each other's data.
void ParallelFor(int32_t threads, int32_t count,
                 const std::function<void(int32_t)>& body);

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_CORE_EXECUTOR_H_
