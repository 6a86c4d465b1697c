// A step of a small job, as searches with memory choices see it.
#ifndef PIPELOOM_TESTS_PLANNER_SMALL_STEP_H_
#define PIPELOOM_TESTS_PLANNER_SMALL_STEP_H_

#include <cstdint>
#include <utility>

#include "emulator/stage/stage_cost.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "partition/placement/placement.h"
#include "planner/memory/stage_choices.h"
#include "tests/support/small_job.h"

namespace pipeloom::testing {

struct SmallStep {
  StageGraph graph{};  // Everything kept.
  partition::StepMemory memory{};
  Partition partition{};
};

// With `waits`, backwards wait for tensor-parallel collectives on slow links,
// so that their gaps have room for weight gradients.
inline SmallStep MakeSmallStep(uint64_t seed, int32_t microbatches,
                               bool split_backward, bool waits = false) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = microbatches;
  if (waits) {
    job.parallel.tp = 4;
    job.cluster.intra_node.bandwidth.bytes_per_second = 5e10;
  }
  const BatchMetadata batch = RandomBatch(seed, 40, 3);
  const emulator::StageCostModel costs(job);
  SmallStep step;
  step.partition = *partition::SeparatedPartition(job, costs, batch);
  const Microbatches cut = *partition::SplitMicrobatches(
      job, *partition::PackStep(job, batch, 0), 0, step.partition);
  partition::BuiltGraph built = *partition::BuildStageGraph(
      costs, step.partition, cut, {.split_backward = split_backward});
  step.memory = partition::MakeStepMemory(
      costs, step.partition, cut, built.pairs,
      planner::StageChoices(costs, step.partition, cut));
  step.graph = std::move(built.graph);
  return step;
}

// Returns the graph with so many bytes above static memory on every rank.
inline StageGraph WithRoom(const StageGraph& graph, int64_t room) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) {
    rank.memory.limit = rank.memory.static_bytes() + Bytes(room);
  }
  return graph.WithRanks(ranks);
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_SMALL_STEP_H_
