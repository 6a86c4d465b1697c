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

void TorchTimes::Learn(const ExecutionPlan& plan,
                       const runtime::TorchWork& work, const StepTrace& trace) {
  if (++steps_ == 2) {
    seen_.clear();
    ranks_.clear();
  }
  struct Spent {
    double tasks = 0;
    double waits = 0;
    double epilogue = 0;
    double last_task = 0;
    int64_t num_tasks = 0;
  };
  IdVector<RankId, Spent> spent(plan.graph.num_ranks());
  for (const Span& span : trace.spans) {
    const double seconds = ToSeconds(span.end - span.start);
    Spent& rank = spent[span.rank];
    if (span.kind == SpanKind::kEpilogue) rank.epilogue += seconds;
    if (span.kind != SpanKind::kTask || seconds <= 0) continue;
    const Task& task = plan.graph.task(span.task);
    std::deque<Seen>& seen = seen_[{task.stage, task.pass}];
    seen.push_back({Of(work, task), seconds});
    if (seen.size() > kRemembered) seen.pop_front();
    rank.tasks += seconds;
    rank.last_task = std::max(rank.last_task, ToSeconds(span.end - kStepStart));
    ++rank.num_tasks;
  }
  for (const Span& span : trace.spans) {
    Spent& rank = spent[span.rank];
    if (span.kind != SpanKind::kWait) continue;
    const double end =
        std::min(rank.last_task, ToSeconds(span.end - kStepStart));
    rank.waits += std::max(0.0, end - ToSeconds(span.start - kStepStart));
  }
  for (const RankId r : spent.ids()) {
    const Spent& rank = spent[r];
    if (rank.num_tasks == 0) continue;
    const double between = rank.last_task - rank.tasks - rank.waits;
    Remember(std::max(0.0, between) / static_cast<double>(rank.num_tasks),
             kSteps, &ranks_[r].between);
    Remember(rank.epilogue, kSteps, &ranks_[r].epilogue);
  }
  for (const auto& [key, seen] : seen_) fits_[key] = Fit(seen);
}

absl::StatusOr<std::optional<Duration>> TorchTimes::Predict(
    const ExecutionPlan& plan, const runtime::TorchWork& work) const {
  IdVector<TaskId, Task> tasks = plan.graph.tasks();
  for (Task& task : tasks) {
    const auto found = fits_.find({task.stage, task.pass});
    const auto rank = ranks_.find(task.rank);
    if (found == fits_.end() || rank == ranks_.end()) return std::nullopt;
    const Features f = Of(work, task);
    double seconds = Median(rank->second.between);
    for (size_t i = 0; i < kFeatures; ++i) seconds += found->second[i] * f[i];
    task.duration = Seconds(seconds);
  }
  IdVector<RankId, RankSpec> ranks = plan.graph.ranks();
  for (const RankId r : ranks.ids()) {
    const auto rank = ranks_.find(r);
    // A plan without an epilogue has no instruction for it.
    if (ranks[r].epilogue > kZero) {
      ranks[r].epilogue = std::max(
          Nanoseconds(1),
          Seconds(rank == ranks_.end() ? 0 : Median(rank->second.epilogue)));
    }
  }
  ExecutionPlan timed = plan;
  PIPELOOM_ASSIGN_OR_RETURN(
      timed.graph, StageGraph::Create(plan.graph.name(), std::move(ranks),
                                      plan.graph.module_names(),
                                      std::move(tasks), plan.graph.edges()));
  PIPELOOM_ASSIGN_OR_RETURN(const StepTrace predicted,
                            emulator::EmulateStep(timed));
  return predicted.step_time();
}

}  // namespace pipeloom::cli
