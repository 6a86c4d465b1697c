// Partition x microbatches x costs -> the step's tasks and dependencies.
#ifndef PIPELOOM_PARTITION_GRAPH_BUILD_STAGE_GRAPH_H_
#define PIPELOOM_PARTITION_GRAPH_BUILD_STAGE_GRAPH_H_

#include <memory>

#include "absl/status/statusor.h"
#include "emulator/stage/stage_cost.h"
#include "emulator/stage/step_update.h"
#include "ir/job/job_spec.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::partition {

// Options of BuildStageGraph().
struct GraphOptions {
  // Whether a kWeightGrad task is separate from kBackward; else one kBackward
  // does both.
  bool split_backward = false;
  // Memory choices, indexed by stage pair. Empty: everything is kept.
  MemoryPolicy memory{};
  // Whether modules that have no work in a microbatch have tasks there, too:
  // they take no time, hold nothing, hand on a byte and belong to no stage
  // pair. For trainers whose stages are a chain that every microbatch passes.
  // REQUIRES: no module is frozen.
  bool every_pass = false;
};

// The result of BuildStageGraph().
struct BuiltGraph {
  StageGraph graph{};
  Flops model_flops{};  // For the step, without recomputation.
  IdVector<StagePairId, StagePair> pairs{};
  // The time that the ranks' updates add to the step; never null.
  std::shared_ptr<const emulator::StepUpdate> update{};
};

// Builds the graph of a step by these rules. A backbone microbatch needs the
// forward of all its encoder sub-microbatches; an encoder's backward needs the
// backbone's input gradient of its microbatch; a generator follows the backbone
// in the same way. Absent modules have no tasks, and the modules they would
// have fed start without them. A frozen module has no weight gradient, and no
// backward unless something trainable feeds it in that microbatch. Each rank's
// RankSpec has the job's memory limit, its stages' static memory and the
// epilogue that is expected before an order is known.
//
// Tasks are numbered by microbatch: all forwards in data-flow order, then the
// backwards in reverse, each weight gradient right after its input gradient.
//
// Memory: a forward takes the stage's activations and its backward releases
// them (a split one only what the weight gradient does not need, which releases
// the rest). partition/graph/memory_candidates.h describes what recomputing and
// offloading change, layer by layer; offloading needs memory and time of its
// own. A stage without a backward holds its input and output while it runs;
// what it hands on is accounted for by the edges (ir/plan/execution_plan.h).
// Over the step every rank ends where it began.
//
// Boundary tensors: a stage's output, and back its gradient, go to the next
// stage, on the same or another rank; `payload` is one GPU's share. If several
// sub-microbatches wait for one output, each receives an equal part of it, so
// the output crosses once.
//
// InvalidArgument: the parts do not fit together, a policy offloads more than
// the host link can carry during the passes, or there are more than 2^24 tasks
// or 2^26 dependencies. O(tasks + dependencies) in addition to the costs.
absl::StatusOr<BuiltGraph> BuildStageGraph(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, const GraphOptions& options = {});

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_GRAPH_BUILD_STAGE_GRAPH_H_
