#include "trace/oplog/slowdown.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "trace/oplog/op_replay.h"

namespace pipeloom::trace {
namespace {

constexpr double kNoticeable = 1.05;  // Slowdowns below have no cause.
constexpr double kMostly = 0.5;       // Part that makes a cause.
constexpr double kSizesDiffer = 0.9;  // Correlation.

bool IsCompute(OpKind kind) {
  return kind == OpKind::kForward || kind == OpKind::kBackward;
}

// Returns the time of each kind in the even step.
std::array<Duration, kOpKinds> EvenTimes(const OpReplay& replay) {
  std::array<std::vector<int64_t>, kOpKinds> times;
  for (const OwnTime& o : replay.operations()) {
    times[static_cast<size_t>(o.kind)].push_back(o.time.count());
  }
  std::array<Duration, kOpKinds> even{};
  for (size_t k = 0; k < times.size(); ++k) {
    std::vector<int64_t>& of = times[k];
    if (of.empty()) continue;
    if (IsLocal(static_cast<OpKind>(k))) {
      double sum = 0;
      for (const int64_t t : of) sum += Real(t);
      even[k] = Duration(std::llround(sum / Real(of.size())));
    } else {
      const auto middle = of.begin() + static_cast<int64_t>(of.size() / 2);
      std::nth_element(of.begin(), middle, of.end());
      even[k] = Duration(*middle);
    }
  }
  return even;
}

// One step with its even times; asks what if.
class WhatIf {
 public:
  explicit WhatIf(const OpReplay& replay)
      : replay_(replay),
        even_(EvenTimes(replay)),
        times_(replay.operations().size()),
        replayed_(replay.StepTime()),
        even_time_(Time([](const OwnTime&) { return false; })) {}

  Duration replayed() const { return replayed_; }
  double whole() const { return ToSeconds(replayed_) / ToSeconds(even_time_); }
  // Evaluates the operations for which `of` is true.
  Slowdown::Part PartOf(const std::function<bool(const OwnTime&)>& of) {
    const double alone = ToSeconds(Time(of)) / ToSeconds(even_time_);
    const Duration without = Time([&](const OwnTime& o) { return !of(o); });
    const double lost = ToSeconds(replayed_) - ToSeconds(even_time_);
    return {
        .alone = alone,
        .explains = std::abs(lost) < 1e-9
                        ? 0
                        : (ToSeconds(replayed_) - ToSeconds(without)) / lost};
  }
  // Returns the step's time over the replayed one if the forwards and backwards
  // with equal keys took their mean.
  template <typename Key>
  double Levelled(Key key_of) {
    std::map<decltype(key_of(OwnTime())), std::pair<double, double>> sums;
    for (const OwnTime& o : replay_.operations()) {
      if (!IsCompute(o.kind)) continue;
      auto& [sum, count] = sums[key_of(o)];
      sum += Real(o.time.count());
      ++count;
    }
    for (size_t i = 0; i < times_.size(); ++i) {
      const OwnTime& o = replay_.operations()[i];
      times_[i] = o.time;
      if (!IsCompute(o.kind)) continue;
      const auto& [sum, count] = sums.at(key_of(o));
      times_[i] = Duration(std::llround(sum / count));
    }
    return ToSeconds(replay_.StepTime(times_)) / ToSeconds(replayed_);
  }

 private:
  // Returns the step's time if those for which `logged` is true take the logged
  // times, and the others are even.
  template <typename Logged>
  Duration Time(const Logged& logged) {
    for (size_t i = 0; i < times_.size(); ++i) {
      const OwnTime& o = replay_.operations()[i];
      times_[i] = logged(o) ? o.time : even_[static_cast<size_t>(o.kind)];
    }
    return replay_.StepTime(times_);
  }

  const OpReplay& replay_;
  const std::array<Duration, kOpKinds> even_;
  std::vector<Duration> times_;
  const Duration replayed_;
  const Duration even_time_;
};

void Add(const Slowdown::Part& part, double weight, Slowdown::Part* to) {
  to->alone += weight * part.alone;
  to->explains += weight * part.explains;
}

// Collects forward and backward times of microbatches.
class Correlation {
 public:
  void Add(const OpReplay& replay) {
    using Name = std::tuple<int32_t, int32_t, int32_t>;
    std::map<Name, std::pair<double, double>> times;
    std::map<std::pair<int32_t, int32_t>, std::array<double, 3>> means;
    for (const OwnTime& o : replay.operations()) {
      if (!IsCompute(o.kind)) continue;
      auto& [forward, backward] = times[{o.replica, o.stage, o.microbatch}];
      (o.kind == OpKind::kForward ? forward : backward) += Real(o.time.count());
      auto& mean = means[{o.replica, o.stage}];
      mean[o.kind == OpKind::kForward ? 0 : 1] += Real(o.time.count());
      mean[2] += o.kind == OpKind::kForward;
    }
    for (const auto& [name, pair] : times) {
      const auto& mean = means.at({std::get<0>(name), std::get<1>(name)});
      const double x = pair.first * mean[2] / mean[0] - 1;
      const double y = pair.second * mean[2] / mean[1] - 1;
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      xx_ += x * x;
      xy_ += x * y;
      yy_ += y * y;
    }
  }
  double Get() const {
    return xx_ > 0 && yy_ > 0 ? xy_ / std::sqrt(xx_ * yy_) : 0;
  }

 private:
  double xx_ = 0, xy_ = 0, yy_ = 0;
};

size_t Worst(const std::vector<Slowdown::Part>& parts) {
  return static_cast<size_t>(std::max_element(parts.begin(), parts.end(),
                                              [](const auto& a, const auto& b) {
                                                return a.explains < b.explains;
                                              }) -
                             parts.begin());
}

}  // namespace

absl::StatusOr<Slowdown> AnalyzeSlowdown(const OpLog& log) {
  Slowdown mean;
  mean.whole = mean.even_stages = mean.even_microbatches = mean.even_both = 0;
  const int32_t replicas = log.steps.front().replicas;
  const int32_t stages = log.steps.front().stages;
  const auto none = Slowdown::Part{.alone = 0, .explains = 0};
  mean.by_kind.assign(kOpKinds, none);
  mean.by_stage.assign(static_cast<size_t>(stages), none);
  mean.by_replica.assign(static_cast<size_t>(replicas), none);
  const double weight = 1 / Real(log.steps.size());
  double measured = 0;
  double replayed = 0;
  Correlation correlation;
  std::vector<OpReplay> replays;
  for (const OpLogStep& step : log.steps) {
    if (step.replicas != replicas || step.stages != stages) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "step %d has %d replicas of %d stages, step %d has %d of %d; all "
          "steps of a log must have the same workers",
          step.number, step.replicas, step.stages, log.steps.front().number,
          replicas, stages));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const OpReplay replay, OpReplay::Create(step));
    WhatIf what(replay);
    const double truth = ToSeconds(step.time());
    const double error = std::abs(ToSeconds(what.replayed()) / truth - 1);
    measured += weight * truth;
    replayed += weight * ToSeconds(what.replayed());
    mean.mean_error += weight * error;
    mean.worst_error = std::max(mean.worst_error, error);
    mean.error_without_gaps +=
        weight * std::abs(ToSeconds(replay.StepTime(false)) / truth - 1);
    mean.whole += weight * what.whole();
    for (int32_t k = 0; k < kOpKinds; ++k) {
      Add(what.PartOf([k](const OwnTime& o) {
        return o.kind == static_cast<OpKind>(k);
      }),
          weight, &mean.by_kind[static_cast<size_t>(k)]);
    }
    for (int32_t s = 0; s < stages; ++s) {
      Add(what.PartOf([s](const OwnTime& o) { return o.stage == s; }), weight,
          &mean.by_stage[static_cast<size_t>(s)]);
    }
    for (int32_t r = 0; r < replicas; ++r) {
      Add(what.PartOf([r](const OwnTime& o) { return o.replica == r; }), weight,
          &mean.by_replica[static_cast<size_t>(r)]);
    }
    correlation.Add(replay);
    mean.even_stages += weight * what.Levelled([](const OwnTime& o) {
      return std::tuple(o.kind, o.replica, o.microbatch);
    });
    mean.even_microbatches += weight * what.Levelled([](const OwnTime& o) {
      return std::tuple(o.kind, o.stage);
    });
    mean.even_both += weight * what.Levelled([](const OwnTime& o) {
      return std::tuple(o.kind);
    });
    replays.push_back(replay);
  }
  mean.measured = Seconds(measured);
  mean.replayed = Seconds(replayed);
  mean.forward_backward_correlation = correlation.Get();

  // The worst worker is of the worst stage or of the worst replica.
  const auto stage = static_cast<int32_t>(Worst(mean.by_stage));
  const auto replica = static_cast<int32_t>(Worst(mean.by_replica));
  mean.worst_worker.explains = -std::numeric_limits<double>::infinity();
  for (int32_t r = 0; r < replicas; ++r) {
    for (int32_t s = 0; s < stages; ++s) {
      if (r != replica && s != stage) continue;
      Slowdown::Part part = none;
      for (const OpReplay& replay : replays) {
        Add(WhatIf(replay).PartOf([r, s](const OwnTime& o) {
          return o.replica == r && o.stage == s;
        }),
            weight, &part);
      }
      if (part.explains <= mean.worst_worker.explains) continue;
      mean.worst_worker = part;
      mean.worst_replica = r;
      mean.worst_stage = s;
    }
  }
  return mean;
}

std::string CauseOf(const Slowdown& slowdown) {
  if (slowdown.whole < kNoticeable) return "none: operations are even";
  const size_t stage = Worst(slowdown.by_stage);
  const size_t replica = Worst(slowdown.by_replica);
  const auto stages = slowdown.by_stage.size();
  if (slowdown.forward_backward_correlation >= kSizesDiffer) {
    return "microbatches of different sizes";
  }
  // One worker rather than its whole stage or replica, if it does nearly all.
  if (slowdown.worst_worker.explains >= kMostly &&
      slowdown.by_replica.size() > 1 &&
      slowdown.worst_worker.explains >=
          0.9 * slowdown.by_stage[stage].explains) {
    return absl::StrFormat("one slow worker: stage %d of replica %d",
                           slowdown.worst_stage, slowdown.worst_replica);
  }
  if (stages > 1 && slowdown.by_stage[stage].explains >= kMostly) {
    return absl::StrFormat("a long stage: %d%s", stage,
                           stage + 1 == stages ? ", the last" : "");
  }
  if (slowdown.by_replica.size() > 1 &&
      slowdown.by_replica[replica].explains >= kMostly) {
    return absl::StrFormat("a slow replica: %d", replica);
  }
  return "no single one";
}

}  // namespace pipeloom::trace
