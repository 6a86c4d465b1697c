#include "emulator/step/emulate_step.h"

#include <algorithm>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::testing::AllOf;
using testing::FailsWith;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::RandomGraph;
using testing::RandomOrders;
using testing::UniformGraph;

constexpr LinkSharing kAllSharing[] = {
    LinkSharing::kNone, LinkSharing::kPerPair, LinkSharing::kPerRank};

Duration StepTime(const ExecutionPlan& plan,
                  const EmulateOptions& options = {}) {
  const auto trace = EmulateStep(plan, options);
  EXPECT_THAT(trace, IsOk());
  return trace.ok() ? trace->step_time() : kZero;
}

// `producers` ranks that each compute a task of no time and send one tensor to
// one task of the last rank each.
StageGraph FanIn(int32_t producers, Duration delay, Duration occupancy,
                 bool one_receiver) {
  IdVector<RankId, RankSpec> ranks(one_receiver ? producers + 1 : 2);
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  const RankId last(ranks.size() - 1);
  for (int32_t i = 0; i < producers; ++i) {
    tasks.push_back({.rank = RankId(one_receiver ? i : 0),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(i)});
  }
  for (int32_t i = 0; i < producers; ++i) {
    const TaskId to = tasks.push_back({.rank = last,
                                       .module = ModuleId(0),
                                       .stage = StageId(1),
                                       .microbatch = MicrobatchId(i)});
    edges.push_back({.from = TaskId(i),
                     .to = to,
                     .delay = delay,
                     .occupancy = occupancy,
                     .payload = Bytes(1000)});
  }
  auto graph = StageGraph::Create("fan_in", ranks, {"m"}, tasks, edges);
  EXPECT_THAT(graph, IsOk());
  return *graph;
}

RankOrders ById(const StageGraph& graph) {
  RankOrders orders(graph.num_ranks());
  for (const TaskId t : graph.task_ids()) {
    orders[graph.task(t).rank].push_back(t);
  }
  return orders;
}

TEST(EmulateStep, GPipeAndOneFOneBTakeTheClosedForm) {
  const Duration f = Microseconds(100);
  const Duration b = Microseconds(230);
  for (const int32_t p : {1, 2, 4, 7}) {
    for (const int32_t m : {1, 3, 8, 20}) {
      const StageGraph graph = UniformGraph({.ranks = p,
                                             .microbatches = m,
                                             .forward = f,
                                             .backward = b,
                                             .weight_grad = kZero});
      for (const RankOrders& orders :
           {GPipeOrders(graph), OneFOneBOrders(graph)}) {
        for (const LinkSharing sharing : kAllSharing) {
          EXPECT_EQ(StepTime(LowerNaively(graph, orders),
                             {.links = SharedLinks{.sharing = sharing}}),
                    (m + p - 1) * (f + b))
              << "p " << p << " m " << m;
        }
      }
    }
  }
}

TEST(EmulateStep, WithoutSharedLinksStartsAreThoseOfTimeSchedule) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const StageGraph graph = RandomGraph(
        seed, {.max_ranks = 5, .max_microbatches = 4, .with_epilogues = true});
    Random random(seed);
    const RankOrders orders = RandomOrders(graph, random);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimeSchedule(graph, orders));
    ASSERT_OK_AND_ASSIGN(
        const StepTrace trace,
        EmulateStep(LowerNaively(graph, orders),
                    {.links = SharedLinks{.sharing = LinkSharing::kNone}}));
    EXPECT_EQ(trace.finish, schedule.finish) << "seed " << seed;
    IdVector<TaskId, SimTime> start(graph.num_tasks());
    for (const Span& span : trace.spans) {
      if (span.kind != SpanKind::kTask) continue;
      start[span.task] = span.start;
      EXPECT_EQ(span.end - span.start, graph.task(span.task).duration);
    }
    EXPECT_EQ(start, schedule.start) << "seed " << seed;
    EXPECT_EQ(TaskOrders(trace), orders) << "seed " << seed;
  }
}

TEST(EmulateStep, DelaysInsideARankCount) {
  const Task task{
      .rank = RankId(0), .module = ModuleId(0), .duration = Microseconds(1)};
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      StageGraph::Create(
          "delayed", IdVector<RankId, RankSpec>(1), {"model"}, {task, task},
          {{.from = TaskId(0), .to = TaskId(1), .delay = Microseconds(5)}}));
  const RankOrders orders = {{TaskId(0), TaskId(1)}};
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TimeSchedule(graph, orders));
  EXPECT_EQ(schedule.makespan(), Microseconds(7));
  EXPECT_EQ(StepTime(LowerNaively(graph, orders), {}), Microseconds(7));
}

TEST(EmulateStep, TracesAreSortedAndRepeat) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const StageGraph graph =
        RandomGraph(seed, {.max_ranks = 5, .max_microbatches = 4});
    Random random(seed);
    const ExecutionPlan plan = LowerNaively(graph, RandomOrders(graph, random));
    for (const LinkSharing sharing : kAllSharing) {
      ASSERT_OK_AND_ASSIGN(
          const StepTrace trace,
          EmulateStep(plan, {.links = SharedLinks{.sharing = sharing}}));
      ASSERT_OK_AND_ASSIGN(
          const StepTrace again,
          EmulateStep(plan, {.links = SharedLinks{.sharing = sharing}}));
      EXPECT_EQ(trace, again);
      ASSERT_OK_AND_ASSIGN(
          const StepTrace brief,
          EmulateStep(plan, {.links = SharedLinks{.sharing = sharing},
                             .full_trace = false}));
      EXPECT_EQ(brief.finish, trace.finish);
      EXPECT_EQ(TaskOrders(brief), TaskOrders(trace));
      EXPECT_TRUE(brief.memory.empty());
      EXPECT_TRUE(std::is_sorted(
          trace.spans.begin(), trace.spans.end(), [](auto& a, auto& b) {
            return std::pair(a.rank, a.start) < std::pair(b.rank, b.start);
          }));
      EXPECT_TRUE(std::is_sorted(
          trace.memory.begin(), trace.memory.end(), [](auto& a, auto& b) {
            return std::pair(a.rank, a.at) < std::pair(b.rank, b.at);
          }));
    }
  }
}

TEST(EmulateStep, AFasterLinkNeverLengthensAFixedPlan) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const StageGraph graph =
        RandomGraph(seed, {.max_ranks = 4, .max_microbatches = 4});
    IdVector<EdgeId, Dependency> faster = graph.edges();
    for (Dependency& edge : faster) {
      edge.delay /= 2;
      edge.occupancy /= 2;
    }
    ASSERT_OK_AND_ASSIGN(
        const StageGraph improved,
        StageGraph::Create("faster", graph.ranks(), graph.module_names(),
                           graph.tasks(), faster));
    const RankOrders orders = ById(graph);
    for (const LinkSharing sharing :
         {LinkSharing::kNone, LinkSharing::kPerPair}) {
      EXPECT_LE(StepTime(LowerNaively(improved, orders),
                         {.links = SharedLinks{.sharing = sharing}}),
                StepTime(LowerNaively(graph, orders),
                         {.links = SharedLinks{.sharing = sharing}}))
          << "seed " << seed;
    }
  }
}

TEST(EmulateStep, MoreSharingNeverShortensAChainOfPairs) {
  const Duration busy = Microseconds(10);
  const Duration delay = Microseconds(13);
  // Four tensors over one pair queue, unless nothing is shared.
  ExecutionPlan pair = LowerNaively(FanIn(4, delay, busy, false),
                                    ById(FanIn(4, delay, busy, false)));
  EXPECT_EQ(
      StepTime(pair, {.links = SharedLinks{.sharing = LinkSharing::kNone}}),
      delay);
  EXPECT_EQ(
      StepTime(pair, {.links = SharedLinks{.sharing = LinkSharing::kPerPair}}),
      3 * busy + delay);
  EXPECT_EQ(
      StepTime(pair, {.links = SharedLinks{.sharing = LinkSharing::kPerRank}}),
      3 * busy + delay);
  // Four senders, one receiver: only its own port makes them queue.
  ExecutionPlan fan = LowerNaively(FanIn(4, delay, busy, true),
                                   ById(FanIn(4, delay, busy, true)));
  EXPECT_EQ(
      StepTime(fan, {.links = SharedLinks{.sharing = LinkSharing::kNone}}),
      delay);
  EXPECT_EQ(
      StepTime(fan, {.links = SharedLinks{.sharing = LinkSharing::kPerPair}}),
      delay);
  EXPECT_EQ(
      StepTime(fan, {.links = SharedLinks{.sharing = LinkSharing::kPerRank}}),
      3 * busy + delay);
}

TEST(EmulateStep, ADelayedLinkIsOccupiedForTheDelayToo) {
  const Duration busy = Microseconds(10);
  const Duration delay = Microseconds(13);
  const Duration added = Microseconds(100);
  const StageGraph graph = FanIn(4, delay, busy, false);
  const ExecutionPlan plan = LowerNaively(graph, ById(graph));
  ASSERT_GT(graph.num_edges(), 0);
  const Dependency& edge = graph.edge(EdgeId(0));
  EmulateOptions options;
  options.slow_links.push_back({.from = graph.task(edge.from).rank,
                                .to = graph.task(edge.to).rank,
                                .added = added});
  EXPECT_EQ(StepTime(plan, options), 3 * (busy + added) + added + delay);
  options.slow_links[0].added = -added;
  EXPECT_THAT(EmulateStep(plan, options),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("added is -100")));
}

// The sender's tensor is ready at 5 us, the receiver at 50.
TEST(EmulateStep, ADelayAheadOfTheSendDoesNotWaitForTheReceiver) {
  const auto task = [](int32_t rank, int32_t microbatch, Duration time) {
    return Task{.rank = RankId(rank),
                .module = ModuleId(0),
                .stage = StageId(rank),
                .microbatch = MicrobatchId(microbatch),
                .duration = time};
  };
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      StageGraph::Create("g", IdVector<RankId, RankSpec>(2), {"m"},
                         {task(0, 0, Microseconds(5)),
                          task(1, 1, Microseconds(50)), task(1, 0, kZero)},
                         {{.from = TaskId(0),
                           .to = TaskId(2),
                           .delay = Microseconds(3),
                           .occupancy = Microseconds(2),
                           .payload = Bytes(64)}}));
  ExecutionPlan plan = LowerNaively(graph, ById(graph));
  // The receive is posted after the other task.
  std::vector<Instruction>& program = plan.programs[RankId(1)];
  const auto recv = std::find_if(
      program.begin(), program.end(),
      [](const Instruction& i) { return std::holds_alternative<Recv>(i); });
  const auto wait = std::find_if(
      program.begin(), program.end(),
      [](const Instruction& i) { return std::holds_alternative<WaitRecv>(i); });
  std::rotate(recv, recv + 1, wait);
  for (const LinkSharing sharing :
       {LinkSharing::kNone, LinkSharing::kPerPair, LinkSharing::kBothWays}) {
    EmulateOptions options{.links = SharedLinks{.sharing = sharing}};
    options.slow_links = {
        {.from = RankId(0), .to = RankId(1), .added = Microseconds(30)}};
    EXPECT_EQ(StepTime(plan, options), Microseconds(50 + 30 + 3));
    options.slow_links[0].ahead = true;
    EXPECT_EQ(StepTime(plan, options), Microseconds(50 + 3));
    options.slow_links[0].added = Microseconds(100);
    EXPECT_EQ(StepTime(plan, options), Microseconds(5 + 100 + 3));
  }
}

// Two tensors of 10 us with 100 us each ahead of them, on one link.
TEST(EmulateStep, DelaysAheadOfSendsQueueOnTheirLink) {
  const StageGraph graph = FanIn(2, Microseconds(13), Microseconds(10), false);
  const ExecutionPlan plan = LowerNaively(graph, ById(graph));
  EmulateOptions options;
  options.slow_links = {{.from = RankId(0),
                         .to = RankId(1),
                         .added = Microseconds(100),
                         .ahead = true}};
  // The delay of the second begins when the first has left the link.
  EXPECT_EQ(StepTime(plan, options), Microseconds(100 + 10 + 100 + 13));
}

TEST(EmulateStep, ABlockingSendHoldsItsRankForTheOccupancy) {
  const Duration busy = Microseconds(10);
  const Duration delay = Microseconds(13);
  const StageGraph graph = FanIn(2, delay, busy, false);
  const ExecutionPlan plan = LowerNaively(graph, ById(graph));
  const auto second_start = [&](bool blocking) {
    const auto trace =
        EmulateStep(plan, {.links = SharedLinks{.sharing = LinkSharing::kNone,
                                                .blocking_sends = blocking}});
    EXPECT_THAT(trace, IsOk());
    for (const Span& span : trace->spans) {
      if (span.task == TaskId(1)) return span.start;
    }
    return SimTime::max();
  };
  EXPECT_EQ(second_start(false), kStepStart);
  EXPECT_EQ(second_start(true), kStepStart + busy);
}

TEST(EmulateStep, ATransferBeginsWhenBothEndsAreThere) {
  IdVector<TaskId, Task> tasks;
  const Task base{.module = ModuleId(0),
                  .stage = StageId(0),
                  .microbatch = MicrobatchId(0)};
  for (const int32_t rank : {0, 1, 1}) {
    Task task = base;
    task.rank = RankId(rank);
    task.duration = Microseconds(rank == 0 ? 5 : 20);
    tasks.push_back(task);
  }
  ASSERT_OK_AND_ASSIGN(
      ExecutionPlan plan, [&]() -> absl::StatusOr<ExecutionPlan> {
        auto graph =
            StageGraph::Create("g", IdVector<RankId, RankSpec>(2), {"m"}, tasks,
                               {{.from = TaskId(0),
                                 .to = TaskId(2),
                                 .delay = Microseconds(3),
                                 .occupancy = Microseconds(2),
                                 .payload = Bytes(64)}});
        if (!graph.ok()) return graph.status();
        ExecutionPlan result;
        result.graph = *std::move(graph);
        return result;
      }());
  const EdgeId e(0);
  plan.programs = {
      {Compute{TaskId(0)}, Send{e}, WaitSend{e}},
      {Compute{TaskId(1)}, Recv{e}, WaitRecv{e}, Compute{TaskId(2)}, Free{e}}};
  ASSERT_OK_AND_ASSIGN(const StepTrace trace, EmulateStep(plan));
  const SimTime at20 = kStepStart + Microseconds(20);
  std::vector<Span> waits;
  for (const Span& span : trace.spans) {
    if (span.kind == SpanKind::kTransfer) {
      EXPECT_EQ(span.rank, RankId(0));
      EXPECT_EQ(span.stream, Stream::kSend);
      EXPECT_EQ(span.start, at20);
      EXPECT_EQ(span.end, at20 + Microseconds(3));
    }
    if (span.kind == SpanKind::kWait) waits.push_back(span);
  }
  ASSERT_EQ(waits.size(), 2u);
  EXPECT_EQ(waits[0].rank, RankId(0));
  EXPECT_EQ(waits[0].start, kStepStart + Microseconds(5));
  EXPECT_EQ(waits[0].end, at20 + Microseconds(2));
  EXPECT_EQ(waits[1].start, at20);
  EXPECT_EQ(waits[1].end, at20 + Microseconds(3));
  EXPECT_EQ(trace.step_time(), Microseconds(43));
  // The received tensor is held from Recv to Free, the sent one from the start
  // of its task to the end of the wait.
  std::vector<MemoryStep> received;
  std::vector<MemoryStep> sent;
  for (const MemoryStep& step : trace.memory) {
    if (step.item == MemoryItem::kReceived) received.push_back(step);
    if (step.item == MemoryItem::kSent) sent.push_back(step);
  }
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], (MemoryStep{.rank = RankId(0),
                                 .at = kStepStart,
                                 .item = MemoryItem::kSent,
                                 .delta = Bytes(64)}));
  EXPECT_EQ(sent[1], (MemoryStep{.rank = RankId(0),
                                 .at = at20 + Microseconds(2),
                                 .item = MemoryItem::kSent,
                                 .delta = Bytes(-64)}));
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[0], (MemoryStep{.rank = RankId(1),
                                     .at = at20,
                                     .item = MemoryItem::kReceived,
                                     .delta = Bytes(64)}));
  EXPECT_EQ(received[1].at, kStepStart + Microseconds(43));
  EXPECT_EQ(received[1].delta, Bytes(-64));
}

// The peak over all moments, summing every step up to each moment in order.
TEST(EmulateStep, MemoryPeaksAreThoseOfABruteForceSweep) {
  for (uint64_t seed = 0; seed < 80; ++seed) {
    StageGraph graph = RandomGraph(
        seed,
        {.max_ranks = 4, .max_microbatches = 3, .with_memory_limits = true});
    IdVector<RankId, RankSpec> specs = graph.ranks();
    for (RankSpec& spec : specs) {
      spec.memory.weights = Bytes(11);
      spec.memory.overhead = Bytes(5);
    }
    graph = graph.WithRanks(specs);
    Random random(seed);
    const ExecutionPlan plan = LowerNaively(graph, RandomOrders(graph, random));
    ASSERT_OK_AND_ASSIGN(const StepTrace trace, EmulateStep(plan));
    const auto peaks = MemoryPeaks(trace);
    IdVector<TaskId, Span> at(graph.num_tasks());
    for (const Span& span : trace.spans) {
      if (span.kind == SpanKind::kTask) at[span.task] = span;
    }
    for (const RankId rank : graph.rank_ids()) {
      // Buffers are posted at the start and freed when their consumer ends.
      Bytes received{};
      for (const EdgeId e : graph.edge_ids()) {
        const Dependency& d = graph.edge(e);
        if (graph.task(d.to).rank == rank && graph.task(d.from).rank != rank) {
          received += d.payload;
        }
      }
      const Bytes held = graph.rank(rank).memory.static_bytes();
      Bytes highest = held + received;
      // Memory only grows where a task starts; tasks of a rank are in order.
      // What is sent is waited for at the program's end.
      Bytes activations{};
      Bytes freed{};
      Bytes sent{};
      std::vector<TaskId> order;
      for (const Span& span : trace.spans) {
        if (span.rank == rank && span.kind == SpanKind::kTask) {
          order.push_back(span.task);
        }
      }
      for (const TaskId task : order) {
        activations += graph.task(task).alloc;
        for (const EdgeId e : graph.outgoing(task)) {
          if (graph.task(graph.edge(e).to).rank != rank) {
            sent += graph.edge(e).payload;
          }
        }
        highest =
            std::max(highest, held + activations + received + sent - freed);
        activations -= graph.task(task).free;
        for (const EdgeId e : graph.incoming(task)) {
          if (graph.task(graph.edge(e).from).rank != rank) {
            freed += graph.edge(e).payload;
          }
        }
      }
      EXPECT_EQ(peaks[rank].total, highest) << "seed " << seed;
      Bytes sum{};
      for (const Bytes item : peaks[rank].items) sum += item;
      EXPECT_EQ(sum, highest);
      EXPECT_EQ(peaks[rank].items[static_cast<int>(MemoryItem::kWeights)],
                Bytes(11));
    }
    // A step gives back all memory that it takes.
    std::map<MemoryItem, Bytes> left;
    for (const MemoryStep& step : trace.memory) left[step.item] += step.delta;
    EXPECT_EQ(left[MemoryItem::kReceived], Bytes(0));
    EXPECT_EQ(left[MemoryItem::kSent], Bytes(0));
  }
}

TEST(EmulateStep, ReceivesThatMissTheirSendDeadlockWithTheWaitingRanks) {
  const StageGraph graph =
      UniformGraph({.ranks = 2, .microbatches = 1, .weight_grad = kZero});
  ExecutionPlan plan = LowerNaively(graph, GPipeOrders(graph));
  // Rank 1 forgets to send the gradient.
  std::erase_if(plan.programs[RankId(1)], [](const Instruction& i) {
    return std::holds_alternative<Send>(i) ||
           std::holds_alternative<WaitSend>(i);
  });
  EXPECT_THAT(
      EmulateStep(plan),
      FailsWith(absl::StatusCode::kFailedPrecondition,
                AllOf(HasSubstr("deadlocks: rank 0 waits at instruction"),
                      HasSubstr("wait_recv edge"),
                      HasSubstr("for rank 1, which has not sent it"))));
}

TEST(EmulateStep, BlockingSendsThatCrossDeadlock) {
  IdVector<TaskId, Task> tasks;
  for (const int32_t rank : {0, 1, 0, 1}) {
    tasks.push_back({.rank = RankId(rank),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(0),
                     .duration = Microseconds(1)});
  }
  ExecutionPlan plan;
  ASSERT_OK_AND_ASSIGN(
      plan.graph,
      StageGraph::Create("crossed", IdVector<RankId, RankSpec>(2), {"m"}, tasks,
                         {{.from = TaskId(0), .to = TaskId(3)},
                          {.from = TaskId(1), .to = TaskId(2)}}));
  const auto program = [](int32_t self, int32_t out, int32_t in) {
    return std::vector<Instruction>{
        Compute{TaskId(self)}, Send{EdgeId(out)},         Recv{EdgeId(in)},
        WaitRecv{EdgeId(in)},  Compute{TaskId(self + 2)}, Free{EdgeId(in)}};
  };
  plan.programs = {program(0, 0, 1), program(1, 1, 0)};
  EXPECT_EQ(StepTime(plan), Microseconds(2));
  EXPECT_THAT(EmulateStep(plan, {.links = SharedLinks{.blocking_sends = true}}),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        AllOf(HasSubstr("rank 0 waits at instruction 1"),
                              HasSubstr("rank 1 waits at instruction 1"),
                              HasSubstr("has not posted its recv"))));
}

TEST(EmulateStep, InstructionsThatNameNothingAreRefused) {
  const StageGraph graph =
      UniformGraph({.ranks = 2, .microbatches = 1, .weight_grad = kZero});
  const ExecutionPlan good = LowerNaively(graph, GPipeOrders(graph));
  const Instruction bad[] = {
      Compute{TaskId(99)},        Compute{TaskId()},
      Send{EdgeId(99)},           Recv{EdgeId(-5)},
      WaitRecv{EdgeId()},         WaitSend{EdgeId(99)},
      Free{EdgeId(99)},           Offload{TaskId(99), Bytes(1)},
      Fetch{TaskId(99), Bytes(1)}};
  for (const Instruction& instruction : bad) {
    ExecutionPlan plan = good;
    plan.programs[RankId(1)].insert(plan.programs[RankId(1)].begin(),
                                    instruction);
    EXPECT_THAT(EmulateStep(plan),
                FailsWith(absl::StatusCode::kFailedPrecondition,
                          HasSubstr("rank 1, instruction 0")));
  }
  ExecutionPlan short_of_one = good;
  short_of_one.programs.resize(1);
  EXPECT_THAT(EmulateStep(short_of_one),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("1 programs")));
  EXPECT_EQ(StepTime(ExecutionPlan{}), kZero);
}

TEST(EmulateStep, OffloadedActivationsLeaveAndReturnOnTheCopyStream) {
  IdVector<TaskId, Task> tasks;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    tasks.push_back({.rank = RankId(0),
                     .pass = pass,
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(0),
                     .duration = Microseconds(10),
                     .alloc = Bytes(pass == Pass::kForward ? 1000 : 0),
                     .free = Bytes(pass == Pass::kForward ? 0 : 1000)});
  }
  ExecutionPlan plan;
  ASSERT_OK_AND_ASSIGN(
      plan.graph,
      StageGraph::Create("g", IdVector<RankId, RankSpec>(1), {"m"}, tasks,
                         {{.from = TaskId(0), .to = TaskId(1)}}));
  plan.programs = {{Compute{TaskId(0)}, Offload{TaskId(0), Bytes(1000)},
                    Fetch{TaskId(0), Bytes(1000)}, Compute{TaskId(1)}}};
  // Copies are free without a rate, and 1000 bytes take 1 us at 1 GB/s.
  EXPECT_EQ(StepTime(plan), Microseconds(20));
  ASSERT_OK_AND_ASSIGN(
      const StepTrace trace,
      EmulateStep(plan, {.links = SharedLinks{.host_bandwidth = {1e9}}}));
  EXPECT_EQ(trace.step_time(), Microseconds(22));
  EXPECT_EQ(MemoryPeaks(trace)[RankId(0)].total, Bytes(1000));
}

}  // namespace
}  // namespace pipeloom::emulator
