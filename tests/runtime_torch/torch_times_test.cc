// Predicted step times of the torch device, learned from made-up measurements
// whose truth is known: on one rank a step takes the sum of its tasks and of
// what lies between them.
#include "cli/run/torch_times.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

constexpr int32_t kMicrobatches = 4;
constexpr double kBetween = 2e-3;  // Seconds per rank and step.

ExecutionPlan MakePlan(int32_t stages) {
  const StageGraph graph = testing::UniformGraph(
      {.ranks = 1, .chunks = stages, .microbatches = kMicrobatches});
  Random random(1);
  const auto schedule =
      TimeSchedule(graph, testing::RandomOrders(graph, random));
  PIPELOOM_CHECK(schedule.ok());
  auto plan = planner::LowerPlan(graph, *schedule);
  PIPELOOM_CHECK(plan.ok());
  return *std::move(plan);
}

// Returns work with 1 to 4 sequences per microbatch, each of `shortest` to
// twice as many tokens.
runtime::TorchWork MakeWork(int64_t shortest, Random& random) {
  runtime::TorchWork work;
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    runtime::TorchSequences sequences(static_cast<size_t>(1 + random.Below(4)));
    for (runtime::TorchSequence& s : sequences) {
      s.own = shortest + random.Below(shortest);
    }
    IdVector<ModuleId, std::vector<runtime::TorchSequences>> modules;
    modules.push_back({sequences});
    work.parts.push_back(modules);
  }
  return work;
}

// Returns a task's time on a machine that is neither slow nor disturbed.
double TrueSeconds(const runtime::TorchWork& work, const Task& task) {
  double seconds = 1e-3;
  for (const runtime::TorchSequence& s : work.Of(task)) {
    const auto n = static_cast<double>(s.tokens());
    seconds += 2e-4 + 1e-5 * n + 2e-8 * n * n;
  }
  return seconds * (task.pass == Pass::kForward ? 1 : 2.1) *
         (1 + 0.5 * task.stage.value());
}

struct Machine {
  double slow = 1;     // All of its times.
  double scatter = 0;  // Relative scatter of single tasks, up and down.
  double pause = 0;    // Seconds in which the step does not get on.
};

class TorchTimesTest : public ::testing::Test {
 protected:
  // One step of `work`; what it took.
  double Learn(const runtime::TorchWork& work, const Machine& machine = {}) {
    runtime::TorchSpent spent{
        .tasks = {}, .between = {kBetween * machine.slow}, .epilogue = {0}};
    double sum = kBetween * machine.slow;
    for (const Task& task : plan_.graph.tasks()) {
      const double scatter = machine.scatter * (2 * random_.Unit() - 1);
      spent.tasks.push_back(TrueSeconds(work, task) * machine.slow *
                            (1 + scatter));
      sum += spent.tasks.back();
    }
    StepTrace trace;
    trace.finish = kStepStart + Seconds(sum + machine.pause);
    const auto undisturbed = times_.Learn(plan_, work, spent, trace);
    PIPELOOM_CHECK(undisturbed.ok());
    EXPECT_NEAR(ToSeconds(*undisturbed), sum, 1e-6) << "not the tasks' own sum";
    return sum + machine.pause;
  }
  double Predicted(const runtime::TorchWork& work) const {
    const auto predicted = times_.Predict(plan_, work);
    PIPELOOM_CHECK(predicted.ok());
    return predicted->has_value() ? ToSeconds((*predicted)->step) : 0;
  }
  double Truth(const runtime::TorchWork& work) const {
    double sum = kBetween;
    for (const Task& task : plan_.graph.tasks()) sum += TrueSeconds(work, task);
    return sum;
  }
  // Learns some steps of all sizes, the first of which warms up.
  void LearnSteps(int steps, const Machine& machine = {}) {
    for (int i = 0; i < steps; ++i) Learn(MakeWork(256, random_), machine);
  }

  Random random_{7};
  ExecutionPlan plan_ = MakePlan(/*stages=*/2);
  TorchTimes times_{};
};

TEST_F(TorchTimesTest, NothingIsPredictedOfAStageThatWasNeverSeen) {
  const runtime::TorchWork work = MakeWork(256, random_);
  EXPECT_EQ(Predicted(work), 0) << "before the first step";
  LearnSteps(3);
  EXPECT_GT(Predicted(work), 0);
  plan_ = MakePlan(/*stages=*/3);
  EXPECT_EQ(Predicted(work), 0) << "of the third stage";
}

TEST_F(TorchTimesTest, ShapesThatWereNeverSeenArePredictedFromThoseThatWere) {
  LearnSteps(4);
  for (const int64_t shortest : {128, 256, 500}) {
    const runtime::TorchWork work = MakeWork(shortest, random_);
    EXPECT_NEAR(Predicted(work) / Truth(work), 1, 0.02)
        << "sequences of " << shortest << " tokens or more";
  }
}

TEST_F(TorchTimesTest, TheStepThatWarmsUpIsForgotten) {
  LearnSteps(1, {.slow = 10});
  LearnSteps(3);
  const runtime::TorchWork work = MakeWork(256, random_);
  EXPECT_NEAR(Predicted(work) / Truth(work), 1, 0.02);
}

// Errors of one sign would add up over the tasks of a step.
TEST_F(TorchTimesTest, ScatterOfSingleTasksDoesNotBendThePrediction) {
  LearnSteps(4, {.scatter = 0.3});
  double measured = 0;
  double predicted = 0;
  for (int i = 0; i < 40; ++i) {
    const runtime::TorchWork work = MakeWork(256, random_);
    predicted += Predicted(work);
    measured += Learn(work, {.scatter = 0.3});
  }
  EXPECT_NEAR(predicted / measured, 1, 0.015);
}

TEST_F(TorchTimesTest, AMachineThatHasBecomeSlowerIsFollowed) {
  LearnSteps(8);
  const runtime::TorchWork work = MakeWork(256, random_);
  const double before = Predicted(work);
  double last = before;
  for (int i = 0; i < 6; ++i) {
    LearnSteps(1, {.slow = 1.3});
    EXPECT_GT(Predicted(work), last) << "after " << i + 1 << " slow steps";
    last = Predicted(work);
  }
  EXPECT_NEAR(last / before, 1.3, 0.05 * 1.3);
}

TEST_F(TorchTimesTest, OneStepThatWasHeldUpCountsForLittleAndNotForLong) {
  LearnSteps(8);
  const runtime::TorchWork work = MakeWork(256, random_);
  const double before = Predicted(work);
  Learn(work, {.pause = 5 * Truth(work)});
  EXPECT_LT(Predicted(work) / before, 1.1);
  LearnSteps(6);
  EXPECT_NEAR(Predicted(work) / before, 1, 0.015);
}

}  // namespace
}  // namespace pipeloom::cli
