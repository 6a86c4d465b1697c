// validate --job: a plan against its job, with the options that it was made
// with.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::HasSubstr;

using Args = std::vector<std::string>;

Args Joined(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class ValidatePlanTest : public ::testing::Test {
 protected:
  ValidatePlanTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-validate-XXXXXX";
    folder_ = mkdtemp(name.data());
    plan_ = folder_ + "/plan.pb";
  }
  ~ValidatePlanTest() override { std::filesystem::remove_all(folder_); }

  // Plans two steps of the job with the options and validates the second one
  // with `options` and without.
  void PlanAndValidate(const std::string& job, const Args& common,
                       const Args& options) {
    const Outcome made =
        Pipeloom(Joined(Joined({"plan", job, "--evaluations", "20", "--steps",
                                "2", "--out", plan_},
                               common),
                        options));
    ASSERT_EQ(made.code, 0) << made.err;
    const Args validate =
        Joined({"validate", folder_ + "/plan-0001.pb", "--job", job}, common);
    const Outcome same = Pipeloom(Joined(validate, options));
    EXPECT_EQ(same.code, 0) << same.out << same.err;
    const Outcome without = Pipeloom(validate);
    EXPECT_EQ(without.code, 1) << without.out;
    EXPECT_THAT(without.out, HasSubstr("by its job and batch"));
  }

  std::string folder_{};
  std::string plan_{};
};

TEST_F(ValidatePlanTest, TakesThePartitionOfATrainer) {
  PlanAndValidate(
      "dip-vlm-s",
      {"--batch", "image_text", "--replicas", "1", "--microbatches", "6"},
      {"--for", "deepspeed"});
}

TEST_F(ValidatePlanTest, TakesSlowRanksAndLinks) {
  PlanAndValidate("llama3-8b",
                  {"--batch", "text", "--replicas", "1", "--microbatches", "4",
                   "--set", "parallel.tp=2", "--set", "parallel.pp=4"},
                  {"--slow", "1=1.5", "--slow-link", "0-1=+30ms"});
}

TEST_F(ValidatePlanTest, TakesTheAttentionDensityOfTheStep) {
  PlanAndValidate("llama3-8b",
                  {"--batch", "text", "--replicas", "1", "--microbatches", "4"},
                  {"--attention-density", "0.5,0.25"});
}

TEST_F(ValidatePlanTest, AnotherPartitionIsNamed) {
  const Args batch = {"--batch", "text",           "--replicas",
                      "1",       "--microbatches", "4"};
  const auto validated = [&](const Args& made, const Args& checked) {
    const Outcome plan = Pipeloom(Joined(
        Joined({"plan", "llama3-8b", "--evaluations", "5", "--out", plan_},
               batch),
        made));
    EXPECT_EQ(plan.code, 0) << plan.err;
    return Pipeloom(Joined(
        Joined({"validate", plan_, "--job", "llama3-8b"}, batch), checked));
  };
  // Other stages: those of interleaved are several a rank.
  const Outcome stages =
      validated({"--strategy", "1f1b"}, {"--strategy", "interleaved"});
  EXPECT_EQ(stages.code, 1);
  EXPECT_THAT(stages.out, HasSubstr("the plan is of another partition: give "
                                    "the one that it was made with by "
                                    "--partition"));
  // The same stages with other layers.
  const Outcome layers =
      validated({"--partition", "search"}, {"--partition", "rule"});
  EXPECT_EQ(layers.code, 1);
  EXPECT_THAT(layers.out, HasSubstr("by --partition"));
  // Another job has other weights in all.
  const Outcome job = validated({"--set", "parallel.tp=2"}, {});
  EXPECT_EQ(job.code, 1);
  EXPECT_THAT(job.out, HasSubstr("(--partition) or other options of the job "
                                 "are not those of the plan"));
}

TEST_F(ValidatePlanTest, WrongOptionsAreMisuse) {
  const Outcome made =
      Pipeloom({"plan", "llama3-8b", "--batch", "text", "--replicas", "1",
                "--microbatches", "4", "--evaluations", "5", "--out", plan_});
  ASSERT_EQ(made.code, 0) << made.err;
  const struct {
    Args options;
    const char* says;
  } cases[] = {
      {{"--attention-density", "2"}, "--attention-density"},
      {{"--slow", "99=1.3"}, "there is no rank 99"},
      {{"--for", "torch", "--strategy", "zb-v"}, "only pipeloom plans within"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.says);
    const Outcome wrong = Pipeloom(
        Joined({"validate", plan_, "--job", "llama3-8b", "--batch", "text"},
               one.options));
    EXPECT_EQ(wrong.code, 2) << wrong.out;
    EXPECT_THAT(wrong.err, HasSubstr(one.says));
  }
}

}  // namespace
}  // namespace pipeloom::cli
