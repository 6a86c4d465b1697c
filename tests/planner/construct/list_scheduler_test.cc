#include "planner/construct/list_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "planner/core/flat_graph.h"
#include "planner/moves/tabu_search.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/planner/small_problems.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::BruteForceStepTime;
using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::SmallProblem;
using ::pipeloom::testing::UniformGraph;
using ::pipeloom::testing::UniformOptions;
using ::testing::HasSubstr;

constexpr Prefer kEveryPreference[] = {Prefer::kBackward, Prefer::kForward,
                                       Prefer::kAlternate, Prefer::kPriority};

TEST(ListScheduleTest, IsLegalAndNeverBeatsTheOptimum) {
  int problems = 0;
  for (uint64_t seed = 0; problems < 1000; ++seed) {
    const auto graph = SmallProblem(seed);
    if (!graph.has_value()) continue;
    ++problems;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const auto optimum = BruteForceStepTime(*graph);
    for (const Prefer prefer : kEveryPreference) {
      // RandomGraph's limits let microbatches run one after another.
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          ListSchedule(*graph, {.prefer = prefer,
                                .patience = seed % 5 == 0 ? 1.0 : 0.0}));
      ASSERT_THAT(ValidateSchedule(*graph, schedule), IsOk());
      ASSERT_TRUE(optimum.has_value());
      EXPECT_GE(schedule.step_time(), *optimum);
    }
  }
}

TEST(ListScheduleTest, NeverDeadlocksUnderTheTightestMemory) {
  RandomGraphOptions options;
  options.max_ranks = 5;
  options.max_segments = 4;
  options.max_microbatches = 8;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph roomy = RandomGraph(seed, options);
    // Just what the largest microbatch needs alone.
    const FlatGraph flat(roomy);
    const MemoryGuard guard(flat);
    IdVector<RankId, RankSpec> ranks = roomy.ranks();
    for (const RankId r : ranks.ids()) {
      RankMemory& memory = ranks[r].memory;
      memory.limit =
          memory.static_bytes() +
          Bytes(std::max<int64_t>(
              guard.shortage().needed[static_cast<size_t>(r.value())], 1));
    }
    const StageGraph graph = roomy.WithRanks(std::move(ranks));
    Random random(seed);
    std::vector<int32_t> order(static_cast<size_t>(graph.num_tasks()));
    std::iota(order.begin(), order.end(), 0);
    for (const Prefer prefer : kEveryPreference) {
      random.Shuffle(absl::MakeSpan(order));
      ASSERT_OK_AND_ASSIGN(
          const Schedule schedule,
          ListSchedule(graph,
                       {.order = order,
                        .prefer = prefer,
                        .reserve = 0.5 * static_cast<double>(seed % 3)}));
      ASSERT_THAT(ValidateSchedule(graph, schedule), IsOk());
    }
  }
}

// Chunks forward, then back on the same ranks: the classic way to fill a rank
// with first chunks that wait for their second.
TEST(ListScheduleTest, InterleavedChunksFitInWhatOneMicrobatchNeeds) {
  for (const bool vee : {false, true}) {
    for (const int32_t chunks : {2, 3, 4}) {
      for (int64_t limit = chunks; limit <= 2 * chunks + 2; ++limit) {
        for (const Prefer prefer : kEveryPreference) {
          SCOPED_TRACE(::testing::Message() << "vee " << vee << " chunks "
                                            << chunks << " limit " << limit);
          const StageGraph graph = UniformGraph({.ranks = 4,
                                                 .chunks = chunks,
                                                 .microbatches = 12,
                                                 .vee = vee,
                                                 .split_backward = true,
                                                 .limit = Bytes(1000 * limit)});
          ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                               ListSchedule(graph, {.prefer = prefer}));
          EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
        }
      }
    }
  }
}

// More tasks of a microbatch on a rank than the guard looks at one by one.
TEST(ListScheduleTest, ManyChunksFitInWhatOneMicrobatchNeeds) {
  for (const int32_t chunks : {6, 11, 24}) {
    for (int64_t limit = chunks; limit <= chunks + 9; limit += 3) {
      for (const Prefer prefer : kEveryPreference) {
        SCOPED_TRACE(::testing::Message()
                     << "chunks " << chunks << " limit " << limit);
        const StageGraph graph = UniformGraph({.ranks = 3,
                                               .chunks = chunks,
                                               .microbatches = 5,
                                               .split_backward = true,
                                               .limit = Bytes(1000 * limit)});
        ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                             ListSchedule(graph, {.prefer = prefer}));
        EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
      }
    }
  }
}

TEST(ListScheduleTest, GivesUpExactlyWhenItWouldTakeThatLong) {
  RandomGraphOptions options;
  options.max_ranks = 5;
  options.max_segments = 4;
  options.max_microbatches = 8;
  options.with_memory_limits = true;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    const FlatGraph flat(graph);
    ListScheduler scheduler(flat);
    if (!scheduler.CanRun()) continue;
    for (const Prefer prefer : kEveryPreference) {
      ListPolicy policy{.prefer = prefer};
      const int64_t time = scheduler.Run(policy);
      for (const int64_t early : {time, time - 1, time / 2}) {
        policy.give_up = early;
        EXPECT_EQ(scheduler.Run(policy), kNoLimit);
      }
      policy.give_up = time + 1;
      EXPECT_EQ(scheduler.Run(policy), time);
    }
  }
}

// Returns the tasks of a rank that take memory, in the order of a sequence.
std::vector<int32_t> TakersOf(const FlatGraph& graph, int32_t rank,
                              absl::Span<const int32_t> sequence) {
  std::vector<int32_t> takers;
  for (const int32_t t : sequence) {
    if (graph.rank[t] == rank && graph.alloc[t] > 0) takers.push_back(t);
  }
  return takers;
}

TEST(ListScheduleTest, KeepingTakersFollowsLegalOrdersThatTheGuardRefuses) {
  RandomGraphOptions options;
  options.max_ranks = 4;
  options.max_segments = 3;
  options.max_microbatches = 6;
  options.with_memory_limits = true;
  options.with_epilogues = true;
  int bound = 0;
  int shorter = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, options);
    const FlatGraph flat(graph);
    ListScheduler scheduler(flat);
    ASSERT_TRUE(scheduler.CanRun());
    scheduler.Run({});
    // Tabu search asks no guard.
    TabuSearch tabu(flat);
    tabu.Start(scheduler.sequence());
    Random random(seed);
    tabu.Run(60, /*target=*/0, random);
    const std::vector<int32_t> order(tabu.sequence().begin(),
                                     tabu.sequence().end());
    const int64_t guarded =
        scheduler.Run({.order = order, .prefer = Prefer::kPriority});
    for (const Prefer prefer : kEveryPreference) {
      for (const double patience : {0.0, 1.0}) {
        const int64_t time = scheduler.Run({.order = order,
                                            .prefer = prefer,
                                            .patience = patience,
                                            .keeps_takers = true});
        ASSERT_LT(time, kNoLimit);
        ASSERT_OK_AND_ASSIGN(
            const Schedule schedule,
            TimeSchedule(graph, OrdersOf(flat, scheduler.sequence())));
        ASSERT_THAT(ValidateSchedule(graph, schedule), IsOk());
        EXPECT_EQ(schedule.step_time(), Nanoseconds(time));
        shorter += time < guarded ? 1 : 0;
        for (int32_t r = 0; r < flat.num_ranks; ++r) {
          int64_t taken = 0;
          for (const int32_t t : order) {
            if (flat.rank[t] == r) taken += flat.alloc[t];
          }
          if (taken <= flat.capacity[r]) continue;
          ++bound;
          EXPECT_EQ(TakersOf(flat, r, scheduler.sequence()),
                    TakersOf(flat, r, order));
        }
      }
    }
  }
  EXPECT_GT(bound, 500);
  EXPECT_GT(shorter, 100);
}

TEST(ListScheduleTest, KeepingTakersOfAnyOrderIsLegalOrHasNoAnswer) {
  int answers = 0;
  int none = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomGraphOptions options;
    options.with_memory_limits = true;
    const StageGraph graph = RandomGraph(seed, options);
    const FlatGraph flat(graph);
    ListScheduler scheduler(flat);
    Random random(seed);
    std::vector<int32_t> order(static_cast<size_t>(flat.num_tasks));
    std::iota(order.begin(), order.end(), 0);
    random.Shuffle(absl::MakeSpan(order));
    const int64_t time = scheduler.Run({.order = order, .keeps_takers = true});
    if (time >= kNoLimit) {
      ++none;
      continue;
    }
    ++answers;
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(graph, OrdersOf(flat, scheduler.sequence())));
    EXPECT_THAT(ValidateSchedule(graph, schedule), IsOk());
  }
  EXPECT_GT(answers, 20);
  EXPECT_GT(none, 20);
}

TEST(ListScheduleTest, SaysWhatDoesNotFit) {
  const UniformOptions options{.ranks = 2, .chunks = 3, .limit = Bytes(2500)};
  const StageGraph graph = UniformGraph(options);
  EXPECT_THAT(ListSchedule(graph),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "rank 0: task 4 (F model stage 4 microbatch 0), alone "
                        "with its microbatch, needs 2.93 KiB, 500 B over the "
                        "limit of 2.44 KiB"));
  UniformOptions enough = options;
  enough.limit = Bytes(3000);
  EXPECT_THAT(ListSchedule(UniformGraph(enough)), IsOk());
}

TEST(ListScheduleTest, StaticMemoryCountsInWhatDoesNotFit) {
  StageGraph graph = UniformGraph({.ranks = 2, .limit = Bytes(5000)});
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  ranks[RankId(1)].memory.weights = Bytes(9000);
  EXPECT_THAT(
      ListSchedule(graph.WithRanks(std::move(ranks))),
      FailsWith(
          absl::StatusCode::kResourceExhausted,
          HasSubstr("needs 9.77 KiB, 4.88 KiB over the limit of 4.88 KiB")));
}

TEST(ListScheduleTest, WeightGradientsFillTheGapsOfAUniformPipeline) {
  const StageGraph graph =
      UniformGraph({.ranks = 4, .microbatches = 8, .split_backward = true});
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, ListSchedule(graph));
  EXPECT_EQ(schedule.makespan(), Milliseconds(27));
}

TEST(ListScheduleTest, PatienceWaitsForWhatIsPreferred) {
  // Rank 1 may start a long W just before a B arrives.
  IdVector<TaskId, Task> tasks;
  const auto add = [&](int32_t rank, Pass pass, double ms) {
    return tasks.push_back({.rank = RankId(rank),
                            .pass = pass,
                            .module = ModuleId(0),
                            .stage = StageId(0),
                            .microbatch = MicrobatchId(0),
                            .duration = Milliseconds(ms)});
  };
  const TaskId feed = add(0, Pass::kForward, 1);
  add(1, Pass::kWeightGrad, 10);
  const TaskId chain = add(1, Pass::kBackward, 1);
  const TaskId rest = add(0, Pass::kBackward, 10);
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      StageGraph::Create(
          "wait", {{}, {}}, {"model"}, std::move(tasks),
          {{.from = feed, .to = chain}, {.from = chain, .to = rest}}));
  ASSERT_OK_AND_ASSIGN(const Schedule greedy, ListSchedule(graph));
  ASSERT_OK_AND_ASSIGN(const Schedule patient,
                       ListSchedule(graph, {.patience = 0.2}));
  EXPECT_EQ(greedy.makespan(), Milliseconds(21));
  EXPECT_EQ(patient.makespan(), Milliseconds(12));
}

TEST(ListScheduleTest, LowerCapacityHoldsForwardsBack) {
  const StageGraph graph =
      UniformGraph({.ranks = 2, .microbatches = 8, .limit = Bytes(9000)});
  const std::vector<int64_t> capacity = {2000, 1000};
  ASSERT_OK_AND_ASSIGN(
      const Schedule schedule,
      ListSchedule(graph, {.prefer = Prefer::kForward, .capacity = capacity}));
  EXPECT_LE(schedule.peak[RankId(0)], Bytes(2000));
  EXPECT_LE(schedule.peak[RankId(1)], Bytes(1000));
}

// Four chunks of a microbatch follow one another on a rank, with transfers of
// the time of five tasks, and there is room for six activations. The oldest
// microbatch needs four of them. The second one may use the other two, a third
// only those that are reserved for the first two.
TEST(ListScheduleTest, ReserveKeepsRoomForStartedMicrobatches) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  constexpr int32_t kChunks = 4;
  for (int32_t m = 0; m < 6; ++m) {
    for (int32_t i = 0; i < 2 * kChunks; ++i) {
      const bool forward = i < kChunks;
      Task task{.rank = RankId(0),
                .module = ModuleId(0),
                .stage = StageId(forward ? i : 2 * kChunks - 1 - i),
                .microbatch = MicrobatchId(m),
                .duration = Milliseconds(1)};
      task.pass = forward ? Pass::kForward : Pass::kBackward;
      (forward ? task.alloc : task.free) = Bytes(1000);
      const TaskId id = tasks.push_back(task);
      if (i == 0) continue;
      edges.push_back(
          {.from = TaskId(id.value() - 1), .to = id, .delay = Milliseconds(5)});
    }
  }
  IdVector<RankId, RankSpec> ranks(1);
  ranks[RankId(0)].memory.limit = Bytes(6000);
  ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                       StageGraph::Create("chunks", std::move(ranks), {"model"},
                                          std::move(tasks), std::move(edges)));
  // Returns how many microbatches start before the first backward.
  const auto started = [&](double reserve) {
    const absl::StatusOr<Schedule> schedule =
        ListSchedule(graph, {.reserve = reserve});
    EXPECT_THAT(schedule, IsOk());
    int count = 0;
    for (const TaskId t : schedule->order[RankId(0)]) {
      if (graph.task(t).pass == Pass::kBackward) break;
      if (graph.task(t).stage == StageId(0)) ++count;
    }
    return count;
  };
  EXPECT_EQ(started(0), 3);
  EXPECT_EQ(started(1), 2);
}

TEST(ListScheduleTest, TakesAnEmptyGraphAndRanksWithoutTasks) {
  EXPECT_THAT(ListSchedule(StageGraph()), IsOk());
  ASSERT_OK_AND_ASSIGN(const StageGraph idle,
                       StageGraph::Create("idle", {{}, {}}, {"model"}, {}, {}));
  EXPECT_THAT(ListSchedule(idle), IsOk());
}

}  // namespace
}  // namespace pipeloom::planner
