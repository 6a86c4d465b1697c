#include "ir/plan/schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/stage_graph.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;
using ::pipeloom::testing::UniformGraph;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The arguments of StageGraph::Create, for cases that break one of them.
struct GraphParts {
  IdVector<RankId, RankSpec> ranks;
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  absl::StatusOr<StageGraph> Build() const {
    return StageGraph::Create("test", ranks, {"m"}, tasks, edges);
  }
};

// F on 0, F and B on 1, B on 0, 10 us each, 2 us between the ranks.
GraphParts Handshake() {
  GraphParts parts;
  parts.ranks.resize(2);
  for (RankSpec& rank : parts.ranks) rank.memory.weights = Bytes(100);
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
  parts.tasks = {task(0, Pass::kForward, 7, 0), task(1, Pass::kForward, 5, 0),
                 task(1, Pass::kBackward, 1, 6),
                 task(0, Pass::kBackward, 0, 7)};
  const auto edge = [](int32_t from, int32_t to, double delay) {
    return Dependency{.from = TaskId(from),
                      .to = TaskId(to),
                      .delay = Microseconds(delay),
                      .occupancy = Microseconds(delay / 2),
                      .payload = Bytes(64)};
  };
  parts.edges = {edge(0, 1, 2), edge(1, 2, 0), edge(2, 3, 2), edge(0, 3, 0)};
  return parts;
}

TEST(StageGraphTest, AdjacencyIsTheEdgesById) {
  ASSERT_OK_AND_ASSIGN(const StageGraph graph, Handshake().Build());
  EXPECT_THAT(graph.outgoing(TaskId(0)), ElementsAre(EdgeId(0), EdgeId(3)));
  EXPECT_THAT(graph.incoming(TaskId(3)), ElementsAre(EdgeId(2), EdgeId(3)));
  EXPECT_THAT(graph.incoming(TaskId(0)), ElementsAre());
  EXPECT_THAT(graph.tasks_of(RankId(0)), ElementsAre(TaskId(0), TaskId(3)));
  EXPECT_EQ(DescribeTask(graph, TaskId(2)),
            "task 2 (B m stage 1 microbatch 0)");
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  ranks[RankId(1)].epilogue = Microseconds(1);
  const StageGraph other = graph.WithRanks(ranks);
  EXPECT_NE(other, graph);
  EXPECT_EQ(other.tasks(), graph.tasks());
  EXPECT_EQ(other.WithRanks(graph.ranks()), graph);
}

TEST(StageGraphTest, AdjacencyOfRandomGraphsIsComplete) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed);
    size_t in = 0;
    size_t out = 0;
    size_t tasks = 0;
    for (const TaskId t : graph.task_ids()) {
      for (const EdgeId e : graph.incoming(t)) EXPECT_EQ(graph.edge(e).to, t);
      for (const EdgeId e : graph.outgoing(t)) EXPECT_EQ(graph.edge(e).from, t);
      in += graph.incoming(t).size();
      out += graph.outgoing(t).size();
    }
    for (const RankId r : graph.rank_ids()) {
      for (const TaskId t : graph.tasks_of(r)) EXPECT_EQ(graph.task(t).rank, r);
      tasks += graph.tasks_of(r).size();
    }
    EXPECT_EQ(static_cast<int32_t>(in), graph.num_edges());
    EXPECT_EQ(static_cast<int32_t>(out), graph.num_edges());
    EXPECT_EQ(static_cast<int32_t>(tasks), graph.num_tasks());
  }
}

TEST(StageGraphTest, EachFaultIsNamed) {
  struct Case {
    const char* message;
    std::function<void(GraphParts&)> break_it;
  };
  const TaskId t(1);
  const EdgeId e(2);
  const Case cases[] = {
      {"rank 1: memory of -1 B; it must be >= 0",
       [](GraphParts& p) { p.ranks[RankId(1)].memory.gradients = Bytes(-1); }},
      {"rank 0: its epilogue is negative",
       [](GraphParts& p) { p.ranks[RankId(0)].epilogue = Nanoseconds(-1); }},
      {"task 1: rank 2 does not exist; there are 2 ranks",
       [&](GraphParts& p) { p.tasks[t].rank = RankId(2); }},
      {"task 1: rank -1 does not exist",
       [&](GraphParts& p) { p.tasks[t].rank = RankId(); }},
      {"task 1: duration -1 ns",
       [&](GraphParts& p) { p.tasks[t].duration = Nanoseconds(-1); }},
      {"task 1: duration 10000 ns, alloc -1 B",
       [&](GraphParts& p) { p.tasks[t].alloc = Bytes(-1); }},
      {"task 1: module 1 does not exist; there are 1",
       [&](GraphParts& p) { p.tasks[t].module = ModuleId(1); }},
      {"dependency 2: from task 2 to task 4; both must be in [0, 4)",
       [&](GraphParts& p) { p.edges[e].to = TaskId(4); }},
      {"dependency 2: from task 3 to task 3",
       [&](GraphParts& p) { p.edges[e].from = TaskId(3); }},
      {"dependency 2 (task 2 to task 3): delay 2000 ns, occupancy 2001 ns",
       [&](GraphParts& p) { p.edges[e].occupancy = Nanoseconds(2001); }},
      {"all times in nanoseconds of the graph together must be less than",
       [&](GraphParts& p) {
         p.tasks[t].duration = Nanoseconds(std::numeric_limits<int64_t>::max());
         p.edges[e].delay = p.tasks[t].duration;
       }},
      {"all sizes in bytes of the graph together must be less than",
       [&](GraphParts& p) { p.tasks[t].alloc = Bytes(int64_t{1} << 60); }},
      {"payload -1 B", [&](GraphParts& p) { p.edges[e].payload = Bytes(-1); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    GraphParts parts = Handshake();
    c.break_it(parts);
    EXPECT_THAT(parts.Build(), FailsWith(absl::StatusCode::kInvalidArgument,
                                         HasSubstr(c.message)));
  }
}

RankOrders ById(const StageGraph& graph) {
  RankOrders orders(graph.num_ranks());
  for (const RankId r : graph.rank_ids()) {
    for (const TaskId t : graph.tasks_of(r)) orders[r].push_back(t);
  }
  return orders;
}

// All forwards, then all backwards; or, on rank r of p, p - r forwards first
// and then one backward, one forward.
RankOrders PipelineOrders(const StageGraph& graph, bool one_f_one_b) {
  RankOrders orders(graph.num_ranks());
  for (const RankId r : graph.rank_ids()) {
    std::vector<TaskId> forward;
    std::vector<TaskId> backward;
    for (const TaskId t : graph.tasks_of(r)) {
      (graph.task(t).pass == Pass::kForward ? forward : backward).push_back(t);
    }
    const size_t warm_up =
        one_f_one_b
            ? std::min(forward.size(),
                       static_cast<size_t>(graph.num_ranks() - r.value()))
            : forward.size();
    orders[r].assign(forward.begin(),
                     forward.begin() + static_cast<ptrdiff_t>(warm_up));
    for (size_t k = 0; k < backward.size(); ++k) {
      orders[r].push_back(backward[k]);
      if (warm_up + k < forward.size()) {
        orders[r].push_back(forward[warm_up + k]);
      }
    }
  }
  return orders;
}

TEST(TimeScheduleTest, GPipeAndOneFOneBTakeTheirClosedForm) {
  for (const bool one_f_one_b : {false, true}) {
    for (int32_t p = 1; p <= 6; ++p) {
      for (const int32_t m : {1, 2, 3, 6, 7, 16}) {
        SCOPED_TRACE(::testing::Message()
                     << "p " << p << " m " << m
                     << (one_f_one_b ? " 1f1b" : " gpipe"));
        const StageGraph graph = UniformGraph({.ranks = p,
                                               .microbatches = m,
                                               .forward = Microseconds(3),
                                               .backward = Microseconds(4),
                                               .weight_grad = Microseconds(1),
                                               .activation = Bytes(10)});
        ASSERT_OK_AND_ASSIGN(
            const Schedule s,
            TimeSchedule(graph, PipelineOrders(graph, one_f_one_b)));
        EXPECT_THAT(ValidateSchedule(graph, s), IsOk());
        // (m + p - 1)(f + b).
        EXPECT_EQ(s.makespan(), (m + p - 1) * Microseconds(8));
        EXPECT_EQ(s.step_time(), s.makespan());
        // Bubble: (p - 1) / (m + p - 1).
        EXPECT_NEAR(BubbleRatio(graph, s.step_time()),
                    double(p - 1) / (m + p - 1), 1e-12);
        // GPipe holds all activations; rank r of 1F1B min(p - r, m).
        for (const RankId r : graph.rank_ids()) {
          const int32_t held = one_f_one_b ? std::min(p - r.value(), m) : m;
          EXPECT_EQ(s.peak[r], Bytes(10) * held);
        }
      }
    }
  }
}

TEST(TimeScheduleTest, DelaysAndEpiloguesCount) {
  GraphParts parts = Handshake();
  parts.ranks[RankId(1)].epilogue = Microseconds(100);
  ASSERT_OK_AND_ASSIGN(const StageGraph graph, parts.Build());
  ASSERT_OK_AND_ASSIGN(const Schedule s, TimeSchedule(graph, ById(graph)));
  EXPECT_EQ(s.start[TaskId(1)], kStepStart + Microseconds(12));
  EXPECT_EQ(s.start[TaskId(3)], kStepStart + Microseconds(34));
  EXPECT_EQ(s.makespan(), Microseconds(44));
  EXPECT_EQ(s.step_time(), Microseconds(32 + 100));
  EXPECT_THAT(s.peak, ElementsAre(Bytes(107), Bytes(106)));
}

TEST(TimeScheduleTest, RandomOrdersGiveValidSchedulesThatStartNothingLate) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {.max_ranks = 4,
                                                .max_segments = 3,
                                                .max_microbatches = 4,
                                                .with_epilogues = true});
    Random random(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule s,
                         TimeSchedule(graph, RandomOrders(graph, random)));
    ASSERT_THAT(ValidateSchedule(graph, s), IsOk());
    // Nothing starts one nanosecond earlier: each start is bound by the task
    // ahead of it, by an input, or by the step's start.
    for (const RankId r : graph.rank_ids()) {
      SimTime ahead = kStepStart;
      for (const TaskId t : s.order[r]) {
        SimTime bound = ahead;
        for (const EdgeId e : graph.incoming(t)) {
          const Dependency& d = graph.edge(e);
          bound = std::max(
              bound, s.start[d.from] + graph.task(d.from).duration + d.delay);
        }
        EXPECT_EQ(s.start[t], bound);
        ahead = s.start[t] + graph.task(t).duration;
      }
    }
  }
}

TEST(TimeScheduleTest, RefusesOrdersThatCannotBe) {
  ASSERT_OK_AND_ASSIGN(const StageGraph graph, Handshake().Build());
  struct Case {
    const char* message;
    RankOrders orders;
  };
  using Row = std::vector<TaskId>;
  const TaskId t0(0), t1(1), t2(2), t3(3);
  const Case cases[] = {
      {"the order has 1 ranks; the graph has 2", {Row{t0, t3}}},
      {"rank 0: 1 of its 2 tasks are listed", {Row{t0}, Row{t1, t2}}},
      {"rank 0: task 0 is unknown, listed twice", {Row{t0, t0}, Row{t1, t2}}},
      {"rank 0: task 1 is unknown, listed twice or of another rank",
       {Row{t0, t1}, Row{t3, t2}}},
      {"rank 0: task 9 is unknown", {Row{t0, TaskId(9)}, Row{t1, t2}}},
      {"rank 0 waits at task 3 (B m stage 0 microbatch 0); rank 1 waits at "
       "task 1",
       {Row{t3, t0}, Row{t1, t2}}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(
        TimeSchedule(graph, c.orders),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
}

TEST(ValidateScheduleTest, EachKindOfMutationIsRejected) {
  GraphParts parts = Handshake();
  parts.ranks[RankId(0)].memory.limit = Bytes(107);
  ASSERT_OK_AND_ASSIGN(const StageGraph graph, parts.Build());
  ASSERT_OK_AND_ASSIGN(const Schedule good, TimeSchedule(graph, ById(graph)));
  ASSERT_THAT(ValidateSchedule(graph, good), IsOk());
  struct Case {
    const char* message;
    std::function<void(Schedule&)> break_it;
  };
  const RankId r0(0);
  const Case cases[] = {
      {"it is for 3 ranks", [](Schedule& s) { s.order.push_back({}); }},
      {"it is for 2 ranks and 3 tasks", [](Schedule& s) { s.start.resize(3); }},
      {"rank 0: there is no task 7",
       [&](Schedule& s) { s.order[r0][0] = TaskId(7); }},
      {"task 1 (F m stage 1 microbatch 0) is on rank 0",
       [&](Schedule& s) { std::swap(s.order[r0], s.order[RankId(1)]); }},
      {"before the task ahead of it ends",
       [&](Schedule& s) { std::swap(s.order[r0][0], s.order[r0][1]); }},
      {"task 3 (B m stage 0 microbatch 0) is listed 0 times",
       [&](Schedule& s) {
         s.order[r0].pop_back();
         s.peak[r0] = Bytes(107);
       }},
      {"and its transfer end at",
       [&](Schedule& s) {
         s.start[TaskId(3)] -= Nanoseconds(1);
         s.tasks_finish -= Nanoseconds(1);
         s.finish -= Nanoseconds(1);
       }},
      {"its end is given as", [](Schedule& s) { s.finish -= Nanoseconds(1); }},
      {"its end is given as",
       [](Schedule& s) { s.tasks_finish += Nanoseconds(1); }},
      {"rank 0: peak is 107 B, not 106 B",
       [&](Schedule& s) { s.peak[r0] -= Bytes(1); }},
      {"starts at -0.001 us, before",
       [](Schedule& s) { s.start[TaskId(0)] = kStepStart - Nanoseconds(1); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    Schedule schedule = good;
    c.break_it(schedule);
    EXPECT_THAT(
        ValidateSchedule(graph, schedule),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
}

TEST(ValidateScheduleTest, MemoryLimitsHoldToTheByte) {
  for (const auto& [limit, fits] : {std::pair(107, true),
                                    {106, false},
                                    {100, false},
                                    {99, false},
                                    {0, true}}) {
    SCOPED_TRACE(limit);
    GraphParts parts = Handshake();
    parts.ranks[RankId(0)].memory.limit = Bytes(limit);
    ASSERT_OK_AND_ASSIGN(const StageGraph graph, parts.Build());
    ASSERT_OK_AND_ASSIGN(const Schedule s, TimeSchedule(graph, ById(graph)));
    if (fits) {
      EXPECT_THAT(ValidateSchedule(graph, s), IsOk());
    } else {
      EXPECT_THAT(ValidateSchedule(graph, s),
                  FailsWith(absl::StatusCode::kFailedPrecondition,
                            HasSubstr("rank 0: ")));
    }
  }
}

TEST(ValidateScheduleTest, StartingLateIsLegal) {
  ASSERT_OK_AND_ASSIGN(const StageGraph graph, Handshake().Build());
  ASSERT_OK_AND_ASSIGN(Schedule s, TimeSchedule(graph, ById(graph)));
  for (SimTime& start : s.start) start += Microseconds(5);
  s.tasks_finish += Microseconds(5);
  s.finish += Microseconds(5);
  EXPECT_THAT(ValidateSchedule(graph, s), IsOk());
}

TEST(BubbleRatioTest, OfNothingIsZero) {
  EXPECT_EQ(BubbleRatio(StageGraph(), Seconds(1)), 0);
  EXPECT_EQ(BubbleRatio(UniformGraph({}), kZero), 0);
}

}  // namespace
}  // namespace pipeloom
