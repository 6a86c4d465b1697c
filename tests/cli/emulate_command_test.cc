// `pipeloom emulate` as programs and readers of its page see it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class EmulateCommandTest : public ::testing::Test {
 protected:
  EmulateCommandTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-emulate-XXXXXX";
    folder_ = mkdtemp(name.data());
    const Outcome plan = Pipeloom(
        {"plan", "dip-vlm-s", "--batch", "image_text", "--microbatches", "4",
         "--replicas", "1", "--evaluations", "1", "--out", Path("plan.pb")});
    EXPECT_EQ(plan.code, 0) << plan.err;
  }
  ~EmulateCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }

  std::string folder_{};
};

TEST_F(EmulateCommandTest, ThePageHasTheStepTimeWithJitter) {
  const Outcome outcome =
      Pipeloom({"emulate", Path("plan.pb"), "--jitter", "0.1", "--samples",
                "50", "--report", Path("page.html"), "--format", "json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json jitter = Json::parse(outcome.out)["jitter"];
  ASSERT_OK_AND_ASSIGN(const std::string page, ReadFile(Path("page.html")));
  EXPECT_THAT(page, HasSubstr("Step time with jitter"));
  for (const char* const key : {"mean_us", "p50_us", "p90_us", "p99_us"}) {
    EXPECT_THAT(
        page,
        HasSubstr(absl::StrCat(
            "<td>", FormatDuration(Microseconds(jitter[key].get<double>())),
            "</td>")))
        << key;
  }
}

// A plan made from a trace says nothing of memory and FLOPs.
TEST_F(EmulateCommandTest, WhatAPlanDoesNotSayIsNotShownAsZero) {
  ASSERT_EQ(
      Pipeloom({"emulate", Path("plan.pb"), "--trace", Path("step.json")}).code,
      0);
  const Outcome traced =
      Pipeloom({"trace", Path("step.json"), "--out", Path("measured.pb"),
                "--report", Path("trace.html")});
  ASSERT_EQ(traced.code, 0) << traced.err;
  const Outcome table =
      Pipeloom({"emulate", Path("measured.pb"), "--report", Path("page.html")});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("MFU        -\n"));
  EXPECT_THAT(table.out, Not(HasSubstr(" 0 B")));
  const Outcome json =
      Pipeloom({"emulate", Path("measured.pb"), "--format", "json"});
  EXPECT_TRUE(Json::parse(json.out)["mfu"].is_null());
  const Outcome explained = Pipeloom({"explain", Path("measured.pb")});
  EXPECT_THAT(explained.out, Not(HasSubstr(" 0 B")));
  EXPECT_THAT(explained.out, HasSubstr("does not say how much memory"));
  for (const char* const name : {"trace.html", "page.html"}) {
    ASSERT_OK_AND_ASSIGN(const std::string page, ReadFile(Path(name)));
    EXPECT_THAT(page, HasSubstr("Peak memory of one GPU")) << name;
    EXPECT_THAT(page, Not(HasSubstr("0 B</td>"))) << name;
    EXPECT_THAT(page, Not(HasSubstr("0.0 %</"))) << name;
  }
}

TEST_F(EmulateCommandTest, WithoutJitterThePageDoesNotSpeakOfIt) {
  const Outcome outcome =
      Pipeloom({"emulate", Path("plan.pb"), "--report", Path("page.html")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_OK_AND_ASSIGN(const std::string page, ReadFile(Path("page.html")));
  EXPECT_THAT(page, Not(HasSubstr("with jitter")));
}

}  // namespace
}  // namespace pipeloom::cli
