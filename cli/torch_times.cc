#include "cli/torch_times.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/status_macros.h"
#include "emulator/emulate_step.h"

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

// The emulator's step of the plan with these times.
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

// Coordinate descent; features and times are divided by the time, so that
// errors are relative. A task that took more than twice what it was predicted
// to take was disturbed and is left out of a second fit.
TorchTimes::Features TorchTimes::Fit(const std::deque<Seen>& seen) {
  constexpr int kRounds = 200;
  Features result{};
  for (const bool all : {true, false}) {
    std::array<Features, kFeatures> products{};  // X'X
    Features right{};                            // X'1
    for (const Seen& s : seen) {
      double predicted = 0;
      for (size_t i = 0; i < kFeatures; ++i) {
        predicted += result[i] * s.features[i];
      }
      if (!all && s.seconds > 2 * predicted) continue;
      for (size_t i = 0; i < kFeatures; ++i) {
        const double x = s.features[i] / s.seconds;
        right[i] += x;
        for (size_t j = 0; j < kFeatures; ++j) {
          products[i][j] += x * s.features[j] / s.seconds;
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

absl::StatusOr<Duration> TorchTimes::Learn(const ExecutionPlan& plan,
                                           const runtime::TorchWork& work,
                                           const runtime::TorchSpent& spent,
                                           const StepTrace& trace) {
  if (++steps_ == 2) {
    seen_.clear();
    ranks_.clear();
    ratios_.clear();
  }
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
    const double own = spent.tasks.at(static_cast<size_t>(id.value()));
    seconds[id] = own + ranks_[task.rank].between.back();
    if (own <= 0) continue;
    std::deque<Seen>& seen = seen_[{task.stage, task.pass}];
    seen.push_back({Of(work, task), own});
    if (seen.size() > kRemembered) seen.pop_front();
  }
  for (const auto& [key, seen] : seen_) fits_[key] = Fit(seen);
  PIPELOOM_ASSIGN_OR_RETURN(const Duration undisturbed,
                            StepOf(plan, seconds, epilogues));
  if (undisturbed > kZero) {
    Remember(ToSeconds(trace.step_time()) / ToSeconds(undisturbed), kSteps,
             &ratios_);
  }
  return undisturbed;
}

absl::StatusOr<std::optional<TorchTimes::Prediction>> TorchTimes::Predict(
    const ExecutionPlan& plan, const runtime::TorchWork& work) const {
  IdVector<TaskId, double> seconds(plan.graph.num_tasks());
  for (const TaskId id : plan.graph.task_ids()) {
    const Task& task = plan.graph.task(id);
    const auto found = fits_.find({task.stage, task.pass});
    const auto rank = ranks_.find(task.rank);
    if (found == fits_.end() || rank == ranks_.end()) return std::nullopt;
    const Features f = Of(work, task);
    seconds[id] = Median(rank->second.between);
    for (size_t i = 0; i < kFeatures; ++i) {
      seconds[id] += found->second[i] * f[i];
    }
  }
  IdVector<RankId, double> epilogues(plan.graph.num_ranks());
  for (const auto& [r, rank] : ranks_) epilogues[r] = Median(rank.epilogue);
  PIPELOOM_ASSIGN_OR_RETURN(const Duration undisturbed,
                            StepOf(plan, seconds, epilogues));
  return Prediction{.step = Seconds(ToSeconds(undisturbed) *
                                    (ratios_.empty() ? 1.0 : Median(ratios_))),
                    .undisturbed = undisturbed};
}

}  // namespace pipeloom::cli
