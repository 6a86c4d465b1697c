// Partition x microbatches x costs -> the step's tasks and dependencies.
#ifndef PIPELOOM_PARTITION_BUILD_STAGE_GRAPH_H_
#define PIPELOOM_PARTITION_BUILD_STAGE_GRAPH_H_

#include "absl/status/statusor.h"
#include "emulator/stage_cost.h"
#include "ir/job_spec.h"
#include "ir/microbatches.h"
#include "ir/partition.h"
#include "ir/stage_graph.h"

namespace pipeloom::partition {

struct GraphOptions {
  // A kWeightGrad task apart from kBackward; else one kBackward does both.
  bool split_backward = false;
  // By stage: recompute its forward in backward, keeping only its input.
  // Empty: keep everything.
  IdVector<StageId, bool> recompute{};
};

// Rules of a step (design.md section 2): a backbone microbatch needs the
// forward of all its encoder sub-microbatches; an encoder's backward needs the
// backbone's input gradient of its microbatch; a generator follows the
// backbone the same way. Absent modules have no tasks, and what they would
// have fed starts without them. A frozen module has no weight gradient, and no
// backward unless something trainable feeds it. Each rank's RankSpec has the
// job's memory limit, its stages' static memory and its epilogue.
// model_flops: of the step, without recomputation.
struct BuiltGraph {
  StageGraph graph{};
  Flops model_flops{};
};
absl::StatusOr<BuiltGraph> BuildStageGraph(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, const GraphOptions& options = {});

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_BUILD_STAGE_GRAPH_H_
