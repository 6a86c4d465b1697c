// Seeded streams of measured tasks of one module and pass, whose true times are
// known, for tests of what is learned from them.
#ifndef PIPELOOM_TESTS_EMULATOR_LEARNER_SCENARIOS_H_
#define PIPELOOM_TESTS_EMULATOR_LEARNER_SCENARIOS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "ir/plan/stage_graph.h"
#include "ir/plan/step_trace.h"

namespace pipeloom::testing {

struct MeasuredTask {
  Duration priced{};
  Duration measured{};
  Duration usual{};  // Without noise and outliers.
};
using MeasuredStep = std::vector<MeasuredTask>;

struct LearnerScenario {
  std::string name{};
  int steps = 60;
  int tasks = 32;  // In a step.
  // Tasks are priced alike, at 1 ms, or from 0.1 to 10 ms.
  bool varied = false;
  double factor = 1.4;
  double noise = 0.02;       // Standard deviation; relative.
  double drift = 0;          // Random walk per step; relative.
  double trend = 0;          // Growth per step; relative.
  double jump = 1;           // The factor is multiplied by it halfway.
  double outlier_tasks = 0;  // Share of tasks that take 3 to 10 times longer.
  double slow_steps = 0;     // Share of steps that take 1.5 times longer.
  double large_tasks = 1;    // Factor of tasks of 3 ms and more; relative.
  bool mix_changes = false;  // From 1 in 5 large to 4 in 5 halfway.
};

// The scenarios that rules are compared in.
std::vector<LearnerScenario> LearnerScenarios();

std::vector<MeasuredStep> MakeSteps(const LearnerScenario& scenario,
                                    uint64_t seed);

// The graph and the trace of a step whose tasks are forwards of module "m".
StageGraph GraphOf(const MeasuredStep& step);
StepTrace TraceOf(const MeasuredStep& step);

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_EMULATOR_LEARNER_SCENARIOS_H_
