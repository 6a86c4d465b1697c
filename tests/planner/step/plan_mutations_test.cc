// Real plans that are changed: plans of shipped jobs by several strategies,
// each change many times with seeds. ValidateExecutionPlan or, for what a plan
// cannot show by itself, CheckPlan has to refuse them.
//
// A change that leads to another order of the same step may be accepted; then
// the emulator, which ValidateExecutionPlan shares no code with, must give the
// predicted time. PIPELOOM_PLAN_MUTATIONS (environment) asks for more seeds.
#include "tests/planner/step/plan_mutations.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "emulator/step/emulate_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "planner/job/check_plan.h"
#include "planner/job/job_planner.h"
#include "planner/step/plan_step.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::IsOk;

struct PlannedCase {
  const char* job;
  const char* batch;
  const char* strategy;
  std::function<void(JobSpec&)> change{};
};

// Frozen encoders, several modules, fused, split and paired passes,
// recomputation, copies to the host.
std::vector<PlannedCase> Cases() {
  const auto copies = [](JobSpec& job) {
    job.training.memory_strategies = {MemoryStrategy::kKeep,
                                      MemoryStrategy::kOffload};
  };
  const auto buckets = [](JobSpec& job) {
    job.training.shape_buckets = {{"vision_encoder", {4096, 65536}},
                                  {"backbone", {8192}}};
  };
  const auto pairs = [](JobSpec& job) { job.setup.paired_forwards = true; };
  return {
      {"deepseek-v2", "text.jsonl", "1f1b", pairs},
      {"dip-vlm-s", "image_text.jsonl", "pipeloom", pairs},
      {"dip-vlm-s", "image_text.jsonl", "pipeloom", buckets},
      {"dip-t2v-s", "mixed.jsonl", "pipeloom"},
      {"dip-t2v-s", "mixed.jsonl", "1f1b"},
      {"dip-t2v-s", "mixed.jsonl", "zb-v"},
      {"disttrain-9b", "image_text.jsonl", "pipeloom"},
      {"disttrain-9b", "image_text.jsonl", "disttrain"},
      {"qwen2.5-omni-7b", "mixed.jsonl", "pipeloom"},
      {"dip-vlm-xl", "image_text.jsonl", "interleaved"},
      {"llama3-8b", "text.jsonl", "zb-h1"},
      {"llama3-8b", "text.jsonl", "pipeloom", copies},
  };
}

// A plan with the job and the step that it is of.
struct Planned {
  std::unique_ptr<planner::JobPlanner> planner{};
  partition::PackedStep packed{};
  ExecutionPlan plan{};
};

absl::StatusOr<Planned> PlanOf(const PlannedCase& c) {
  PIPELOOM_ASSIGN_OR_RETURN(JobSpec job, testing::ShippedJob(c.job));
  PIPELOOM_ASSIGN_OR_RETURN(const BatchMetadata batch,
                            testing::ShippedBatch(c.batch));
  if (c.change) c.change(job);
  Planned planned;
  PIPELOOM_ASSIGN_OR_RETURN(
      planned.planner,
      planner::JobPlanner::Create(job, batch, {.strategy = c.strategy}));
  PIPELOOM_ASSIGN_OR_RETURN(planned.packed, partition::PackStep(job, batch, 0));
  planner::PlanInput input{.packed = &planned.packed};
  input.budget.max_evaluations = 5;
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PlanResult result,
      planner::PlanStep(planned.planner->prepared(), input));
  planned.plan = std::move(result.plan);
  return planned;
}

// Returns what is wrong with a changed plan that was accepted; empty: nothing.
std::string WrongWith(const ExecutionPlan& plan) {
  const auto trace = emulator::EmulateStep(plan);
  if (!trace.ok()) return std::string(trace.status().message());
  if (trace->step_time() != plan.predicted_step_time) {
    return absl::StrCat("it takes ", trace->step_time().count(),
                        " ns, predicted ", plan.predicted_step_time.count());
  }
  return "";
}

TEST(PlanMutationsTest, NoChangedPlanIsAcceptedUnlessItRunsAsPredicted) {
  const char* const asked = std::getenv("PIPELOOM_PLAN_MUTATIONS");
  const uint64_t seeds =
      asked == nullptr ? 40 : std::strtoull(asked, nullptr, 10);
  struct Count {
    int made = 0;
    int by_plan = 0;  // Accepted without and with the job.
    int by_job = 0;
  };
  std::map<std::string, Count> counts;
  for (const PlannedCase& c : Cases()) {
    SCOPED_TRACE(absl::StrCat(c.job, " ", c.strategy));
    ASSERT_OK_AND_ASSIGN(const Planned planned, PlanOf(c));
    const planner::PreparedJob& prepared = planned.planner->prepared();
    ASSERT_THAT(ValidateExecutionPlan(planned.plan), IsOk());
    ASSERT_THAT(planner::CheckPlan(prepared, planned.packed, planned.plan),
                IsOk());
    for (const testing::Mutation& m : testing::Mutations()) {
      Count& count = counts[m.name];
      for (uint64_t seed = 0; seed < seeds; ++seed) {
        Random random(seed * 31 + 7);
        testing::PlanParts parts(planned.plan);
        if (!m.apply(parts, random)) continue;
        ++count.made;
        const auto changed = parts.Build();
        if (!changed.ok() || !ValidateExecutionPlan(*changed).ok()) continue;
        ++count.by_plan;
        EXPECT_NE(m.refused, testing::By::kPlan) << m.name << ", seed " << seed;
        if (!planner::CheckPlan(prepared, planned.packed, *changed).ok()) {
          continue;
        }
        ++count.by_job;
        EXPECT_EQ(m.refused, testing::By::kTime) << m.name << ", seed " << seed;
        EXPECT_EQ(WrongWith(*changed), "") << m.name << ", seed " << seed;
      }
    }
  }
  for (const testing::Mutation& m : testing::Mutations()) {
    const Count& count = counts[m.name];
    std::printf("%-46s %5d changed, %4d accepted, %4d with the job\n", m.name,
                count.made, count.by_plan, count.by_job);
    EXPECT_GT(count.made, 15) << m.name;
  }
}

}  // namespace
}  // namespace pipeloom
