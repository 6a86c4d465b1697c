// The lowering and the check of its plans, each against the other and both
// against a run with sends that block, on random problems.
//
// PIPELOOM_PLANS and PIPELOOM_MUTATIONS (environment) ask for more of them
// than the few that every run of the tests takes.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "runtime/launch.h"
#include "runtime/plan_ticket.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;
using ::testing::HasSubstr;

uint64_t CountFrom(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A random problem, order and, for half of them, host copies of a third of the
// forward tasks.
absl::StatusOr<ExecutionPlan> RandomLowered(uint64_t seed) {
  const testing::RandomGraphOptions shapes[] = {
      {.with_epilogues = true},
      {.max_ranks = 6, .max_segments = 3, .max_microbatches = 5},
      {.max_ranks = 2,
       .max_segments = 4,
       .max_microbatches = 6,
       .allow_delays = false},
      {.max_ranks = 8, .max_segments = 2, .max_microbatches = 6},
  };
  const StageGraph graph = RandomGraph(seed, shapes[seed % 4]);
  Random random(seed);
  auto schedule = TimeSchedule(graph, RandomOrders(graph, random));
  if (!schedule.ok()) return schedule.status();
  std::vector<planner::HostCopy> copies;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    const bool has_backward = [&] {
      for (const EdgeId e : graph.outgoing(t)) {
        const Task& to = graph.task(graph.edge(e).to);
        if (to.rank == task.rank && to.pass != Pass::kForward) return true;
      }
      return false;
    }();
    if (seed % 2 == 0 || task.pass != Pass::kForward || !has_backward ||
        task.alloc == Bytes(0) || random.Below(3) != 0) {
      continue;
    }
    copies.push_back({t, Bytes(1 + random.Below(task.alloc.count()))});
  }
  return planner::LowerPlan(graph, *schedule, copies);
}

// Runs the programs with sends that block until the receiver has come to the
// receive, over channels that know no edges: the k-th send from one rank to
// another meets the k-th receive. What a rank gets is what was sent, so a
// wrong order shows as a wrong edge. Any order of turns comes to the same end,
// as nothing that a rank does takes anything from another; so one order is all
// orders. OK, or what goes wrong.
std::string RunBlocking(const ExecutionPlan& plan) {
  const StageGraph& graph = plan.graph;
  struct Channel {
    std::deque<EdgeId> sent{};
    std::deque<EdgeId> posted{};
    size_t met = 0;
  };
  std::map<std::pair<RankId, RankId>, Channel> channels;
  IdVector<RankId, size_t> at(graph.num_ranks(), 0);
  IdVector<RankId, bool> offered(graph.num_ranks(), false);
  IdVector<EdgeId, bool> arrived(graph.num_edges(), false);
  std::string wrong;
  const auto channel = [&](EdgeId e) -> Channel& {
    const Dependency& d = graph.edge(e);
    return channels[{graph.task(d.from).rank, graph.task(d.to).rank}];
  };
  const auto meet = [&](Channel& c) {
    for (; c.met < std::min(c.sent.size(), c.posted.size()); ++c.met) {
      if (c.sent[c.met] != c.posted[c.met]) {
        wrong = absl::StrFormat("edge %d meets edge %d", c.sent[c.met].value(),
                                c.posted[c.met].value());
      }
      arrived[c.sent[c.met]] = true;
    }
  };
  for (bool moved = true; moved && wrong.empty();) {
    moved = false;
    for (const RankId rank : graph.rank_ids()) {
      while (at[rank] < plan.programs[rank].size()) {
        const Instruction& i = plan.programs[rank][at[rank]];
        bool done = true;
        if (const auto* s = std::get_if<Send>(&i)) {
          Channel& c = channel(s->edge);
          if (!offered[rank]) c.sent.push_back(s->edge);
          offered[rank] = true;
          meet(c);
          done = arrived[s->edge];
        } else if (const auto* r = std::get_if<Recv>(&i)) {
          channel(r->edge).posted.push_back(r->edge);
          meet(channel(r->edge));
        } else if (const auto* w = std::get_if<WaitRecv>(&i)) {
          done = arrived[w->edge];
        } else if (const auto* ws = std::get_if<WaitSend>(&i)) {
          done = arrived[ws->edge];
        }
        if (!done) break;
        offered[rank] = false;
        ++at[rank];
        moved = true;
      }
    }
  }
  for (const RankId rank : graph.rank_ids()) {
    if (at[rank] < plan.programs[rank].size()) {
      absl::StrAppendFormat(&wrong, " rank %d is stuck at %s", rank.value(),
                            DescribeInstruction(plan.programs[rank][at[rank]]));
    }
  }
  return wrong;
}

TEST(PlanCheckTest, RandomPlansPassTheCheckAndEndWithBlockingSends) {
  const uint64_t count = CountFrom("PIPELOOM_PLANS", 3000);
  uint64_t with_copies = 0;
  for (uint64_t seed = 0; seed < count; ++seed) {
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, RandomLowered(seed));
    ASSERT_THAT(ValidateExecutionPlan(plan), IsOk()) << "seed " << seed;
    ASSERT_EQ(RunBlocking(plan), "") << "seed " << seed;
    for (const auto& program : plan.programs) {
      if (std::any_of(program.begin(), program.end(), [](const auto& i) {
            return std::holds_alternative<Offload>(i);
          })) {
        ++with_copies;
        break;
      }
    }
  }
  EXPECT_GT(with_copies, count / 10);  // They were under test.
}

// One thing wrong. Empty: this plan has nothing to do that to.
struct Mutation {
  const char* name;
  std::string (*apply)(ExecutionPlan&, Random&);
};

template <typename T>
std::vector<std::pair<RankId, size_t>> Places(const ExecutionPlan& plan) {
  std::vector<std::pair<RankId, size_t>> places;
  for (const RankId rank : plan.programs.ids()) {
    for (size_t k = 0; k < plan.programs[rank].size(); ++k) {
      if (std::holds_alternative<T>(plan.programs[rank][k])) {
        places.emplace_back(rank, k);
      }
    }
  }
  return places;
}

template <typename T>
T Pick(const std::vector<T>& from, Random& random) {
  return from[static_cast<size_t>(
      random.Below(static_cast<int64_t>(from.size())))];
}

// Two sends of one channel change places.
std::string SwapSends(ExecutionPlan& plan, Random& random) {
  const auto places = Places<Send>(plan);
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t a = 0; a < places.size(); ++a) {
    for (size_t b = a + 1; b < places.size(); ++b) {
      if (places[a].first != places[b].first) continue;
      const auto to = [&](size_t k) {
        const auto& [rank, index] = places[k];
        const EdgeId e = std::get<Send>(plan.programs[rank][index]).edge;
        return plan.graph.task(plan.graph.edge(e).to).rank;
      };
      if (to(a) == to(b)) pairs.emplace_back(a, b);
    }
  }
  if (pairs.empty()) return "";
  const auto [a, b] = Pick(pairs, random);
  auto& program = plan.programs[places[a].first];
  std::swap(program[places[a].second], program[places[b].second]);
  return absl::StrFormat("rank %d: %d and %d", places[a].first.value(),
                         places[a].second, places[b].second);
}

template <typename T>
std::string Drop(ExecutionPlan& plan, Random& random) {
  const auto places = Places<T>(plan);
  if (places.empty()) return "";
  const auto [rank, k] = Pick(places, random);
  auto& program = plan.programs[rank];
  program.erase(program.begin() + static_cast<ptrdiff_t>(k));
  return absl::StrFormat("rank %d: %d", rank.value(), k);
}

template <typename T>
std::string Repeat(ExecutionPlan& plan, Random& random) {
  const auto places = Places<T>(plan);
  if (places.empty()) return "";
  const auto [rank, k] = Pick(places, random);
  auto& program = plan.programs[rank];
  const Instruction again = program[k];
  const auto later = static_cast<ptrdiff_t>(
      static_cast<int64_t>(k) + 1 +
      random.Below(static_cast<int64_t>(program.size() - k)));
  program.insert(program.begin() + later, again);
  return absl::StrFormat("rank %d: %d again at %d", rank.value(), k, later);
}

// The instruction names another edge.
template <typename T>
std::string OtherEdge(ExecutionPlan& plan, Random& random) {
  const auto places = Places<T>(plan);
  if (places.empty() || plan.graph.num_edges() < 2) return "";
  const auto [rank, k] = Pick(places, random);
  auto& i = std::get<T>(plan.programs[rank][k]);
  const int32_t other = static_cast<int32_t>(
      (i.edge.value() + 1 + random.Below(plan.graph.num_edges() - 1)) %
      plan.graph.num_edges());
  i.edge = EdgeId(other);
  return absl::StrFormat("rank %d: %d names edge %d", rank.value(), k, other);
}

std::string OtherFetch(ExecutionPlan& plan, Random& random) {
  const auto places = Places<Fetch>(plan);
  if (places.empty()) return "";
  const auto [rank, k] = Pick(places, random);
  std::get<Fetch>(plan.programs[rank][k]).payload += Bytes(1);
  return absl::StrFormat("rank %d: %d", rank.value(), k);
}

// A byte less than the plan's peak.
std::string TooSmallALimit(ExecutionPlan& plan, Random& random) {
  const auto peaks = planner::PlanPeaks(plan);
  IdVector<RankId, RankSpec> ranks = plan.graph.ranks();
  const RankId rank(static_cast<int32_t>(random.Below(plan.graph.num_ranks())));
  if (peaks[rank] < Bytes(2)) return "";
  ranks[rank].memory.limit = peaks[rank] - Bytes(1);
  plan.graph = plan.graph.WithRanks(ranks);
  return absl::StrFormat("rank %d", rank.value());
}

// A receive moves behind its wait.
std::string LateReceive(ExecutionPlan& plan, Random& random) {
  const auto places = Places<Recv>(plan);
  if (places.empty()) return "";
  const auto [rank, k] = Pick(places, random);
  auto& program = plan.programs[rank];
  const Recv recv = std::get<Recv>(program[k]);
  program.erase(program.begin() + static_cast<ptrdiff_t>(k));
  const auto wait = std::find(program.begin(), program.end(),
                              Instruction(WaitRecv{recv.edge}));
  program.insert(wait + 1, recv);
  return absl::StrFormat("rank %d: %d", rank.value(), k);
}

TEST(PlanCheckTest, TheCheckCatchesEveryMutation) {
  const Mutation mutations[] = {
      {"swapped sends", SwapSends},
      {"dropped wait", Drop<WaitRecv>},
      {"dropped send", Drop<Send>},
      {"dropped receive", Drop<Recv>},
      {"dropped fetch", Drop<Fetch>},
      {"wrong slot received", OtherEdge<Recv>},
      {"wrong slot waited for", OtherEdge<WaitRecv>},
      {"wrong slot sent", OtherEdge<Send>},
      {"wrong slot freed", OtherEdge<Free>},
      {"wrong shape fetched", OtherFetch},
      {"double free", Repeat<Free>},
      {"double receive", Repeat<Recv>},
      {"double compute", Repeat<Compute>},
      {"over memory", TooSmallALimit},
      {"late receive", LateReceive},
  };
  const uint64_t count = CountFrom("PIPELOOM_MUTATIONS", 3000);
  std::map<std::string, int> caught;
  uint64_t total = 0;
  for (uint64_t seed = 0; total < count; ++seed) {
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, RandomLowered(seed));
    for (const Mutation& m : mutations) {
      Random random(seed * 31 + 7);
      ExecutionPlan wrong = plan;
      const std::string what = m.apply(wrong, random);
      if (what.empty() || wrong == plan) continue;
      ++total;
      ++caught[m.name];
      ASSERT_FALSE(ValidateExecutionPlan(wrong).ok())
          << m.name << ", seed " << seed << ", " << what;
    }
  }
  for (const Mutation& m : mutations) EXPECT_GT(caught[m.name], 20) << m.name;
}

// The checksum shows differences that a rank cannot see in its own program.
TEST(PlanCheckTest, ARankRefusesAPlanThatIsNotTheOneExpected) {
  ASSERT_OK_AND_ASSIGN(ExecutionPlan plan, RandomLowered(5));
  plan.job = "a job with \"quotes\"\n";
  plan.step = 7;
  const PlanTicket expected = TicketOf(plan);
  EXPECT_THAT(CheckTicket(expected, TicketOf(plan)), IsOk());
  ASSERT_OK_AND_ASSIGN(const PlanTicket read,
                       ParsePlanTicket(ToString(expected)));
  EXPECT_EQ(read, expected);
  EXPECT_FALSE(ParsePlanTicket("1 2 3").ok());
  PlanTicket other = expected;
  other.version = 2;
  EXPECT_THAT(CheckTicket(expected, other),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("its version is 2, not 1")));
  struct Case {
    const char* name;
    void (*change)(ExecutionPlan&);
    const char* message;
  };
  const Case cases[] = {
      {"job", [](ExecutionPlan& p) { p.job = "b"; }, "it is of job \"b\""},
      {"step", [](ExecutionPlan& p) { ++p.step; }, "it is of step 8, not of"},
      {"replica", [](ExecutionPlan& p) { ++p.replica; }, "replica 1"},
      {"shape",
       [](ExecutionPlan& p) {
         IdVector<EdgeId, Dependency> edges = p.graph.edges();
         ++edges[EdgeId(0)].rows;
         p.graph = *StageGraph::Create(p.graph.name(), p.graph.ranks(),
                                       p.graph.module_names(), p.graph.tasks(),
                                       edges);
       },
       "its checksum is"},
      {"an instruction",
       [](ExecutionPlan& p) { p.programs[RankId(0)].pop_back(); },
       "its checksum is"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ExecutionPlan changed = plan;
    c.change(changed);
    EXPECT_THAT(
        CheckTicket(expected, TicketOf(changed)),
        FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(c.message)));
  }
}

// F, F, B, B on one rank: the first forward's activations wait on the host.
ExecutionPlan CopyPlan(Bytes limit, int64_t payload) {
  IdVector<RankId, RankSpec> ranks(1);
  ranks[RankId(0)].memory.limit = limit;
  const auto task = [](Pass pass, int64_t alloc, int64_t free) {
    return Task{.rank = RankId(0),
                .pass = pass,
                .module = ModuleId(0),
                .duration = Microseconds(100),
                .alloc = Bytes(alloc),
                .free = Bytes(free)};
  };
  const Task f = task(Pass::kForward, 10, 0);
  const Task b = task(Pass::kBackward, 0, 10);
  IdVector<TaskId, Task> tasks{f, f, f, b, b, b};
  IdVector<EdgeId, Dependency> edges;
  for (int32_t m = 0; m < 3; ++m) {
    edges.push_back({.from = TaskId(m), .to = TaskId(5 - m)});
  }
  const auto graph = StageGraph::Create("copies", ranks, {"m"}, tasks, edges);
  PIPELOOM_CHECK(graph.ok());
  RankOrders orders(1);
  for (const TaskId t : graph->task_ids()) orders[RankId(0)].push_back(t);
  const auto schedule = TimeSchedule(*graph, orders);
  PIPELOOM_CHECK(schedule.ok());
  auto plan =
      planner::LowerPlan(*graph, *schedule, {{TaskId(0), Bytes(payload)}});
  PIPELOOM_CHECK(plan.ok());
  return *std::move(plan);
}

TEST(HostCopyTest, ComesBackOneTaskEarlyWhereThereIsRoom) {
  using I = Instruction;
  const I offload(Offload{TaskId(0), Bytes(8)});
  const I fetch(Fetch{TaskId(0), Bytes(8)});
  const auto compute = [](int32_t t) { return I(Compute{TaskId(t)}); };
  EXPECT_THAT(
      CopyPlan(Bytes(0), 8).programs[RankId(0)],
      ::testing::ElementsAre(compute(0), offload, compute(1), compute(2),
                             compute(3), fetch, compute(4), compute(5)));
  const ExecutionPlan tight = CopyPlan(Bytes(22), 8);
  EXPECT_THAT(ValidateExecutionPlan(tight), IsOk());
  EXPECT_EQ(planner::PlanPeaks(tight)[RankId(0)], Bytes(22));
}

TEST(HostCopyTest, TheRunWaitsForItsCopies) {
  ExecutionPlan plan = CopyPlan(Bytes(0), 8);
  ASSERT_OK_AND_ASSIGN(const StepTrace quick, RunPlan(plan));
  EXPECT_GE(quick.step_time(), Microseconds(600));
  // 8 bytes take 2 ms, of which 100 us are hidden behind task 4.
  plan.links.host_bandwidth = {.bytes_per_second = 4000};
  plan.predicted_step_time = kZero;
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, RunPlan(plan));
  EXPECT_GE(trace.step_time(), Microseconds(100 + 2000 + 2000 + 100));
  // Out and in are spans of the copy stream, as the emulator's are.
  ASSERT_OK_AND_ASSIGN(const StepTrace predicted, emulator::EmulateStep(plan));
  const auto copies = [](const StepTrace& of) {
    std::vector<Span> spans;
    for (const Span& span : of.spans) {
      if (span.stream == Stream::kCopy) spans.push_back(span);
    }
    return spans;
  };
  const std::vector<Span> measured = copies(trace);
  const std::vector<Span> expected = copies(predicted);
  ASSERT_EQ(measured.size(), 2u);
  ASSERT_EQ(expected.size(), 2u);
  for (size_t k = 0; k < measured.size(); ++k) {
    EXPECT_EQ(measured[k].kind, expected[k].kind);
    EXPECT_EQ(measured[k].edge, expected[k].edge);
    EXPECT_GE(measured[k].start, expected[k].start);
    EXPECT_EQ(measured[k].end - measured[k].start,
              expected[k].end - expected[k].start);
  }
  EXPECT_EQ(MemoryPeaks(trace)[RankId(0)].total, Bytes(22));
}

TEST(HostCopyTest, WhatCannotBeCopiedIsRefused) {
  const ExecutionPlan plan = CopyPlan(Bytes(0), 8);
  RankOrders orders(1);
  for (const TaskId t : plan.graph.task_ids()) orders[RankId(0)].push_back(t);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                       TimeSchedule(plan.graph, orders));
  struct Case {
    std::vector<planner::HostCopy> copies;
    const char* message;
  };
  for (const Case& c :
       {Case{{{TaskId(3), Bytes(1)}}, "it is no forward task"},
        Case{{{TaskId(9), Bytes(1)}}, "no such task"},
        Case{{{TaskId(0), Bytes(11)}}, "11 B; it must be in [1, 10]"},
        Case{{{TaskId(0), Bytes(1)}, {TaskId(0), Bytes(1)}},
             "it is listed twice"}}) {
    EXPECT_THAT(
        planner::LowerPlan(plan.graph, schedule, c.copies),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace pipeloom::runtime
