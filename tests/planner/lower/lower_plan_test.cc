#include "planner/lower/lower_plan.h"

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomGraphOptions;
using ::pipeloom::testing::RandomOrders;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two ranks, one microbatch: F on 0, F and B on 1, B on 0.
StageGraph Handshake(Duration epilogue = kZero) {
  IdVector<RankId, RankSpec> ranks(2);
  for (RankSpec& rank : ranks) {
    rank.memory.weights = Bytes(100);
    rank.epilogue = epilogue;
  }
  const auto task = [](int32_t rank, Pass pass, int64_t alloc, int64_t free) {
    return Task{.rank = RankId(rank),
                .pass = pass,
                .module = ModuleId(0),
                .stage = StageId(rank),
                .microbatch = MicrobatchId(0),
                .duration = Microseconds(10),
                .alloc = Bytes(alloc),
                .free = Bytes(free)};
  };
  IdVector<TaskId, Task> tasks{
      task(0, Pass::kForward, 7, 0), task(1, Pass::kForward, 5, 0),
      task(1, Pass::kBackward, 0, 5), task(0, Pass::kBackward, 0, 7)};
  const auto edge = [](int32_t from, int32_t to, int64_t payload) {
    return Dependency{
        .from = TaskId(from), .to = TaskId(to), .payload = Bytes(payload)};
  };
  auto graph = StageGraph::Create(
      "handshake", ranks, {"m"}, tasks,
      {edge(0, 1, 64), edge(1, 2, 0), edge(2, 3, 64), edge(0, 3, 0)});
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

Schedule IdOrder(const StageGraph& graph) {
  RankOrders orders(graph.num_ranks());
  for (const TaskId t : graph.task_ids()) {
    orders[graph.task(t).rank].push_back(t);
  }
  auto schedule = TimeSchedule(graph, orders);
  PIPELOOM_CHECK(schedule.ok());
  return *std::move(schedule);
}

std::vector<TaskId> ComputeOrder(const std::vector<Instruction>& program) {
  std::vector<TaskId> order;
  for (const Instruction& i : program) {
    if (const auto* c = std::get_if<Compute>(&i)) order.push_back(c->task);
  }
  return order;
}

TEST(LowerPlanTest, AHandshakeHasTheProgramsOneWouldWrite) {
  const StageGraph graph = Handshake(Microseconds(3));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                       LowerPlan(graph, IdOrder(graph)));
  using I = Instruction;
  EXPECT_THAT(
      plan.programs[RankId(0)],
      ElementsAre(I(Compute{TaskId(0)}), I(Recv{EdgeId(2)}), I(Send{EdgeId(0)}),
                  I(WaitSend{EdgeId(0)}), I(WaitRecv{EdgeId(2)}),
                  I(Compute{TaskId(3)}), I(Free{EdgeId(2)}),
                  I(ReduceGradients{}), I(OptimizerStep{})));
  EXPECT_THAT(plan.programs[RankId(1)],
              ElementsAre(I(Recv{EdgeId(0)}), I(WaitRecv{EdgeId(0)}),
                          I(Compute{TaskId(1)}), I(Free{EdgeId(0)}),
                          I(Compute{TaskId(2)}), I(Send{EdgeId(2)}),
                          I(ReduceGradients{}), I(OptimizerStep{}),
                          I(WaitSend{EdgeId(2)})));
  EXPECT_EQ(plan.predicted_step_time, Microseconds(43));
  EXPECT_EQ(plan.graph, graph);
}

TEST(LowerPlanTest, PeaksCountReceivedAndSentTensors) {
  const StageGraph graph = Handshake();
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                       LowerPlan(graph, IdOrder(graph)));
  EXPECT_THAT(PlanPeaks(plan),
              ElementsAre(Bytes(100 + 7 + 64 + 64), Bytes(100 + 64 + 5)));
}

TEST(LowerPlanTest, ALimitBrokenByTransfersIsForTheCallerToSee) {
  const StageGraph graph = Handshake();
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  ranks[RankId(1)].memory.limit = Bytes(168);
  const StageGraph limited = graph.WithRanks(ranks);
  const Schedule schedule = IdOrder(limited);
  ASSERT_THAT(ValidateSchedule(limited, schedule), IsOk());
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(limited, schedule));
  EXPECT_EQ(PlanPeaks(plan)[RankId(1)], Bytes(169));
  EXPECT_THAT(ValidateExecutionPlan(plan),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("rank 1, instruction 2 (compute task 1): 169 "
                                  "B are needed, 1 B over")));
}

TEST(LowerPlanTest, RefusesAScheduleOfAnotherGraph) {
  const StageGraph graph = Handshake();
  struct Case {
    const char* name;
    void (*break_it)(Schedule&);
    const char* message;
  };
  const Case cases[] = {
      {"a task missing", [](Schedule& s) { s.order[RankId(0)].pop_back(); },
       "3 of 4 tasks are listed"},
      {"a task twice", [](Schedule& s) { s.order[RankId(0)][1] = TaskId(0); },
       "rank 0: task 0 is unknown, listed twice or of another rank"},
      {"no such task", [](Schedule& s) { s.order[RankId(0)][1] = TaskId(9); },
       "task 9 is unknown"},
      {"a rank too many", [](Schedule& s) { s.order.push_back({}); },
       "it has 3 ranks"},
      {"starts before its producer ends",
       [](Schedule& s) { s.start[TaskId(1)] -= Nanoseconds(1); },
       "task 1 (F m stage 1 microbatch 0) starts at 9.999 us"},
      {"orders that contradict the dependencies",
       [](Schedule& s) {
         std::swap(s.order[RankId(0)][0], s.order[RankId(0)][1]);
       },
       "contradict"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Schedule schedule = IdOrder(graph);
    c.break_it(schedule);
    EXPECT_THAT(
        LowerPlan(graph, schedule),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
}

// Random graphs are full of ties: durations and delays are small integers,
// often zero, so the order among equal times is under test here.
TEST(LowerPlanTest, EveryPlanOfARandomOrderPassesTheIndependentCheck) {
  const RandomGraphOptions shapes[] = {
      {.with_epilogues = true},
      {.max_ranks = 6, .max_segments = 3, .max_microbatches = 5},
      {.max_ranks = 2,
       .max_segments = 4,
       .max_microbatches = 6,
       .allow_delays = false},
  };
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, shapes[seed % 3]);
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    ASSERT_THAT(ValidateExecutionPlan(plan), IsOk());
    for (const RankId rank : graph.rank_ids()) {
      ASSERT_EQ(ComputeOrder(plan.programs[rank]), schedule.order[rank]);
    }
  }
}

// With every time zero all events are tied and only levels order them.
TEST(LowerPlanTest, PlansWithoutAnyDurationCannotDeadlockEither) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph timed = RandomGraph(
        seed, {.max_ranks = 5, .max_segments = 3, .max_microbatches = 4});
    IdVector<TaskId, Task> tasks = timed.tasks();
    for (Task& task : tasks) task.duration = kZero;
    IdVector<EdgeId, Dependency> edges = timed.edges();
    for (Dependency& edge : edges) edge.delay = kZero;
    ASSERT_OK_AND_ASSIGN(
        const StageGraph graph,
        StageGraph::Create("ties", timed.ranks(), timed.module_names(), tasks,
                           edges));
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    ASSERT_THAT(ValidateExecutionPlan(plan), IsOk());
  }
}

// The plan's times by relaxation, written without looking at how plans are
// made: a transfer begins when both sides have reached it.
SimTime FinishOf(const ExecutionPlan& plan) {
  const StageGraph& graph = plan.graph;
  IdVector<EdgeId, SimTime> arrival(graph.num_edges(), kStepStart);
  IdVector<EdgeId, SimTime> posted(graph.num_edges(), kStepStart);
  SimTime finish;
  for (bool changed = true; changed;) {
    changed = false;
    finish = kStepStart;
    for (const RankId rank : graph.rank_ids()) {
      SimTime now = kStepStart;
      for (const Instruction& i : plan.programs[rank]) {
        if (const auto* c = std::get_if<Compute>(&i)) {
          now += graph.task(c->task).duration;
        } else if (const auto* r = std::get_if<Recv>(&i)) {
          changed |= posted[r->edge] != now;
          posted[r->edge] = now;
        } else if (const auto* s = std::get_if<Send>(&i)) {
          const SimTime at =
              std::max(now, posted[s->edge]) + graph.edge(s->edge).delay;
          changed |= arrival[s->edge] != at;
          arrival[s->edge] = at;
        } else if (const auto* w = std::get_if<WaitRecv>(&i)) {
          now = std::max(now, arrival[w->edge]);
        }
      }
      finish = std::max(finish, now + graph.rank(rank).epilogue);
    }
  }
  return finish;
}

TEST(LowerPlanTest, LateReceivesDelayNothing) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {.max_ranks = 4,
                                                .max_segments = 3,
                                                .max_microbatches = 4,
                                                .with_epilogues = true});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    EXPECT_EQ(FinishOf(plan), schedule.finish);
  }
}

// Posting any Recv one task later would make its transfer wait: no buffer is
// held for longer than the transfer needs.
TEST(LowerPlanTest, NoReceiveCouldStandAfterTheTaskBehindIt) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(
        seed, {.max_ranks = 4, .max_segments = 2, .max_microbatches = 4});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    for (const RankId rank : graph.rank_ids()) {
      std::vector<EdgeId> open;
      for (const Instruction& i : plan.programs[rank]) {
        if (const auto* r = std::get_if<Recv>(&i)) open.push_back(r->edge);
        const auto* c = std::get_if<Compute>(&i);
        if (c == nullptr) continue;
        const SimTime end =
            schedule.start[c->task] + graph.task(c->task).duration;
        for (const EdgeId e : open) {
          const TaskId from = graph.edge(e).from;
          const SimTime produced =
              schedule.start[from] + graph.task(from).duration;
          // Ties only where a level orders them: zero-length tasks.
          EXPECT_LE(produced, end) << "edge " << e.value();
        }
        open.clear();
      }
    }
  }
}

// Blocking sends, carried out naively: whoever can go on does, until nobody
// can. True if all programs end.
bool RunsToItsEnd(const ExecutionPlan& plan) {
  const StageGraph& graph = plan.graph;
  IdVector<RankId, size_t> at(graph.num_ranks(), 0);
  const auto reached = [&](RankId rank, const Instruction& i) {
    const auto& program = plan.programs[rank];
    const auto found = std::find(program.begin(), program.end(), i);
    return static_cast<size_t>(found - program.begin()) <= at[rank] &&
           found != program.end();
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (const RankId rank : graph.rank_ids()) {
      if (at[rank] == plan.programs[rank].size()) continue;
      const Instruction& i = plan.programs[rank][at[rank]];
      bool free_to_go = true;
      if (const auto* s = std::get_if<Send>(&i)) {
        free_to_go =
            reached(graph.task(graph.edge(s->edge).to).rank, Recv{s->edge});
      } else if (const auto* w = std::get_if<WaitRecv>(&i)) {
        free_to_go =
            reached(graph.task(graph.edge(w->edge).from).rank, Send{w->edge});
      } else if (const auto* ws = std::get_if<WaitSend>(&i)) {
        free_to_go =
            reached(graph.task(graph.edge(ws->edge).to).rank, Recv{ws->edge});
      }
      if (free_to_go) {
        ++at[rank];
        moved = true;
      }
    }
  }
  for (const RankId rank : graph.rank_ids()) {
    if (at[rank] < plan.programs[rank].size()) return false;
  }
  return true;
}

// Plans that are a little wrong: the check must see what is missing or twice,
// and must tell deadlocks from harmless moves as the naive run does.
TEST(LowerPlanTest, TheCheckSeesEveryMissingOrRepeatedInstruction) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {.with_epilogues = true});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    for (const RankId rank : graph.rank_ids()) {
      for (size_t k = 0; k < plan.programs[rank].size(); ++k) {
        SCOPED_TRACE(::testing::Message()
                     << "rank " << rank.value() << " instruction " << k);
        const auto at = static_cast<ptrdiff_t>(k);
        ExecutionPlan shorter = plan;
        auto& program = shorter.programs[rank];
        program.erase(program.begin() + at);
        const bool optional =
            std::holds_alternative<WaitSend>(plan.programs[rank][k]);
        EXPECT_EQ(ValidateExecutionPlan(shorter).ok(), optional);
        ExecutionPlan longer = plan;
        longer.programs[rank].insert(longer.programs[rank].begin() + at,
                                     plan.programs[rank][k]);
        EXPECT_FALSE(ValidateExecutionPlan(longer).ok());
      }
    }
  }
}

TEST(LowerPlanTest, TheCheckAndANaiveRunAgreeOnDeadlocks) {
  int deadlocks = 0;
  int harmless = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(
        seed, {.max_ranks = 4, .max_segments = 2, .max_microbatches = 3});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_OK_AND_ASSIGN(ExecutionPlan plan, LowerPlan(graph, schedule));
    ASSERT_TRUE(RunsToItsEnd(plan));
    plan.predicted_step_time = kZero;  // Another one is right after a move.
    // Moves a receive, a send or the wait for one elsewhere.
    const RankId rank(static_cast<int32_t>(random.Below(graph.num_ranks())));
    auto& program = plan.programs[rank];
    if (program.empty()) continue;
    for (int move = 0; move < 3; ++move) {
      const auto from = random.Below(static_cast<int64_t>(program.size()));
      const auto to = random.Below(static_cast<int64_t>(program.size()));
      const Instruction i = program[static_cast<size_t>(from)];
      const auto* send = std::get_if<Send>(&i);
      if (send == nullptr && !std::holds_alternative<Recv>(i) &&
          !std::holds_alternative<WaitSend>(i)) {
        continue;
      }
      program.erase(program.begin() + from);
      program.insert(program.begin() + to, i);
      if (send == nullptr) continue;
      const Instruction wait = WaitSend{send->edge};
      program.erase(std::find(program.begin(), program.end(), wait));
      program.push_back(wait);
    }
    const absl::Status status = ValidateExecutionPlan(plan);
    if (status.ok()) {
      EXPECT_TRUE(RunsToItsEnd(plan));
      ++harmless;
    } else if (std::string(status.message()).find("deadlock") !=
               std::string::npos) {
      EXPECT_FALSE(RunsToItsEnd(plan));
      ++deadlocks;
    }
  }
  EXPECT_GT(deadlocks, 20);  // Both were under test.
  EXPECT_GT(harmless, 20);
}

// The first stage, on rank 0, runs ahead of the second, on rank 1, which takes
// three times as long; the third is on rank 0 again.
StageGraph EncoderAhead(int64_t sender_limit, int64_t receiver_limit) {
  constexpr int32_t kMicrobatches = 4;
  IdVector<RankId, RankSpec> ranks(2);
  ranks[RankId(0)].memory.limit = Bytes(sender_limit);
  ranks[RankId(1)].memory.limit = Bytes(receiver_limit);
  IdVector<TaskId, Task> tasks;
  for (int32_t stage = 0; stage < 3; ++stage) {
    for (int32_t m = 0; m < kMicrobatches; ++m) {
      tasks.push_back({.rank = RankId(stage % 2),
                       .pass = Pass::kForward,
                       .module = ModuleId(0),
                       .stage = StageId(stage),
                       .microbatch = MicrobatchId(m),
                       .duration = Microseconds(stage == 1 ? 30 : 10)});
    }
  }
  IdVector<EdgeId, Dependency> edges;
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    edges.push_back({.from = TaskId(m),
                     .to = TaskId(kMicrobatches + m),
                     .delay = Microseconds(2),
                     .occupancy = Microseconds(2),
                     .payload = Bytes(64)});
    edges.push_back({.from = TaskId(kMicrobatches + m),
                     .to = TaskId(2 * kMicrobatches + m)});
  }
  auto graph = StageGraph::Create("ahead", ranks, {"m"}, tasks, edges);
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

TEST(LateSendsTest, TensorsWaitWhereThereIsRoom) {
  const StageGraph graph = EncoderAhead(256, 128);
  const Schedule schedule = IdOrder(graph);
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan at_once, LowerPlan(graph, schedule));
  EXPECT_EQ(PlanPeaks(at_once)[RankId(1)], Bytes(4 * 64));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan late,
                       LowerPlan(graph, schedule, {}, SendTime::kWithRoom));
  EXPECT_LE(PlanPeaks(late)[RankId(0)], Bytes(256));
  EXPECT_EQ(PlanPeaks(late)[RankId(1)], Bytes(128));
  EXPECT_EQ(FinishOf(late), schedule.finish);
  EXPECT_TRUE(RunsToItsEnd(late));
}

TEST(LateSendsTest, NothingWaitsOnASenderWithoutRoom) {
  const StageGraph graph = EncoderAhead(128, 128);
  const Schedule schedule = IdOrder(graph);
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan at_once, LowerPlan(graph, schedule));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan late,
                       LowerPlan(graph, schedule, {}, SendTime::kWithRoom));
  EXPECT_EQ(PlanPeaks(at_once)[RankId(0)], Bytes(128));
  EXPECT_EQ(PlanPeaks(late)[RankId(0)], Bytes(128));
}

TEST(LateSendsTest, AReceiverWithRoomHasItsTensorsAtOnce) {
  const StageGraph graph = EncoderAhead(256, 256);
  const Schedule schedule = IdOrder(graph);
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan at_once, LowerPlan(graph, schedule));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan late,
                       LowerPlan(graph, schedule, {}, SendTime::kWithRoom));
  EXPECT_EQ(late.programs, at_once.programs);
}

// Random orders with limits between the least and the most that they could
// need: late sends break no further limit and delay nothing, and the
// independent check passes.
TEST(LateSendsTest, RandomPlansStayRightAndBreakFewerLimits) {
  int broken = 0;
  int kept = 0;
  int better = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph unlimited = RandomGraph(
        seed, {.max_ranks = 4, .max_segments = 3, .max_microbatches = 6});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(unlimited, RandomOrders(unlimited, random)));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan free,
                         LowerPlan(unlimited, schedule));
    IdVector<RankId, RankSpec> ranks = unlimited.ranks();
    const IdVector<RankId, Bytes> peaks = PlanPeaks(free);
    for (const RankId r : ranks.ids()) {
      const double share = 0.5 + 0.7 * random.Unit();
      ranks[r].memory.limit = Bytes(std::max<int64_t>(
          1,
          static_cast<int64_t>(share * static_cast<double>(peaks[r].count()))));
    }
    const StageGraph graph = unlimited.WithRanks(ranks);
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan late,
                         LowerPlan(graph, schedule, {}, SendTime::kWithRoom));
    const IdVector<RankId, Bytes> after = PlanPeaks(late);
    bool fits = true;
    for (const RankId r : ranks.ids()) {
      const Bytes limit = ranks[r].memory.limit;
      fits = fits && after[r] <= limit;
      broken += peaks[r] > limit;
      kept += peaks[r] > limit && after[r] <= limit;
      better += peaks[r] > limit && after[r] < peaks[r];
      EXPECT_LE(after[r], std::max(limit, peaks[r]));
    }
    EXPECT_LE(FinishOf(late), schedule.finish);
    EXPECT_TRUE(RunsToItsEnd(late));
    // Where limits are still broken, everything else has to be right.
    ExecutionPlan judged = late;
    if (!fits) judged.graph = unlimited;
    EXPECT_THAT(ValidateExecutionPlan(judged), IsOk());
  }
  EXPECT_GT(broken, 1000);
  EXPECT_GT(kept, 100);
  EXPECT_GT(better, kept);
}

TEST(LowerPlanTest, AStepWithoutTasksIsAPlanWithoutInstructions) {
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      StageGraph::Create("empty", IdVector<RankId, RankSpec>(2), {}, {}, {}));
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan,
                       LowerPlan(graph, IdOrder(graph)));
  EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
  for (const auto& program : plan.programs) EXPECT_TRUE(program.empty());
}

}  // namespace
}  // namespace pipeloom::planner
