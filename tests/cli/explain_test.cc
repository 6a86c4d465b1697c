// Applies the proposals of `explain` to jobs of different kinds.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/console/command.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Case {
  const char* job;
  const char* batch;
  const char* schedule;
};

class ExplainTest : public ::testing::TestWithParam<Case> {
 protected:
  // A small step, so that some dozens of plans take a second.
  static std::vector<std::string> Small(const char* command,
                                        std::vector<std::string> more) {
    const Case& c = GetParam();
    std::vector<std::string> args = {command,         c.job,
                                     "--batch",       c.batch,
                                     "--evaluations", "2",
                                     "--schedule",    c.schedule,
                                     "--set",         "training.microbatches=4",
                                     "--format",      "json"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

INSTANTIATE_TEST_SUITE_P(
    ShippedJobs, ExplainTest,
    ::testing::Values(Case{"dip-vlm-m", "image_text", "1f1b"},
                      Case{"dip-t2v-s", "video", "dip"},
                      Case{"deepseek-v2", "text", "interleaved"},
                      Case{"qwen2.5-omni-7b", "mixed", "1f1b"},
                      Case{"rlhf-33b-13b", "text", "pipeloom"}),
    [](const ::testing::TestParamInfo<Case>& tested) {
      std::string name = tested.param.job;
      for (char& c : name) c = isalnum(c) != 0 ? c : '_';
      return name;
    });

TEST_P(ExplainTest, EverySuggestionAppliedGivesTheGainItShows) {
  const Outcome explained = Pipeloom(Small("explain", {}));
  ASSERT_EQ(explained.code, 0) << explained.err;
  const Json found = Json::parse(explained.out);
  const double now = found["step_time_us"];
  // Up to three; not every job has three changes that help.
  ASSERT_GE(found["suggestions"].size(), 1u);
  ASSERT_LE(found["suggestions"].size(), 3u);
  double last = 1e300;
  for (const Json& suggestion : found["suggestions"]) {
    SCOPED_TRACE(suggestion["label"].get<std::string>());
    // All its changes, those of the command line first.
    std::vector<std::string> sets;
    for (const Json& set : suggestion["set"]) {
      sets.insert(sets.end(), {"--set", set.get<std::string>()});
    }
    const double shown = suggestion["step_time_us"];
    const double gain = suggestion["gain_us"];
    EXPECT_NEAR(now - shown, gain, 0.01);
    EXPECT_GE(gain, now / 1000);  // Worth a line.
    EXPECT_LE(gain, last);
    last = gain;
    const Outcome applied = Pipeloom(Small("whatif", sets));
    ASSERT_EQ(applied.code, 0) << applied.err;
    const Json row = Json::parse(applied.out)["configurations"][0];
    EXPECT_EQ(row["step_time_us"].get<double>(), shown);
    EXPECT_LE(row["peak_bytes"], row["limit_bytes"]);
    // And applied to the explanation itself.
    sets.insert(sets.end(), {"--suggestions", "0"});
    const Outcome again = Pipeloom(Small("explain", sets));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(Json::parse(again.out)["step_time_us"].get<double>(), shown);
  }
}

TEST(ExplainWordsTest, ASuggestionHasItsGainAndItsCommand) {
  const Outcome outcome =
      Pipeloom({"explain", "llama3-8b", "--batch", "text", "--schedule", "1f1b",
                "--evaluations", "2", "--microbatches", "4"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("What would help most, each planned anew "
                                     "and emulated:\n\n1. "));
  EXPECT_THAT(outcome.out, HasSubstr(" less\n   pipeloom whatif llama3-8b "
                                     "--batch text --set "));
  // A field that a change sets again stands in the command once.
  EXPECT_THAT(outcome.out,
              ::testing::Not(HasSubstr("'training.microbatches=4' --set "
                                       "'training.microbatches=16'")));
}

// The command plans as the explained plan was planned: the same samples, the
// same search and the same costs.
TEST(ExplainWordsTest, TheCommandHasEveryPlanningOptionThatWasGiven) {
  const std::vector<std::pair<std::string, std::string>> given = {
      {"--evaluations", "2"},
      {"--seed", "7"},
      {"--threads", "1"},
      {"--workers", "1"},
      {"--strategy", "1f1b"},
      {"--assignment", "balanced"},
      {"--shuffle", "5"},
      {"--costs", "roofline"},
      {"--partition", "rule"},
      {"--replicas", "1"},
      {"--deadline", "5000ms"},
      {"--data-dir", PIPELOOM_SOURCE_DIR "/workloads"}};
  std::vector<std::string> args = {
      "explain",        "llama3-8b",      "--batch",
      "text",           "--microbatches", "4",
      "--memory-limit", "64GiB",          "--set",
      "parallel.dp=2",  "--set",          "cluster.gpus_per_node=8"};
  for (const auto& [name, value] : given) {
    args.insert(args.end(), {name, value});
  }
  const Outcome outcome = Pipeloom(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const size_t at = outcome.out.find("   pipeloom whatif llama3-8b ");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  const std::string line =
      outcome.out.substr(at, outcome.out.find('\n', at) - at) + " ";
  for (const auto& [name, value] : given) {
    const std::string shown = name == "--deadline" ? "5000000000ns" : value;
    EXPECT_THAT(line, HasSubstr(absl::StrCat(" ", name, " ", shown, " ")));
  }
  EXPECT_THAT(line, HasSubstr("'training.memory_limit_bytes=68719476736'"));
}

TEST(ExplainWordsTest, TheCommandHasTheProfilesThatWereGiven) {
  const std::string profile =
      PIPELOOM_SOURCE_DIR "/workloads/profiles/h100-sxm.json";
  const Outcome outcome =
      Pipeloom({"explain", "llama3-8b", "--batch", "text", "--microbatches",
                "4", "--replicas", "1", "--evaluations", "2", "--partition",
                "rule", "--profile", profile});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("   pipeloom whatif llama3-8b "));
  EXPECT_THAT(outcome.out, HasSubstr(absl::StrCat(" --profile ", profile)));
}

}  // namespace
}  // namespace pipeloom::cli
