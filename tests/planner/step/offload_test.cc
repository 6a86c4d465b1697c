// Copies to the host, chosen by the planner: from the job that allows them to
// a checked plan whose emulated time counts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "emulator/step/emulate_step.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::PlanFirstStep;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;

constexpr MemoryStrategy kKeep = MemoryStrategy::kKeep;
constexpr MemoryStrategy kRecompute = MemoryStrategy::kRecompute;
constexpr MemoryStrategy kOffload = MemoryStrategy::kOffload;

JobSpec MakeJob(std::vector<MemoryStrategy> strategies,
                double host_bandwidth = 4e11) {
  JobSpec job = SmallVlmJob();
  job.training.microbatches = 6;
  job.training.memory_strategies = std::move(strategies);
  job.cluster.device.host_bandwidth = {host_bandwidth};
  return job;
}

absl::StatusOr<PlanResult> Plan(
    const JobSpec& job, const BatchMetadata& batch,
    const std::string& schedule = "pipeloom", int64_t evaluations = 300,
    const std::optional<Disturbances>& robust = {}) {
  return PlanFirstStep(
      job, batch,
      {.schedule = schedule, .evaluations = evaluations, .robust = robust});
}

int Copies(const ExecutionPlan& plan) {
  int copies = 0;
  for (const auto& program : plan.programs) {
    for (const Instruction& instruction : program) {
      copies += std::holds_alternative<Offload>(instruction);
    }
  }
  return copies;
}

int Recomputed(const ExecutionPlan& plan) {
  return static_cast<int>(
      std::count_if(plan.graph.tasks().begin(), plan.graph.tasks().end(),
                    [](const Task& task) { return task.recomputes; }));
}

Bytes MostHeld(const PlanResult& result) {
  const std::vector<Bytes> peaks = result.peak_bytes();
  return *std::max_element(peaks.begin(), peaks.end());
}

// Valid, within the limit, and its time that of its copies too.
void ExpectSound(const JobSpec& job, const PlanResult& result) {
  EXPECT_THAT(ValidateExecutionPlan(result.plan), IsOk());
  EXPECT_LE(MostHeld(result), job.MemoryLimit());
  EXPECT_LE(result.lower_bound, result.predicted.step_time());
  ASSERT_OK_AND_ASSIGN(const StepTrace again,
                       emulator::EmulateStep(result.plan));
  EXPECT_EQ(again, result.predicted);
}

// The most that a plan without a limit holds.
Bytes Roomy(const BatchMetadata& batch) {
  JobSpec job = MakeJob({kKeep});
  job.training.memory_limit = Bytes(int64_t{1} << 40);
  const auto result = Plan(job, batch);
  return result.ok() ? MostHeld(*result) : Bytes(0);
}

class OffloadTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OffloadTest, AllowingItIsNeverWorseUnderTightLimits) {
  const int64_t evaluations = GetParam() == "dip" ? 200 : 300;
  double with = 0;
  double without = 0;
  int copied = 0;
  int compared = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const BatchMetadata batch = RandomBatch(seed, 200, 5);
    const Bytes roomy = Roomy(batch);
    for (const int percent : {90, 80, 70, 60}) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << " at " << percent << " %");
      JobSpec job = MakeJob({kKeep, kRecompute});
      job.training.memory_limit = Bytes(roomy.count() * percent / 100);
      const auto plain = Plan(job, batch, GetParam(), evaluations);
      job.training.memory_strategies.push_back(kOffload);
      const auto result = Plan(job, batch, GetParam(), evaluations);
      if (!plain.ok() && !result.ok()) continue;
      // A job that fits without copies fits with them, except at limits so
      // tight that it depends on the other choices.
      if (!result.ok()) {
        EXPECT_EQ(percent, 60) << result.status();
        continue;
      }
      ExpectSound(job, *result);
      copied += Copies(result->plan);
      if (!plain.ok()) continue;
      ++compared;
      EXPECT_EQ(Copies(plain->plan), 0);
      const double now = ToSeconds(result->predicted.step_time());
      const double before = ToSeconds(plain->predicted.step_time());
      // Searches of so few schedules differ by as much from seed to seed.
      EXPECT_LE(now, 1.3 * before);
      with += now;
      without += before;
    }
  }
  EXPECT_GE(compared, 8);
  EXPECT_GT(copied, 50);
  // On the whole the two are about equal.
  EXPECT_LT(with, 1.05 * without);
}

INSTANTIATE_TEST_SUITE_P(All, OffloadTest, ::testing::Values("dip", "pipeloom"),
                         [](const auto& strategy) { return strategy.param; });

// Each layer of the backbone a stage, on two ranks in turn: a rank holds many
// stages' activations of one microbatch.
Partition ManyStages(const JobSpec& job) {
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.sub_microbatch_instances = {0, 0};
  for (const ModuleId m : {ModuleId(0), ModuleId(1)}) {
    const auto layers =
        static_cast<int32_t>(job.model.modules[m].layers.size());
    const int32_t stages = m == ModuleId(0) ? partition.num_ranks : layers;
    for (int32_t i = 0; i < stages; ++i) {
      const int32_t first = layers * i / stages;
      const int32_t number = partition.stages.size();
      partition.stages.push_back(
          {.module = m,
           .first_layer = LayerId(first),
           .num_layers = layers * (i + 1) / stages - first,
           .rank = RankId(number % partition.num_ranks),
           .segment = SegmentId(number / partition.num_ranks)});
    }
  }
  partition.num_segments = partition.stages.size() / partition.num_ranks;
  return partition;
}

TEST(OffloadPlanTest, FitsWhereNothingElseDoes) {
  const BatchMetadata batch = RandomBatch(3, 200, 1);
  JobSpec job = MakeJob({kKeep}, 1e13);
  job.parallel.pp = 2;
  job.training.microbatches = 2;
  ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy("pipeloom"));
  ASSERT_OK_AND_ASSIGN(const auto packed, partition::PackStep(job, batch, 0));
  const auto plan = [&](const std::vector<MemoryStrategy>& strategies,
                        int64_t limit) {
    job.training.memory_strategies = strategies;
    job.training.memory_limit = Bytes(limit);
    const emulator::StageCostModel costs(job);
    const PreparedJob prepared{.strategy = strategy.get(),
                               .costs = &costs,
                               .partition = ManyStages(job)};
    SearchBudget budget;
    budget.max_evaluations = 20;
    return PlanStep(prepared, {.packed = &packed, .budget = budget});
  };
  int64_t limit = int64_t{1} << 40;
  ASSERT_OK_AND_ASSIGN(const PlanResult roomy, plan({kKeep}, limit));
  limit = MostHeld(roomy).count();
  int only_copies = 0;
  for (int percent = 98; percent >= 30; percent -= 2) {
    SCOPED_TRACE(::testing::Message() << percent << " %");
    const int64_t less = limit * percent / 100;
    const auto kept = plan({kKeep}, less);
    if (kept.ok()) continue;
    EXPECT_THAT(kept, FailsWith(absl::StatusCode::kResourceExhausted,
                                HasSubstr("nothing fits")));
    const auto copied = plan({kKeep, kOffload}, less);
    if (!copied.ok()) break;
    ExpectSound(job, *copied);
    EXPECT_GT(Copies(copied->plan), 0);
    ++only_copies;
  }
  EXPECT_GE(only_copies, 2);
}

TEST(OffloadPlanTest, RecomputesWhereTheCopyStreamIsTooSlow) {
  const BatchMetadata batch = RandomBatch(5, 200, 5);
  const Bytes limit(Roomy(batch).count() * 6 / 10);
  JobSpec job = MakeJob({kKeep, kRecompute});
  job.training.memory_limit = limit;
  ASSERT_OK_AND_ASSIGN(const PlanResult plain, Plan(job, batch));
  EXPECT_GT(Recomputed(plain.plan), 0);
  // No layer can be copied during its stage's forward.
  JobSpec slow = MakeJob({kKeep, kRecompute, kOffload}, 1e6);
  slow.training.memory_limit = limit;
  ASSERT_OK_AND_ASSIGN(const PlanResult recomputed, Plan(slow, batch));
  EXPECT_EQ(Copies(recomputed.plan), 0);
  EXPECT_EQ(recomputed.predicted.step_time(), plain.predicted.step_time());
}

TEST(OffloadPlanTest, RecomputesLessOnAFastLink) {
  int copies = 0;
  int recomputed = 0;
  int recomputed_plain = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const BatchMetadata batch = RandomBatch(seed, 200, 5);
    JobSpec job = MakeJob({kKeep, kRecompute}, 4e12);
    job.training.memory_limit = Bytes(Roomy(batch).count() * 3 / 4);
    ASSERT_OK_AND_ASSIGN(const PlanResult plain, Plan(job, batch));
    job.training.memory_strategies.push_back(kOffload);
    ASSERT_OK_AND_ASSIGN(const PlanResult copied, Plan(job, batch));
    ExpectSound(job, copied);
    copies += Copies(copied.plan);
    recomputed += Recomputed(copied.plan);
    recomputed_plain += Recomputed(plain.plan);
  }
  EXPECT_GT(copies, 0);
  EXPECT_LT(recomputed, recomputed_plain);
}

TEST(OffloadPlanTest, NeedsALinkToTheHost) {
  const BatchMetadata batch = RandomBatch(5, 200, 5);
  const Bytes limit(Roomy(batch).count() * 7 / 10);
  JobSpec job = MakeJob({kKeep, kRecompute, kOffload}, /*host_bandwidth=*/1);
  job.training.memory_limit = limit;
  ASSERT_OK_AND_ASSIGN(const PlanResult result, Plan(job, batch));
  EXPECT_EQ(Copies(result.plan), 0);
}

TEST(OffloadPlanTest, ARobustPlanKeepsItsCopies) {
  int copied = 0;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const BatchMetadata batch = RandomBatch(seed, 200, 5);
    JobSpec job = MakeJob({kKeep, kOffload});
    job.training.memory_limit = Bytes(Roomy(batch).count() * 3 / 4);
    const Disturbances jitter{.jitter = 0.2, .samples = 16};
    ASSERT_OK_AND_ASSIGN(const PlanResult result,
                         Plan(job, batch, "pipeloom", 400, jitter));
    ExpectSound(job, result);
    copied += Copies(result.plan);
    ASSERT_TRUE(result.robust.has_value());
    EXPECT_LE(result.robust->chosen.p90, result.robust->nominal.p90);
  }
  EXPECT_GT(copied, 0);
}

}  // namespace
}  // namespace pipeloom::planner
