#include "trace/trace_analysis.h"

#include <algorithm>
#include <string>
#include <vector>

#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/schedule.h"
#include "planner/lower/lower_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::trace {
namespace {

using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;
using ::testing::HasSubstr;

// Two ranks; tasks and edges added by hand.
struct Builder {
  IdVector<RankId, RankSpec> ranks = IdVector<RankId, RankSpec>(2);
  IdVector<TaskId, Task> tasks{};
  IdVector<EdgeId, Dependency> edges{};

  TaskId Add(int32_t rank, double ms, int64_t alloc = 0) {
    Task task{.rank = RankId(rank), .module = ModuleId(0)};
    task.stage = StageId(rank);
    task.microbatch = MicrobatchId(tasks.size());
    task.duration = Milliseconds(ms);
    task.alloc = Bytes(alloc);
    return tasks.push_back(task);
  }
  EdgeId Link(TaskId from, TaskId to, double delay_ms = 0) {
    return edges.push_back({.from = from,
                            .to = to,
                            .delay = Milliseconds(delay_ms),
                            .payload = Bytes(1 << 20)});
  }
  // Each rank in the order given, else by id.
  ExecutionPlan Plan(RankOrders order = {}) const {
    auto graph = StageGraph::Create("hand", ranks, {"m"}, tasks, edges);
    EXPECT_THAT(graph, ::pipeloom::testing::IsOk());
    if (order.empty()) {
      order.resize(graph->num_ranks());
      for (const TaskId t : graph->task_ids()) {
        order[graph->task(t).rank].push_back(t);
      }
    }
    auto schedule = TimeSchedule(*graph, order);
    EXPECT_THAT(schedule, ::pipeloom::testing::IsOk());
    auto plan = planner::LowerPlan(*graph, *schedule);
    EXPECT_THAT(plan, ::pipeloom::testing::IsOk());
    return *std::move(plan);
  }
};

TraceAnalysis Emulated(const ExecutionPlan& plan,
                       const emulator::EmulateOptions& options = {}) {
  auto trace = emulator::EmulateStep(plan, options);
  EXPECT_THAT(trace, ::pipeloom::testing::IsOk());
  return Analyze(plan, *trace);
}

Duration Bubble(const TraceAnalysis& analysis, int32_t rank, BubbleKind kind) {
  return analysis.bubbles[RankId(rank)][static_cast<size_t>(kind)];
}

TEST(TraceAnalysisTest, BubblesOfEveryRankAddUpToItsIdleTimeExactly) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const StageGraph graph =
        RandomGraph(seed, {.max_ranks = 5,
                           .max_segments = 3,
                           .max_microbatches = 6,
                           .with_memory_limits = seed % 3 == 0,
                           .with_epilogues = seed % 2 == 0});
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         planner::LowerPlan(graph, schedule));
    emulator::EmulateOptions options{.links = SharedLinks{}};
    options.links->blocking_sends = seed % 5 == 0;
    options.full_trace = seed % 7 != 0;
    options.links->sharing =
        seed % 4 == 0 ? LinkSharing::kPerRank : LinkSharing::kPerPair;
    ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                         emulator::EmulateStep(plan, options));
    const TraceAnalysis analysis = Analyze(plan, trace);
    IdVector<RankId, Duration> pieces(graph.num_ranks(), kZero);
    for (const IdlePiece& piece : analysis.idle) {
      EXPECT_LT(piece.start, piece.end);
      pieces[piece.rank] += piece.end - piece.start;
    }
    for (const RankId r : graph.rank_ids()) {
      Duration idle = trace.step_time();
      for (const Span& span : trace.spans) {
        if (span.rank != r) continue;
        if (span.kind == SpanKind::kTask || span.kind == SpanKind::kEpilogue) {
          idle -= span.end - span.start;
        }
      }
      EXPECT_EQ(Total(analysis.bubbles[r]), idle) << "rank " << r.value();
      EXPECT_EQ(pieces[r], idle) << "rank " << r.value();
    }
  }
}

TEST(TraceAnalysisTest, TheCriticalPathCoversTheStepAndEachPartFollowsTheLast) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const StageGraph graph =
        RandomGraph(seed, {.max_ranks = 5,
                           .max_segments = 3,
                           .max_microbatches = 6,
                           .with_epilogues = seed % 2 == 0});
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         planner::LowerPlan(graph, schedule));
    const emulator::EmulateOptions options;
    ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                         emulator::EmulateStep(plan, options));
    const TraceAnalysis analysis = Analyze(plan, trace);
    ASSERT_FALSE(analysis.critical.empty());
    SimTime at = kStepStart;
    for (const PathPiece& piece : analysis.critical) {
      EXPECT_EQ(piece.start, at);
      EXPECT_LE(piece.start, piece.end);
      at = piece.end;
      // Emulated ranks are never idle without a reason.
      EXPECT_NE(piece.kind, PathPiece::Kind::kGap);
      if (piece.kind == PathPiece::Kind::kTask) {
        EXPECT_EQ(piece.start, analysis.start[piece.task]);
        EXPECT_EQ(piece.end, analysis.end[piece.task]);
      }
    }
    EXPECT_EQ(at, trace.finish);
  }
}

TEST(TraceAnalysisTest, EveryTaskStartsWhenWhatItWaitedForWasOver) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const StageGraph graph = RandomGraph(
        seed, {.max_ranks = 4, .max_segments = 2, .max_microbatches = 5});
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                         planner::LowerPlan(graph, schedule));
    const TraceAnalysis analysis =
        Emulated(plan, {.links = SharedLinks{.sharing = LinkSharing::kNone}});
    for (const TaskId t : graph.task_ids()) {
      const StartCause& cause = analysis.causes[t];
      switch (cause.reason) {
        case StartReason::kStepStart:
          EXPECT_EQ(analysis.start[t], kStepStart);
          break;
        case StartReason::kOwnRank:
          EXPECT_EQ(analysis.start[t], analysis.end[cause.after]);
          break;
        case StartReason::kMessage:
        case StartReason::kLocalInput:
          EXPECT_EQ(analysis.start[t],
                    analysis.end[cause.after] + graph.edge(cause.edge).delay);
          break;
        case StartReason::kBlockedSend:
        case StartReason::kMemory:
          ADD_FAILURE() << "no such thing in this plan";
      }
    }
  }
}

TEST(TraceAnalysisTest, AUniformPipelineLosesTimeOnlyAtItsEnds) {
  // GPipe of equal stages without transfers: rank r begins r forwards late.
  const int32_t p = 4;
  const StageGraph graph =
      pipeloom::testing::UniformGraph({.ranks = p,
                                       .microbatches = 6,
                                       .forward = Milliseconds(1),
                                       .backward = Milliseconds(1),
                                       .weight_grad = Milliseconds(1)});
  RankOrders order(p);
  for (const TaskId t : graph.task_ids()) {
    if (graph.task(t).pass == Pass::kForward) {
      order[graph.task(t).rank].push_back(t);
    }
  }
  for (const TaskId t : graph.task_ids()) {
    if (graph.task(t).pass != Pass::kForward) {
      order[graph.task(t).rank].push_back(t);
    }
  }
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimeSchedule(graph, order));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                       planner::LowerPlan(graph, schedule));
  const TraceAnalysis analysis = Emulated(plan);
  for (int32_t r = 0; r < p; ++r) {
    SCOPED_TRACE(r);
    EXPECT_EQ(Bubble(analysis, r, BubbleKind::kWarmUp), Milliseconds(r));
    EXPECT_EQ(Bubble(analysis, r, BubbleKind::kTail), Milliseconds(2 * r));
    // Back and forth over the ranks behind it: nobody there is overloaded.
    EXPECT_EQ(Bubble(analysis, r, BubbleKind::kDependency),
              Milliseconds(3 * (p - 1 - r)));
    EXPECT_EQ(Bubble(analysis, r, BubbleKind::kImbalance), kZero);
  }
}

TEST(TraceAnalysisTest, ALinkIsTransferAndAnOverloadedRankIsImbalance) {
  Builder b;
  // Rank 0 has much to do before it makes what rank 1 waits for.
  const TaskId first = b.Add(1, 1);
  const TaskId early = b.Add(0, 1);
  b.Add(0, 5);
  const TaskId needed = b.Add(0, 2);
  const TaskId consumer = b.Add(1, 1);
  b.Link(first, consumer);
  b.Link(early, needed);
  const EdgeId edge = b.Link(needed, consumer, 3);
  const ExecutionPlan plan = b.Plan();
  const TraceAnalysis analysis = Emulated(plan);
  EXPECT_EQ(Bubble(analysis, 1, BubbleKind::kTransfer), Milliseconds(3));
  // Rank 0 has 8 ms to do, rank 1 has 2: what is more than that is order.
  EXPECT_EQ(Bubble(analysis, 1, BubbleKind::kImbalance), Milliseconds(6));
  EXPECT_EQ(Bubble(analysis, 1, BubbleKind::kDependency), Milliseconds(1));
  EXPECT_EQ(Bubble(analysis, 0, BubbleKind::kTail), Milliseconds(4));
  const StartCause& cause = analysis.causes[consumer];
  EXPECT_EQ(cause.reason, StartReason::kMessage);
  EXPECT_EQ(cause.edge, edge);
  EXPECT_EQ(cause.gap, Milliseconds(10));
  EXPECT_THAT(Words(plan.graph, cause), HasSubstr("microbatch 3"));
  EXPECT_THAT(Words(plan.graph, cause), HasSubstr("1.00 MiB"));
}

TEST(TraceAnalysisTest, AReadyTaskThatWouldFitTheGapIsOrderOrMemory) {
  for (const bool room : {true, false}) {
    SCOPED_TRACE(room);
    Builder b;
    // In addition to two tensors of 1 MiB: one that it receives, and one that
    // `ready` takes.
    b.ranks[RankId(0)].memory.limit = Bytes((2 << 20) + 30 + (room ? 30 : 29));
    const TaskId slow = b.Add(1, 10);
    const TaskId first = b.Add(0, 1, 30);
    const TaskId waits = b.Add(0, 1);
    const TaskId ready = b.Add(0, 4, (1 << 20) + 30);
    b.Link(slow, waits);
    b.Link(first, ready);
    b.tasks[waits].free = Bytes(30);
    const TraceAnalysis analysis = Emulated(b.Plan());
    const BubbleKind kind = room ? BubbleKind::kOrder : BubbleKind::kMemory;
    EXPECT_EQ(Bubble(analysis, 0, kind), Milliseconds(9));
    ASSERT_FALSE(analysis.idle.empty());
    EXPECT_EQ(analysis.idle[0].instead, ready);
    EXPECT_EQ(analysis.idle[0].before, waits);
  }
}

TEST(TraceAnalysisTest, ABlockedSendIsNamed) {
  Builder b;
  const TaskId busy = b.Add(1, 8);
  const TaskId sender = b.Add(0, 1);
  const TaskId consumer = b.Add(1, 1);
  const TaskId next = b.Add(0, 1);
  const EdgeId edge = b.Link(sender, consumer, 2);
  b.edges[edge].occupancy = Milliseconds(2);
  b.Link(busy, consumer);
  ExecutionPlan plan = b.Plan();
  auto& program = plan.programs[RankId(0)];
  // Computes, sends, and goes on only when it has left.
  program = {Compute{sender}, Send{edge}, WaitSend{edge}, Compute{next}};
  const TraceAnalysis analysis = Emulated(plan);
  EXPECT_EQ(analysis.causes[next].reason, StartReason::kBlockedSend);
  EXPECT_EQ(analysis.causes[next].edge, edge);
  EXPECT_EQ(Bubble(analysis, 0, BubbleKind::kTransfer),
            analysis.causes[next].gap);
}

TEST(TraceAnalysisTest, AMeasuredTraceWithoutWaitsGivesTheSameCausesOfIdle) {
  Builder b;
  const TaskId producer = b.Add(0, 5);
  const TaskId own = b.Add(1, 1);
  const TaskId consumer = b.Add(1, 1);
  b.Link(producer, consumer, 2);
  b.Link(own, consumer);
  const ExecutionPlan plan = b.Plan();
  ASSERT_OK_AND_ASSIGN(StepTrace trace, emulator::EmulateStep(plan));
  const TraceAnalysis with = Analyze(plan, trace);
  std::erase_if(trace.spans,
                [](const Span& s) { return s.kind == SpanKind::kWait; });
  const TraceAnalysis without = Analyze(plan, trace);
  EXPECT_EQ(with.causes, without.causes);
  EXPECT_EQ(with.idle, without.idle);
  EXPECT_EQ(with.critical, without.critical);
}

TEST(TraceAnalysisTest, AnEmptyTraceHasNoPathAndIsAllWarmUp) {
  Builder b;
  b.Add(0, 1);
  const ExecutionPlan plan = b.Plan();
  StepTrace trace;
  trace.num_ranks = 2;
  trace.finish = kStepStart + Milliseconds(3);
  const TraceAnalysis analysis = Analyze(plan, trace);
  EXPECT_TRUE(analysis.critical.empty());
  EXPECT_EQ(Bubble(analysis, 1, BubbleKind::kWarmUp), Milliseconds(3));
}

}  // namespace
}  // namespace pipeloom::trace
