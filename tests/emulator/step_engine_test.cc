#include "emulator/step/step_engine.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "emulator/step/emulate_step.h"
#include "emulator/step/step_program.h"
#include "emulator/step/trace_builder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/oracles/step_oracle.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using testing::EmulateByScanning;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::OracleStep;
using testing::RandomGraph;
using testing::RandomOrders;

std::vector<std::string> PortsOf(const EmulateOptions& options, int32_t from,
                                 int32_t to) {
  const auto nic = [&](int32_t r) {
    return options.links->nic_of_rank.empty()
               ? r
               : options.links->nic_of_rank[static_cast<size_t>(r)];
  };
  switch (options.links->sharing) {
    case LinkSharing::kPerPair:
      return {absl::StrCat(from, " to ", to)};
    case LinkSharing::kBothWays:
      return {absl::StrCat(std::min(from, to), " and ", std::max(from, to))};
    case LinkSharing::kPerRank:
      return {absl::StrCat("out of ", from), absl::StrCat("into ", to)};
    case LinkSharing::kPerNic:
      if (nic(from) == nic(to)) return {};
      if (!options.links->node_of_rank.empty() &&
          options.links->node_of_rank[static_cast<size_t>(from)] ==
              options.links->node_of_rank[static_cast<size_t>(to)]) {
        return {};
      }
      return {absl::StrCat("out of ", nic(from)),
              absl::StrCat("into ", nic(to))};
    default:
      return {};
  }
}

// Sends and receives in odd places, but of a sound order of tasks: the receive
// of a tensor up to a few tasks ahead.
ExecutionPlan RandomlyLowered(const StageGraph& graph, uint64_t seed) {
  Random random(seed);
  const RankOrders orders = RandomOrders(graph, random);
  ExecutionPlan plan = LowerNaively(graph, orders);
  for (std::vector<Instruction>& program : plan.programs) {
    for (size_t k = 0; k + 1 < program.size(); ++k) {
      // A receive may come later, up to its wait.
      const auto* recv = std::get_if<Recv>(&program[k]);
      if (recv == nullptr || random.Below(2) == 0) continue;
      const auto* wait = std::get_if<WaitRecv>(&program[k + 1]);
      if (wait != nullptr && wait->edge == recv->edge) continue;
      std::swap(program[k], program[k + 1]);
    }
  }
  return plan;
}

StageGraph SomeGraph(uint64_t seed) {
  return RandomGraph(
      seed, {.max_ranks = 5, .max_microbatches = 4, .with_epilogues = true});
}

std::vector<EmulateOptions> SomeOptions(int32_t num_ranks) {
  std::vector<EmulateOptions> all;
  for (const LinkSharing sharing :
       {LinkSharing::kNone, LinkSharing::kPerPair, LinkSharing::kBothWays,
        LinkSharing::kPerRank, LinkSharing::kPerNic}) {
    for (const bool blocking : {false, true}) {
      EmulateOptions options{.links = SharedLinks{}};
      options.links->sharing = sharing;
      options.links->blocking_sends = blocking;
      if (sharing == LinkSharing::kPerNic) {
        for (int32_t r = 0; r < num_ranks; ++r) {
          options.links->nic_of_rank.push_back(r / 2);
          options.links->node_of_rank.push_back(r / 4);
        }
      }
      all.push_back(options);
    }
  }
  return all;
}

TEST(StepEngine, EveryStartIsThatOfAnEmulatorThatScansForWhatIsNext) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const StageGraph graph = SomeGraph(seed);
    const ExecutionPlan plan = RandomlyLowered(graph, seed);
    for (const EmulateOptions& options : SomeOptions(graph.num_ranks())) {
      const OracleStep expected = EmulateByScanning(
          plan, options.links->blocking_sends,
          [&](int32_t from, int32_t to) { return PortsOf(options, from, to); });
      const auto trace = EmulateStep(plan, options);
      const std::string where = absl::StrCat(
          "seed ", seed, " sharing ", static_cast<int>(options.links->sharing),
          " blocking ", options.links->blocking_sends);
      ASSERT_EQ(trace.ok(), !expected.deadlock) << where << trace.status();
      if (!trace.ok()) continue;
      ++compared;
      EXPECT_EQ(trace->finish.time_since_epoch().count(), expected.finish)
          << where;
      std::map<int32_t, int64_t> tasks;
      std::map<int32_t, int64_t> transfers;
      for (const Span& span : trace->spans) {
        const int64_t start = span.start.time_since_epoch().count();
        if (span.kind == SpanKind::kTask) tasks[span.task.value()] = start;
        if (span.kind == SpanKind::kTransfer) {
          transfers[span.edge.value()] = start;
        }
      }
      ASSERT_EQ(tasks, expected.task_start) << where;
      ASSERT_EQ(transfers, expected.transfer_start) << where;
    }
  }
  EXPECT_GT(compared, 800);
}

TEST(EventQueue, ReturnsEventsByTimeAndThenByRank) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    EventQueue queue;
    std::set<std::pair<int64_t, int32_t>> expected;
    // Few times, so that many are equal.
    const auto event = [&](int32_t rank) {
      const RankEvent made{random.Between(0, 6), rank};
      expected.emplace(made.at, made.rank);
      return made;
    };
    const auto check_first = [&](RankEvent first) {
      EXPECT_EQ(std::pair(first.at, first.rank), *expected.begin());
      expected.erase(expected.begin());
      return first.rank;
    };
    for (int32_t rank = 0; rank < 12; ++rank) queue.Push(event(rank));
    for (int turn = 0; turn < 200; ++turn) {
      const RankEvent first = queue.next();
      const int32_t rank = check_first(first);
      if (random.Below(2) == 0) {
        EXPECT_EQ(queue.Pop(), first);
        queue.Push(event(rank));
      } else {
        EXPECT_EQ(queue.Exchange(event(rank)), first);
      }
    }
    while (!queue.empty()) check_first(queue.Pop());
    EXPECT_TRUE(expected.empty());
  }
}

TEST(StepEngine, WhereOrderIsFreeRanksThatStopForEachOtherGiveTheSame) {
  int free = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const StageGraph graph = SomeGraph(seed);
    for (const ExecutionPlan& plan :
         {RandomlyLowered(graph, seed), LowerNaively(graph, [&] {
            Random random(seed);
            return RandomOrders(graph, random);
          }())}) {
      ASSERT_OK_AND_ASSIGN(const StepProgram program, CompileStep(plan, {}));
      if (!program.order_free) continue;
      ++free;
      StepEngine engine(program, TimesOf(program, plan, {}));
      const bool ok = engine.Run().ok();
      StepTrace one;
      if (ok) BuildTrace(graph, engine, true, &one);
      ASSERT_EQ(engine.Run(true).ok(), ok);
      StepTrace other;
      if (ok) BuildTrace(graph, engine, true, &other);
      EXPECT_EQ(one, other) << "seed " << seed;
    }
  }
  EXPECT_GT(free, 50);
}

TEST(StepEngine, AnEngineAndItsTraceCanBeUsedAgainWithOtherTimes) {
  const StageGraph graph = SomeGraph(3);
  const ExecutionPlan plan = RandomlyLowered(graph, 3);
  for (const EmulateOptions& options : SomeOptions(graph.num_ranks())) {
    ASSERT_OK_AND_ASSIGN(const StepProgram program, CompileStep(plan, options));
    const StepTimes times = TimesOf(program, plan, options);
    StepEngine engine(program, times);
    if (!engine.Run().ok()) continue;
    StepTrace first;
    BuildTrace(graph, engine, true, &first);
    StepTrace trace;
    for (int64_t& d : engine.durations()) d = d * 3 + 1;
    ASSERT_THAT(engine.Run(), IsOk());
    BuildTrace(graph, engine, true, &trace);
    EXPECT_NE(trace, first);
    engine.durations() = times.durations;
    ASSERT_THAT(engine.Run(), IsOk());
    BuildTrace(graph, engine, true, &trace);
    EXPECT_EQ(trace, first);
  }
}

// Whatever times are put in, the same operations wait for the same others.
TEST(StepEngine, WhatIsCompiledDoesNotDependOnWhatAnythingCosts) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const StageGraph graph = SomeGraph(seed);
    IdVector<TaskId, Task> tasks = graph.tasks();
    IdVector<EdgeId, Dependency> edges = graph.edges();
    Random random(seed + 1000);
    for (Task& task : tasks) task.duration = Nanoseconds(random.Below(9000));
    for (Dependency& edge : edges) {
      if (graph.task(edge.from).rank == graph.task(edge.to).rank) continue;
      edge.occupancy = Nanoseconds(random.Below(500));
      edge.delay = edge.occupancy + Nanoseconds(random.Below(500));
    }
    ASSERT_OK_AND_ASSIGN(
        const StageGraph other,
        StageGraph::Create("other", graph.ranks(), graph.module_names(), tasks,
                           edges));
    Random order(seed);
    const RankOrders orders = RandomOrders(graph, order);
    const ExecutionPlan a = LowerNaively(graph, orders);
    const ExecutionPlan b = LowerNaively(other, orders);
    ASSERT_EQ(a.programs, b.programs);
    for (const EmulateOptions& options : SomeOptions(graph.num_ranks())) {
      ASSERT_OK_AND_ASSIGN(const StepProgram p, CompileStep(a, options));
      ASSERT_OK_AND_ASSIGN(const StepProgram q, CompileStep(b, options));
      ASSERT_EQ(p.ops.size(), q.ops.size());
      for (size_t k = 0; k < p.ops.size(); ++k) {
        ASSERT_EQ(p.ops[k].code, q.ops[k].code);
        ASSERT_EQ(p.ops[k].index, q.ops[k].index);
      }
      EXPECT_EQ(p.task_of_slot, q.task_of_slot);
      EXPECT_EQ(p.order_free, q.order_free);
      EXPECT_EQ(p.num_links, q.num_links);
      const auto x = EmulateStep(a, options);
      const auto y = EmulateStep(b, options);
      ASSERT_EQ(x.ok(), y.ok());
      if (!x.ok()) continue;
      EXPECT_EQ(TaskOrders(*x), TaskOrders(*y));
    }
  }
}

// Returns a graph with n tensors from n ranks to one. Each occupies its link
// for `busy` and arrives `lag` later.
StageGraph Fan(int32_t n, Duration busy, Duration lag) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  for (int32_t i = 0; i < n; ++i) {
    tasks.push_back({.rank = RankId(i),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(i)});
  }
  for (int32_t i = 0; i < n; ++i) {
    const TaskId to = tasks.push_back({.rank = RankId(n),
                                       .module = ModuleId(0),
                                       .stage = StageId(1),
                                       .microbatch = MicrobatchId(i)});
    edges.push_back({.from = TaskId(i),
                     .to = to,
                     .delay = busy + lag,
                     .occupancy = busy,
                     .payload = Bytes(1)});
  }
  auto graph = StageGraph::Create("fan", IdVector<RankId, RankSpec>(n + 1),
                                  {"m"}, tasks, edges);
  EXPECT_THAT(graph, IsOk());
  return *graph;
}

Duration FanTime(int32_t n, const EmulateOptions& options) {
  const StageGraph graph = Fan(n, Microseconds(12), Microseconds(5));
  RankOrders orders(graph.num_ranks());
  for (const TaskId t : graph.task_ids()) {
    orders[graph.task(t).rank].push_back(t);
  }
  const auto trace = EmulateStep(LowerNaively(graph, orders), options);
  EXPECT_THAT(trace, IsOk());
  return trace->step_time();
}

TEST(StepEngine, SharedCardsTakeTheClosedFormServedInTurnOrAtOnce) {
  for (const int32_t n : {1, 2, 3, 5, 16, 17}) {
    EmulateOptions options{.links = SharedLinks{}};
    // One card for all senders: its work is n transfers, however it serves.
    options.links->nic_of_rank.assign(static_cast<size_t>(n) + 1, 0);
    options.links->nic_of_rank.back() = 1;
    const Duration whole = n * Microseconds(12) + Microseconds(5);
    options.links->sharing = LinkSharing::kPerNic;
    EXPECT_EQ(FanTime(n, options), whole) << n;
    options.links->sharing = LinkSharing::kFairNic;
    EXPECT_GE(FanTime(n, options), whole) << n;
    EXPECT_LE(FanTime(n, options), whole + Nanoseconds(n)) << n;
    // A card each, as rail-optimised: the receiver's is still one.
    options.links->nic_of_rank.clear();
    EXPECT_GE(FanTime(n, options), whole) << n;
    EXPECT_LE(FanTime(n, options), whole + Nanoseconds(n)) << n;
    // All in one node: no card is used.
    options.links->node_of_rank.assign(static_cast<size_t>(n) + 1, 0);
    EXPECT_EQ(FanTime(n, options), Microseconds(17)) << n;
  }
}

TEST(StepEngine, TransfersThatShareACardSlowEachOtherFromWhenTheyMeet) {
  // Two transfers of 12 us; the second begins 4 us after the first: alone for
  // 4 us, then 8 us of each at half rate (16 us), then 4 us alone.
  IdVector<TaskId, Task> tasks;
  for (const int32_t rank : {0, 1, 2, 2}) {
    tasks.push_back({.rank = RankId(rank),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(0),
                     .duration = Microseconds(rank == 1 ? 4 : 0)});
  }
  IdVector<EdgeId, Dependency> edges;
  for (const int32_t i : {0, 1}) {
    edges.push_back({.from = TaskId(i),
                     .to = TaskId(i + 2),
                     .delay = Microseconds(12),
                     .occupancy = Microseconds(12),
                     .payload = Bytes(1)});
  }
  ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                       StageGraph::Create("two", IdVector<RankId, RankSpec>(3),
                                          {"m"}, tasks, edges));
  EmulateOptions options{.links = SharedLinks{}};
  options.links->sharing = LinkSharing::kFairNic;
  ASSERT_OK_AND_ASSIGN(
      const StepTrace trace,
      EmulateStep(
          LowerNaively(graph,
                       {{TaskId(0)}, {TaskId(1)}, {TaskId(2), TaskId(3)}}),
          options));
  std::vector<Duration> ends;
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTransfer) ends.push_back(span.end - kStepStart);
  }
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(ends[0], Microseconds(20));
  EXPECT_EQ(ends[1], Microseconds(24));
}

TEST(StepEngine, SlowRanksAndLinksScaleWhatIsTheirs) {
  const StageGraph graph = testing::UniformGraph({.ranks = 4,
                                                  .microbatches = 6,
                                                  .weight_grad = kZero,
                                                  .delay = Microseconds(20)});
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (RankSpec& rank : ranks) rank.epilogue = Microseconds(500);
  const ExecutionPlan plan =
      LowerNaively(graph.WithRanks(ranks), OneFOneBOrders(graph));
  EmulateOptions options;
  options.slow_ranks = {{RankId(2), 1.5}, {RankId(2), 2}};
  options.slow_links = {{RankId(0), RankId(1), 4}};
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, EmulateStep(plan, options));
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTask) {
      EXPECT_EQ(span.end - span.start,
                Microseconds(span.rank == RankId(2) ? 3000 : 1000) *
                    (graph.task(span.task).duration / Microseconds(1000)));
    } else if (span.kind == SpanKind::kTransfer) {
      const RankId to = graph.task(graph.edge(span.edge).to).rank;
      EXPECT_EQ(
          span.end - span.start,
          Microseconds(span.rank == RankId(0) && to == RankId(1) ? 80 : 20));
    } else if (span.kind == SpanKind::kEpilogue) {
      // The network, for most of it.
      EXPECT_EQ(span.end - span.start, Microseconds(500));
    }
  }
  options.slow_ranks = {{RankId(4), 1.5}};
  EXPECT_THAT(EmulateStep(plan, options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("slow_ranks: rank 4 does not exist")));
  options.slow_ranks = {{RankId(1), 0}};
  EXPECT_THAT(EmulateStep(plan, options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("slow_ranks: factor is 0")));
  options = {};
  options.links.emplace().nic_of_rank = {0, 1};
  EXPECT_THAT(EmulateStep(plan, options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("nic_of_rank has 2 entries")));
}

TEST(StepEngine, AMessageSentOrReceivedTwiceIsAlwaysRefused) {
  const StageGraph graph = testing::UniformGraph(
      {.ranks = 2, .microbatches = 2, .weight_grad = kZero});
  const ExecutionPlan good = LowerNaively(graph, GPipeOrders(graph));
  for (const bool blocking : {false, true}) {
    for (const LinkSharing sharing :
         {LinkSharing::kNone, LinkSharing::kPerPair, LinkSharing::kBothWays,
          LinkSharing::kPerRank}) {
      for (const RankId rank : graph.rank_ids()) {
        for (size_t k = 0; k < good.programs[rank].size(); ++k) {
          const Instruction& i = good.programs[rank][k];
          if (!std::holds_alternative<Send>(i) &&
              !std::holds_alternative<Recv>(i)) {
            continue;
          }
          ExecutionPlan plan = good;
          plan.programs[rank].push_back(i);
          EXPECT_THAT(
              EmulateStep(plan,
                          {.links = SharedLinks{.sharing = sharing,
                                                .blocking_sends = blocking}}),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("comes twice")));
        }
      }
    }
  }
}

// One rank with `n` tasks of `busy` whose activations go out and come back.
ExecutionPlan Offloading(int32_t ranks, int32_t n, Duration busy,
                         Bytes payload) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  ExecutionPlan plan;
  plan.programs.resize(ranks);
  for (int32_t r = 0; r < ranks; ++r) {
    std::vector<TaskId> forwards;
    for (int32_t i = 0; i < 2 * n; ++i) {
      const TaskId t =
          tasks.push_back({.rank = RankId(r),
                           .pass = i < n ? Pass::kForward : Pass::kBackward,
                           .module = ModuleId(0),
                           .stage = StageId(r),
                           .microbatch = MicrobatchId(i % n),
                           .duration = busy,
                           .alloc = i < n ? payload : Bytes(0),
                           .free = i < n ? Bytes(0) : payload});
      std::vector<Instruction>& program = plan.programs[RankId(r)];
      if (i < n) {
        forwards.push_back(t);
        program.push_back(Compute{t});
        program.push_back(Offload{t, payload});
      } else {
        const TaskId forward = forwards[static_cast<size_t>(i - n)];
        edges.push_back({.from = forward, .to = t});
        program.push_back(Fetch{forward, payload});
        program.push_back(Compute{t});
      }
    }
  }
  auto graph = StageGraph::Create("offload", IdVector<RankId, RankSpec>(ranks),
                                  {"m"}, tasks, edges);
  EXPECT_THAT(graph, IsOk());
  plan.graph = *graph;
  return plan;
}

TEST(StepEngine, CopiesAreSpansOfTheirStreamAndQueueOnAHostLink) {
  const ExecutionPlan plan = Offloading(2, 3, Microseconds(10), Bytes(20'000));
  EmulateOptions options{.links = SharedLinks{}};
  options.links->host_bandwidth = {1e9};  // 20 us a copy.
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, EmulateStep(plan, options));
  std::vector<Span> copies;
  for (const Span& span : trace.spans) {
    if (span.stream == Stream::kCopy && span.rank == RankId(1)) {
      copies.push_back(span);
    }
  }
  // Out one after another from the end of the first forward; back in one after
  // each backward, which waits for it.
  constexpr double kStarts[] = {10, 30, 50, 70, 100, 130};
  ASSERT_EQ(copies.size(), 6u);
  for (size_t k = 0; k < copies.size(); ++k) {
    EXPECT_EQ(copies[k].kind, SpanKind::kTransfer);
    EXPECT_EQ(copies[k].start, kStepStart + Microseconds(kStarts[k]));
    EXPECT_EQ(copies[k].end, copies[k].start + Microseconds(20));
  }
  EXPECT_EQ(trace.step_time(), Microseconds(160));
  EXPECT_TRUE(std::is_sorted(
      trace.memory.begin(), trace.memory.end(), [](auto& a, auto& b) {
        return std::pair(a.rank, a.at) < std::pair(b.rank, b.at);
      }));
  // Three forwards are over at 30 us, when one copy has left.
  EXPECT_EQ(MemoryPeaks(trace)[RankId(0)].total, Bytes(60'000));
  // Two ranks on one link take turns: twelve copies.
  options.links->host_link_of_rank = {0, 0};
  ASSERT_OK_AND_ASSIGN(const StepTrace shared, EmulateStep(plan, options));
  EXPECT_EQ(shared.step_time(), Microseconds(10 + 240 + 10));
}

}  // namespace
}  // namespace pipeloom::emulator
