#include "emulator/calibration/cost_learner.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/numeric.h"
#include "ir/plan/pass_pairs.h"

namespace pipeloom::emulator {
namespace {

constexpr double kBend = 1.345;           // In spreads.
constexpr double kNormalSpread = 1.4826;  // Over a normal's median deviation.
// Relative spread below which differences are rounding and no outliers.
constexpr double kLeastSpread = 1e-3;
constexpr double kNoticeable = 0.02;

// A value and its weight.
using Weighted = std::pair<double, double>;

// Returns the value below and above which lies half of the weight; between two
// such values, their mean.
double MedianOf(std::vector<Weighted> values) {
  std::sort(values.begin(), values.end());
  double total = 0;
  for (const auto& [value, weight] : values) total += weight;
  double below = 0;
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    below += values[i].second;
    if (2 * below > total) return values[i].first;
    if (2 * below == total) return (values[i].first + values[i + 1].first) / 2;
  }
  return values.back().first;
}

}  // namespace

double FactorOf(const PassFactors& factors, Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return factors.forward;
    case Pass::kBackward:
      return factors.backward;
    case Pass::kWeightGrad:
      return factors.weight_grad;
  }
  return 1;
}

CostLearner::Size CostLearner::SizeOf(double priced, bool recomputes) {
  return {.recomputes = recomputes,
          .power = std::max(0, std::ilogb(priced)) / 2};
}

CostLearner::Ratio CostLearner::Pool(std::vector<Ratio> ratios) {
  // The sums below do not depend on the order of spans.
  std::sort(ratios.begin(), ratios.end(), [](const Ratio& a, const Ratio& b) {
    return std::pair(a.ratio, a.priced) < std::pair(b.ratio, b.priced);
  });
  Ratio pooled;
  std::vector<Weighted> values;
  for (const Ratio& r : ratios) {
    pooled.priced += r.priced;
    pooled.tasks += r.tasks;
    values.emplace_back(r.ratio, r.priced);
  }
  pooled.ratio = MedianOf(values);
  for (auto& [value, weight] : values) value = std::abs(value - pooled.ratio);
  const double bend = kBend * std::max(kNormalSpread * MedianOf(values),
                                       kLeastSpread * pooled.ratio);
  constexpr int kMaxRounds = 200;
  for (int round = 0; round < kMaxRounds; ++round) {
    double sum = 0;
    double weights = 0;
    for (const Ratio& r : ratios) {
      const double off = std::abs(r.ratio - pooled.ratio);
      const double weight = r.priced * (off > bend ? bend / off : 1);
      sum += weight * r.ratio;
      weights += weight;
    }
    const double next = sum / weights;
    const bool settled = std::abs(next - pooled.ratio) <= 1e-13 * next;
    pooled.ratio = next;
    if (settled) break;
  }
  return pooled;
}

double CostLearner::Estimate(const Known& known) {
  std::map<Size, std::vector<Ratio>> sizes;
  for (const Step& step : known.steps) {
    for (const auto& [size, ratio] : step.ratios) sizes[size].push_back(ratio);
  }
  // The sizes without recomputation come first.
  const bool recomputes = sizes.begin()->first.recomputes;
  double measured = 0;
  double priced = 0;
  std::vector<Ratio> last;  // Pooled and counted in the sums already.
  std::vector<Ratio> group;
  const auto count = [&](const std::vector<Ratio>& ratios, int sign) {
    if (ratios.empty()) return;
    const Ratio pooled = Pool(ratios);
    measured += sign * pooled.priced * pooled.ratio;
    priced += sign * pooled.priced;
  };
  for (const auto& [size, ratios] : sizes) {
    if (size.recomputes != recomputes) break;
    group.insert(group.end(), ratios.begin(), ratios.end());
    int64_t tasks = 0;
    for (const Ratio& r : group) tasks += r.tasks;
    if (tasks < kFewTasks) continue;
    count(group, 1);
    last = std::move(group);
    group.clear();
  }
  // The largest size has no next one.
  if (!group.empty()) {
    count(last, -1);
    group.insert(group.end(), last.begin(), last.end());
    count(group, 1);
  }
  return measured / priced;
}

absl::StatusOr<double> CostLearner::Learn(
    const StageGraph& graph, const StepTrace& measured,
    const IdVector<ModuleId, PassFactors>& applied,
    std::optional<int64_t> step) {
  for (const ModuleId m : applied.ids()) {
    for (const Pass pass :
         {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
      const double factor = FactorOf(applied[m], pass);
      if (factor > 0 && std::isfinite(factor)) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "the applied factor of module %d, pass %c, is %g; it must be > 0",
          m.value(), PassLetter(pass), factor));
    }
  }
  std::map<std::pair<ModuleId, Pass>, std::map<Size, std::vector<Ratio>>> seen;
  const IdVector<TaskId, TaskId> seconds = SecondsOfPairs(graph);
  double error = 0;
  int64_t tasks = 0;
  for (const Span& span : measured.spans) {
    if (span.kind != SpanKind::kTask || !graph.tasks().Contains(span.task)) {
      continue;
    }
    const Task& task = graph.task(span.task);
    if (span.end < span.start || task.duration < kZero) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "task %d is planned to take %d ns and measured to take %d ns; both "
          "must be >= 0",
          span.task.value(), task.duration.count(),
          (span.end - span.start).count()));
    }
    if (task.duration == kZero || span.end == span.start) continue;
    // The time of two passes together says nothing of either.
    if (!seconds.empty() && !seconds[span.task].is_none()) continue;
    const double took = Real((span.end - span.start).count());
    const double planned = Real(task.duration.count());
    error += std::abs(took / planned - 1);
    ++tasks;
    const double priced =
        planned / (applied.Contains(task.module)
                       ? FactorOf(applied[task.module], task.pass)
                       : 1);
    seen[{task.module, task.pass}][SizeOf(priced, task.recomputes)].push_back(
        {.ratio = std::clamp(took / priced, 1 / kMaxFactor, kMaxFactor),
         .priced = priced,
         .tasks = 1});
  }
  for (auto& [key, sizes] : seen) {
    const std::string& module =
        graph.module_names()[static_cast<size_t>(key.first.value())];
    Known& known = known_[{module, key.second}];
    auto at = known.steps.end();
    if (step.has_value()) {
      at = std::find_if(known.steps.begin(), known.steps.end(),
                        [&](const Step& s) { return s.number == step; });
    }
    if (at == known.steps.end()) {
      known.steps.push_back({.number = step, .ratios = {}});
      if (known.steps.size() > kSteps) known.steps.pop_front();
      at = known.steps.end() - 1;
    }
    for (auto& [size, ratios] : sizes) {
      const Ratio pooled = Pool(std::move(ratios));
      Ratio& ratio = at->ratios[size];
      const double whole = ratio.priced + pooled.priced;
      ratio.ratio = (ratio.ratio * ratio.priced +  //
                     pooled.ratio * pooled.priced) /
                    whole;
      ratio.priced = whole;
      ratio.tasks += pooled.tasks;
      known.tasks += pooled.tasks;
    }
  }
  return tasks == 0 ? 0 : error / Real(tasks);
}

absl::Status CostLearner::Assume(absl::string_view module, Pass pass,
                                 double factor, int64_t tasks) {
  if (!(factor >= 1 / kMaxFactor && factor <= kMaxFactor) || tasks < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the factor of %s, pass %c, is %g of %d tasks; it must be in [%g, %g], "
        "of at least 1 task",
        std::string(module), PassLetter(pass), factor, tasks, 1 / kMaxFactor,
        kMaxFactor));
  }
  // A nanosecond: next to nothing against any measured step.
  known_[{std::string(module), pass}] = {
      .tasks = tasks,
      .steps = {
          {.number = std::nullopt,
           .ratios = {{Size{}, {.ratio = factor, .priced = 1, .tasks = 1}}}}}};
  return absl::OkStatus();
}

double CostLearner::Factor(absl::string_view module, Pass pass) const {
  const auto known = known_.find({std::string(module), pass});
  if (known != known_.end()) return Estimate(known->second);
  return pass == Pass::kWeightGrad ? Factor(module, Pass::kBackward) : 1;
}

IdVector<ModuleId, PassFactors> CostLearner::Factors(
    const std::vector<std::string>& modules, double most) const {
  IdVector<ModuleId, PassFactors> factors;
  for (const std::string& module : modules) {
    const auto factor = [&](Pass pass) {
      return std::clamp(Factor(module, pass), 1 / most, most);
    };
    factors.push_back({.forward = factor(Pass::kForward),
                       .backward = factor(Pass::kBackward),
                       .weight_grad = factor(Pass::kWeightGrad)});
  }
  return factors;
}

int64_t CostLearner::Tasks(absl::string_view module, Pass pass) const {
  const auto known = known_.find({std::string(module), pass});
  return known == known_.end() ? 0 : known->second.tasks;
}

bool Differ(const IdVector<ModuleId, PassFactors>& a,
            const IdVector<ModuleId, PassFactors>& b) {
  if (a.size() != b.size()) return true;
  const auto apart = [](double x, double y) {
    return std::abs(x / y - 1) > kNoticeable;
  };
  for (const ModuleId m : a.ids()) {
    if (apart(a[m].forward, b[m].forward) ||
        apart(a[m].backward, b[m].backward) ||
        apart(a[m].weight_grad, b[m].weight_grad)) {
      return true;
    }
  }
  return false;
}

}  // namespace pipeloom::emulator
