// Any number of microbatches on any number of ranks, and odd batches: a valid
// plan, or an error that says what does not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/status_macros.h"
#include "planner/core/executor.h"
#include "planner/layout/partition_search.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/planner/shipped_files.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::ShippedBatch;
using ::pipeloom::testing::ShippedJob;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::AnyOf;
using ::testing::HasSubstr;

absl::StatusOr<PlanResult> Plan(const JobSpec& job, const BatchMetadata& batch,
                                bool by_rule = true) {
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(job));
  const emulator::StageCostModel costs(job);
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, MakeStrategy("pipeloom"));
  PIPELOOM_ASSIGN_OR_RETURN(
      const PreparedJob prepared,
      by_rule ? testing::PrepareByRule(*strategy, costs, batch)
              : PrepareJob(*strategy, costs, batch));
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(job, batch, 0));
  SearchBudget budget;
  budget.max_evaluations = 2;
  return PlanStep(prepared, {.packed = &packed, .budget = budget});
}

// A valid plan or a clear error.
void ExpectPlanOrError(const JobSpec& job, const BatchMetadata& batch,
                       bool by_rule = true) {
  const auto result = Plan(job, batch, by_rule);
  if (result.ok()) {
    EXPECT_THAT(ValidateExecutionPlan(result->plan), IsOk());
    EXPECT_FALSE(result->plan.loss_totals.empty());
    return;
  }
  EXPECT_THAT(result.status().code(),
              AnyOf(absl::StatusCode::kResourceExhausted,
                    absl::StatusCode::kInvalidArgument))
      << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              AnyOf(HasSubstr("fits the memory limit"), HasSubstr("parallel"),
                    HasSubstr("batch")))
      << result.status();
}

TEST(AnySizeTest, SmallJobsPlanForAnyMicrobatchesAndRanks) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    JobSpec job = SmallVlmJob();
    job.cluster.num_nodes = 8;
    job.parallel.pp = static_cast<int32_t>(random.Between(1, 32));
    job.training.microbatches = static_cast<int32_t>(random.Between(1, 100));
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << " pp " << job.parallel.pp
                 << " microbatches " << job.training.microbatches);
    ExpectPlanOrError(job, RandomBatch(seed, 300, 3), /*by_rule=*/seed % 8 > 0);
  }
}

TEST(AnySizeTest, ShippedJobsPlanForAnyMicrobatchesAndRanks) {
  ASSERT_OK_AND_ASSIGN(const BatchMetadata batch, ShippedBatch("mixed.jsonl"));
  for (const char* name : {"qwen2.5-vl-7b", "qwen2.5-omni-7b"}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      Random random(seed);
      ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob(name));
      job.parallel = {.tp = 1,
                      .pp = static_cast<int32_t>(random.Between(1, 32))};
      job.cluster.num_nodes = std::max(job.cluster.num_nodes, 4);
      job.training.microbatches = static_cast<int32_t>(random.Between(1, 40));
      SCOPED_TRACE(::testing::Message()
                   << name << " seed " << seed << " pp " << job.parallel.pp
                   << " microbatches " << job.training.microbatches);
      ExpectPlanOrError(job, batch, /*by_rule=*/seed > 0);
    }
  }
}

// Every number of microbatches to 100 on every number of ranks to 32, three
// jobs, with PIPELOOM_FULL_GRID=1 in the environment (some ten minutes); else
// some of them. The batch is long enough for all.
class GridTest : public ::testing::TestWithParam<const char*> {
 protected:
  static bool Full() {
    const char* full = std::getenv("PIPELOOM_FULL_GRID");
    return full != nullptr && std::string(full) == "1";
  }
  static std::vector<int32_t> Sizes(int32_t most,
                                    const std::vector<int32_t>& some) {
    if (!Full()) return some;
    std::vector<int32_t> all(static_cast<size_t>(most));
    std::iota(all.begin(), all.end(), 1);
    return all;
  }
  // The values of a plan that are checked.
  struct Cell {
    absl::Status valid{};
    int32_t microbatches = 0;
    Duration step_time{};
    Duration lower_bound{};
  };
  static void ExpectClear(const absl::Status& status) {
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kResourceExhausted,
                                     absl::StatusCode::kInvalidArgument,
                                     absl::StatusCode::kFailedPrecondition))
        << status;
    EXPECT_THAT(std::string(status.message()),
                AnyOf(HasSubstr("memory"), HasSubstr("parallel"),
                      HasSubstr("layers"), HasSubstr("microbatches")))
        << status;
  }
};

TEST_P(GridTest, HasAPlanOrAnErrorThatSaysWhatDoesNotFit) {
  const std::string name = GetParam();
  JobSpec job = SmallVlmJob();
  if (name != "small-vlm") {
    ASSERT_OK_AND_ASSIGN(job, ShippedJob(name));
    job.training.microbatch_tokens = 2048;
  }
  job.cluster.num_nodes = std::max(job.cluster.num_nodes, 4);
  const BatchMetadata batch = RandomBatch(7, 4000, 3);
  // The packing of a replica does not depend on ranks or strategy.
  const std::vector<int32_t> microbatches = Sizes(100, {1, 7, 50});
  std::vector<partition::PackedStep> packed;
  // The number of microbatches that a step may be short of: a sample with more
  // pieces than found room is the next step's first.
  std::vector<int32_t> short_by;
  for (const int32_t m : microbatches) {
    JobSpec sized = job;
    sized.parallel = {};
    sized.training.microbatches = m;
    ASSERT_OK_AND_ASSIGN(packed.emplace_back(),
                         partition::PackStep(sized, batch, 0));
    ASSERT_OK_AND_ASSIGN(
        const auto next,
        partition::PackStep(sized, batch, packed.back().num_samples));
    int32_t pieces = -1;  // The sample itself is no piece.
    for (const SampleId s : next.piece_of.ids()) {
      if (next.piece_of[s] == next.piece_of[SampleId(0)]) ++pieces;
    }
    short_by.push_back(std::max(0, pieces - 1));
  }
  const auto cells = static_cast<int32_t>(microbatches.size());
  const auto threads =
      static_cast<int32_t>(std::thread::hardware_concurrency());
  int planned = 0;
  int refused = 0;
  for (const int32_t pp : Sizes(32, {1, 3, 8, 31})) {
    job.parallel = {.pp = pp};
    ASSERT_THAT(ValidateJobSpec(job), IsOk());
    const emulator::StageCostModel costs(job);
    for (const char* schedule : {"pipeloom", "1f1b", "interleaved"}) {
      ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(schedule));
      const auto prepared = testing::PrepareByRule(*strategy, costs, batch);
      if (!prepared.ok()) {
        refused += cells;
        ExpectClear(prepared.status());
        continue;
      }
      std::vector<absl::StatusOr<Cell>> found(
          microbatches.size(), absl::UnknownError("not planned"));
      ParallelFor(threads, cells, [&](int32_t i) {
        const auto at = static_cast<size_t>(i);
        SearchBudget once;
        once.max_evaluations = 1;
        const auto result =
            PlanStep(*prepared, {.packed = &packed[at], .budget = once});
        if (!result.ok()) {
          found[at] = result.status();
          return;
        }
        found[at] = Cell{
            .valid = ValidateExecutionPlan(result->plan),
            .microbatches = result->microbatches.num_microbatches,
            .step_time = result->predicted.step_time(),
            .lower_bound = result->lower_bound,
        };
      });
      for (size_t at = 0; at < found.size(); ++at) {
        const int32_t m = microbatches[at];
        SCOPED_TRACE(::testing::Message()
                     << name << " " << schedule << ", pp " << pp << ", " << m
                     << " microbatches");
        if (!found[at].ok()) {
          ++refused;
          ExpectClear(found[at].status());
          continue;
        }
        ++planned;
        EXPECT_THAT(found[at]->valid, IsOk());
        EXPECT_EQ(found[at]->microbatches,
                  static_cast<int32_t>(packed[at].packed[0].size()));
        EXPECT_LE(m - found[at]->microbatches, short_by[at]);
        EXPECT_GE(found[at]->step_time, found[at]->lower_bound);
      }
    }
    if (Full()) std::cout << name << ": " << pp << " of 32 ranks" << std::endl;
  }
  EXPECT_GT(planned, 0);
  RecordProperty("planned", planned);
  RecordProperty("refused", refused);
  if (Full()) {
    std::cout << name << ": " << planned << " planned, " << refused
              << " refused\n";
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, GridTest,
                         ::testing::Values("small-vlm", "qwen2.5-vl-7b",
                                           "llama3-8b"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::erase_if(name, [](char c) {
                             return std::isalnum(
                                        static_cast<unsigned char>(c)) == 0;
                           });
                           return name;
                         });

TEST(OddBatchTest, TextOnlyImagesOnlyAndOneSampleOfAHundredImages) {
  BatchMetadata text;
  BatchMetadata images;
  BatchMetadata one;
  for (int i = 0; i < 40; ++i) {
    text.samples.push_back({.text_tokens = 400 + 10 * i});
    images.samples.push_back({.images = {{640, 480}, {1024, 768}}});
  }
  one.samples.push_back(
      {.text_tokens = 500, .images = std::vector<ImageSize>(100, {640, 480})});
  for (const char* name : {"dip-vlm-s", "qwen2.5-vl-7b"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob(name));
    job.parallel.dp = 1;
    job.training.microbatches = 4;
    for (const BatchMetadata* batch : {&text, &images, &one}) {
      ASSERT_OK_AND_ASSIGN(const PlanResult result, Plan(job, *batch));
      const bool has_images = batch != &text;
      bool encoder_works = false;
      for (const SubMicrobatch& sub : result.microbatches.sub_microbatches) {
        encoder_works |= sub.module == ModuleId(0);
      }
      EXPECT_EQ(encoder_works, has_images);
    }
  }
}

TEST(OddBatchTest, AVideoOfTwoHoursIsPlannedOrRefusedForItsMemory) {
  BatchMetadata batch;
  batch.samples.push_back({.text_tokens = 100,
                           .videos = {{.frames = 7200 * 30,
                                       .width = 1280,
                                       .height = 720,
                                       .seconds = 7200}}});
  for (const char* name : {"qwen2.5-vl-7b", "dip-t2v-s"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(JobSpec job, ShippedJob(name));
    job.parallel.dp = 1;
    ExpectPlanOrError(job, batch);
  }
}

}  // namespace
}  // namespace pipeloom::planner
