#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "planner/core/flat_graph.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/dip/dip_strategy.h"
#include "planner/strategies/dip/dual_queue.h"
#include "planner/strategies/dip/segment_order.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/branching_problems.h"
#include "tests/planner/small_problems.h"
#include "tests/support/random_problem.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

std::vector<int64_t> RandomPriorities(const StageGraph& graph, Random& random) {
  const SegmentUnits units(graph);
  std::vector<int32_t> order(static_cast<size_t>(units.num_units));
  std::iota(order.begin(), order.end(), 0);
  random.Shuffle(absl::MakeSpan(order));
  return SegmentPriorities(units, order);
}

TEST(DualQueue, IsLegalAndNeverStuckHoweverTightTheMemory) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const StageGraph graph =
        testing::RandomGraph(seed, {.max_ranks = 4,
                                    .max_segments = 3,
                                    .max_microbatches = 5,
                                    .with_memory_limits = seed % 4 != 0,
                                    .with_epilogues = seed % 2 == 0});
    const FlatGraph flat(graph);
    DualQueue queue(flat);
    ASSERT_TRUE(queue.CanRun());
    for (int i = 0; i < 3; ++i) {
      queue.set_reserve(0.5 * i);
      const int64_t time = queue.Run(RandomPriorities(graph, random));
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          TimeSchedule(graph, OrdersOf(flat, queue.sequence())));
      ASSERT_THAT(ValidateSchedule(graph, schedule), IsOk());
      EXPECT_EQ(schedule.step_time(), Nanoseconds(time));
    }
  }
}

// Encoders in parallel: a microbatch may begin on several ranks, and on one of
// them with a part that the guard would not begin with.
TEST(DualQueue, IsNeverStuckWhereAMicrobatchHasSeveralFirstTasks) {
  int ran = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const StageGraph graph = testing::BranchingProblem(seed, 60);
    const FlatGraph flat(graph);
    DualQueue queue(flat);
    if (!queue.CanRun()) continue;
    ++ran;
    std::vector<int64_t> priority(static_cast<size_t>(graph.num_tasks()));
    std::iota(priority.begin(), priority.end(), 0);
    for (int i = 0; i < 3; ++i) {
      random.Shuffle(absl::MakeSpan(priority));
      queue.set_reserve(0.5 * i);
      queue.Run(priority);
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          TimeSchedule(graph, OrdersOf(flat, queue.sequence())));
      ASSERT_THAT(ValidateSchedule(graph, schedule), IsOk());
    }
  }
  EXPECT_GT(ran, 2000);
}

TEST(DualQueue, IsOneForwardOneBackwardOnAUniformPipeline) {
  for (const int32_t p : {1, 2, 4, 7}) {
    for (const int32_t m : {1, 3, 8, 20}) {
      SCOPED_TRACE(::testing::Message() << p << " ranks, " << m);
      const StageGraph graph =
          testing::UniformGraph({.ranks = p, .microbatches = m});
      const FlatGraph flat(graph);
      DualQueue queue(flat);
      std::vector<int64_t> priority(static_cast<size_t>(flat.num_tasks));
      std::iota(priority.begin(), priority.end(), 0);
      // F takes 1 ms, B 2 ms (uniform graphs do both gradients in one).
      EXPECT_EQ(Nanoseconds(queue.Run(priority)),
                Milliseconds(3.0 * (m + p - 1)));
    }
  }
}

TEST(DualQueue, TakesTurnsOnlyBetweenTasksThatHaveArrived) {
  // One rank: three forwards that are there from the start, and backwards.
  const StageGraph graph =
      testing::UniformGraph({.ranks = 1, .microbatches = 3});
  const FlatGraph flat(graph);
  DualQueue queue(flat);
  std::vector<int64_t> priority(static_cast<size_t>(flat.num_tasks));
  std::iota(priority.begin(), priority.end(), 0);
  queue.Run(priority);
  std::string passes;
  for (const int32_t t : queue.sequence()) {
    passes += PassLetter(graph.task(TaskId(t)).pass);
  }
  EXPECT_EQ(passes, "FBFBFB");
}

TEST(SegmentUnits, AModulesForwardsInAMicrobatchAreOneUnit) {
  const StageGraph graph =
      testing::UniformGraph({.ranks = 4, .chunks = 2, .microbatches = 5});
  const SegmentUnits units(graph);
  EXPECT_EQ(units.num_units, 10);
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    EXPECT_EQ(
        units.unit[static_cast<size_t>(t.value())],
        task.microbatch.value() * 2 + (task.pass == Pass::kForward ? 0 : 1));
  }
}

TEST(Dip, IsLegalOnRandomProblemsAndNeverBelowTheOptimum) {
  int solved = 0;
  const auto strategy = MakeDipOrder();
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const std::optional<StageGraph> graph = testing::SmallProblem(seed);
    if (!graph.has_value()) continue;
    ASSERT_OK_AND_ASSIGN(
        const SearchResult found,
        strategy->MakeSchedule(*graph, {}, seed, {.max_evaluations = 200}));
    EXPECT_THAT(ValidateSchedule(*graph, found.schedule), IsOk());
    EXPECT_LE(found.evaluations, 200);
    const std::optional<Duration> optimum = testing::BruteForceStepTime(*graph);
    ASSERT_TRUE(optimum.has_value());
    EXPECT_GE(found.schedule.step_time(), *optimum);
    EXPECT_LE(found.lower_bound, *optimum);
    ++solved;
  }
  EXPECT_GT(solved, 50);
}

TEST(Dip, SearchingOrdersNeverMakesItWorseAndThreadsDoNotMatter) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph =
        testing::RandomGraph(seed, {.max_ranks = 4,
                                    .max_segments = 3,
                                    .max_microbatches = 6,
                                    .with_memory_limits = true});
    const SearchBudget budget{.max_evaluations = 150};
    ASSERT_OK_AND_ASSIGN(
        const SearchResult first,
        MakeDipInterleave()->MakeSchedule(graph, {}, seed, budget));
    ASSERT_OK_AND_ASSIGN(const SearchResult searched,
                         MakeDipOrder()->MakeSchedule(graph, {}, seed, budget));
    EXPECT_LE(searched.schedule.step_time(), first.schedule.step_time());
    ASSERT_OK_AND_ASSIGN(
        const SearchResult threads,
        MakeDipOrder()->MakeSchedule(graph, {}, seed,
                                     {.max_evaluations = 150, .threads = 2}));
    EXPECT_EQ(threads.schedule, searched.schedule);
    EXPECT_EQ(threads.evaluations, searched.evaluations);
  }
}

// It gets the same tool against ranks full of first chunks as the search that
// it is compared with (ListPolicy::reserve).
TEST(Dip, ReservesMemoryWhereThatShortensTheOrderOfTheBatch) {
  const StageGraph graph =
      testing::UniformGraph({.ranks = 8,
                             .chunks = 4,
                             .microbatches = 16,
                             .backward = Microseconds(2000),
                             .limit = Bytes(18000)});
  ASSERT_OK_AND_ASSIGN(
      const SearchResult one,
      MakeDipInterleave()->MakeSchedule(graph, {}, 1, {.max_evaluations = 1}));
  ASSERT_OK_AND_ASSIGN(
      const SearchResult some,
      MakeDipInterleave()->MakeSchedule(graph, {}, 1, {.max_evaluations = 9}));
  EXPECT_EQ(one.evaluations, 1);
  EXPECT_EQ(some.evaluations, 5);
  EXPECT_LT(ToSeconds(some.schedule.step_time()),
            0.95 * ToSeconds(one.schedule.step_time()));
}

absl::StatusOr<PlanResult> PlanSmallJob(const JobSpec& job, uint64_t seed,
                                        const DipOptions& options,
                                        int64_t evaluations = 60) {
  const emulator::StageCostModel costs(job);
  const BatchMetadata batch = testing::RandomBatch(seed, 60, 3);
  const std::unique_ptr<Strategy> strategy = MakeDip(options);
  absl::StatusOr<PreparedJob> prepared = PrepareJob(*strategy, costs, batch);
  if (!prepared.ok()) return prepared.status();
  absl::StatusOr<partition::PackedStep> packed =
      partition::PackStep(job, batch, 0);
  if (!packed.ok()) return packed.status();
  return PlanStep(*prepared, {.packed = &*packed,
                              .seed = seed,
                              .budget = {.max_evaluations = evaluations}});
}

TEST(Dip, PlansWithinTheLimitAtEveryLevelAndSaysWhenNothingFits) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    JobSpec job = testing::SmallVlmJob();
    Bytes least = job.MemoryLimit();
    ASSERT_OK_AND_ASSIGN(const PlanResult roomy, PlanSmallJob(job, seed, {}));
    for (const Bytes peak : roomy.peak_bytes()) least = std::min(least, peak);
    int fitted = 0;
    for (const double share : {1.0, 0.97, 0.94, 0.9, 0.5}) {
      job.training.memory_limit = Bytes(
          static_cast<int64_t>(share * static_cast<double>(least.count())));
      for (const DipOptions& options :
           {DipOptions{}, DipOptions{.min_memory_only = true},
            DipOptions{.memory = false},
            DipOptions{.reorder = false, .memory = false},
            DipOptions{
                .interleave = false, .reorder = false, .memory = false}}) {
        SCOPED_TRACE(::testing::Message()
                     << "seed " << seed << " share " << share << " "
                     << MakeDip(options)->name());
        const absl::StatusOr<PlanResult> plan =
            PlanSmallJob(job, seed, options);
        if (!plan.ok()) {
          EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
          continue;
        }
        ++fitted;
        EXPECT_THAT(ValidateExecutionPlan(plan->plan), IsOk());
        EXPECT_GE(plan->predicted.step_time(), plan->lower_bound);
        for (const Bytes peak : plan->peak_bytes()) {
          EXPECT_LE(peak, job.training.memory_limit);
        }
      }
    }
    EXPECT_GT(fitted, 5);
  }
}

TEST(Dip, NamesTellTheLevelsOfTheAblation) {
  EXPECT_EQ(MakeDip()->name(), "dip");
  EXPECT_EQ(MakeDipOrder()->name(), "dip-order");
  EXPECT_EQ(MakeDipInterleave()->name(), "dip-interleave");
  EXPECT_EQ(MakeDipPartition()->name(), "dip-partition");
  EXPECT_TRUE(MakeDip()->chooses_memory());
  EXPECT_FALSE(MakeDipOrder()->chooses_memory());
}

}  // namespace
}  // namespace pipeloom::planner
