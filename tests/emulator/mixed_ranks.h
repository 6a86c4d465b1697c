// Ranks of different kinds in one pipeline: of different device, precision or
// anything else that a cost model knows. Build the step's graph once with the
// cost model of each kind, then take the tasks of every rank from the graph of
// its kind.
#ifndef PIPELOOM_TESTS_EMULATOR_MIXED_RANKS_H_
#define PIPELOOM_TESTS_EMULATOR_MIXED_RANKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::emulator {

// Returns the graph in which rank r has the durations, memory and epilogue of
// kinds[kind_of_rank[r]]. Transfers between ranks are those of the sender's
// kind. `kinds` are graphs of the same tasks and dependencies. InvalidArgument:
// no kinds, a kind that does not exist, or graphs that differ in more than
// times and sizes. O(tasks + dependencies).
absl::StatusOr<StageGraph> MixRanks(absl::Span<const StageGraph* const> kinds,
                                    const std::vector<int32_t>& kind_of_rank);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_TESTS_EMULATOR_MIXED_RANKS_H_
