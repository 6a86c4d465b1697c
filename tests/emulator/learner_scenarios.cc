#include "tests/emulator/learner_scenarios.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace pipeloom::testing {
namespace {

// About normal, of mean 0 and standard deviation 1.
double Normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.Unit();
  return sum;
}

Duration Times(Duration time, double factor) {
  return Nanoseconds(std::llround(static_cast<double>(time.count()) * factor));
}

}  // namespace

std::vector<LearnerScenario> LearnerScenarios() {
  return {
      {.name = "constant, equal tasks"},
      {.name = "constant, varied tasks", .varied = true},
      {.name = "constant, 4 tasks a step", .tasks = 4, .varied = true},
      {.name = "random drift, equal tasks", .drift = 0.01},
      {.name = "random drift, varied tasks", .varied = true, .drift = 0.01},
      {.name = "trend, varied tasks", .varied = true, .trend = 0.005},
      {.name = "jump, equal tasks", .jump = 1.5},
      {.name = "jump, varied tasks", .varied = true, .jump = 1.5},
      {.name = "1 outlier task in 10", .varied = true, .outlier_tasks = 0.1},
      {.name = "1 outlier task in 5, equal", .outlier_tasks = 0.2},
      {.name = "1 slow step in 6, equal tasks", .slow_steps = 1.0 / 6},
      {.name = "1 slow step in 6, varied",
       .varied = true,
       .slow_steps = 1.0 / 6},
      {.name = "large tasks cost more", .varied = true, .large_tasks = 1.5},
      {.name = "large tasks, the mix changes",
       .varied = true,
       .large_tasks = 1.5,
       .mix_changes = true},
      {.name = "everything at once",
       .varied = true,
       .drift = 0.005,
       .jump = 1.2,
       .outlier_tasks = 0.05,
       .slow_steps = 0.1,
       .large_tasks = 1.2},
  };
}

std::vector<MeasuredStep> MakeSteps(const LearnerScenario& scenario,
                                    uint64_t seed) {
  Random random(seed);
  std::vector<MeasuredStep> steps;
  double factor = scenario.factor;
  for (int s = 0; s < scenario.steps; ++s) {
    const bool late = 2 * s >= scenario.steps;
    factor *= 1 + scenario.trend + scenario.drift * Normal(random);
    if (2 * s == scenario.steps) factor *= scenario.jump;
    const double slow = random.Unit() < scenario.slow_steps ? 1.5 : 1;
    MeasuredStep step;
    for (int t = 0; t < scenario.tasks; ++t) {
      double priced_ms = 1;
      if (scenario.mix_changes) {
        const bool large = random.Unit() < (late ? 0.8 : 0.2);
        priced_ms = (large ? 5 : 0.5) * (1 + random.Unit());
      } else if (scenario.varied) {
        priced_ms = std::pow(10, 2 * random.Unit() - 1);
      }
      MeasuredTask task;
      task.priced = Milliseconds(priced_ms);
      const double usual = factor * (priced_ms >= 3 ? scenario.large_tasks : 1);
      task.usual = Times(task.priced, usual);
      const double outlier =
          random.Unit() < scenario.outlier_tasks ? 3 + 7 * random.Unit() : 1;
      task.measured =
          Times(task.priced,
                usual * slow * outlier * (1 + scenario.noise * Normal(random)));
      step.push_back(task);
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

StageGraph GraphOf(const MeasuredStep& step) {
  IdVector<TaskId, Task> tasks;
  for (const MeasuredTask& task : step) {
    tasks.push_back(
        {.rank = RankId(0), .module = ModuleId(0), .duration = task.priced});
  }
  auto graph = StageGraph::Create("measured", IdVector<RankId, RankSpec>(1),
                                  {"m"}, std::move(tasks), {});
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

StepTrace TraceOf(const MeasuredStep& step) {
  StepTrace trace;
  trace.num_ranks = 1;
  TaskId id(0);
  for (const MeasuredTask& task : step) {
    trace.spans.push_back({.rank = RankId(0),
                           .task = id,
                           .start = trace.finish,
                           .end = trace.finish + task.measured});
    trace.finish += task.measured;
    id = TaskId(id.value() + 1);
  }
  return trace;
}

}  // namespace pipeloom::testing
