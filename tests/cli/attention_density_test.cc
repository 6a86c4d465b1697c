// --attention-density of `emulate` and `plan`.
#include "cli/input/attention_density.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/console/files.h"
#include "emulator/stage/stage_cost.h"
#include "formats/job/spec_loader.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

double StepTime(const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      "emulate", "dip-vlm-s",     "--batch", "image_text", "--schedule",
      "1f1b",    "--evaluations", "1",       "--format",   "json"};
  args.insert(args.end(), more.begin(), more.end());
  const Outcome outcome = Pipeloom(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  if (outcome.code != 0) return 0;
  return Json::parse(outcome.out)["step_time_us"];
}

TEST(AttentionDensityTest, AJobAtADensityCostsWhatTheStepFactorSays) {
  ASSERT_OK_AND_ASSIGN(const std::string data, FindDataDir(""));
  ASSERT_OK_AND_ASSIGN(
      const JobSpec job,
      formats::LoadJob("dip-vlm-s", data,
                       [](const std::string& path) { return ReadFile(path); }));
  const emulator::StageCostModel whole(job);
  const emulator::StageCostModel sparse(WithAttentionDensity(job, 0.25));
  const WorkShape shape{.instances = 2,
                        .tokens = 8192,
                        .output_tokens = 8192,
                        .squared_tokens = 2.0 * 4096 * 4096,
                        .sequences = 2,
                        .longest = 4096};
  for (const ModuleId m : job.model.modules.ids()) {
    const Stage stage{.module = m,
                      .first_layer = LayerId(0),
                      .num_layers = job.model.modules[m].layers.size()};
    EXPECT_EQ(sparse.Cost(stage, shape, true),
              whole.Cost(stage, shape, true, 0.25))
        << job.model.modules[m].name;
  }
}

TEST(AttentionDensityTest, ASparserStepIsShorterAndADenseOneUnchanged) {
  const double whole = StepTime({});
  EXPECT_EQ(StepTime({"--attention-density", "1"}), whole);
  const double half = StepTime({"--attention-density", "0.5"});
  EXPECT_LT(half, whole);
  EXPECT_LT(StepTime({"--attention-density", "0.25"}), half);
}

TEST(AttentionDensityTest, StepsOfAPlanHaveTheirOwnAndTheLastHoldsOn) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"plan",       "dip-vlm-s", "--batch",
                                     "image_text", "--steps",   "3",
                                     "--schedule", "1f1b",      "--evaluations",
                                     "1",          "--format",  "json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> times;
    const Json parsed = Json::parse(outcome.out);
    for (const Json& step : parsed["steps"]) {
      times.push_back(step["step_time_us"]);
    }
    return times;
  };
  const std::vector<double> whole = plan({});
  const std::vector<double> quarter = plan({"--attention-density", "0.25"});
  const std::vector<double> mixed = plan({"--attention-density", "1,0.25"});
  ASSERT_EQ(mixed.size(), 3u);
  EXPECT_EQ(mixed[0], whole[0]);
  EXPECT_EQ(mixed[1], quarter[1]);
  EXPECT_EQ(mixed[2], quarter[2]);
  EXPECT_LT(mixed[1], whole[1]);
}

TEST(AttentionDensityTest, WhatIsOutOfRangeOrHasNoMeaningIsRefused) {
  for (const char* const value : {"0", "1.5", "-1", "half", "nan"}) {
    const Outcome outcome =
        Pipeloom({"emulate", "dip-vlm-s", "--batch", "image_text",
                  "--attention-density", value});
    EXPECT_EQ(outcome.code, 2) << value;
    EXPECT_THAT(outcome.err, HasSubstr("it must be in (0, 1]")) << value;
  }
  const Outcome outcome =
      Pipeloom({"emulate", "--plan", "any.pb", "--attention-density", "0.5"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("is planned already"));
}

}  // namespace
}  // namespace pipeloom::cli
