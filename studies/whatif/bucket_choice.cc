#include "studies/whatif/bucket_choice.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "partition/batching/batch_split.h"
#include "partition/batching/epochs.h"
#include "partition/batching/shape_buckets.h"
#include "studies/job/planner_input.h"

namespace pipeloom::studies {
namespace {

constexpr int64_t kSteps = 16;
constexpr uint64_t kSeed = 1;

std::string ValueOf(const std::vector<TrainingSpec::ShapeBuckets>& buckets) {
  return absl::StrCat(
      "[",
      absl::StrJoin(buckets, ",",
                    [](std::string* out, const TrainingSpec::ShapeBuckets& b) {
                      absl::StrAppendFormat(
                          out, "{\"module\":\"%s\",\"tokens\":[%s]}", b.module,
                          absl::StrJoin(b.tokens, ","));
                    }),
      "]");
}

}  // namespace

absl::StatusOr<std::vector<BucketChoice>> BucketChoices(
    const WhatIfInput& input, const std::vector<formats::JobOverride>& base,
    const StudyContext& context) {
  JobInput job = input.base;
  if (!base.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(job.job, input.job.With(base));
  }
  std::optional<Partition> partition;
  if (input.partition.make) {
    PIPELOOM_ASSIGN_OR_RETURN(partition, input.partition.make(job));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto planner,
      MakeJobPlanner(job, input.schedule, input.prices.Of(job), /*correct=*/{},
                     std::move(partition), context.stop));
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<partition::PackedStep> packed,
      partition::PackShuffledSteps(job.job, job.batch, kSeed, kSteps,
                                   context.stop));
  std::vector<Microbatches> steps;
  for (const partition::PackedStep& step : packed) {
    for (size_t r = 0; r < step.packed.size(); ++r) {
      PIPELOOM_ASSIGN_OR_RETURN(
          Microbatches replica,
          partition::SplitUnpadded(job.job, step, static_cast<int32_t>(r),
                                   planner->partition()));
      steps.push_back(std::move(replica));
    }
  }
  std::vector<BucketChoice> choices;
  for (const int32_t count : {1, 2, 4, 8, 16}) {
    BucketChoice choice{
        .shapes = count,
        .value = ValueOf(partition::ChooseShapeBuckets(job.job, steps, count))};
    if (choices.empty() || choices.back().value != choice.value) {
      choices.push_back(std::move(choice));
    }
  }
  return choices;
}

}  // namespace pipeloom::studies
