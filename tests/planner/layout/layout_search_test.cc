#include "planner/layout/layout_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <tuple>

#include "base/status_macros.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::tuple<int, int, int, int, int> SizesOf(const ParallelLayout& p) {
  return {p.tp, p.cp, p.ep, p.pp, p.dp};
}

// Applies the rules of LegalLayouts to every combination of sizes.
std::set<std::tuple<int, int, int, int, int>> ByBruteForce(const JobSpec& job,
                                                           int gpus) {
  std::set<std::tuple<int, int, int, int, int>> all;
  const int batch = job.parallel.dp * job.training.microbatches;
  for (int tp = 1; tp <= gpus; ++tp) {
    for (int cp = 1; cp <= gpus; ++cp) {
      for (int pp = 1; pp <= gpus; ++pp) {
        for (int dp = 1; dp <= gpus; ++dp) {
          for (int ep = 1; ep <= gpus; ++ep) {
            if (tp * cp * pp * dp != gpus || batch % dp != 0 || pp > 16 ||
                job.cluster.gpus_per_node % (tp * cp) != 0) {
              continue;
            }
            // Heads: 4 of the encoder, 8 of the backbone; 6 experts.
            if (4 % tp != 0 || 6 % ep != 0 || (dp * cp) % ep != 0) continue;
            all.insert({tp, cp, ep, pp, dp});
          }
        }
      }
    }
  }
  return all;
}

JobSpec WithExperts(JobSpec job) {
  for (LayerSpec& layer : job.model.modules[ModuleId(1)].layers) {
    if (layer.kind != LayerKind::kTransformer) continue;
    layer.ffn = {.gated = layer.ffn.gated,
                 .experts = 6,
                 .experts_per_token = 2,
                 .expert_hidden = 512};
  }
  return job;
}

TEST(LegalLayoutsTest, AreThoseThatTheRulesAllow) {
  JobSpec job = WithExperts(SmallVlmJob());
  job.cluster.num_nodes = 3;
  job.training.microbatches = 24;
  for (const int gpus : {1, 2, 4, 6, 8, 12, 16, 24}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<JobSpec> legal,
                         LegalLayouts(job, {.gpus = gpus}));
    std::set<std::tuple<int, int, int, int, int>> found;
    for (const JobSpec& l : legal) {
      EXPECT_THAT(ValidateJobSpec(l), IsOk());
      EXPECT_TRUE(found.insert(SizesOf(l.parallel)).second) << "twice";
      EXPECT_EQ(l.parallel.dp * l.training.microbatches, 24) << gpus;
    }
    EXPECT_EQ(found, ByBruteForce(job, gpus)) << gpus << " GPUs";
  }
}

TEST(LegalLayoutsTest, KeepWhatIsFixedAndSayWhatIsInTheWay) {
  const JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const std::vector<JobSpec> legal,
                       LegalLayouts(job, {.gpus = 8, .tp = 2, .dp = 2}));
  ASSERT_THAT(legal, SizeIs(2));  // cp 1 pp 2, cp 2 pp 1.
  EXPECT_EQ(SizesOf(legal[0].parallel), std::tuple(2, 1, 1, 2, 2));
  EXPECT_EQ(SizesOf(legal[1].parallel), std::tuple(2, 2, 1, 1, 2));
  // The job's own comes first.
  ASSERT_OK_AND_ASSIGN(const std::vector<JobSpec> own, LegalLayouts(job, {}));
  EXPECT_EQ(own.front().parallel, job.parallel);
  EXPECT_THAT(LegalLayouts(job, {.gpus = 8, .tp = 8}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("no layout of 8 GPUs, tp 8: tp divides the 8 "
                                  "GPUs of a node and the heads (4")));
  EXPECT_THAT(LegalLayouts(job, {.gpus = 9}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("cluster \"test\" has 8")));
}

TEST(LegalLayoutsTest, ByModuleTheSmallerOneMayHaveEverySmallerSize) {
  const JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const std::vector<JobSpec> whole,
                       LegalLayouts(job, {.gpus = 8}));
  ASSERT_OK_AND_ASSIGN(const std::vector<JobSpec> all,
                       LegalLayouts(job, {.gpus = 8, .by_module = true}));
  std::set<std::tuple<int, int, int, int, int, int, int>> expected;
  for (const JobSpec& l : whole) {
    const ParallelLayout& p = l.parallel;
    EXPECT_TRUE(l.module_parallelism.empty());
    for (int tp = 1; tp <= p.tp; tp *= 2) {
      for (const int cp : {1, p.cp}) {
        expected.insert({p.tp, p.cp, p.ep, p.pp, p.dp, tp, cp});
      }
    }
  }
  std::set<std::tuple<int, int, int, int, int, int, int>> found;
  for (const JobSpec& l : all) {
    EXPECT_THAT(ValidateJobSpec(l), IsOk());
    const ParallelLayout& p = l.parallel;
    const ParallelLayout own = l.LayoutOf(ModuleId(0));
    EXPECT_EQ(own.num_gpus(), p.num_gpus());
    EXPECT_EQ(l.LayoutOf(ModuleId(1)), p) << "the backbone is the larger";
    EXPECT_TRUE(
        found.insert({p.tp, p.cp, p.ep, p.pp, p.dp, own.tp, own.cp}).second);
  }
  EXPECT_EQ(found, expected);
}

TEST(LegalLayoutsTest, KeepTheModulesOwnSizesAsFarAsTheyDivide) {
  JobSpec job = SmallVlmJob();
  job.parallel = {.tp = 4, .pp = 2};
  job.module_parallelism = {{.module = "encoder", .tp = 2}};
  ASSERT_OK_AND_ASSIGN(const std::vector<JobSpec> legal,
                       LegalLayouts(job, {.gpus = 8}));
  EXPECT_EQ(legal.front(), job);
  for (const JobSpec& l : legal) {
    EXPECT_EQ(l.LayoutOf(ModuleId(0)).tp, std::min(l.parallel.tp, 2));
  }
}

// The step with the encoder at a tp of its own, in sub-microbatches of so many
// images.
absl::StatusOr<Duration> StepTime(int32_t encoder_tp, int64_t images) {
  PIPELOOM_ASSIGN_OR_RETURN(JobSpec job, ShippedJob("dip-vlm-m"));
  PIPELOOM_ASSIGN_OR_RETURN(const BatchMetadata batch,
                            ShippedBatch("image_text.jsonl"));
  job.parallel = {.tp = 8, .pp = 4};
  job.training.microbatches = 4;
  job.training.sub_microbatch_sizes = {{"vision_encoder", images}};
  job.module_parallelism = {{.module = "vision_encoder", .tp = encoder_tp}};
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(job));
  const emulator::StageCostModel costs(job);
  // The rule's partition, which keeps to the sub-microbatches.
  PIPELOOM_ASSIGN_OR_RETURN(const auto rule, MakeStrategy("dip"));
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, MakeStrategy("pipeloom"));
  PIPELOOM_ASSIGN_OR_RETURN(PreparedJob prepared,
                            PrepareJob(*rule, costs, batch));
  prepared.strategy = strategy.get();
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(job, batch, 0));
  SearchBudget budget;
  budget.max_evaluations = 4;
  PIPELOOM_ASSIGN_OR_RETURN(
      const PlanResult result,
      PlanStep(prepared, {.packed = &packed, .budget = budget}));
  EXPECT_THAT(ValidateExecutionPlan(result.plan), IsOk());
  return result.predicted.step_time();
}

TEST(ModuleParallelismTest, ManyImagesGoFasterInCopiesAndOneAtATimeDoesNot) {
  ASSERT_OK_AND_ASSIGN(const Duration many_whole, StepTime(8, 16));
  ASSERT_OK_AND_ASSIGN(const Duration many_copies, StepTime(1, 16));
  EXPECT_LT(many_copies, many_whole);
  ASSERT_OK_AND_ASSIGN(const Duration one_whole, StepTime(8, 1));
  ASSERT_OK_AND_ASSIGN(const Duration one_in_a_copy, StepTime(1, 1));
  EXPECT_GT(one_in_a_copy, one_whole);
  RecordProperty("many_ms", std::to_string(ToSeconds(many_whole) * 1e3) + " " +
                                std::to_string(ToSeconds(many_copies) * 1e3));
}

class LayoutSearchTest : public ::testing::Test {
 protected:
  absl::StatusOr<LayoutSearchResult> Search(const JobSpec& job,
                                            int32_t threads = 1) {
    LayoutSearchOptions options;
    options.finalists = 2;
    options.search.partitions = 6;
    options.search.evaluations = 3;
    options.search.threads = threads;
    return SearchLayout(*strategy_, job, sample_, nullptr, options);
  }

  const std::unique_ptr<Strategy> strategy_ = *MakeStrategy("pipeloom");
  const BatchMetadata sample_ = RandomBatch(1, 400, 6);
};

// The search's step time of a layout is that of planning the layout's job with
// its partition, and no layout is better than its bound.
TEST_F(LayoutSearchTest, IsNeverWorseThanTheJobsLayoutNorBetterThanBounds) {
  const JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const LayoutSearchResult found, Search(job));
  EXPECT_GT(found.own_time, kZero);
  EXPECT_LE(found.found.step_time, found.own_time);
  EXPECT_EQ(found.layouts.front().layout, found.job.parallel);
  EXPECT_EQ(found.layouts.front().step_time, found.found.step_time);
  EXPECT_THAT(ValidatePartition(found.found.partition, job.model), IsOk());
  EXPECT_EQ(found.found.partition.num_ranks, found.job.parallel.pp);
  EXPECT_EQ(found.job.parallel.num_gpus(), job.parallel.num_gpus());
  for (const LayoutOutcome& o : found.layouts) {
    if (o.step_time > kZero) {
      EXPECT_GE(o.step_time, o.bound) << "pp " << o.layout.pp;
    }
    if (o.fate == LayoutFate::kBound) {
      EXPECT_GE(o.bound, found.layouts.front().bound);
    }
  }
}

TEST_F(LayoutSearchTest, GivesTheSameForAnyNumberOfThreads) {
  const JobSpec job = SmallVlmJob();
  ASSERT_OK_AND_ASSIGN(const LayoutSearchResult one, Search(job, 1));
  ASSERT_OK_AND_ASSIGN(const LayoutSearchResult three, Search(job, 3));
  EXPECT_EQ(one.job.parallel, three.job.parallel);
  EXPECT_EQ(one.found.partition, three.found.partition);
  ASSERT_EQ(one.layouts.size(), three.layouts.size());
  for (size_t i = 0; i < one.layouts.size(); ++i) {
    EXPECT_EQ(one.layouts[i].layout, three.layouts[i].layout);
    EXPECT_EQ(one.layouts[i].step_time, three.layouts[i].step_time);
    EXPECT_EQ(one.layouts[i].fate, three.layouts[i].fate);
  }
}

TEST_F(LayoutSearchTest, ChoosesASmallerTpForAModuleWhereThatIsFaster) {
  JobSpec job = SmallVlmJob();
  job.parallel = {.tp = 4, .pp = 2};
  LayoutSearchOptions options;
  options.fixed = {.tp = 4, .pp = 2};
  options.search = {.partitions = 6, .evaluations = 3};
  ASSERT_OK_AND_ASSIGN(
      const LayoutSearchResult whole,
      SearchLayout(*strategy_, job, sample_, nullptr, options));
  options.fixed.by_module = true;
  ASSERT_OK_AND_ASSIGN(
      const LayoutSearchResult own,
      SearchLayout(*strategy_, job, sample_, nullptr, options));
  EXPECT_TRUE(whole.job.module_parallelism.empty());
  ASSERT_THAT(own.job.module_parallelism, SizeIs(1));
  EXPECT_EQ(own.job.module_parallelism[0].module, "encoder");
  EXPECT_LT(own.job.module_parallelism[0].tp, 4);
  EXPECT_LT(own.found.step_time, whole.found.step_time);
  EXPECT_EQ(own.own_time, whole.own_time);
  EXPECT_EQ(own.layouts.front().modules, own.job.module_parallelism);
}

TEST_F(LayoutSearchTest, StoppedSaysItsBestOrThatThereIsNone) {
  const JobSpec job = SmallVlmJob();
  std::stop_source source;
  LayoutSearchOptions options;
  options.finalists = 2;
  options.search = {.partitions = 6, .evaluations = 3};
  options.search.stop = source.get_token();
  options.progress = [&](int32_t, int32_t, Duration best) {
    if (best > kZero) source.request_stop();
  };
  ASSERT_OK_AND_ASSIGN(
      const LayoutSearchResult found,
      SearchLayout(*strategy_, job, sample_, nullptr, options));
  EXPECT_GT(found.found.step_time, kZero);
  EXPECT_THAT(ValidatePartition(found.found.partition, job.model), IsOk());
  EXPECT_EQ(found.layouts.front().layout, found.job.parallel);
  // Now from the start.
  EXPECT_THAT(SearchLayout(*strategy_, job, sample_, nullptr, options),
              FailsWith(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

TEST_F(LayoutSearchTest, TakesTheLayoutThatFitsWhereTheJobsDoesNot) {
  JobSpec job = SmallVlmJob();
  job.parallel = {.pp = 1, .dp = 4};
  job.training.microbatches = 2;
  LayoutSearchOptions quick;
  quick.finalists = 1;
  quick.search.partitions = 1;
  quick.search.evaluations = 1;
  bool roomy = false;
  bool tight = false;
  for (int64_t limit = 3200; limit > 1000 && !tight; limit -= 200) {
    job.training.memory_limit = Bytes(limit << 20);
    const auto found = SearchLayout(*strategy_, job, sample_, nullptr, quick);
    ASSERT_THAT(found, IsOk()) << limit << " MiB";
    roomy |= found->own_time > kZero;
    if (found->own_time > kZero) continue;
    tight = true;
    EXPECT_GT(found->job.parallel.tp * found->job.parallel.pp, 1);
    EXPECT_GT(found->found.step_time, kZero);
  }
  EXPECT_TRUE(roomy);
  EXPECT_TRUE(tight);
  job.training.memory_limit = Bytes(1 << 20);
  EXPECT_THAT(Search(job), FailsWith(absl::StatusCode::kResourceExhausted,
                                     HasSubstr("layouts fits the memory")));
}

}  // namespace
}  // namespace pipeloom::planner
