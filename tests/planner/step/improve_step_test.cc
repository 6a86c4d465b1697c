#include "planner/step/improve_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/memory/memory_levels.h"
#include "planner/passes/drop_fused.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/pipeloom_strategy.h"
#include "tests/planner/step/test_step.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

// Near the smallest limit a start may fit only with whole backwards: a rest of
// its weight gradients after them takes more.
TEST(KnownStartTest, TellsWhereOnlyWholeBackwardsFit) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 2;
  job.cluster.num_nodes = 2;
  job.cluster.intra_node.bandwidth.bytes_per_second = 2e11;
  job.training.microbatches = 3;
  const std::unique_ptr<Strategy> strategy = MakePipeloom();
  const auto& others = dynamic_cast<const StartsFromOthers&>(*strategy);
  bool only_whole_fits = false;
  const BatchMetadata batch = testing::RandomBatch(2, 60, 3);
  int64_t below = 0;
  int64_t enough = int64_t{80} << 30;
  while (enough - below > enough / 10'000) {
    const int64_t limit = (below + enough) / 2;
    job.training.memory_limit = Bytes(limit);
    const auto planned = testing::PlanFirstStep(job, batch, {.evaluations = 1});
    (planned.ok() ? enough : below) = limit;
  }
  for (int64_t more = 0; more < 300 && !only_whole_fits; ++more) {
    SCOPED_TRACE(more);
    job.training.memory_limit = Bytes(enough + enough * more / 10'000);
    const emulator::StageCostModel costs(job);
    const testing::TestStep first(*strategy, costs, batch);
    const PreparedJob& prepared = first.prepared;
    const partition::BuiltGraph& built = first.built;
    const partition::StepMemory& memory = first.memory;
    partition::StepMemory searched = AsIfPaired(memory);
    ASSERT_OK_AND_ASSIGN(const partition::BuiltGraph fewer,
                         WithoutFusedWeightGrads(built, searched));
    searched.pairs = fewer.pairs;
    PlanInput input;
    input.packed = &first.packed;
    input.budget.max_evaluations = 20;
    const auto known_of = [&](const SearchedStep& step, bool* only_whole) {
      int64_t evaluations = 0;
      return KnownStart(others, prepared, input, step, /*leaves_room=*/false,
                        only_whole, &evaluations);
    };
    bool only_whole = false;
    const auto known = known_of({fewer, searched, built, memory}, &only_whole);
    ASSERT_THAT(known, testing::IsOk());
    if (!only_whole) continue;
    only_whole_fits = true;
    EXPECT_FALSE(known->has_value());
    bool again = false;
    const auto whole = known_of({built, memory, built, memory}, &again);
    ASSERT_THAT(whole, testing::IsOk());
    EXPECT_TRUE(whole->has_value());
    EXPECT_FALSE(again);
    ASSERT_OK_AND_ASSIGN(const PlanResult planned, PlanStep(prepared, input));
    EXPECT_GE(planned.carried->refined_ratio, 1.08);
  }
  EXPECT_TRUE(only_whole_fits);
}

// Without tensor parallelism, no communication of a backward hides its weight
// gradient. The start then runs weight gradients while ranks wait for others.
TEST(KnownStartTest, WeightGradientsFillTheGapsBetweenTasks) {
  JobSpec job = testing::SmallVlmJob();
  ASSERT_EQ(job.parallel.tp, 1);
  const std::unique_ptr<Strategy> strategy = MakePipeloom();
  const auto& others = dynamic_cast<const StartsFromOthers&>(*strategy);
  const BatchMetadata batch = testing::RandomBatch(2, 60, 3);
  const emulator::StageCostModel costs(job);
  const testing::TestStep step(*strategy, costs, batch);
  PlanInput input;
  input.packed = &step.packed;
  input.budget.max_evaluations = 20;
  bool only_whole = false;
  int64_t evaluations = 0;
  ASSERT_OK_AND_ASSIGN(
      const std::optional<Candidate> known,
      KnownStart(others, step.prepared, input,
                 {step.built, step.memory, step.built, step.memory},
                 /*leaves_room=*/false, &only_whole, &evaluations));
  ASSERT_TRUE(known.has_value());
  // The same order and choices with whole backwards.
  RankOrders whole = known->made.found.schedule.order;
  int put_off = 0;
  for (std::vector<TaskId>& order : whole) {
    std::vector<TaskId> again;
    for (const TaskId t : order) {
      if (step.built.graph.task(t).pass == Pass::kWeightGrad) continue;
      again.push_back(t);
      for (const partition::StagePair& pair : step.built.pairs) {
        if (pair.backward == t && !pair.weight_grad.is_none()) {
          again.push_back(pair.weight_grad);
        }
      }
    }
    put_off += order != again ? 1 : 0;
    order = std::move(again);
  }
  EXPECT_EQ(put_off, step.built.graph.num_ranks());
  partition::StepMemory memory = step.memory;
  memory.SetForms(known->made.forms);
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      partition::ApplyMemory(step.built.graph, memory, known->made.selection));
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       TimeSchedule(graph, std::move(whole)));
  EXPECT_GT(ToSeconds(schedule.step_time()),
            1.02 * ToSeconds(known->predicted.step_time()));
}

// A start that took longer than it should is refined, as it has to be a plan of
// the step, and searched no more: the plan would be late.
TEST(ImproveAndRefineTest, ALateStartIsRefinedAndSearchedNoMore) {
  const std::unique_ptr<Strategy> strategy = MakePipeloom();
  const auto& others = dynamic_cast<const StartsFromOthers&>(*strategy);
  const BatchMetadata batch = testing::RandomBatch(2, 60, 3);
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  job.cluster.num_nodes = 2;
  const emulator::StageCostModel costs(job);
  const testing::TestStep first(*strategy, costs, batch);
  partition::StepMemory searched = AsIfPaired(first.memory);
  ASSERT_OK_AND_ASSIGN(const partition::BuiltGraph fewer,
                       WithoutFusedWeightGrads(first.built, searched));
  searched.pairs = fewer.pairs;
  const SearchedStep step{fewer, searched, first.built, first.memory};
  ASSERT_TRUE(step.as_if());
  PlanInput input;
  input.packed = &first.packed;
  input.budget.max_evaluations = 20;
  bool only_whole = false;
  int64_t evaluations = 0;
  ASSERT_OK_AND_ASSIGN(
      const std::optional<Candidate> known,
      KnownStart(others, first.prepared, input, step, /*leaves_room=*/false,
                 &only_whole, &evaluations));
  ASSERT_TRUE(known.has_value());
  input.budget.max_evaluations = evaluations + 100;
  const auto searched_when = [&](double now) {
    PlanInput timed = input;
    timed.budget.spent = [now] { return now; };
    timed.budget.expired = [now] { return now >= 1; };
    Candidate best = *known;
    int64_t made = evaluations;
    EXPECT_THAT(ImproveAndRefine(first.prepared, timed, step, std::nullopt,
                                 &best, &made),
                testing::IsOk());
    EXPECT_THAT(ValidateExecutionPlan(best.plan), testing::IsOk());
    return made - evaluations;
  };
  EXPECT_GT(searched_when(0.1), 1);
  EXPECT_EQ(searched_when(0.98), 0);
}

}  // namespace
}  // namespace pipeloom::planner
