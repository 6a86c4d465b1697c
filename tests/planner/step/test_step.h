// A step of a job on the rule's partition, as the planner builds it.
#ifndef PIPELOOM_TESTS_PLANNER_STEP_TEST_STEP_H_
#define PIPELOOM_TESTS_PLANNER_STEP_TEST_STEP_H_

#include "emulator/stage/stage_cost.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/memory/stage_choices.h"
#include "planner/step/plan_step.h"
#include "planner/strategy.h"
#include "tests/support/plan_first_step.h"

namespace pipeloom::testing {

// The first step of a batch, with split backwards and all choices of memory.
struct TestStep {
  TestStep(const planner::Strategy& strategy,
           const emulator::StageCostModel& costs, const BatchMetadata& batch)
      : prepared(*PrepareByRule(strategy, costs, batch)),
        packed(*partition::PackStep(costs.job(), batch, 0)),
        microbatches(*partition::SplitMicrobatches(costs.job(), packed, 0,
                                                   prepared.partition)),
        built(*partition::BuildStageGraph(
            costs, prepared.partition, microbatches, {.split_backward = true})),
        memory(partition::MakeStepMemory(
            costs, prepared.partition, microbatches, built.pairs,
            planner::StageChoices(costs, prepared.partition, microbatches))) {}
  planner::PreparedJob prepared;
  partition::PackedStep packed;
  Microbatches microbatches;
  partition::BuiltGraph built;
  partition::StepMemory memory;
};

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_PLANNER_STEP_TEST_STEP_H_
