#include "planner/memory/memory_rules.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/random_problem.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using ::pipeloom::testing::SmallVlmJob;

// A step of a job and its rules.
struct Case {
  explicit Case(const JobSpec& the_job) : job(the_job), costs(job) {
    const BatchMetadata batch = testing::RandomBatch(3, 40, 3);
    partition = *partition::SeparatedPartition(job, costs, batch);
    microbatches = *partition::SplitMicrobatches(
        job, *partition::PackStep(job, batch, 0), 0, partition);
    built = *partition::BuildStageGraph(costs, partition, microbatches);
    rules = std::make_unique<MemoryRules>(costs, partition, microbatches,
                                          built.pairs);
  }
  Duration Extra(const MemorySelection& selection) const {
    Duration extra{};
    for (const StagePairId id : selection.ids()) {
      extra += rules->memory().effect(id, selection[id]).extra;
    }
    return extra;
  }
  Bytes Held(const MemorySelection& selection) const {
    Bytes held;
    for (const StagePairId id : selection.ids()) {
      held += rules->memory().effect(id, selection[id]).held();
    }
    return held;
  }
  JobSpec job;
  emulator::StageCostModel costs;
  Partition partition{};
  Microbatches microbatches{};
  partition::BuiltGraph built{};
  std::unique_ptr<MemoryRules> rules{};
};

TEST(MemoryRules, GoFromNothingToEveryLayerByRisingTime) {
  const Case c(SmallVlmJob());
  const std::vector<MemoryRule> rules = c.rules->SameForAll();
  ASSERT_GE(rules.size(), 5u);
  Duration last = -Nanoseconds(1);
  for (const MemoryRule& rule : rules) {
    const MemorySelection selection = c.rules->SelectionOf(rule);
    EXPECT_GE(c.Extra(selection), last);
    last = c.Extra(selection);
  }
  EXPECT_EQ(c.rules->SelectionOf(rules.front()),
            c.rules->memory().KeepEverything());
  // The last ones recompute every layer of every stage.
  bool fully = true;
  const MemorySelection all = c.rules->SelectionOf(rules.back());
  for (const StagePairId id : all.ids()) {
    const partition::MemoryCandidate& candidate =
        c.rules->memory().candidates(id)[static_cast<size_t>(all[id])];
    for (const LayerMemory& layer : candidate.choice.layers) {
      fully = fully && layer.recomputes_fully();
    }
    EXPECT_FALSE(candidate.choice.layers.empty());
  }
  EXPECT_TRUE(fully);
}

TEST(MemoryRules, EveryKindOfSettingIsOffered) {
  const Case c(SmallVlmJob());
  bool groups = false;
  bool block = false;
  bool uniform = false;
  bool period = false;
  for (const auto& list : c.rules->memory().lists) {
    for (const partition::MemoryCandidate& candidate : list) {
      const MemoryChoice& choice = candidate.choice;
      const auto full = std::count_if(
          choice.layers.begin(), choice.layers.end(),
          [](const LayerMemory& layer) { return layer.recomputes_fully(); });
      const auto layers = static_cast<int64_t>(choice.layers.size());
      groups = groups || std::any_of(choice.layers.begin(), choice.layers.end(),
                                     [](const LayerMemory& layer) {
                                       return layer.recomputes_partly();
                                     });
      block = block || (full > 0 && full < layers);
      uniform = uniform || (full == layers && layers > 1 && choice.period == 1);
      period = period || (full == layers && layers > 1 && choice.period > 1);
    }
  }
  EXPECT_TRUE(groups);
  EXPECT_TRUE(block);
  EXPECT_TRUE(uniform);
  EXPECT_TRUE(period);
}

TEST(MemoryRules, EachModuleHasOneSetting) {
  const Case c(SmallVlmJob());
  for (const MemoryRule& rule : c.rules->SameForAll()) {
    const MemorySelection selection = c.rules->SelectionOf(rule);
    IdVector<StageId, MemoryChoice> of_stage(c.partition.stages.size());
    std::set<StageId> seen;
    for (const StagePairId id : selection.ids()) {
      const StageId stage = c.rules->memory().pairs[id].stage;
      const MemoryChoice& choice =
          c.rules->memory()
              .candidates(id)[static_cast<size_t>(selection[id])]
              .choice;
      if (seen.insert(stage).second) of_stage[stage] = choice;
      EXPECT_EQ(of_stage[stage], choice) << "stage " << stage.value();
    }
  }
}

TEST(MemoryRules, CheaperOnesChangeOneModuleAndTakeLessTime) {
  const Case c(SmallVlmJob());
  const MemoryRule all = c.rules->SameForAll().back();
  const Duration whole = c.Extra(c.rules->SelectionOf(all));
  for (const ModuleId m : all.ids()) {
    const std::vector<MemoryRule> cheaper = c.rules->Cheaper(all, m);
    EXPECT_FALSE(cheaper.empty());
    Duration last{};
    for (const MemoryRule& rule : cheaper) {
      for (const ModuleId other : all.ids()) {
        EXPECT_EQ(rule[other] == all[other], other != m);
      }
      const MemorySelection selection = c.rules->SelectionOf(rule);
      EXPECT_LT(c.Extra(selection), whole);
      EXPECT_GE(c.Extra(selection), last);
      last = c.Extra(selection);
    }
    EXPECT_TRUE(c.rules->Cheaper(MemoryRule(all.size(), 0), m).empty());
  }
}

TEST(MemoryRules, OnlyKeepingIsOfferedWhenTheJobAllowsNothingElse) {
  JobSpec job = SmallVlmJob();
  job.training.memory_strategies = {MemoryStrategy::kKeep};
  EXPECT_EQ(Case(job).rules->SameForAll().size(), 1u);
}

TEST(MemoryRules, OffloadingIsASettingWhereTheJobAllowsIt) {
  JobSpec job = SmallVlmJob();
  job.training.memory_strategies = {MemoryStrategy::kKeep,
                                    MemoryStrategy::kOffload};
  job.cluster.device.host_bandwidth.bytes_per_second = 1e13;
  const Case c(job);
  const std::vector<MemoryRule> rules = c.rules->SameForAll();
  ASSERT_GE(rules.size(), 2u);
  for (const MemoryRule& rule : rules) {
    EXPECT_EQ(c.Extra(c.rules->SelectionOf(rule)), kZero);
  }
  EXPECT_EQ(c.Held(c.rules->SelectionOf(rules.back())), Bytes(0));
}

TEST(MemoryRules, AFrozenEncoderHasNothingToRecompute) {
  JobSpec job = SmallVlmJob();
  job.training.frozen_modules = {"encoder"};
  const Case c(job);
  const MemorySelection all =
      c.rules->SelectionOf(c.rules->SameForAll().back());
  for (const StagePairId id : all.ids()) {
    const ModuleId m =
        c.partition.stages[c.rules->memory().pairs[id].stage].module;
    EXPECT_EQ(all[id] > 0, m == ModuleId(1));
  }
}

// 32k tokens of Llama-3-8B on one stage: kept activations alone are 73 GB of
// each GPU, as many as a stage has that makes all its layers again at once.
TEST(MemoryRules, EveryStrategyPlansWhereRecomputingLayerByLayerFits) {
  ASSERT_OK_AND_ASSIGN(JobSpec job, testing::ShippedJob("llama3-8b"));
  job.parallel.tp = 2;
  job.parallel.pp = 1;
  job.parallel.dp = 4;
  job.training.microbatches = 2;
  job.training.microbatch_tokens = 32768;
  ASSERT_THAT(ValidateJobSpec(job), testing::IsOk());
  BatchMetadata batch;
  for (int i = 0; i < 64; ++i) batch.samples.push_back({.text_tokens = 8192});
  const auto plan = [&](const char* schedule) -> absl::StatusOr<PlanResult> {
    const emulator::StageCostModel costs(job);
    PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, MakeStrategy(schedule));
    PIPELOOM_ASSIGN_OR_RETURN(const PreparedJob prepared,
                              PrepareJob(*strategy, costs, batch));
    PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                              partition::PackStep(job, batch, 0));
    PlanInput input{.packed = &packed};
    input.budget.max_evaluations = 40;
    return PlanStep(prepared, input);
  };
  Duration least = Nanoseconds(std::numeric_limits<int64_t>::max());
  for (const char* schedule : {"megatron", "1f1b", "nnscaler", "pipeloom"}) {
    SCOPED_TRACE(schedule);
    ASSERT_OK_AND_ASSIGN(const PlanResult result, plan(schedule));
    for (const Bytes peak : result.peak_bytes()) {
      EXPECT_LE(peak, job.MemoryLimit());
    }
    bool recomputes = false;
    for (const MemoryChoice& choice : result.memory.choices) {
      recomputes = recomputes || !choice.keeps_everything();
    }
    EXPECT_TRUE(recomputes);
    least = std::min(least, result.predicted.step_time());
  }
  // One setting for all layers is not far from choosing layer by layer here.
  ASSERT_OK_AND_ASSIGN(const PlanResult megatron, plan("megatron"));
  EXPECT_LE(ToSeconds(megatron.predicted.step_time()), 1.1 * ToSeconds(least));
  job.training.memory_strategies = {MemoryStrategy::kKeep};
  EXPECT_THAT(plan("megatron"),
              testing::FailsWith(absl::StatusCode::kResourceExhausted,
                                 ::testing::HasSubstr("memory limit")));
}

}  // namespace
}  // namespace pipeloom::planner
