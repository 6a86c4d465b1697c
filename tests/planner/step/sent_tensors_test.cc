// Boundary tensors, on their way to other ranks or waiting on their own: whose
// account they are in, and for how long. Every figure is found here by
// intervals of the programs, without the walks of PlanPeaks and of the check.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "emulator/step/emulate_step.h"
#include "planner/lower/lower_plan.h"
#include "planner/step/plan_step.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/random_problem.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomOrders;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

// Where instructions stand in a rank's program.
class Places {
 public:
  explicit Places(const std::vector<Instruction>& program) {
    for (size_t k = 0; k < program.size(); ++k) {
      std::visit(
          [&](const auto& i) {
            if constexpr (requires { i.edge; }) {
              of_[{program[k].index(), i.edge.value()}] = k;
            } else if constexpr (requires { i.task; }) {
              of_[{program[k].index(), i.task.value()}] = k;
            }
          },
          program[k]);
    }
  }
  // `otherwise` if it is nowhere.
  size_t Of(const Instruction& i, size_t otherwise) const {
    const int32_t id = std::visit(
        [](const auto& v) {
          if constexpr (requires { v.edge; }) return v.edge.value();
          if constexpr (requires { v.task; }) return v.task.value();
          return -1;
        },
        i);
    const auto found = of_.find({i.index(), id});
    return found == of_.end() ? otherwise : found->second;
  }

 private:
  std::map<std::pair<size_t, int32_t>, size_t> of_{};
};

// Returns the bytes that a rank holds while its k-th instruction runs, for each
// k. Every tensor is there from one instruction to another, which may be the
// end.
std::vector<int64_t> HeldBy(const ExecutionPlan& plan, RankId rank) {
  const StageGraph& graph = plan.graph;
  const std::vector<Instruction>& program = plan.programs[rank];
  const Places places(program);
  const size_t size = program.size();
  std::vector<int64_t> change(size + 2, 0);
  const auto hold = [&](size_t from, size_t until, int64_t bytes) {
    change[std::min(from, size)] += bytes;
    change[std::min(until, size)] -= bytes;
  };
  for (const EdgeId e : graph.edge_ids()) {
    const Dependency& d = graph.edge(e);
    const RankId from = graph.task(d.from).rank;
    const RankId to = graph.task(d.to).rank;
    const int64_t bytes = d.payload.count();
    if (from == to) {
      if (from == rank) {
        hold(places.Of(Compute{d.from}, size), places.Of(Compute{d.to}, size),
             bytes);
      }
      continue;
    }
    if (from == rank) {
      hold(places.Of(Compute{d.from}, size), places.Of(WaitSend{e}, size),
           bytes);
    }
    if (to == rank) {
      hold(places.Of(Recv{e}, size), places.Of(Free{e}, size), bytes);
    }
  }
  for (const TaskId t : graph.tasks_of(rank)) {
    const size_t at = places.Of(Compute{t}, size);
    hold(at, size, graph.task(t).alloc.count());
    hold(at + 1, size, -graph.task(t).free.count());
  }
  for (size_t k = 0; k < size; ++k) {
    if (const auto* o = std::get_if<Offload>(&program[k])) {
      hold(k + 1, size, -o->payload.count());
    } else if (const auto* f = std::get_if<Fetch>(&program[k])) {
      hold(k, size, f->payload.count());
    }
  }
  std::vector<int64_t> held;
  int64_t now = graph.rank(rank).memory.static_bytes().count();
  for (size_t k = 0; k < size; ++k) {
    now += change[k];
    held.push_back(now);
  }
  return held;
}

Bytes PeakBy(const ExecutionPlan& plan, RankId rank) {
  int64_t peak = plan.graph.rank(rank).memory.static_bytes().count();
  for (const int64_t held : HeldBy(plan, rank)) peak = std::max(peak, held);
  return Bytes(peak);
}

// A random problem whose edges carry something, and take time between ranks.
// Its tasks are no passes, as gradients have other sizes than what they are of.
StageGraph RandomTransfers(uint64_t seed) {
  const testing::RandomGraphOptions shapes[] = {
      {.max_ranks = 4, .with_epilogues = true},
      {.max_ranks = 6, .max_segments = 3, .max_microbatches = 5},
      {.max_ranks = 2, .max_segments = 4, .max_microbatches = 6},
      {.max_ranks = 5, .max_segments = 2, .max_microbatches = 6},
  };
  const StageGraph plain = RandomGraph(seed, shapes[seed % 4]);
  Random random(seed + 7);
  const int64_t slowest = random.Below(3) * 6;  // Often no time at all.
  IdVector<EdgeId, Dependency> edges = plain.edges();
  for (Dependency& d : edges) {
    d.payload = Bytes(random.Between(0, 30));
    if (plain.task(d.from).rank == plain.task(d.to).rank) continue;
    d.delay = Microseconds(static_cast<double>(random.Between(0, slowest)));
    d.occupancy = Nanoseconds(random.Between(0, d.delay.count()));
  }
  IdVector<TaskId, Task> tasks = plain.tasks();
  for (Task& task : tasks) {
    task.stage = StageId();
    task.microbatch = MicrobatchId();
  }
  auto graph = StageGraph::Create("transfers", plain.ranks(),
                                  plain.module_names(), tasks, edges);
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

absl::StatusOr<Schedule> RandomSchedule(const StageGraph& graph,
                                        uint64_t seed) {
  Random random(seed);
  return TimeSchedule(graph, RandomOrders(graph, random));
}

absl::StatusOr<ExecutionPlan> RandomLowered(uint64_t seed) {
  const StageGraph graph = RandomTransfers(seed);
  auto schedule = RandomSchedule(graph, seed);
  if (!schedule.ok()) return schedule.status();
  std::vector<HostCopy> copies;
  Random random(seed + 1);
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (seed % 2 == 0 || task.pass != Pass::kForward || task.alloc < Bytes(1) ||
        random.Below(3) != 0) {
      continue;
    }
    const auto out = graph.outgoing(t);
    const bool returns = std::any_of(out.begin(), out.end(), [&](EdgeId e) {
      const Task& to = graph.task(graph.edge(e).to);
      return to.rank == task.rank && to.pass != Pass::kForward;
    });
    if (!returns) continue;
    copies.push_back({t, Bytes(1 + random.Below(task.alloc.count()))});
  }
  return LowerPlan(graph, *schedule, copies);
}

ExecutionPlan WithLimit(ExecutionPlan plan, RankId rank, Bytes limit) {
  IdVector<RankId, RankSpec> ranks = plan.graph.ranks();
  ranks[rank].memory.limit = limit;
  plan.graph = plan.graph.WithRanks(ranks);
  return plan;
}

TEST(SentTensorsTest, PeaksAndTheCheckCountThemToTheByteOnRandomPlans) {
  int64_t with_sent = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, RandomLowered(seed));
    const IdVector<RankId, Bytes> peaks = PlanPeaks(plan);
    for (const RankId r : plan.graph.rank_ids()) {
      ASSERT_EQ(peaks[r], PeakBy(plan, r)) << "rank " << r.value();
    }
    // At most the limit: the check agrees, to the byte.
    const RankId rank(static_cast<int32_t>(
        seed % static_cast<uint64_t>(plan.graph.num_ranks())));
    if (peaks[rank] < Bytes(2)) continue;
    ASSERT_THAT(ValidateExecutionPlan(WithLimit(plan, rank, peaks[rank])),
                IsOk());
    const absl::Status over =
        ValidateExecutionPlan(WithLimit(plan, rank, peaks[rank] - Bytes(1)));
    ASSERT_THAT(over, FailsWith(absl::StatusCode::kFailedPrecondition,
                                HasSubstr("1 B over the limit")));
    with_sent += !absl::StrContains(over.message(), "sent 0");
  }
  EXPECT_GT(with_sent, 3000);  // They were under test.
}

// A wait that is left out, or comes later, keeps its tensor for longer.
TEST(SentTensorsTest, TheCheckSeesWaitsThatComeTooLateForTheLimit) {
  int refused = 0;
  int harmless = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    ASSERT_OK_AND_ASSIGN(ExecutionPlan plan, RandomLowered(seed));
    Random random(seed);
    const RankId rank(
        static_cast<int32_t>(random.Below(plan.graph.num_ranks())));
    const Bytes limit = PeakBy(plan, rank);
    plan = WithLimit(std::move(plan), rank, limit);
    plan.predicted_step_time = kZero;  // Another one is right after a move.
    std::vector<size_t> waits;
    std::vector<Instruction>& program = plan.programs[rank];
    for (size_t k = 0; k < program.size(); ++k) {
      if (std::holds_alternative<WaitSend>(program[k])) waits.push_back(k);
    }
    if (waits.empty() || limit == Bytes(0)) continue;
    ASSERT_THAT(ValidateExecutionPlan(plan), IsOk());
    const size_t k = waits[static_cast<size_t>(
        random.Below(static_cast<int64_t>(waits.size())))];
    const Instruction wait = program[k];
    program.erase(program.begin() + static_cast<ptrdiff_t>(k));
    if (random.Below(2) == 0) {
      const auto to = random.Between(static_cast<int64_t>(k),
                                     static_cast<int64_t>(program.size()));
      program.insert(program.begin() + to, wait);
    }
    const absl::Status status = ValidateExecutionPlan(plan);
    ASSERT_EQ(status.ok(), PeakBy(plan, rank) <= limit) << status;
    ++(status.ok() ? harmless : refused);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(harmless, 100);
}

// When each transfer is over if tasks run as in the schedule and each pair of
// ranks has a link of its own, which serves transfers as they are ready.
IdVector<EdgeId, SimTime> LeftBySchedule(const StageGraph& graph,
                                         const Schedule& schedule,
                                         const ExecutionPlan& plan) {
  IdVector<EdgeId, SimTime> left(graph.num_edges(), kStepStart);
  for (const RankId rank : graph.rank_ids()) {
    std::map<RankId, SimTime> link_free;
    for (const Instruction& i : plan.programs[rank]) {
      const auto* s = std::get_if<Send>(&i);
      if (s == nullptr) continue;
      const Dependency& d = graph.edge(s->edge);
      SimTime& free = link_free[graph.task(d.to).rank];
      free =
          std::max(free, schedule.start[d.from] + graph.task(d.from).duration) +
          d.occupancy;
      left[s->edge] = free;
    }
  }
  return left;
}

TEST(SentTensorsTest, AWaitStallsNothingAndStandsBeforeTheFirstTaskItCan) {
  int64_t early = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomTransfers(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, RandomSchedule(graph, seed));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    const auto left = LeftBySchedule(graph, schedule, plan);
    const auto end = [&](TaskId t) {
      return schedule.start[t] + graph.task(t).duration;
    };
    for (const RankId rank : graph.rank_ids()) {
      const std::vector<Instruction>& program = plan.programs[rank];
      const std::vector<TaskId>& order = schedule.order[rank];
      size_t position = 0;            // Position of the next task.
      std::vector<SimTime> waited{};  // For, since the task before.
      for (const Instruction& i : program) {
        if (const auto* w = std::get_if<WaitSend>(&i)) {
          const SimTime over = left[w->edge];
          // It could not stand before the task before it, unless that one made
          // what is sent.
          ASSERT_GT(position, 0u);
          if (order[position - 1] != graph.edge(w->edge).from) {
            EXPECT_GT(over, schedule.start[order[position - 1]]);
          }
          waited.push_back(over);
          continue;
        }
        // The next instruction is not delayed.
        SimTime due = SimTime::max();
        if (std::holds_alternative<Compute>(i)) {
          due = schedule.start[order[position++]];
        } else if (position > 0 &&
                   (std::holds_alternative<Recv>(i) ||
                    std::holds_alternative<Send>(i) ||
                    std::holds_alternative<ReduceGradients>(i))) {
          due = end(order[position - 1]);
        }
        for (const SimTime over : waited) EXPECT_LE(over, due);
        if (!std::holds_alternative<Compute>(i)) continue;
        early += static_cast<int64_t>(waited.size());
        waited.clear();
      }
    }
  }
  EXPECT_GT(early, 10000);
}

TEST(SentTensorsTest, EmulatedWithoutContentionAPlanEndsWithItsSchedule) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomTransfers(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule schedule, RandomSchedule(graph, seed));
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan, LowerPlan(graph, schedule));
    ASSERT_OK_AND_ASSIGN(
        const StepTrace trace,
        emulator::EmulateStep(
            plan, {.links = SharedLinks{.sharing = LinkSharing::kNone}}));
    EXPECT_EQ(trace.finish, schedule.finish);
    const auto peaks = MemoryPeaks(trace);
    for (const RankId r : graph.rank_ids()) {
      EXPECT_EQ(peaks[r].total, PeakBy(plan, r));
    }
  }
}

void ExpectWithinLimits(const ExecutionPlan& plan) {
  EXPECT_THAT(ValidateExecutionPlan(plan), IsOk());
  for (const RankId r : plan.graph.rank_ids()) {
    EXPECT_LE(PeakBy(plan, r), plan.graph.rank(r).memory.limit)
        << "rank " << r.value();
  }
}

TEST(SentTensorsTest, PlansOfRandomStepsKeepTheirLimitsWithWhatIsSent) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    JobSpec job = SmallVlmJob();
    job.training.microbatches = 8;
    const BatchMetadata batch = RandomBatch(seed, 200, 5);
    ASSERT_OK_AND_ASSIGN(const PlanResult roomy, PlanFirstStep(job, batch));
    const std::vector<Bytes> peaks = roomy.peak_bytes();
    const Bytes most = *std::max_element(peaks.begin(), peaks.end());
    for (const char* schedule : {"pipeloom", "dip", "1f1b", "zb-v"}) {
      for (const int percent : {100, 90, 80, 65}) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << schedule
                                          << " at " << percent << " %");
        job.training.memory_limit = Bytes(most.count() * percent / 100);
        const auto result = PlanFirstStep(job, batch, {.schedule = schedule});
        if (!result.ok()) continue;
        ExpectWithinLimits(result->plan);
        ++planned;
      }
    }
  }
  EXPECT_GT(planned, 100);
}

// Each with the first shipped batch that it has work in.
TEST(SentTensorsTest, PlansOfShippedJobsKeepTheirLimitsWithWhatIsSent) {
  static constexpr const char* kBatches[] = {
      "image_text.jsonl", "video.jsonl",       "text.jsonl",
      "mixed.jsonl",      "interleaved.jsonl", "speech.jsonl"};
  int planned = 0;
  for (const std::string& name : formats::ShippedJobNames()) {
    ASSERT_OK_AND_ASSIGN(const JobSpec job, ShippedJob(name));
    for (const char* schedule : {"pipeloom", "megatron", "dip", "optimus"}) {
      for (const char* batch_name : kBatches) {
        SCOPED_TRACE(name + ", " + schedule + ", " + batch_name);
        ASSERT_OK_AND_ASSIGN(const BatchMetadata batch,
                             ShippedBatch(batch_name));
        const auto result =
            PlanFirstStep(job, batch, {.schedule = schedule, .evaluations = 4});
        if (!result.ok()) continue;
        ExpectWithinLimits(result->plan);
        ++planned;
        break;
      }
    }
  }
  EXPECT_GT(planned, 60);
}

}  // namespace
}  // namespace pipeloom::planner
