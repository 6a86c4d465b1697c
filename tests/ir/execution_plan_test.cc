#include "ir/plan/execution_plan.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Program = std::vector<Instruction>;
using Programs = IdVector<RankId, Program>;

constexpr RankId kR0(0);
constexpr RankId kR1(1);
const TaskId T0(0), T1(1), T2(2), T3(3);
const EdgeId E0(0), E2(2);

// F (task 0) on rank 0, F and B (1, 2) on rank 1, B (3) on rank 0. Edges 0 and
// 2 cross, 1 and 3 do not. Rank 0 has an epilogue.
ExecutionPlan Handshake() {
  IdVector<RankId, RankSpec> ranks(2);
  for (RankSpec& rank : ranks) {
    rank.memory.weights = Bytes(100);
    rank.memory.limit = Bytes(250);
  }
  ranks[kR0].epilogue = Microseconds(5);
  const auto task = [](RankId rank, Pass pass, int64_t alloc, int64_t free) {
    return Task{.rank = rank,
                .pass = pass,
                .module = ModuleId(0),
                .stage = StageId(rank.value()),
                .microbatch = MicrobatchId(0),
                .duration = Microseconds(10),
                .alloc = Bytes(alloc),
                .free = Bytes(free)};
  };
  const auto edge = [](TaskId from, TaskId to, int64_t payload) {
    return Dependency{.from = from, .to = to, .payload = Bytes(payload)};
  };
  ExecutionPlan plan;
  auto graph = StageGraph::Create(
      "handshake", ranks, {"m"},
      {task(kR0, Pass::kForward, 7, 0), task(kR1, Pass::kForward, 5, 0),
       task(kR1, Pass::kBackward, 0, 5), task(kR0, Pass::kBackward, 0, 7)},
      {edge(T0, T1, 64), edge(T1, T2, 0), edge(T2, T3, 64), edge(T0, T3, 0)});
  PIPELOOM_CHECK(graph.ok());
  plan.job = "job";
  plan.schedule = "gpipe";
  plan.graph = *std::move(graph);
  plan.programs = {
      Program{Compute{T0}, Send{E0}, Recv{E2}, WaitRecv{E2}, Compute{T3},
              Free{E2}, ReduceGradients{}, OptimizerStep{}, WaitSend{E0}},
      Program{Recv{E0}, WaitRecv{E0}, Compute{T1}, Free{E0}, Compute{T2},
              Send{E2}, WaitSend{E2}}};
  return plan;
}

ExecutionPlan WithLimit(RankId rank, int64_t limit) {
  ExecutionPlan plan = Handshake();
  IdVector<RankId, RankSpec> ranks = plan.graph.ranks();
  ranks[rank].memory.limit = Bytes(limit);
  plan.graph = plan.graph.WithRanks(ranks);
  return plan;
}

void Erase(Program& p, size_t k) {
  p.erase(p.begin() + static_cast<ptrdiff_t>(k));
}
void Insert(Program& p, size_t k, const Instruction& i) {
  p.insert(p.begin() + static_cast<ptrdiff_t>(k), i);
}

TEST(ValidateExecutionPlanTest, AcceptsTheHandshake) {
  EXPECT_THAT(ValidateExecutionPlan(Handshake()), IsOk());
  EXPECT_THAT(ValidateExecutionPlan(ExecutionPlan()), IsOk());
}

TEST(ValidateExecutionPlanTest, EachViolationIsNamedWithRankAndInstruction) {
  struct Case {
    const char* message;
    std::function<void(Programs&)> break_it;
  };
  const Case cases[] = {
      {"programs of 1 ranks; its graph has 2",
       [](Programs& p) { p.resize(1); }},
      // Tasks.
      {"rank 0, instruction 0 (compute task 9): there is no such task",
       [](Programs& p) { p[kR0][0] = Compute{TaskId(9)}; }},
      {"rank 0, instruction 0 (compute task -1): there is no such task",
       [](Programs& p) { p[kR0][0] = Compute{}; }},
      {"rank 0, instruction 0 (compute task 1): it is of rank 1",
       [](Programs& p) { p[kR0][0] = Compute{T1}; }},
      {"rank 1, instruction 5 (compute task 2): it is computed twice",
       [](Programs& p) { Insert(p[kR1], 5, Compute{T2}); }},
      {"rank 1: task 2 (B m stage 1 microbatch 0) is never computed",
       [](Programs& p) {
         p[kR1] = {Recv{E0}, WaitRecv{E0}, Compute{T1}, Free{E0}};
       }},
      {"rank 1, instruction 2 (compute task 2): it depends on task 1, which "
       "comes later",
       [](Programs& p) { std::swap(p[kR1][2], p[kR1][4]); }},
      {"rank 1, instruction 1 (compute task 1): its input edge 0 from rank 0 "
       "has not been waited for",
       [](Programs& p) { Erase(p[kR1], 1); }},
      {"or is freed already",
       [](Programs& p) {
         std::swap(p[kR0][4], p[kR0][5]);
         Insert(p[kR0], 3, Compute{T3});
       }},
      // Edges.
      {"rank 0, instruction 1 (send edge 8): there is no such edge",
       [](Programs& p) { p[kR0][1] = Send{EdgeId(8)}; }},
      {"rank 0, instruction 1 (send edge 3): the edge stays on rank 0 and "
       "needs no transfer",
       [](Programs& p) { p[kR0][1] = Send{EdgeId(3)}; }},
      {"rank 0, instruction 1 (send edge 2): the edge goes from rank 1 to rank "
       "0",
       [](Programs& p) { p[kR0][1] = Send{E2}; }},
      {"rank 0, instruction 2 (recv edge 0): the edge goes from rank 0 to rank "
       "1",
       [](Programs& p) { p[kR0][2] = Recv{E0}; }},
      {"rank 0, instruction 0 (send edge 0): its producer, task 0, comes later",
       [](Programs& p) { std::swap(p[kR0][0], p[kR0][1]); }},
      {"rank 0, instruction 2 (send edge 0): it is sent twice",
       [](Programs& p) { Insert(p[kR0], 2, Send{E0}); }},
      {"rank 0: edge 0 to rank 1 is never sent",
       [](Programs& p) {
         Erase(p[kR0], 8);
         Erase(p[kR0], 1);
       }},
      {"rank 1, instruction 1 (recv edge 0): it is received twice",
       [](Programs& p) { Insert(p[kR1], 1, Recv{E0}); }},
      {"rank 1, instruction 0 (wait_recv edge 0): it needs one recv before it",
       [](Programs& p) { Erase(p[kR1], 0); }},
      {"rank 1: edge 0 from rank 0 is never freed",
       [](Programs& p) { Erase(p[kR1], 3); }},
      {"rank 1, instruction 2 (free edge 0): its consumer, task 1, comes later",
       [](Programs& p) { std::swap(p[kR1][2], p[kR1][3]); }},
      {"rank 1, instruction 4 (free edge 0): its buffer is not held",
       [](Programs& p) { Insert(p[kR1], 4, Free{E0}); }},
      {"rank 1, instruction 0 (free edge 0): its buffer is not held",
       [](Programs& p) { Insert(p[kR1], 0, Free{E0}); }},
      {"rank 0, instruction 1 (wait_send edge 0): it needs a send before it",
       [](Programs& p) { Insert(p[kR0], 1, WaitSend{E0}); }},
      {"rank 0, instruction 9 (wait_send edge 0): it is waited for twice",
       [](Programs& p) { p[kR0].push_back(WaitSend{E0}); }},
      // The epilogue.
      {"rank 0 has an epilogue of 5000 ns but no reduce_gradients and "
       "optimizer_step",
       [](Programs& p) { Erase(p[kR0], 7); }},
      {"rank 0, instruction 6 (optimizer_step): it needs a reduce_gradients",
       [](Programs& p) { Erase(p[kR0], 6); }},
      {"rank 0, instruction 7 (reduce_gradients): it may stand once",
       [](Programs& p) { Insert(p[kR0], 6, ReduceGradients{}); }},
      {"rank 0, instruction 8 (optimizer_step): it may stand once",
       [](Programs& p) { Insert(p[kR0], 8, OptimizerStep{}); }},
      {"rank 0, instruction 5 (compute task 3): it comes after the epilogue",
       [](Programs& p) { Insert(p[kR0], 4, ReduceGradients{}); }},
      {"rank 1, instruction 6 (send edge 2): it comes after the epilogue",
       [](Programs& p) { Insert(p[kR1], 5, ReduceGradients{}); }},
      // Offloading.
      {"rank 0, instruction 0 (offload task 0): only a forward task that is "
       "computed before",
       [](Programs& p) {
         Insert(p[kR0], 0, Offload{T0, Bytes(7)});
       }},
      {"rank 1, instruction 5 (offload task 2): only a forward task",
       [](Programs& p) {
         Insert(p[kR1], 5, Offload{T2, Bytes(1)});
       }},
      {"rank 0, instruction 1 (offload task 0): its payload of 8 B must be in "
       "[1, 7]",
       [](Programs& p) {
         Insert(p[kR0], 1, Offload{T0, Bytes(8)});
       }},
      {"rank 0, instruction 5 (compute task 3): the activations of task 0 are "
       "offloaded and not fetched back",
       [](Programs& p) {
         Insert(p[kR0], 1, Offload{T0, Bytes(7)});
       }},
      {"rank 0, instruction 1 (fetch task 0): it needs one offload before it",
       [](Programs& p) {
         Insert(p[kR0], 1, Fetch{T0, Bytes(7)});
       }},
      {"rank 0, instruction 2 (fetch task 0): its payload is 6 B; 7 B were "
       "offloaded",
       [](Programs& p) {
         Insert(p[kR0], 1, Offload{T0, Bytes(7)});
         Insert(p[kR0], 2, Fetch{T0, Bytes(6)});
       }},
      // Waiting.
      {"deadlock: rank 0 waits for rank 1 at instruction 2 (wait_recv edge 2); "
       "rank 1 waits for rank 0 at instruction 1 (wait_recv edge 0)",
       [](Programs& p) {  // Both wait before they send.
         const Instruction send = p[kR0][1];
         Erase(p[kR0], 1);
         Insert(p[kR0], 3, send);
       }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    ExecutionPlan plan = Handshake();
    c.break_it(plan.programs);
    EXPECT_THAT(ValidateExecutionPlan(plan),
                FailsWith(absl::StatusCode::kFailedPrecondition,
                          AllOf(::testing::StartsWith("plan: "),
                                HasSubstr(c.message))));
  }
}

// Four tasks, one in each direction on two ranks; the programs decide whether
// blocking sends can meet.
ExecutionPlan Exchange(const Program& first, const Program& second) {
  const auto task = [](RankId rank) {
    return Task{.rank = rank, .module = ModuleId(0)};
  };
  const auto edge = [](TaskId from, TaskId to) {
    return Dependency{.from = from, .to = to, .payload = Bytes(8)};
  };
  auto graph =
      StageGraph::Create("exchange", IdVector<RankId, RankSpec>(2), {"m"},
                         {task(kR0), task(kR1), task(kR0), task(kR1)},
                         {edge(T0, T3), edge(T1, T2), edge(T0, T3)});
  PIPELOOM_CHECK(graph.ok());
  ExecutionPlan plan;
  plan.graph = *std::move(graph);
  plan.programs = {first, second};
  return plan;
}

TEST(ValidateExecutionPlanTest, SendsThatBlockMustMeet) {
  const EdgeId to1(0), to0(1), again(2);
  struct Case {
    const char* name;
    Program first, second;
    ::testing::Matcher<const absl::Status&> expected;
  };
  const Program tail0{WaitRecv{to0}, Compute{T2}, Free{to0}};
  const Program tail1{WaitRecv{to1}, WaitRecv{again}, Compute{T3}, Free{to1},
                      Free{again}};
  const auto with = [](Program head, const Program& tail) {
    head.insert(head.end(), tail.begin(), tail.end());
    return head;
  };
  const Case cases[] = {
      {"receives are posted before anything blocks",
       with({Recv{to0}, Compute{T0}, Send{to1}, Send{again}}, tail0),
       with({Recv{to1}, Recv{again}, Compute{T1}, Send{to0}}, tail1), IsOk()},
      {"one side receives first",
       with({Compute{T0}, Send{to1}, Send{again}, Recv{to0}}, tail0),
       with({Recv{to1}, Recv{again}, Compute{T1}, Send{to0}}, tail1), IsOk()},
      {"both send first: only a deadlock because sends block",
       with({Compute{T0}, Send{to1}, Send{again}, Recv{to0}}, tail0),
       with({Compute{T1}, Send{to0}, Recv{to1}, Recv{again}}, tail1),
       FailsWith(absl::StatusCode::kFailedPrecondition,
                 "plan: deadlock: rank 0 waits for rank 1 at instruction 1 "
                 "(send edge 0); rank 1 waits for rank 0 at instruction 1 "
                 "(send edge 1)")},
      {"a wait for a send that never left",
       with({Compute{T0}, Send{to1}, WaitSend{to1}, Send{again}, Recv{to0}},
            tail0),
       with({Compute{T1}, Recv{to1}, Send{to0}, Recv{again}}, tail1),
       FailsWith(absl::StatusCode::kFailedPrecondition,
                 HasSubstr("rank 0 waits for rank 1 at instruction 3 (send "
                           "edge 2); rank 1 waits for rank 0 at instruction 2 "
                           "(send edge 1)"))},
      {"the two sides list their messages in different orders",
       with({Recv{to0}, Compute{T0}, Send{to1}, Send{again}}, tail0),
       with({Recv{again}, Recv{to1}, Compute{T1}, Send{to0}}, tail1),
       FailsWith(absl::StatusCode::kFailedPrecondition,
                 HasSubstr("message 0 from rank 0 to rank 1 is edge 0 for the "
                           "sender (instruction 2) but edge 2 for the receiver "
                           "(instruction 0)"))},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(ValidateExecutionPlan(Exchange(c.first, c.second)), c.expected);
  }
}

// Rank 0 holds at most 100 + 7 + 64 and the 64 that it sends, which it waits
// for at its end; rank 1 100 + 64 + 5.
TEST(ValidateExecutionPlanTest, MemoryCountsTensorsOnTheirWayToTheByte) {
  EXPECT_THAT(ValidateExecutionPlan(WithLimit(kR0, 235)), IsOk());
  EXPECT_THAT(ValidateExecutionPlan(WithLimit(kR1, 169)), IsOk());
  EXPECT_THAT(ValidateExecutionPlan(WithLimit(kR1, 0)), IsOk());
  const auto fails = [](const char* message) {
    return FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr(message));
  };
  EXPECT_THAT(
      ValidateExecutionPlan(WithLimit(kR0, 234)),
      fails("rank 0, instruction 2 (recv edge 2): 235 B are needed, 1 B over "
            "the limit of 234 B: weights 100, gradients 0, optimizer 0, "
            "overhead 0, activations 7, received 64, sent 64"));
  EXPECT_THAT(ValidateExecutionPlan(WithLimit(kR0, 170)),
              fails("rank 0, instruction 0 (compute task 0): 171 B"));
  EXPECT_THAT(ValidateExecutionPlan(WithLimit(kR1, 168)),
              fails("rank 1, instruction 2 (compute task 1): 169 B"));
  EXPECT_THAT(ValidateExecutionPlan(WithLimit(kR1, 99)),
              fails("rank 1, at the start: 100 B are needed, 1 B over"));
}

TEST(ValidateExecutionPlanTest, WhatHasBeenWaitedForIsSentNoMore) {
  // Right after its send, 64 are given back before 64 are received.
  ExecutionPlan plan = WithLimit(kR0, 171);
  Program& program = plan.programs[kR0];
  ASSERT_EQ(program.back(), Instruction(WaitSend{E0}));
  program.pop_back();
  Insert(program, 2, WaitSend{E0});
  EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
  // Left out or moved behind the receive, it is too late.
  ExecutionPlan without = plan;
  without.programs[kR0].erase(without.programs[kR0].begin() + 2);
  EXPECT_THAT(ValidateExecutionPlan(without),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("rank 0, instruction 2 (recv edge 2): 235 B "
                                  "are needed, 64 B over")));
  std::swap(program[2], program[3]);
  EXPECT_THAT(ValidateExecutionPlan(plan),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("received 64, sent 64")));
}

TEST(ValidateExecutionPlanTest, OffloadedActivationsAreNotHeld) {
  ExecutionPlan plan = WithLimit(kR0, 228);  // Nothing for the 7.
  EXPECT_THAT(
      ValidateExecutionPlan(plan),
      FailsWith(absl::StatusCode::kFailedPrecondition, HasSubstr("7 B over")));
  plan = WithLimit(kR0, 234);
  Insert(plan.programs[kR0], 1, Offload{T0, Bytes(7)});
  Insert(plan.programs[kR0], 5, Fetch{T0, Bytes(7)});
  EXPECT_THAT(ValidateExecutionPlan(plan),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("(fetch task 0): 235 B are needed")));
}

TEST(ValidateExecutionPlanTest, NothingIsGivenBackThatIsNotHeld) {
  ExecutionPlan plan = Handshake();
  IdVector<TaskId, Task> tasks = plan.graph.tasks();
  tasks[T1].free = tasks[T2].alloc = Bytes(6);
  ASSERT_OK_AND_ASSIGN(plan.graph,
                       StageGraph::Create("t", plan.graph.ranks(), {"m"}, tasks,
                                          plan.graph.edges()));
  EXPECT_THAT(ValidateExecutionPlan(plan),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("rank 1, instruction 2 (compute task 1): 6 B "
                                  "of activations are given back, but only 5 B "
                                  "are held")));
}

TEST(ChecksumTest, ChangesWithEveryField) {
  const auto with_task = [](auto change) {
    return [=](ExecutionPlan& p) {
      IdVector<TaskId, Task> tasks = p.graph.tasks();
      change(tasks[T1]);
      p.graph = *StageGraph::Create(p.graph.name(), p.graph.ranks(), {"m", "n"},
                                    tasks, p.graph.edges());
    };
  };
  const auto with_edge = [](auto change) {
    return [=](ExecutionPlan& p) {
      IdVector<EdgeId, Dependency> edges = p.graph.edges();
      change(edges[E0]);
      p.graph = *StageGraph::Create(p.graph.name(), p.graph.ranks(), {"m", "n"},
                                    p.graph.tasks(), edges);
    };
  };
  const auto with_rank = [](auto change) {
    return [=](ExecutionPlan& p) {
      IdVector<RankId, RankSpec> ranks = p.graph.ranks();
      change(ranks[kR1]);
      p.graph = p.graph.WithRanks(ranks);
    };
  };
  const std::function<void(ExecutionPlan&)> changes[] = {
      [](ExecutionPlan&) {},
      [](ExecutionPlan& p) { p.job = "b"; },
      [](ExecutionPlan& p) { p.step = 1; },
      [](ExecutionPlan& p) { p.replica = 1; },
      [](ExecutionPlan& p) { p.schedule = "b"; },
      [](ExecutionPlan& p) { p.predicted_step_time = Nanoseconds(1); },
      [](ExecutionPlan& p) { p.lower_bound = Nanoseconds(1); },
      [](ExecutionPlan& p) { p.model_flops = {1}; },
      [](ExecutionPlan& p) { p.peak_flops_per_second = 1; },
      [](ExecutionPlan& p) { p.programs[kR0].pop_back(); },
      [](ExecutionPlan& p) { p.programs[kR0].back() = Send{E0}; },
      [](ExecutionPlan& p) { p.programs[kR0].back() = Send{E2}; },
      [](ExecutionPlan& p) { p.programs[kR0].back() = Compute{T0}; },
      [](ExecutionPlan& p) { p.programs[kR0].back() = OptimizerStep{}; },
      [](ExecutionPlan& p) {
        p.programs[kR0].back() = Fetch{T0, Bytes(1)};
      },
      [](ExecutionPlan& p) {
        p.programs[kR0].back() = Fetch{T0, Bytes(2)};
      },
      [](ExecutionPlan& p) { std::swap(p.programs[kR0], p.programs[kR1]); },
      with_task([](Task&) {}),  // One more module.
      with_task([](Task& t) { t.rank = kR0; }),
      with_task([](Task& t) { t.pass = Pass::kWeightGrad; }),
      with_task([](Task& t) { t.module = ModuleId(1); }),
      with_task([](Task& t) { t.stage = StageId(7); }),
      with_task([](Task& t) { t.microbatch = MicrobatchId(7); }),
      with_task([](Task& t) { t.sub_microbatch = 1; }),
      with_task([](Task& t) { t.duration += Nanoseconds(1); }),
      with_task([](Task& t) { t.alloc += Bytes(1); }),
      with_task([](Task& t) { t.free += Bytes(1); }),
      with_task([](Task& t) { t.recomputes = true; }),
      with_edge([](Dependency& d) { d.to = T2; }),
      with_edge([](Dependency& d) { d.delay = Nanoseconds(2); }),
      with_edge([](Dependency& d) { d.delay = d.occupancy = Nanoseconds(2); }),
      with_edge([](Dependency& d) { d.payload = Bytes(1); }),
      with_edge([](Dependency& d) { d.rows = 1; }),
      with_edge([](Dependency& d) { d.width = 1; }),
      with_rank([](RankSpec& r) { r.epilogue = Nanoseconds(1); }),
      with_rank([](RankSpec& r) { r.memory.limit = Bytes(1); }),
      with_rank([](RankSpec& r) { r.memory.weights = Bytes(1); }),
      with_rank([](RankSpec& r) { r.memory.gradients = Bytes(1); }),
      with_rank([](RankSpec& r) { r.memory.optimizer = Bytes(1); }),
      with_rank([](RankSpec& r) { r.memory.overhead = Bytes(1); }),
  };
  std::set<Fingerprint> seen;
  for (const auto& change : changes) {
    ExecutionPlan plan = Handshake();
    change(plan);
    EXPECT_EQ(Checksum(plan), Checksum(ExecutionPlan(plan)));
    EXPECT_TRUE(seen.insert(Checksum(plan)).second) << seen.size();
  }
}

TEST(MfuTest, IsModelFlopsOverWhatTheGpusCouldDo) {
  ExecutionPlan plan = Handshake();
  EXPECT_EQ(Mfu(plan, Seconds(1)), 0);  // Peak unknown.
  plan.model_flops = {6e15};
  plan.peak_flops_per_second = 4e15;
  EXPECT_DOUBLE_EQ(Mfu(plan, Seconds(3)), 0.5);
  EXPECT_EQ(Mfu(plan, kZero), 0);
}

// DIP, arXiv 2504.14145, section 2: 12.8 PFLOP an iteration on 8 GPUs, whose
// MFU over 989 TFLOP/s is published as 0.400 and 0.239.
TEST(MfuTest, AgreesWithPublishedIterations) {
  ExecutionPlan plan;
  plan.model_flops = {12.8e15};
  plan.peak_flops_per_second = 8 * 989e12;
  EXPECT_NEAR(Mfu(plan, Seconds(4.068)), 0.398, 0.0005);
  EXPECT_NEAR(Mfu(plan, Seconds(6.789)), 0.238, 0.0005);
}

TEST(DescribeInstructionTest, NamesTheInstructionAndItsObject) {
  const struct {
    Instruction instruction;
    const char* text;
  } cases[] = {
      {Compute{T3}, "compute task 3"},
      {Send{E2}, "send edge 2"},
      {Recv{E2}, "recv edge 2"},
      {WaitRecv{E2}, "wait_recv edge 2"},
      {WaitSend{E2}, "wait_send edge 2"},
      {Free{E2}, "free edge 2"},
      {Offload{T3, Bytes(1)}, "offload task 3"},
      {Fetch{T3, Bytes(1)}, "fetch task 3"},
      {ReduceGradients{}, "reduce_gradients"},
      {OptimizerStep{}, "optimizer_step"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(DescribeInstruction(c.instruction), c.text);
  }
}

}  // namespace
}  // namespace pipeloom
