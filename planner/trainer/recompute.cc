#include "planner/trainer/recompute.h"

#include <algorithm>
#include <optional>

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
    // In steps of about two fifths, from one layer.
    for (int32_t n = 1; n < most; n += std::max(1, n * 2 / 5)) {
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
                                                 Duration unlimited,
                                                 const TimeWith& time) {
  absl::Status shortage;
  std::optional<RecomputeSetting> best;
  Duration least{};
  // Returns whether it is the best so far.
  const auto offer =
      [&](const RecomputeSetting& setting) -> absl::StatusOr<bool> {
    const absl::StatusOr<Duration> found = time(setting);
    if (absl::IsResourceExhausted(found.status())) {
      shortage = found.status();
      return false;
    }
    PIPELOOM_RETURN_IF_ERROR(found.status());
    if (best.has_value() && *found >= least) return false;
    best = setting;
    least = *found;
    return true;
  };
  for (const RecomputeSetting& setting :
       CommonSettings(trainer, job, partition)) {
    PIPELOOM_RETURN_IF_ERROR(offer(setting).status());
    if (best.has_value() && least <= unlimited) return *best;
  }
  if (!best.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        shortage.message(),
        job.Allows(MemoryStrategy::kRecompute)
            ? " (with every layer recomputed that the trainer can)"
            : " (training.memory_strategies allows no recomputation)"));
  }
  if (best->is_none() || !trainer.recompute_by_stage) return *best;
  RecomputeSetting by_stage;
  by_stage.first.resize(partition.stages.size());
  for (const StageId s : by_stage.first.ids()) {
    const int32_t all = NumRecomputable(partition.stages[s], job.model);
    by_stage.first[s] = best->period > 0 ? all : std::min(all, best->first[s]);
  }
  best = by_stage;
  for (int32_t i = partition.stages.size(); i-- > 0;) {
    const StageId s(i);
    const int32_t now = best->first[s];
    for (const int32_t fewer : {0, now / 2}) {
      if (fewer >= now) break;
      RecomputeSetting less = *best;
      less.first[s] = fewer;
      PIPELOOM_ASSIGN_OR_RETURN(const bool better, offer(less));
      if (better) break;
    }
  }
  return *best;
}

}  // namespace pipeloom::planner
