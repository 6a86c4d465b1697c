// `pipeloom trace` as programs see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using Args = std::vector<std::string>;
using Json = nlohmann::json;

class TraceCommandTest : public ::testing::Test {
 protected:
  TraceCommandTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-trace-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TraceCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }

  // Writes the timeline of a step that was searched for so long, and returns
  // its path.
  std::string Trace(int evaluations) {
    const Outcome plan =
        Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text",
                  "--microbatches", "4", "--replicas", "1", "--evaluations",
                  absl::StrCat(evaluations), "--out", Path("plan.pb")});
    EXPECT_EQ(plan.code, 0) << plan.err;
    const Outcome emulated =
        Pipeloom({"emulate", Path("plan.pb"), "--trace", Path("step.json")});
    EXPECT_EQ(emulated.code, 0) << emulated.err;
    return Path("step.json");
  }

  std::string folder_{};
};

TEST_F(TraceCommandTest, TheBestOrderIsNeverWorseThanTheMeasuredOne) {
  const std::string trace = Trace(300);
  for (const char* const evaluations : {"1", "3", "30"}) {
    const Outcome outcome = Pipeloom(
        {"trace", trace, "--evaluations", evaluations, "--format", "json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_LE(json["reordered_us"].get<double>(),
              json["replayed_us"].get<double>())
        << evaluations;
  }
}

}  // namespace
}  // namespace pipeloom::cli
