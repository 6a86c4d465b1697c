#include "planner/strategies/known_starts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "planner/bounds/plan_bound.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"
#include "planner/memory/choose_memory.h"
#include "planner/memory/stage_choices.h"
#include "planner/orders/dual_pipe_v.h"
#include "planner/orders/gpipe.h"
#include "planner/orders/interleaved.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/orders/zero_bubble_v.h"
#include "planner/strategies/classic.h"
#include "tests/planner/small_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

// A step of text alone, each microbatch with a sample of `tokens`, on the
// partition of `strategy` or, if null, on separated modules.
testing::SmallStep TextStep(const std::vector<int64_t>& tokens,
                            const Strategy* strategy = nullptr) {
  JobSpec job = testing::SmallVlmJob();
  job.training.microbatches = static_cast<int32_t>(tokens.size());
  job.training.microbatch_samples = 1;
  BatchMetadata batch;
  for (const int64_t n : tokens) batch.samples.push_back({.text_tokens = n});
  const emulator::StageCostModel costs(job);
  testing::SmallStep step;
  step.partition = strategy != nullptr
                       ? *strategy->MakePartition(costs, batch, {})
                       : *partition::SeparatedPartition(job, costs, batch);
  const Microbatches cut = *partition::SplitMicrobatches(
      job, *partition::PackStep(job, batch, 0), 0, step.partition);
  partition::BuiltGraph built =
      *partition::BuildStageGraph(costs, step.partition, cut);
  step.memory =
      partition::MakeStepMemory(costs, step.partition, cut, built.pairs,
                                StageChoices(costs, step.partition, cut));
  step.graph = std::move(built.graph);
  return step;
}

// Returns the graph with the limits that these orders need with everything
// kept, within which not all that is ever taken has room.
StageGraph WithoutRoom(const StageGraph& graph, const RankOrders& orders) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (const RankId r : ranks.ids()) {
    Bytes held;
    Bytes most;
    for (const TaskId t : orders[r]) {
      held += graph.task(t).alloc;
      most = std::max(most, held);
      held -= graph.task(t).free;
    }
    ranks[r].memory.limit = ranks[r].memory.static_bytes() + most;
  }
  StageGraph limited = graph.WithRanks(ranks);
  EXPECT_TRUE(MemoryIsShort(FlatGraph(limited)));
  return limited;
}

// Returns the evaluations of starts whose time is over from the beginning.
int64_t EvaluationsWithoutTime(testing::SmallStep step,
                               Duration* time = nullptr) {
  step.graph = WithoutRoom(
      step.graph, GPipeOrders(VirtualPipeline(step.graph, step.partition)));
  SearchBudget over;
  over.expired = [] { return true; };
  const KnownStarts starts("pipeloom", over);
  const auto made = starts.MakeMemorySchedule(step.graph, step.memory,
                                              step.partition, 1, over);
  EXPECT_THAT(made.status(), testing::IsOk());
  if (time != nullptr) *time = made->found.schedule.step_time();
  return made->found.evaluations;
}

TEST(KnownStartsTest, EqualMicrobatchesStartFromAClassicOrderWithoutTime) {
  const testing::SmallStep equal = TextStep(std::vector<int64_t>(12, 2000));
  const VirtualPipeline pipeline(equal.graph, equal.partition);
  const auto orders = pipeline.num_segments() == 1
                          ? OneFOneBOrders(pipeline)
                          : InterleavedOrders(pipeline);
  ASSERT_THAT(orders.status(), testing::IsOk());
  const auto classic = ChooseMemory(equal.graph, equal.memory, *orders);
  ASSERT_THAT(classic.status(), testing::IsOk());
  Duration time{};
  const int64_t with = EvaluationsWithoutTime(equal, &time);
  EXPECT_LE(time, classic->schedule.step_time());
  // One that is much larger leaves it out.
  std::vector<int64_t> tokens(12, 300);
  tokens[5] = 2000;
  EXPECT_LT(EvaluationsWithoutTime(TextStep(tokens)), with);
}

// Microbatches that the ranks do not divide leave gaps in the interleaved
// order, which comes first.
TEST(KnownStartsTest, GPipeIsTriedEarlyWhereItFitsWithEverythingKept) {
  const std::unique_ptr<Strategy> interleaved = MakeInterleaved();
  testing::SmallStep step =
      TextStep(std::vector<int64_t>(10, 2000), interleaved.get());
  const VirtualPipeline pipeline(step.graph, step.partition);
  ASSERT_GT(pipeline.num_segments(), 1);
  const auto gpipe = GPipeOrders(pipeline);
  const auto first = InterleavedOrders(pipeline);
  ASSERT_THAT(first.status(), testing::IsOk());
  step.graph = WithoutRoom(step.graph, gpipe);
  const auto made = ChooseMemory(step.graph, step.memory, gpipe);
  const auto before = ChooseMemory(step.graph, step.memory, *first);
  ASSERT_THAT(made.status(), testing::IsOk());
  ASSERT_THAT(before.status(), testing::IsOk());
  ASSERT_LT(made->schedule.step_time(), before->schedule.step_time());
  EXPECT_EQ(EarlyOrders(step.graph, step.partition),
            (std::vector<RankOrders>{gpipe, *first}));
  // A byte less, and it needs choices.
  IdVector<RankId, RankSpec> less = step.graph.ranks();
  less[RankId(1)].memory.limit -= Bytes(1);
  EXPECT_EQ(EarlyOrders(step.graph.WithRanks(less), step.partition),
            (std::vector<RankOrders>{*first}));
}

// Orders of segments find no V in a step of unequal microbatches, and classic
// orders that come after them have no time.
TEST(KnownStartsTest, VeePartitionsStartFromAVScheduleOfWholeBackwards) {
  std::vector<int64_t> tokens(12, 300);
  tokens[5] = 2000;
  const std::unique_ptr<Strategy> vee = MakeDualPipeV();
  const testing::SmallStep step = TextStep(tokens, vee.get());
  ASSERT_TRUE(IsVee(step.partition));
  const VirtualPipeline pipeline(step.graph, step.partition);
  const std::vector<RankOrders> known = KnownOrders(step.graph, step.partition);
  for (const auto& orders :
       {DualPipeVOrders(pipeline), ZeroBubbleVOrders(pipeline)}) {
    ASSERT_THAT(orders.status(), testing::IsOk());
    EXPECT_NE(std::find(known.begin(), known.end(), *orders), known.end());
  }
  testing::SmallStep looped = step;  // The same tasks.
  for (Stage& stage : looped.partition.stages) {
    if (stage.segment == SegmentId(1)) {
      stage.rank = RankId(step.partition.num_ranks - 1 - stage.rank.value());
    }
  }
  ASSERT_FALSE(IsVee(looped.partition));
  EXPECT_GT(EvaluationsWithoutTime(step), EvaluationsWithoutTime(looped));
}

// Within lower limits that no classic order keeps, an order of segments is far
// shorter than microbatches one after another.
TEST(KnownStartsTest, WhereNoClassicOrderFitsAnyMoreSegmentsAreOrderedAgain) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const testing::SmallStep step = testing::MakeSmallStep(seed, 12, false);
    const StageGraph roomy = WithoutRoom(
        step.graph, GPipeOrders(VirtualPipeline(step.graph, step.partition)));
    for (const int64_t percent : {17, 16, 15, 14}) {
      SCOPED_TRACE(::testing::Message() << seed << ", " << percent << " %");
      IdVector<RankId, RankSpec> ranks = roomy.ranks();
      for (RankSpec& rank : ranks) {
        const Bytes fixed = rank.memory.static_bytes();
        rank.memory.limit =
            fixed + Bytes((rank.memory.limit - fixed).count() * percent / 100);
      }
      const StageGraph tight = step.graph.WithRanks(ranks);
      const auto known = KnownOrders(tight, step.partition);
      if (std::any_of(known.begin(), known.end(), [&](const auto& orders) {
            return ChooseMemory(tight, step.memory, orders).ok();
          })) {
        continue;
      }
      const FlatGraph least = LeastMemory(tight, step.memory);
      const FeasibilityResult decided = DecideFeasibility(least);
      if (decided.verdict != Feasibility::kLegal) continue;
      const auto one_by_one =
          ChooseMemory(tight, step.memory, OrdersOf(least, decided.sequence));
      if (!one_by_one.ok()) continue;
      const double most = 0.8 * ToSeconds(one_by_one->schedule.step_time());
      SearchBudget budget;
      budget.max_evaluations = 100;
      const KnownStarts starts("pipeloom", budget);
      ASSERT_THAT(starts.MakeMemorySchedule(roomy, step.memory, step.partition,
                                            1, budget),
                  testing::IsOk());
      const auto again = starts.MakeMemorySchedule(tight, step.memory,
                                                   step.partition, 1, budget);
      ASSERT_THAT(again.status(), testing::IsOk());
      EXPECT_LT(ToSeconds(again->found.schedule.step_time()), most);
      // Nor are they needed where no order of segments was tried.
      SearchBudget none;
      none.max_evaluations = 0;
      const auto without =
          KnownStarts("pipeloom", none)
              .MakeMemorySchedule(tight, step.memory, step.partition, 1, none);
      ASSERT_THAT(without.status(), testing::IsOk());
      EXPECT_LT(ToSeconds(without->found.schedule.step_time()), most);
      ++compared;
    }
  }
  EXPECT_GE(compared, 5);
}

}  // namespace
}  // namespace pipeloom::planner
