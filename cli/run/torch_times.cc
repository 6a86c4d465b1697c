#include "cli/run/torch_times.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "emulator/step/emulate_step.h"

namespace pipeloom::cli {
namespace {

double Median(const std::deque<double>& given) {
  std::vector<double> values(given.begin(), given.end());
  const size_t half = values.size() / 2;
  std::nth_element(values.begin(),
                   values.begin() + static_cast<ptrdiff_t>(half), values.end());
  return values[half];
}

void Remember(double value, size_t most, std::deque<double>* values) {
  values->push_back(value);
  if (values->size() > most) values->pop_front();
}

// Predicts the next value from the last ones, oldest first, by a mean in which
// each has kAgeing times the weight of the one after it. Values far off the
// median are clamped to a factor of kFarthest of it.
double Latest(const std::deque<double>& values) {
  constexpr double kAgeing = 0.7;
  constexpr double kFarthest = 1.25;
  const double median = Median(values);
  double sum = 0;
  double weights = 0;
  for (const double value : values) {
    sum = kAgeing * sum +
          std::clamp(value, median / kFarthest, median * kFarthest);
    weights = kAgeing * weights + 1;
  }
  return sum / weights;
}

// Returns the emulated step time of the plan with these times.
absl::StatusOr<Duration> StepOf(const ExecutionPlan& plan,
                                const IdVector<TaskId, double>& seconds,
                                const IdVector<RankId, double>& epilogues) {
  IdVector<TaskId, Task> tasks = plan.graph.tasks();
  for (const TaskId id : tasks.ids()) {
    tasks[id].duration = Seconds(seconds[id]);
  }
  IdVector<RankId, RankSpec> ranks = plan.graph.ranks();
  for (const RankId r : ranks.ids()) {
    // A plan without an epilogue has no instruction for it.
    if (ranks[r].epilogue == kZero) continue;
    ranks[r].epilogue = std::max(Nanoseconds(1), Seconds(epilogues[r]));
  }
  ExecutionPlan timed = plan;
  PIPELOOM_ASSIGN_OR_RETURN(
      timed.graph, StageGraph::Create(plan.graph.name(), std::move(ranks),
                                      plan.graph.module_names(),
                                      std::move(tasks), plan.graph.edges()));
  PIPELOOM_ASSIGN_OR_RETURN(const StepTrace step, emulator::EmulateStep(timed));
  return step.step_time();
}

}  // namespace

TorchTimes::Features TorchTimes::Of(const runtime::TorchWork& work,
                                    const Task& task) {
  Features f{1, 0, 0, 0};
  for (const runtime::TorchSequence& s : work.Of(task)) {
    const auto tokens = static_cast<double>(s.tokens());
    f[1] += 1;
    f[2] += tokens;
    f[3] += tokens * tokens + tokens * static_cast<double>(s.context);
  }
  return f;
}

// Fits by least squares of errors relative to the predicted time, by coordinate
// descent with weights from the fit before. Errors relative to the measured
// time would be wrong: of tasks with equal work, those that took longer would
// weigh less, and sums of predictions would be too small by the square of the
// scatter, 5 % and more.
TorchTimes::Features TorchTimes::Fit(const std::deque<Seen>& seen) {
  constexpr int kFits = 4;
  constexpr int kRounds = 200;
  double mean = 0;
  for (const Seen& s : seen)
    mean += s.seconds / static_cast<double>(seen.size());
  Features result{mean, 0, 0, 0};
  for (int fit = 0; fit < kFits; ++fit) {
    std::array<Features, kFeatures> products{};  // X'X
    Features right{};                            // X'y
    for (const Seen& s : seen) {
      const double predicted = std::max(0.1 * mean, Apply(result, s.features));
      for (size_t i = 0; i < kFeatures; ++i) {
        const double x = s.features[i] / predicted;
        right[i] += x * s.seconds / predicted;
        for (size_t j = 0; j < kFeatures; ++j) {
          products[i][j] += x * s.features[j] / predicted;
        }
      }
    }
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < kFeatures; ++i) {
        if (products[i][i] <= 0) continue;
        double rest = right[i];
        for (size_t j = 0; j < kFeatures; ++j) {
          if (j != i) rest -= products[i][j] * result[j];
        }
        result[i] = std::max(0.0, rest / products[i][i]);
      }
    }
  }
  return result;
}

double TorchTimes::Apply(const Features& fit, const Features& features) {
  double seconds = 0;
  for (size_t i = 0; i < kFeatures; ++i) seconds += fit[i] * features[i];
  return seconds;
}

absl::StatusOr<Duration> TorchTimes::Learn(const ExecutionPlan& plan,
                                           const runtime::TorchWork& work,
                                           const runtime::TorchSpent& spent,
                                           const StepTrace& trace) {
  if (++steps_ == kWarmUpSteps + 1) {
    seen_.clear();
    ranks_.clear();
    last_.clear();
  }
  Step step{.plan = plan, .features = {}, .seconds = {}, .undisturbed = {}};
  IdVector<TaskId, double> seconds(plan.graph.num_tasks());
  IdVector<RankId, int32_t> num_tasks(plan.graph.num_ranks());
  for (const Task& task : plan.graph.tasks()) ++num_tasks[task.rank];
  IdVector<RankId, double> epilogues(plan.graph.num_ranks());
  for (const RankId r : plan.graph.rank_ids()) {
    const auto at = static_cast<size_t>(r.value());
    epilogues[r] = spent.epilogue.at(at);
    if (num_tasks[r] == 0) continue;
    Remember(spent.between.at(at) / num_tasks[r], kSteps, &ranks_[r].between);
    Remember(epilogues[r], kSteps, &ranks_[r].epilogue);
  }
  for (const TaskId id : plan.graph.task_ids()) {
    const Task& task = plan.graph.task(id);
    step.features.push_back(Of(work, task));
    const double own = spent.tasks.at(static_cast<size_t>(id.value()));
    seconds[id] = own + ranks_[task.rank].between.back();
    if (own <= 0) continue;
    std::deque<Seen>& seen = seen_[{task.stage, task.pass}];
    seen.push_back({.features = step.features[id], .seconds = own});
    if (seen.size() > kRemembered) seen.pop_front();
  }
  for (const auto& [key, seen] : seen_) fits_[key] = Fit(seen);
  PIPELOOM_ASSIGN_OR_RETURN(const Duration undisturbed,
                            StepOf(plan, seconds, epilogues));
  step.seconds = ToSeconds(trace.step_time());
  step.undisturbed = ToSeconds(undisturbed);
  last_.push_back(std::move(step));
  if (last_.size() > kSteps) last_.pop_front();
  PIPELOOM_RETURN_IF_ERROR(Compare());
  return undisturbed;
}

// Sets the ratios of the last steps' times to those of the tasks' fits.
absl::Status TorchTimes::Compare() {
  ratios_.clear();
  undisturbed_ratios_.clear();
  for (const Step& step : last_) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> fitted,
                              Fitted(step.plan, step.features));
    if (!fitted.has_value() || *fitted <= kZero) continue;
    ratios_.push_back(step.seconds / ToSeconds(*fitted));
    undisturbed_ratios_.push_back(step.undisturbed / ToSeconds(*fitted));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Duration>> TorchTimes::Fitted(
    const ExecutionPlan& plan,
    const IdVector<TaskId, Features>& features) const {
  IdVector<TaskId, double> seconds(plan.graph.num_tasks());
  for (const TaskId id : plan.graph.task_ids()) {
    const Task& task = plan.graph.task(id);
    const auto found = fits_.find({task.stage, task.pass});
    const auto rank = ranks_.find(task.rank);
    if (found == fits_.end() || rank == ranks_.end()) return std::nullopt;
    seconds[id] =
        Apply(found->second, features[id]) + Median(rank->second.between);
  }
  IdVector<RankId, double> epilogues(plan.graph.num_ranks());
  for (const auto& [r, rank] : ranks_) epilogues[r] = Median(rank.epilogue);
  PIPELOOM_ASSIGN_OR_RETURN(const Duration step,
                            StepOf(plan, seconds, epilogues));
  return step;
}

absl::StatusOr<std::optional<TorchTimes::Prediction>> TorchTimes::Predict(
    const ExecutionPlan& plan, const runtime::TorchWork& work) const {
  IdVector<TaskId, Features> features;
  for (const Task& task : plan.graph.tasks()) {
    features.push_back(Of(work, task));
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> fitted,
                            Fitted(plan, features));
  if (!fitted.has_value() || ratios_.empty()) return std::nullopt;
  const double seconds = ToSeconds(*fitted);
  return Prediction{
      .step = Seconds(seconds * Latest(ratios_)),
      .undisturbed = Seconds(seconds * Latest(undisturbed_ratios_))};
}

}  // namespace pipeloom::cli
