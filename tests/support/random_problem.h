// Random scheduling problems and random sound schedules, so that everything
// downstream is tested on inputs no heuristic would choose.
#ifndef PIPELOOM_TESTS_SUPPORT_RANDOM_PROBLEM_H_
#define PIPELOOM_TESTS_SUPPORT_RANDOM_PROBLEM_H_

#include <cstdint>

#include "base/random.h"
#include "ir/plan/schedule.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::testing {

struct RandomGraphOptions {
  int32_t max_ranks = 3;
  int32_t max_segments = 2;
  int32_t max_microbatches = 2;
  bool allow_delays = true;
  bool allow_split_backward = true;
  // With limits, each rank's limit lies between what one microbatch needs and
  // what all need; a legal schedule exists whenever microbatches may run one
  // after another.
  bool with_memory_limits = false;
  bool with_epilogues = false;
};

// A pipeline of random segments, microbatches, durations (some 0), transfers
// and memory. The same seed gives the same graph.
StageGraph RandomGraph(uint64_t seed, const RandomGraphOptions& options = {});

// A random order that respects the dependencies (memory limits ignored).
RankOrders RandomOrders(const StageGraph& graph, Random& random);

// p ranks, v chunks each, m microbatches of equal stages, as in the uniform
// instances: chunk c of a rank is stage c * p + rank, or, with `vee`, odd
// chunks run from the last rank to the first. Times are of one chunk.
struct UniformOptions {
  int32_t ranks = 4;
  int32_t chunks = 1;
  int32_t microbatches = 8;
  bool vee = false;
  bool split_backward = false;  // W apart; else B and W in one task.
  Duration forward = Microseconds(1000);
  Duration backward = Microseconds(1000);
  Duration weight_grad = Microseconds(1000);
  Duration delay{};  // Between ranks.
  Bytes activation{1000};
  Bytes limit{};
};
StageGraph UniformGraph(const UniformOptions& options);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SUPPORT_RANDOM_PROBLEM_H_
