#include "planner/trainer/recompute.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace pipeloom::planner {
namespace {

// The settings that are judged by longer searches.
constexpr size_t kFinalists = 3;

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
                                                 const TimeWith& time,
                                                 const TimeWith& time_long) {
  struct Judged {
    Duration time{};
    RecomputeSetting setting{};
  };
  std::vector<Judged> fitting;
  absl::Status shortage;
  for (RecomputeSetting& setting : CommonSettings(trainer, job, partition)) {
    const absl::StatusOr<Duration> found = time(setting);
    if (absl::IsResourceExhausted(found.status())) {
      // The error is to be of every layer recomputed by itself: with longer
      // periods a rank may need more at a time.
      if (setting.period <= 1) shortage = found.status();
      continue;
    }
    PIPELOOM_RETURN_IF_ERROR(found.status());
    if (*found <= unlimited) return std::move(setting);
    fitting.push_back({*found, std::move(setting)});
  }
  if (fitting.empty()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        shortage.message(),
        job.Allows(MemoryStrategy::kRecompute)
            ? " (with every layer recomputed that the trainer can)"
            : " (training.memory_strategies allows no recomputation)"));
  }
  std::stable_sort(
      fitting.begin(), fitting.end(),
      [](const Judged& a, const Judged& b) { return a.time < b.time; });
  if (!time_long) return std::move(fitting.front().setting);
  std::optional<Judged> best;
  const auto offer =
      [&](const RecomputeSetting& setting) -> absl::StatusOr<bool> {
    const absl::StatusOr<Duration> found = time_long(setting);
    if (absl::IsResourceExhausted(found.status())) return false;
    PIPELOOM_RETURN_IF_ERROR(found.status());
    if (best.has_value() && *found >= best->time) return false;
    best = Judged{*found, setting};
    return true;
  };
  for (size_t i = 0; i < std::min(kFinalists, fitting.size()); ++i) {
    PIPELOOM_RETURN_IF_ERROR(offer(fitting[i].setting).status());
  }
  if (!best.has_value()) return std::move(fitting.front().setting);
  if (best->setting.is_none() || !trainer.recompute_by_stage) {
    return std::move(best->setting);
  }
  RecomputeSetting& each = best->setting;
  const int32_t common = each.period > 0 ? std::numeric_limits<int32_t>::max()
                                         : each.first[StageId(0)];
  each.period = 0;
  each.first.resize(partition.stages.size());
  for (const StageId s : each.first.ids()) {
    each.first[s] =
        std::min(common, NumRecomputable(partition.stages[s], job.model));
  }
  for (int32_t i = partition.stages.size(); i-- > 0;) {
    const StageId s(i);
    const int32_t now = best->setting.first[s];
    for (const int32_t fewer : {0, now / 2}) {
      if (fewer >= now) break;
      RecomputeSetting less = best->setting;
      less.first[s] = fewer;
      PIPELOOM_ASSIGN_OR_RETURN(const bool better, offer(less));
      if (better) break;
    }
  }
  return std::move(best->setting);
}

}  // namespace pipeloom::planner
