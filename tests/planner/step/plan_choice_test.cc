// Tensors that ranks send and receive, which a schedule does not see, and the
// limits that are lowered for them.
#include "planner/step/plan_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/lower/lower_plan.h"
#include "planner/memory/stage_choices.h"
#include "planner/strategies/pipeloom_strategy.h"
#include "planner/strategy_abilities.h"
#include "tests/planner/step/test_step.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::PrepareByRule;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;

// A step, and the most bytes that a rank of its plan holds without a limit.
struct RoomyStep {
  JobSpec job = SmallVlmJob();
  BatchMetadata batch{};
  int64_t most = 0;
};

RoomyStep MakeRoomyStep(uint64_t seed) {
  RoomyStep step{.batch = RandomBatch(seed, 300, 5)};
  step.job.training.microbatches = 12;
  const absl::StatusOr<PlanResult> plan = PlanFirstStep(step.job, step.batch);
  EXPECT_THAT(plan.status(), IsOk());
  for (const Bytes peak : plan->peak_bytes()) {
    step.most = std::max(step.most, peak.count());
  }
  return step;
}

// A schedule uses all the memory there is, and what is on its way besides is
// over on one rank, then on another: without margins that grow, some limits
// between two that work have no plan.
TEST(GrowingMarginsTest, EveryLimitAboveOneThatWorksHasAPlan) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    auto [job, batch, most] = MakeRoomyStep(seed);
    std::vector<int> failed;
    for (int percent = 99; percent >= 45; percent -= 3) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << " at " << percent << " %");
      job.training.memory_limit = Bytes(most * percent / 100);
      const auto result = PlanFirstStep(job, batch);
      if (!result.ok()) {
        failed.push_back(percent);
        continue;
      }
      EXPECT_THAT(failed, ::testing::IsEmpty()) << "but a lower limit works";
      EXPECT_THAT(ValidateExecutionPlan(result->plan), IsOk());
      for (const Bytes peak : PlanPeaks(result->plan)) {
        EXPECT_LE(peak, job.training.memory_limit);
      }
      ++planned;
    }
  }
  EXPECT_GT(planned, 40);
}

// `pipeloom`, which notes how often it goes on from an answer, and the most
// weight gradients that it then had to place.
class CountingPipeloom : public Strategy, public StartsFromOthers {
 public:
  absl::string_view name() const override { return real_->name(); }
  bool split_backward() const override { return real_->split_backward(); }
  bool chooses_memory() const override { return real_->chooses_memory(); }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel& costs, const BatchMetadata& sample,
      const std::stop_token& stop) const override {
    return real_->MakePartition(costs, sample, stop);
  }
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph& graph, const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override {
    return real_->MakeSchedule(graph, partition, seed, budget);
  }
  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, uint64_t seed,
      const SearchBudget& budget) const override {
    return real_->MakeMemorySchedule(graph, memory, partition, seed, budget);
  }
  absl::StatusOr<MemorySchedule> ImproveMemorySchedule(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& start, uint64_t seed,
      const SearchBudget& budget) const override {
    ++calls;
    weight_grads = std::max(
        weight_grads,
        static_cast<int>(std::count_if(
            graph.tasks().begin(), graph.tasks().end(),
            [](const Task& task) { return task.pass == Pass::kWeightGrad; })));
    return real_->ImproveMemorySchedule(graph, memory, partition, start, seed,
                                        budget);
  }
  std::unique_ptr<Strategy> Starts(SearchBudget segments,
                                   std::vector<LentStep> lent) const override {
    return others().Starts(std::move(segments), std::move(lent));
  }
  std::vector<std::unique_ptr<Strategy>> Rivals() const override {
    return others().Rivals();
  }
  std::vector<std::unique_ptr<Strategy>> QuickRivals(
      const Partition& partition) const override {
    return others().QuickRivals(partition);
  }
  std::vector<std::unique_ptr<Strategy>> TightRivals(
      const Partition& partition) const override {
    return others().TightRivals(partition);
  }
  absl::StatusOr<MemorySchedule> MakeMemoryScheduleFrom(
      const StageGraph& graph, const partition::StepMemory& memory,
      const Partition& partition, const MemorySchedule& known, uint64_t seed,
      const SearchBudget& budget) const override {
    ++calls;
    return others().MakeMemoryScheduleFrom(graph, memory, partition, known,
                                           seed, budget);
  }

  mutable int calls = 0;
  mutable int weight_grads = 0;

 private:
  const StartsFromOthers& others() const {
    return dynamic_cast<const StartsFromOthers&>(*real_);
  }
  std::unique_ptr<Strategy> real_ = MakePipeloom();
};

// A search without a deadline ends after its last part. It once went on with
// one evaluation at a time until none was left.
TEST(ImproveCandidateTest, GoesOnAFewTimesHoweverManyEvaluationsThereAre) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = 12;
  const BatchMetadata batch = RandomBatch(1, 300, 5);
  const emulator::StageCostModel costs(job);
  ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                       partition::PackStep(job, batch, /*first_sample=*/0));
  for (const int64_t evaluations : {500, 4000}) {
    const CountingPipeloom strategy;
    ASSERT_OK_AND_ASSIGN(const PreparedJob prepared,
                         PrepareByRule(strategy, costs, batch));
    PlanInput input{.packed = &packed};
    input.budget.max_evaluations = evaluations;
    strategy.calls = 0;
    ASSERT_OK_AND_ASSIGN(const PlanResult result, PlanStep(prepared, input));
    EXPECT_GT(result.evaluations, evaluations / 4);
    EXPECT_GT(strategy.calls, 0);
    EXPECT_LE(strategy.calls, 12) << evaluations;
  }
}

// Where gaps of communication hide weight gradients the search places none:
// they would be a third of its tasks, of no time. It places those of which gaps
// leave most. The plan has all of them.
TEST(SearchedStepTest, HasOnlyTheWeightGradientsThatGapsDoNotHide) {
  int before = 0;
  for (const double bandwidth : {1e10, 5e10, 0.0}) {
    SCOPED_TRACE(bandwidth);
    JobSpec job = SmallVlmJob();
    job.training.microbatches = 8;
    const bool gaps = bandwidth > 0;
    if (gaps) {
      job.parallel.tp = 4;
      job.cluster.num_nodes = 2;
      job.cluster.intra_node.bandwidth.bytes_per_second = bandwidth;
    }
    const BatchMetadata batch = RandomBatch(1, 300, 5);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const partition::PackedStep packed,
                         partition::PackStep(job, batch, /*first_sample=*/0));
    const CountingPipeloom strategy;
    ASSERT_OK_AND_ASSIGN(const PreparedJob prepared,
                         PrepareByRule(strategy, costs, batch));
    PlanInput input{.packed = &packed};
    input.budget.max_evaluations = 500;
    ASSERT_OK_AND_ASSIGN(const PlanResult result, PlanStep(prepared, input));
    EXPECT_GT(strategy.calls, 0);
    const auto paired = std::count_if(
        result.plan.graph.tasks().begin(), result.plan.graph.tasks().end(),
        [](const Task& task) { return !task.overlaps.is_none(); });
    EXPECT_EQ(paired > 0, gaps);
    if (bandwidth == 1e10) {
      EXPECT_EQ(strategy.weight_grads, 0);
    } else {
      EXPECT_GT(strategy.weight_grads, before);
    }
    before = strategy.weight_grads;
  }
}

// Where the tensors that ranks send and receive break a limit, the order that
// was found stays, with leaner choices on ranks that were over.
TEST(MakeToFitTest, KeepsTheOrderThatTheTensorsLeaveNoRoomFor) {
  int refitted = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    auto [job, batch, most] = MakeRoomyStep(seed);
    for (int percent = 90; percent >= 60; percent -= 5) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << " at " << percent << " %");
      job.training.memory_limit = Bytes(most * percent / 100);
      const emulator::StageCostModel costs(job);
      const auto strategy = MakePipeloom();
      const testing::TestStep step(*strategy, costs, batch);
      const auto& [prepared, packed, microbatches, built, memory] = step;
      absl::StatusOr<MemorySchedule> made = strategy->MakeMemorySchedule(
          built.graph, memory, prepared.partition, 1, {.max_evaluations = 1});
      if (!made.ok()) continue;
      const PlanInput input{.packed = &packed};
      IdVector<RankId, RankSpec> lowered = built.graph.ranks();
      ASSERT_OK_AND_ASSIGN(const std::optional<Candidate> as_it_is,
                           MakeCandidate(prepared, input, built, memory, *made,
                                         built.graph.ranks(), &lowered));
      const absl::StatusOr<Candidate> fitting = MakeToFit(
          prepared, input, built, memory, *made, built.graph.ranks(), {});
      if (!fitting.ok()) {
        EXPECT_TRUE(absl::IsResourceExhausted(fitting.status()));
        continue;
      }
      EXPECT_EQ(fitting->made.found.schedule.order, made->found.schedule.order);
      for (const Bytes peak : PlanPeaks(fitting->plan)) {
        EXPECT_LE(peak, job.training.memory_limit);
      }
      if (as_it_is.has_value()) {
        EXPECT_EQ(fitting->made.selection, made->selection);
        continue;
      }
      ++refitted;
      // Other ranks keep their choices.
      for (const StagePairId id : memory.pairs.ids()) {
        const RankId rank = built.graph.task(memory.pairs[id].forward).rank;
        if (fitting->limits[rank] == built.graph.rank(rank)) {
          EXPECT_EQ(fitting->made.selection[id], made->selection[id]);
        }
      }
    }
  }
  EXPECT_GT(refitted, 5);
}

// A strategy whose first answer leaves no room for tensors, and that has no
// other within lowered limits.
class OneAnswer : public Strategy {
 public:
  explicit OneAnswer(MemorySchedule answer) : answer_(std::move(answer)) {}
  absl::string_view name() const override { return "one-answer"; }
  bool split_backward() const override { return true; }
  bool chooses_memory() const override { return true; }
  absl::StatusOr<Partition> MakePartition(
      const emulator::StageCostModel&, const BatchMetadata&,
      const std::stop_token&) const override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<SearchResult> MakeSchedule(
      const StageGraph&, const Partition&, uint64_t,
      const SearchBudget&) const override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<MemorySchedule> MakeMemorySchedule(
      const StageGraph&, const partition::StepMemory&, const Partition&,
      uint64_t, const SearchBudget&) const override {
    if (calls++ > 0) return absl::ResourceExhaustedError("nothing else");
    return answer_;
  }
  mutable int calls = 0;

 private:
  MemorySchedule answer_;
};

TEST(PlanChoiceTest, AnAnswerWithoutRoomForTensorsGivesWayToOneThatHasIt) {
  int replaced = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    auto [job, batch, most] = MakeRoomyStep(seed);
    for (int percent = 98; percent >= 60; percent -= 2) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << " at " << percent << " %");
      job.training.memory_limit = Bytes(most * percent / 100);
      const emulator::StageCostModel costs(job);
      const auto pipeloom = MakePipeloom();
      const testing::TestStep step(*pipeloom, costs, batch);
      const auto& [by_pipeloom, packed, microbatches, built, all] = step;
      PreparedJob prepared = by_pipeloom;
      // No other choices could make room.
      const partition::StepMemory memory = partition::MakeStepMemory(
          costs, prepared.partition, microbatches, built.pairs,
          IdVector<StageId, std::vector<MemoryChoice>>(
              prepared.partition.stages.size()));
      const auto made_within = [&](int64_t tensors) {
        return pipeloom->MakeMemorySchedule(
            built.graph.WithRanks(
                WithRoom(built.graph, built.graph.ranks(), tensors)),
            memory, prepared.partition, 1, {.max_evaluations = 1});
      };
      const absl::StatusOr<MemorySchedule> full = made_within(0);
      const absl::StatusOr<MemorySchedule> roomy = made_within(12);
      if (!full.ok() || !roomy.ok()) continue;
      const PlanInput input{.packed = &packed};
      const auto fits = [&](const MemorySchedule& made) {
        const auto candidate = MakeCandidate(
            prepared, input, built, memory, made, built.graph.ranks(), nullptr);
        return candidate.ok() && candidate->has_value();
      };
      if (fits(*full) || !fits(*roomy)) continue;
      MemorySchedule answer = *full;
      answer.instead = {{full->found.schedule.order, full->selection},
                        {roomy->found.schedule.order, roomy->selection}};
      const OneAnswer strategy(answer);
      prepared.strategy = &strategy;
      int64_t evaluations = 0;
      ASSERT_OK_AND_ASSIGN(const Candidate found,
                           PlanChoice(prepared, input, built, memory, nullptr,
                                      built.graph.ranks(), {}, &evaluations));
      EXPECT_EQ(found.made.found.schedule.order, roomy->found.schedule.order);
      for (const Bytes peak : PlanPeaks(found.plan)) {
        EXPECT_LE(peak, job.training.memory_limit);
      }
      ++replaced;
      answer.instead.clear();
      const OneAnswer without(answer);
      prepared.strategy = &without;
      EXPECT_TRUE(absl::IsResourceExhausted(
          PlanChoice(prepared, input, built, memory, nullptr,
                     built.graph.ranks(), {}, &evaluations)
              .status()));
    }
  }
  EXPECT_GT(replaced, 5);
}

TEST(WithMarginTest, IsForTwoTensorsOnRanksWhoseLimitWasLowered) {
  JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const PlanResult result,
                       PlanFirstStep(job, RandomBatch(1, 200, 5)));
  const StageGraph& graph = result.plan.graph;
  IdVector<RankId, Bytes> largest(graph.num_ranks());
  for (const Dependency& edge : graph.edges()) {
    const RankId from = graph.task(edge.from).rank;
    const RankId to = graph.task(edge.to).rank;
    if (from == to) continue;
    largest[from] = std::max(largest[from], edge.payload);
    largest[to] = std::max(largest[to], edge.payload);
  }
  IdVector<RankId, RankSpec> limits = graph.ranks();
  EXPECT_EQ(WithMargin(graph, limits), limits);
  limits[RankId(1)].memory.limit -= Bytes(5);
  IdVector<RankId, RankSpec> expected = limits;
  expected[RankId(1)].memory.limit -= 2 * largest[RankId(1)];
  EXPECT_EQ(WithMargin(graph, limits), expected);
}

}  // namespace
}  // namespace pipeloom::planner
