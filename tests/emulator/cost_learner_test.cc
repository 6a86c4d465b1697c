#include "emulator/calibration/cost_learner.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/emulator/learner_scenarios.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::GraphOf;
using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::LearnerScenario;
using ::pipeloom::testing::MakeSteps;
using ::pipeloom::testing::MeasuredStep;
using ::pipeloom::testing::MeasuredTask;
using ::pipeloom::testing::TraceOf;
using ::testing::HasSubstr;

constexpr uint64_t kSeeds = 50;

void LearnStep(const MeasuredStep& step, CostLearner* learner) {
  ASSERT_THAT(learner->Learn(GraphOf(step), TraceOf(step)).status(), IsOk());
}

// A step of tasks of 1 ms that take `factor` ms.
MeasuredStep EqualTasks(double factor, int tasks = 20) {
  return MeasuredStep(static_cast<size_t>(tasks),
                      {.priced = Milliseconds(1),
                       .measured = Milliseconds(factor),
                       .usual = Milliseconds(factor)});
}

// Returns by how much the learned factor is off the true one of the last step,
// after all steps; a ratio.
double ErrorAfter(const std::vector<MeasuredStep>& steps) {
  CostLearner learner;
  for (const MeasuredStep& step : steps) LearnStep(step, &learner);
  double usual = 0;
  double priced = 0;
  for (const MeasuredTask& task : steps.back()) {
    usual += ToSeconds(task.usual);
    priced += ToSeconds(task.priced);
  }
  return learner.Factor("m", Pass::kForward) * priced / usual - 1;
}

TEST(CostLearnerTest, SlowDriftIsTracked) {
  double squares = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const double walk =
        ErrorAfter(MakeSteps({.varied = true, .drift = 0.005}, seed));
    squares += walk * walk;
    // 4 steps behind.
    const double trend =
        ErrorAfter(MakeSteps({.varied = true, .trend = 0.005}, seed));
    EXPECT_NEAR(trend, -0.02, 0.01);
  }
  EXPECT_LT(std::sqrt(squares / kSeeds), 0.012);
}

TEST(CostLearnerTest, AFifthOfTheTasksMovesTheFactorByThreePercentAtMost) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    for (const bool varied : {false, true}) {
      const double error =
          ErrorAfter(MakeSteps({.varied = varied, .outlier_tasks = 0.2}, seed));
      EXPECT_NEAR(error, 0, 0.03);
    }
  }
}

TEST(CostLearnerTest, FourSlowStepsOfNineMoveTheFactorByThreePercentAtMost) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::vector<MeasuredStep> steps = MakeSteps({.steps = 9}, seed);
    for (const size_t slow : {0u, 3u, 4u, 7u}) {
      for (MeasuredTask& task : steps[slow]) task.measured *= 10;
    }
    EXPECT_NEAR(ErrorAfter(steps), 0, 0.03);
  }
}

TEST(CostLearnerTest, AJumpIsFollowedAfterFiveStepsAndGoneAfterNine) {
  CostLearner learner;
  for (int step = 0; step < 9; ++step) LearnStep(EqualTasks(3), &learner);
  for (int step = 1; step <= 9; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    LearnStep(EqualTasks(1.5), &learner);
    const double factor = learner.Factor("m", Pass::kForward);
    EXPECT_NEAR(factor, step < 5 ? 3 : 1.5, 0.01);
  }
  EXPECT_DOUBLE_EQ(learner.Factor("m", Pass::kForward), 1.5);
}

// Tasks of 3 ms and more cost 1.5 times more than smaller ones.
TEST(CostLearnerTest, AnotherMixOfSizesDoesNotSpoilTheFactor) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::vector<MeasuredStep> steps = MakeSteps(
        {.steps = 20, .tasks = 200, .large_tasks = 1.5, .mix_changes = true},
        seed);
    // The mix of the last ten steps is another one than before.
    EXPECT_NEAR(ErrorAfter(steps), 0, 0.02);
    // A step of small tasks alone changes the mean over sizes by its share.
    std::erase_if(steps.back(), [](const MeasuredTask& task) {
      return task.priced >= Milliseconds(3);
    });
    CostLearner learner;
    for (const MeasuredStep& step : steps) LearnStep(step, &learner);
    EXPECT_NEAR(learner.Factor("m", Pass::kForward), 1.4 * 1.5, 0.05);
  }
}

TEST(CostLearnerTest, WithoutOutliersItIsTheRatioOfSums) {
  // Three sizes, none of which has a spread of its own.
  MeasuredStep step;
  double measured = 0;
  double priced = 0;
  for (int i = 0; i < 60; ++i) {
    const double time = std::pow(10, i % 3);
    const double ratio = 1 + 0.1 * (i % 3);
    step.push_back(
        {.priced = Milliseconds(time), .measured = Milliseconds(time * ratio)});
    measured += time * ratio;
    priced += time;
  }
  CostLearner learner;
  LearnStep(step, &learner);
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), measured / priced, 1e-9);
  // The order of spans does not matter.
  std::reverse(step.begin(), step.end());
  CostLearner reversed;
  LearnStep(step, &reversed);
  EXPECT_EQ(reversed, learner);
}

TEST(CostLearnerTest, TracesOfOneStepAreOneStep) {
  CostLearner learner;
  for (int64_t step = 0; step < 8; ++step) {
    LearnStep(EqualTasks(2), &learner);
  }
  // As many ranks as would fill all that is remembered.
  for (int rank = 0; rank < 20; ++rank) {
    const MeasuredStep part = EqualTasks(5, /*tasks=*/1);
    ASSERT_THAT(learner.Learn(GraphOf(part), TraceOf(part), {}, 8).status(),
                IsOk());
  }
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), 2, 0.01);
  EXPECT_EQ(learner.Tasks("m", Pass::kForward), 8 * 20 + 20);
}

TEST(CostLearnerTest, WhatIsAppliedIsNotCountedTwice) {
  CostLearner learner;
  LearnStep(EqualTasks(2), &learner);
  // Planned with what was learned, and measured as planned.
  const IdVector<ModuleId, PassFactors> factors = learner.Factors({"m"});
  EXPECT_NEAR(factors[ModuleId(0)].forward, 2, 1e-9);
  const MeasuredStep planned(
      20, {.priced = Milliseconds(2), .measured = Milliseconds(2)});
  ASSERT_OK_AND_ASSIGN(
      const double error,
      learner.Learn(GraphOf(planned), TraceOf(planned), factors));
  EXPECT_NEAR(error, 0, 1e-12);
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), 2, 1e-9);
}

TEST(CostLearnerTest, WhatWasNotMeasuredHasTheFactorOne) {
  CostLearner learner;
  EXPECT_TRUE(learner.empty());
  EXPECT_EQ(learner.Factors({"m", "n"}), (IdVector<ModuleId, PassFactors>(2)));
  ASSERT_THAT(learner.Assume("m", Pass::kBackward, 2, 7), IsOk());
  EXPECT_EQ(learner.Factor("m", Pass::kForward), 1);
  EXPECT_EQ(learner.Factor("m", Pass::kWeightGrad), 2) << "as its backward";
  EXPECT_EQ(learner.Tasks("m", Pass::kBackward), 7);
  EXPECT_EQ(learner.Factors({"m"}, 1.5)[ModuleId(0)].backward, 1.5);
  EXPECT_TRUE(Differ(learner.Factors({"m"}), CostLearner().Factors({"m"})));
  EXPECT_FALSE(Differ(learner.Factors({"m"}), learner.Factors({"m"})));
}

TEST(CostLearnerTest, AnAssumedFactorHoldsUntilSomethingIsMeasured) {
  CostLearner learner;
  ASSERT_THAT(learner.Assume("m", Pass::kForward, 5, 100), IsOk());
  EXPECT_EQ(learner.Factor("m", Pass::kForward), 5);
  LearnStep(EqualTasks(2), &learner);
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), 2, 1e-4);
  EXPECT_EQ(learner.Tasks("m", Pass::kForward), 120);
  for (const double wrong : {0.0, -1.0, std::nan(""), 1e7}) {
    EXPECT_THAT(learner.Assume("m", Pass::kForward, wrong, 1),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          HasSubstr("the factor of m, pass F, is")));
  }
}

TEST(CostLearnerTest, ABackwardThatRecomputesCountsOnlyWithoutOthers) {
  const auto step = [](bool recomputes, double factor) {
    const MeasuredStep forwards = EqualTasks(factor);
    IdVector<TaskId, Task> tasks = GraphOf(forwards).tasks();
    for (Task& task : tasks) {
      task.pass = Pass::kBackward;
      task.recomputes = recomputes;
    }
    return std::pair(*StageGraph::Create("g", IdVector<RankId, RankSpec>(1),
                                         {"m"}, tasks, {}),
                     TraceOf(forwards));
  };
  CostLearner learner;
  const auto [again, slow] = step(true, 3);
  ASSERT_THAT(learner.Learn(again, slow).status(), IsOk());
  EXPECT_NEAR(learner.Factor("m", Pass::kBackward), 3, 1e-9);
  const auto [plain, fast] = step(false, 2);
  ASSERT_THAT(learner.Learn(plain, fast).status(), IsOk());
  ASSERT_THAT(learner.Learn(again, slow).status(), IsOk());
  EXPECT_NEAR(learner.Factor("m", Pass::kBackward), 2, 1e-9);
}

TEST(CostLearnerTest, ImpossibleTimesAreRefusedAndZeroTimesIgnored) {
  MeasuredStep step = EqualTasks(2, 4);
  step[0].priced = kZero;
  step[1].measured = kZero;
  CostLearner learner;
  LearnStep(step, &learner);
  EXPECT_EQ(learner.Tasks("m", Pass::kForward), 2);
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), 2, 1e-9);
  const CostLearner before = learner;
  step[2].measured = Nanoseconds(-1);
  EXPECT_THAT(learner.Learn(GraphOf(step), TraceOf(step)),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("task 2 is planned to take 1000000 ns and "
                                  "measured to take -1 ns")));
  step = EqualTasks(2);
  for (const double wrong :
       {0.0, -2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    IdVector<ModuleId, PassFactors> applied(1);
    applied[ModuleId(0)].backward = wrong;
    EXPECT_THAT(learner.Learn(GraphOf(step), TraceOf(step), applied),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          HasSubstr("factor of module 0, pass B, is")));
  }
  EXPECT_EQ(learner, before);
}

TEST(CostLearnerTextTest, TheTextParsesBackAndMistakesNameTheLine) {
  CostLearner learner;
  for (const MeasuredStep& step : MakeSteps({.steps = 12, .varied = true}, 1)) {
    ASSERT_THAT(learner.Learn(GraphOf(step), TraceOf(step), {}, 5).status(),
                IsOk());
    LearnStep(step, &learner);
  }
  ASSERT_THAT(learner.Assume("a \"b\"\n", Pass::kWeightGrad, 0.25, 3), IsOk());
  ASSERT_OK_AND_ASSIGN(const CostLearner read,
                       CostLearner::Parse(learner.ToString()));
  EXPECT_EQ(read, learner);
  EXPECT_EQ(read.ToString(), learner.ToString());
  ASSERT_OK_AND_ASSIGN(const CostLearner none,
                       CostLearner::Parse(CostLearner().ToString()));
  EXPECT_TRUE(none.empty());
  const std::string title = CostLearner().ToString();
  const std::string pass = absl::StrCat(title, "pass F 1 \"m\"\n");
  for (const auto& [text, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "line 1: expected \"pipeloom learned costs version 2\""},
           {"pipeloom learned costs version 3\n", "line 1: expected"},
           {absl::StrCat(title, "pass X 1 \"m\"\n"), "line 2: expected a pass"},
           {absl::StrCat(title, "step 1\n"), "line 2: expected a pass, then"},
           {absl::StrCat(pass, "step x\n"), "line 3: expected a step's"},
           {absl::StrCat(pass, "step -\nplain 9 1e6 2 nan\n"),
            "line 4: expected plain or recomputed"},
           {absl::StrCat(pass, "step -\nplain 9 1e6 2 -1\n"),
            "line 4: expected plain or recomputed"},
           {absl::StrCat(pass, "step -\nplain 9 inf 2 1\n"),
            "line 4: expected plain or recomputed"},
           {absl::StrCat(pass, "step 4\n"), "expected ratios of every pass"},
       }) {
    EXPECT_THAT(
        CostLearner::Parse(text),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << text;
  }
}

TEST(CostLearnerTextTest, FilesOfVersionOneAreRead) {
  ASSERT_OK_AND_ASSIGN(CostLearner learner,
                       CostLearner::Parse("pipeloom learned costs version 1\n"
                                          "steps 30\n"
                                          "F 1000000 30 \"m\" 2 2 9 2\n"
                                          "F 3000000 30 \"m\" 2 2 9 2\n"
                                          "F 2000000 3 \"old\" 4\n"
                                          "B 1000000 30 \"m\" 0.5\n"));
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), 2, 0.01);
  EXPECT_NEAR(learner.Factor("m", Pass::kWeightGrad), 0.5, 1e-9);
  EXPECT_NEAR(learner.Factor("old", Pass::kForward), 4, 1e-9);
  ASSERT_OK_AND_ASSIGN(const CostLearner again,
                       CostLearner::Parse(learner.ToString()));
  EXPECT_EQ(again, learner);
  // It goes on learning.
  for (int step = 0; step < 9; ++step) LearnStep(EqualTasks(3), &learner);
  EXPECT_NEAR(learner.Factor("m", Pass::kForward), 3, 1e-9);
  for (const auto& [line, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"F x 1 \"m\" 2", "line 3: expected pass, priced ns"},
           {"F 5 1 m 2", "line 3: expected pass, priced ns"},
           {"F 5 1 \"m\"", "line 3: expected 1 to 9 ratios"},
           {"F 5 1 \"m\" nan", "line 3: expected ratios above 0"}}) {
    EXPECT_THAT(
        CostLearner::Parse(absl::StrCat(
            "pipeloom learned costs version 1\nsteps 1\n", line, "\n")),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

}  // namespace
}  // namespace pipeloom::emulator
