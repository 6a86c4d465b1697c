#include "planner/trainer/recompute.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pipeloom::planner {
namespace {

int32_t MostRecomputable(const JobSpec& job, const Partition& partition) {
  int32_t most = 0;
  for (const Stage& stage : partition.stages) {
    most = std::max(most, NumRecomputable(stage, job.model));
  }
  return most;
}

}  // namespace

std::vector<RecomputeSetting> CommonSettings(const TrainerLimits& trainer,
                                             const JobSpec& job,
                                             const Partition& partition) {
  std::vector<RecomputeSetting> settings = {{}};
  if (!job.Allows(MemoryStrategy::kRecompute)) return settings;
  const int32_t most = MostRecomputable(job, partition);
  if (trainer.recompute_block || trainer.recompute_by_stage) {
    // In steps of about a fifth, from one layer.
    for (int32_t n = 1; n < most; n += std::max(1, n / 5)) {
      settings.push_back(
          {.first = IdVector<StageId, int32_t>(partition.stages.size(), n)});
    }
  }
  settings.push_back({.period = 1});
  if (trainer.recompute_periods) {
    for (const int32_t period : {2, 4}) {
      if (period <= most) settings.push_back({.period = period});
    }
  }
  return settings;
}

absl::StatusOr<RecomputeSetting> ChooseRecompute(const TrainerLimits& trainer,
                                                 const JobSpec& job,
                                                 const Partition& partition,
                                                 const Fits& fits) {
  absl::Status last;
  for (RecomputeSetting& setting : CommonSettings(trainer, job, partition)) {
    last = fits(setting);
    if (absl::IsResourceExhausted(last)) continue;
    PIPELOOM_RETURN_IF_ERROR(last);
    if (setting.is_none() || !trainer.recompute_by_stage) return setting;
    if (setting.period > 0) {
      setting.period = 0;
      setting.first.resize(partition.stages.size());
      for (const StageId s : setting.first.ids()) {
        setting.first[s] = NumRecomputable(partition.stages[s], job.model);
      }
    }
    for (int32_t i = partition.stages.size(); i-- > 0;) {
      const StageId s(i);
      const int32_t now = std::min(
          setting.first[s], NumRecomputable(partition.stages[s], job.model));
      setting.first[s] = now;
      for (const int32_t fewer : {0, now / 2}) {
        if (fewer >= now) break;
        RecomputeSetting less = setting;
        less.first[s] = fewer;
        const absl::Status status = fits(less);
        if (absl::IsResourceExhausted(status)) continue;
        PIPELOOM_RETURN_IF_ERROR(status);
        setting = std::move(less);
        break;
      }
    }
    return setting;
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      last.message(),
      job.Allows(MemoryStrategy::kRecompute)
          ? " (with every layer recomputed that the trainer can)"
          : " (training.memory_strategies allows no recomputation)"));
}

}  // namespace pipeloom::planner
