// `pipeloom trace` as programs see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using ::testing::HasSubstr;
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

TEST_F(TraceCommandTest, AnInterruptedSearchShowsItsBestAndSaysSo) {
  const std::string log = Path("log.csv");
  ASSERT_TRUE(
      WriteFileAtomically(log,
                          "step,dp,stage,start_ms,op,microbatch,duration_ms\n"
                          "0,0,0,0,F,0,10\n0,0,0,10,B,0,20\n")
          .ok());
  std::stop_source stop;
  stop.request_stop();
  for (const std::string& file : {Trace(1), log}) {
    const Outcome outcome =
        Pipeloom({"trace", file, "--deadline", "60s"}, stop.get_token());
    EXPECT_EQ(outcome.code, 130);
    EXPECT_THAT(outcome.err, HasSubstr("interrupted"));
    EXPECT_THAT(outcome.out, HasSubstr("replayed"));
  }
}

TEST_F(TraceCommandTest, CompressedFilesAreNamed) {
  const std::string path = Path("rank0.json.gz");
  ASSERT_TRUE(WriteFileAtomically(path, "\x1f\x8b\x08").ok());
  for (const std::string& given : {path, folder_}) {
    const Outcome outcome = Pipeloom({"trace", given});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(path));
    EXPECT_THAT(outcome.err, HasSubstr("gunzip it first"));
  }
}

TEST_F(TraceCommandTest, TheHelpNamesTheOperationsOfALog) {
  const Outcome outcome = Pipeloom({"trace", "--help"});
  EXPECT_EQ(outcome.code, 0);
  for (const char* const text :
       {"from the beginning", " FS", " FR", " BS", " BR", " AG", " RS", " EM",
        " CLIP", " LN", " GC", " OPT"}) {
    EXPECT_THAT(outcome.out, HasSubstr(text));
  }
}

}  // namespace
}  // namespace pipeloom::cli
