#include "planner/passes/drop_fused.h"

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "partition/placement/placement.h"
#include "planner/memory/stage_choices.h"
#include "planner/passes/pass_forms.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::PassForm;

// With every backward fused nothing differs from the graph that is built with
// fused backwards; with some, their weight gradients alone are missing.
TEST(WithoutFusedWeightGradsTest, IsTheGraphOfFusedBackwards) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    JobSpec job = testing::SmallVlmJob();
    job.parallel.tp = 4;
    job.training.microbatches = 4;
    const BatchMetadata batch = testing::RandomBatch(seed, 30, 3);
    const emulator::StageCostModel costs(job);
    const Partition partition =
        *partition::SeparatedPartition(job, costs, batch);
    const Microbatches cut = *partition::SplitMicrobatches(
        job, *partition::PackStep(job, batch, 0), 0, partition);
    ASSERT_OK_AND_ASSIGN(const partition::BuiltGraph split,
                         partition::BuildStageGraph(costs, partition, cut,
                                                    {.split_backward = true}));
    ASSERT_OK_AND_ASSIGN(const partition::BuiltGraph fused,
                         partition::BuildStageGraph(costs, partition, cut, {}));
    partition::StepMemory memory =
        partition::MakeStepMemory(costs, partition, cut, split.pairs,
                                  StageChoices(costs, partition, cut));
    SetForms(PassForm::kFused, &memory);
    ASSERT_OK_AND_ASSIGN(const partition::BuiltGraph left,
                         WithoutFusedWeightGrads(split, memory));
    EXPECT_EQ(left.graph, fused.graph);
    EXPECT_EQ(left.pairs, fused.pairs);
    EXPECT_EQ(left.model_flops, fused.model_flops);

    // One pair stays split.
    StagePairId one;
    for (const StagePairId id : memory.pairs.ids()) {
      if (one.is_none() && memory.has_other_form(id)) one = id;
    }
    ASSERT_FALSE(one.is_none());
    memory.SwitchForm(one);
    ASSERT_OK_AND_ASSIGN(const partition::BuiltGraph mixed,
                         WithoutFusedWeightGrads(split, memory));
    ASSERT_EQ(mixed.graph.num_tasks(), fused.graph.num_tasks() + 1);
    const partition::StagePair& pair = mixed.pairs[one];
    EXPECT_EQ(mixed.graph.task(pair.weight_grad),
              split.graph.task(split.pairs[one].weight_grad));
    EXPECT_EQ(mixed.graph.task(pair.backward),
              split.graph.task(split.pairs[one].backward));
    for (const StagePairId id : mixed.pairs.ids()) {
      EXPECT_EQ(mixed.pairs[id].weight_grad.is_none(), id != one);
      EXPECT_EQ(mixed.graph.task(mixed.pairs[id].forward),
                fused.graph.task(fused.pairs[id].forward));
    }
  }
}

}  // namespace
}  // namespace pipeloom::planner
