// Ranks of different kinds in one pipeline: device, precision or anything else
// that a cost model knows. Build the step's graph once with each kind's own
// cost model, then take every rank's tasks from its kind's graph.
#ifndef PIPELOOM_EMULATOR_CLUSTER_MIXED_RANKS_H_
#define PIPELOOM_EMULATOR_CLUSTER_MIXED_RANKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::emulator {

// `kinds` are graphs of the same tasks and dependencies; those of rank r come
// from kinds[kind_of_rank[r]]: durations, memory, epilogue. What crosses
// between ranks is as its sender's kind has it. InvalidArgument: no kinds, a
// kind that does not exist, or graphs that differ in more than times and sizes.
// O(tasks + dependencies).
absl::StatusOr<StageGraph> MixRanks(absl::Span<const StageGraph* const> kinds,
                                    const std::vector<int32_t>& kind_of_rank);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_CLUSTER_MIXED_RANKS_H_
