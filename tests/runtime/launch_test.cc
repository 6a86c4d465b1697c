#include "runtime/launch.h"

#include <atomic>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "tests/runtime/fault_injection.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;
using ::pipeloom::testing::UniformGraph;
using ::testing::AllOf;
using ::testing::HasSubstr;

ExecutionPlan PlanOf(const StageGraph& graph, uint64_t seed) {
  Random random(seed);
  auto schedule = TimeSchedule(graph, RandomOrders(graph, random));
  PIPELOOM_CHECK(schedule.ok());
  auto plan = planner::LowerPlan(graph, *schedule);
  PIPELOOM_CHECK(plan.ok());
  return *std::move(plan);
}

// Three ranks, with an epilogue each; a few milliseconds at scale 1.
ExecutionPlan SmallPlan() {
  StageGraph graph = UniformGraph({.ranks = 3,
                                   .microbatches = 3,
                                   .forward = Microseconds(100),
                                   .backward = Microseconds(100),
                                   .weight_grad = Microseconds(100),
                                   .delay = Microseconds(20)});
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) {
    rank.epilogue = Microseconds(50);
    rank.memory.weights = Bytes(10);
  }
  return PlanOf(graph.WithRanks(ranks), 1);
}

size_t IndexOf(const ExecutionPlan& plan, RankId rank,
               const Instruction& instruction) {
  const auto& program = plan.programs[rank];
  return static_cast<size_t>(
      std::find(program.begin(), program.end(), instruction) - program.begin());
}

TEST(RunPlanTest, TheTraceTellsWhatTheRanksDid) {
  const ExecutionPlan plan = SmallPlan();
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, RunPlan(plan));
  EXPECT_EQ(trace.num_ranks, 3);
  EXPECT_GE(trace.step_time(), plan.predicted_step_time);
  std::map<std::pair<RankId, SimTime>, int> starts;
  std::set<EdgeId> transfers;
  int32_t tasks = 0;
  int32_t epilogues = 0;
  std::pair<RankId, SimTime> last{};
  for (const Span& span : trace.spans) {
    EXPECT_LE(span.start, span.end);
    EXPECT_GE(span.start, kStepStart);
    EXPECT_LE(span.end, trace.finish);
    EXPECT_LE(last, std::pair(span.rank, span.start));
    last = {span.rank, span.start};
    tasks += span.kind == SpanKind::kTask;
    epilogues += span.kind == SpanKind::kEpilogue;
    if (span.kind == SpanKind::kTransfer) {
      EXPECT_TRUE(transfers.insert(span.edge).second);
      EXPECT_EQ(span.rank,
                plan.graph.task(plan.graph.edge(span.edge).from).rank);
      EXPECT_EQ(span.end - span.start, Microseconds(20));
    }
  }
  EXPECT_EQ(tasks, plan.graph.num_tasks());
  EXPECT_EQ(epilogues, 6);
  int32_t crossing = 0;
  for (const Dependency& d : plan.graph.edges()) {
    crossing += plan.graph.task(d.from).rank != plan.graph.task(d.to).rank;
  }
  EXPECT_EQ(static_cast<int32_t>(transfers.size()), crossing);
}

// Whatever the threads do, a task cannot end before its duration is over, nor
// start before its inputs are there.
TEST(RunPlanTest, NothingHappensBeforeItsTime) {
  const ExecutionPlan plan = SmallPlan();
  ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                       RunPlan(plan, {.max_lag = WallDuration::zero()}));
  IdVector<TaskId, Span> span_of(plan.graph.num_tasks());
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTask) span_of[span.task] = span;
  }
  for (const TaskId t : plan.graph.task_ids()) {
    EXPECT_GE(span_of[t].end - span_of[t].start, plan.graph.task(t).duration);
  }
  for (const Dependency& d : plan.graph.edges()) {
    EXPECT_GE(span_of[d.to].start, span_of[d.from].end + d.delay);
  }
}

TEST(RunPlanTest, OrderAndMemoryAreThePlansOnRandomProblems) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {.max_ranks = 4,
                                                .max_segments = 3,
                                                .max_microbatches = 4,
                                                .with_epilogues = true});
    const ExecutionPlan plan = PlanOf(graph, seed);
    const bool allocate = seed % 2 == 0;
    ASSERT_OK_AND_ASSIGN(
        const StepTrace trace,
        RunPlan(plan, {.time_scale = 1e-3, .allocate = allocate}));
    IdVector<RankId, std::vector<TaskId>> expected(graph.num_ranks());
    for (const RankId rank : graph.rank_ids()) {
      for (const Instruction& i : plan.programs[rank]) {
        if (const auto* c = std::get_if<Compute>(&i)) {
          expected[rank].push_back(c->task);
        }
      }
    }
    EXPECT_EQ(TaskOrders(trace), expected);
    const IdVector<RankId, Bytes> peaks = planner::PlanPeaks(plan);
    const auto measured = MemoryPeaks(trace);
    for (const RankId rank : graph.rank_ids()) {
      EXPECT_EQ(measured[rank].total, peaks[rank]);
    }
    // Everything but the static memory is given back.
    IdVector<RankId, Bytes> held(graph.num_ranks());
    for (const MemoryStep& step : trace.memory) held[step.rank] += step.delta;
    for (const RankId rank : graph.rank_ids()) {
      EXPECT_EQ(held[rank], graph.rank(rank).memory.static_bytes());
    }
  }
}

TEST(RunPlanTest, ADelayInsideARankIsKeptToo) {
  IdVector<TaskId, Task> tasks(
      2,
      {.rank = RankId(0), .module = ModuleId(0), .duration = Microseconds(10)});
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      StageGraph::Create(
          "delay", IdVector<RankId, RankSpec>(1), {"m"}, tasks,
          {{.from = TaskId(0), .to = TaskId(1), .delay = Microseconds(500)}}));
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, RunPlan(PlanOf(graph, 0)));
  EXPECT_GE(trace.step_time(), Microseconds(520));
}

TEST(RunPlanTest, AnEmptyPlanIsDoneAtOnce) {
  ExecutionPlan plan;
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, RunPlan(plan));
  EXPECT_EQ(trace, StepTrace{});
}

TEST(RunPlanTest, RefusesBadOptionsAndUncheckedPlans) {
  const ExecutionPlan plan = SmallPlan();
  for (const double scale : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(RunPlan(plan, {.time_scale = scale}),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          HasSubstr("time_scale is")));
  }
  EXPECT_THAT(
      RunPlan(plan, {.timeout = std::chrono::nanoseconds(-1)}),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("timeout is")));
  EXPECT_THAT(
      RunPlan(plan, {.max_lag = std::chrono::nanoseconds(-1)}),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("max_lag is")));
  ExecutionPlan broken = plan;
  broken.programs[RankId(1)].pop_back();
  broken.programs[RankId(1)].erase(broken.programs[RankId(1)].begin());
  EXPECT_THAT(RunPlan(broken), FailsWith(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("plan: rank 1")));
}

TEST(RunPlanTest, AFailingDeviceStopsAllRanksAndIsNamed) {
  const ExecutionPlan plan = SmallPlan();
  const RankOrders orders = [&] {
    RankOrders result(3);
    for (const RankId r : plan.programs.ids()) {
      for (const Instruction& i : plan.programs[r]) {
        if (const auto* c = std::get_if<Compute>(&i)) {
          result[r].push_back(c->task);
        }
      }
    }
    return result;
  }();
  for (const RankId rank : plan.programs.ids()) {
    for (int32_t n = 0; n < 6; ++n) {
      SCOPED_TRACE(::testing::Message()
                   << "rank " << rank.value() << " task " << n);
      std::atomic<int32_t> optimizer_steps{0};
      const Compute failing{orders[rank][static_cast<size_t>(n)]};
      const std::string where = absl::StrFormat(
          "rank %d, step 0, instruction %d (compute task %d): the device fell "
          "off the bus",
          rank.value(), IndexOf(plan, rank, failing), failing.task.value());
      EXPECT_THAT(RunPlanWith(plan, {.time_scale = 0.1},
                              FaultyParts({Fault::kFail, rank, n}, {},
                                          &optimizer_steps)),
                  FailsWith(absl::StatusCode::kInternal, where));
      EXPECT_EQ(optimizer_steps, 0) << "a failed step was applied";
    }
  }
}

TEST(RunPlanTest, ADeviceThatThrowsOrHasNoMemoryStopsAllRanksAndIsNamed) {
  const ExecutionPlan plan = SmallPlan();
  for (const RankId rank : plan.programs.ids()) {
    for (const int32_t n : {0, 3, 5}) {  // First, middle, last task.
      SCOPED_TRACE(::testing::Message()
                   << "rank " << rank.value() << " task " << n);
      const std::string where =
          absl::StrFormat("rank %d, step 0, instruction ", rank.value());
      std::atomic<int32_t> optimizer_steps{0};
      EXPECT_THAT(RunPlanWith(plan, {.time_scale = 0.1},
                              FaultyParts({Fault::kThrow, rank, n}, {},
                                          &optimizer_steps)),
                  FailsWith(absl::StatusCode::kInternal,
                            AllOf(HasSubstr(where), HasSubstr("(compute task"),
                                  HasSubstr("it threw: the device is on "
                                            "fire"))));
      EXPECT_THAT(RunPlanWith(plan, {.time_scale = 0.1},
                              FaultyParts({Fault::kOutOfMemory, rank, n}, {},
                                          &optimizer_steps)),
                  FailsWith(absl::StatusCode::kResourceExhausted,
                            AllOf(HasSubstr(where), HasSubstr("(compute task"),
                                  HasSubstr("out of memory"))));
      EXPECT_EQ(optimizer_steps, 0) << "a failed step was applied";
    }
  }
}

TEST(RunPlanTest, ARankThatThrowsInItsOptimizerStepHoldsUpNoOther) {
  const ExecutionPlan plan = SmallPlan();
  std::atomic<int32_t> optimizer_steps{0};
  std::atomic<bool> thrown{false};
  EXPECT_THAT(RunPlanWith(plan, {.time_scale = 0.1},
                          FaultyParts({}, {}, &optimizer_steps,
                                      [&] {
                                        if (thrown.exchange(true)) return;
                                        throw std::bad_alloc();
                                      })),
              FailsWith(absl::StatusCode::kResourceExhausted,
                        HasSubstr("out of memory")));
  EXPECT_EQ(optimizer_steps, 2);
}

TEST(RunPlanTest, AStopThatComesAfterTheCommitIsTooLate) {
  const ExecutionPlan plan = SmallPlan();
  std::stop_source stop;
  RunOptions options{.time_scale = 0.1};
  options.stop = stop.get_token();
  std::atomic<int32_t> optimizer_steps{0};
  EXPECT_THAT(RunPlanWith(plan, options,
                          FaultyParts({}, {}, &optimizer_steps,
                                      [&] { stop.request_stop(); })),
              IsOk());
  EXPECT_EQ(optimizer_steps, 3) << "applied on some ranks only";
}

TEST(RunPlanTest, AFailingTransportStopsAllRanksAndIsNamed) {
  const ExecutionPlan plan = SmallPlan();
  for (const RankId rank : plan.programs.ids()) {
    std::vector<size_t> posts;
    for (size_t k = 0; k < plan.programs[rank].size(); ++k) {
      const Instruction& i = plan.programs[rank][k];
      if (std::holds_alternative<Send>(i) || std::holds_alternative<Recv>(i)) {
        posts.push_back(k);
      }
    }
    for (size_t n = 0; n < posts.size(); ++n) {
      std::atomic<int32_t> optimizer_steps{0};
      EXPECT_THAT(
          RunPlanWith(
              plan, {.time_scale = 0.1},
              FaultyParts({}, {Fault::kFail, rank, static_cast<int32_t>(n)},
                          &optimizer_steps)),
          FailsWith(absl::StatusCode::kUnavailable,
                    AllOf(HasSubstr(absl::StrFormat(
                              "rank %d, step 0, instruction %d (", rank.value(),
                              posts[n])),
                          HasSubstr("connection reset by peer"))));
      EXPECT_EQ(optimizer_steps, 0);
    }
  }
}

TEST(RunPlanTest, AHangingDeviceIsFoundAtTheTimeoutAndNamedFirst) {
  const ExecutionPlan plan = SmallPlan();
  std::atomic<int32_t> optimizer_steps{0};
  const auto start = WallNow();
  EXPECT_THAT(
      RunPlanWith(
          plan, {.timeout = std::chrono::milliseconds(200)},
          FaultyParts({Fault::kHang, RankId(1), 2}, {}, &optimizer_steps)),
      FailsWith(absl::StatusCode::kDeadlineExceeded,
                AllOf(HasSubstr("busy: rank 1, step 0, instruction"),
                      HasSubstr("(compute task"),
                      HasSubstr("waiting for others: rank 0, step 0"))));
  EXPECT_EQ(optimizer_steps, 0);
  // Bounded: far below the hour that the device would take.
  EXPECT_LT(WallNow() - start, std::chrono::seconds(30));
}

// The next message of the channel shows the loss, or the timeout if all wait
// before it comes to that.
TEST(RunPlanTest, ALostMessageIsFound) {
  const ExecutionPlan plan = SmallPlan();
  int32_t by_timeout = 0;
  for (int32_t n = 0; n < 6; ++n) {
    SCOPED_TRACE(::testing::Message() << "post " << n);
    std::atomic<int32_t> optimizer_steps{0};
    const absl::StatusOr<StepTrace> trace = RunPlanWith(
        plan, {.time_scale = 0.01, .timeout = std::chrono::milliseconds(300)},
        FaultyParts({}, {Fault::kHang, RankId(0), n}, &optimizer_steps));
    EXPECT_THAT(trace,
                ::testing::AnyOf(
                    FailsWith(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("is sent where edge")),
                    FailsWith(absl::StatusCode::kDeadlineExceeded,
                              AllOf(HasSubstr("not done after"),
                                    HasSubstr("waiting for others: rank")))));
    by_timeout += absl::IsDeadlineExceeded(trace.status());
    EXPECT_EQ(optimizer_steps, 0);
  }
  EXPECT_GE(by_timeout, 1);
  EXPECT_LE(by_timeout, 5);
}

TEST(RunPlanTest, DawdlingChangesTimesButNotTheOrder) {
  const ExecutionPlan plan = SmallPlan();
  ASSERT_OK_AND_ASSIGN(const StepTrace smooth, RunPlan(plan));
  for (const FaultPlan fault : {FaultPlan{Fault::kDelay, RankId(0), 1},
                                FaultPlan{Fault::kDelay, RankId(2), 3}}) {
    std::atomic<int32_t> optimizer_steps{0};
    ASSERT_OK_AND_ASSIGN(
        const StepTrace slow,
        RunPlanWith(plan, {}, FaultyParts(fault, fault, &optimizer_steps)));
    EXPECT_EQ(TaskOrders(slow), TaskOrders(smooth));
    EXPECT_EQ(optimizer_steps, 3);
  }
}

TEST(RunPlanTest, AStopRequestEndsTheRun) {
  StageGraph graph = UniformGraph({.ranks = 2, .forward = Seconds(1000)});
  const ExecutionPlan plan = PlanOf(graph, 1);
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before ? "before the run" : "during the run");
    std::stop_source stop;
    if (before) stop.request_stop();
    absl::Status status;
    {
      std::jthread runner(
          [&] { status = RunPlan(plan, {.stop = stop.get_token()}).status(); });
      stop.request_stop();
    }
    EXPECT_THAT(status,
                FailsWith(absl::StatusCode::kCancelled,
                          HasSubstr("stopped by request; busy: rank 0")));
  }
}

// A hundred failures at random places, under a clock that never forgives: no
// hang, and always one of the two injected reasons.
TEST(RunPlanTest, RandomFaultsNeverHangAndNeverStepTheOptimizer) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const ExecutionPlan plan = SmallPlan();
    const auto fault = [&](int64_t places) {
      return FaultPlan{Fault::kFail,
                       RankId(static_cast<int32_t>(random.Below(3))),
                       static_cast<int32_t>(random.Below(places))};
    };
    std::atomic<int32_t> optimizer_steps{0};
    const FaultPlan device = fault(6);
    const FaultPlan transport = fault(5);
    const absl::StatusOr<StepTrace> trace =
        RunPlanWith(plan, {.time_scale = 1e-3, .max_lag = WallDuration::zero()},
                    FaultyParts(device, transport, &optimizer_steps));
    ASSERT_FALSE(trace.ok());
    EXPECT_THAT(std::string(trace.status().message()),
                ::testing::AnyOf(HasSubstr("the device fell off the bus"),
                                 HasSubstr("connection reset by peer")));
    EXPECT_EQ(optimizer_steps, 0);
  }
}

}  // namespace
}  // namespace pipeloom::runtime
