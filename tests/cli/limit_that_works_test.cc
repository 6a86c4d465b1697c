// The memory limit that an error names works when it is asked for.
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

// Returns the limit that the error names, as an option takes it; empty if it
// names none.
std::string LimitIn(const std::string& error) {
  std::smatch found;
  return std::regex_search(
             error, found,
             std::regex(
                 "a plan was found for a limit of ([0-9.]+) ([A-Za-z]+)"))
             ? found[1].str() + found[2].str()
             : "";
}

// Plans within a limit that is too small and expects an error whose limit is
// enough. `plan` takes a limit. `tries`: how many limits may be named, as the
// partition may be another one for each.
template <typename Plan>
void ExpectNamedLimitWorks(const char* too_small, int tries, const Plan& plan) {
  Outcome outcome = plan(too_small);
  ASSERT_EQ(outcome.code, 1) << outcome.out;
  for (int i = 0; i < tries && outcome.code == 1; ++i) {
    const std::string limit = LimitIn(outcome.err);
    ASSERT_NE(limit, "") << outcome.err;
    outcome = plan(limit);
  }
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(LimitThatWorksTest, IsNamedAndWorksForEveryStrategy) {
  const struct {
    const char* job;
    const char* batch;
    const char* strategy;
    const char* limit;
  } cases[] = {
      {"llama3-8b", "text", "pipeloom", "1GiB"},
      {"llama3-8b", "text", "pipeloom", "20GiB"},
      {"llama3-8b", "text", "zb-2p", "20GiB"},
      {"qwen2.5-vl-7b", "image_text", "pipeloom", "10GiB"},
      {"dip-vlm-s", "image_text", "pipeloom", "15GiB"},
      {"dip-vlm-s", "image_text", "dip", "15GiB"},
      {"dip-vlm-s", "image_text", "1f1b", "15GiB"},
      {"dip-vlm-s", "image_text", "zb-v", "15GiB"},
      {"dip-vlm-s", "image_text", "megatron-tuned", "15GiB"},
      {"dip-t2v-s", "video", "pipeloom", "12GiB"},
      {"dip-t2v-s", "video", "optimus", "20GiB"},
      {"disttrain-9b", "image_text", "disttrain", "12GiB"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.job, " ", one.strategy, " ", one.limit));
    ExpectNamedLimitWorks(one.limit, 1, [&](const std::string& limit) {
      return Pipeloom({"plan", one.job, "--batch", one.batch, "--strategy",
                       one.strategy, "--microbatches", "6", "--replicas", "1",
                       "--evaluations", "20", "--partition", "rule",
                       "--memory-limit", limit});
    });
  }
}

// Recomputing all layers with a checkpoint for several needs more memory here
// than with one for each, though it takes longer.
TEST(LimitThatWorksTest, IsThatOfTheRuleThatNeedsTheLeast) {
  const auto plan = [](const char* limit) {
    return Pipeloom({"plan", "llama3-8b", "--batch", "text", "--strategy",
                     "1f1b", "--microbatches", "8", "--set", "parallel.dp=1",
                     "--evaluations", "20", "--memory-limit", limit});
  };
  ASSERT_EQ(plan("43GiB").code, 0);
  const Outcome outcome = plan("20GiB");
  ASSERT_EQ(outcome.code, 1) << outcome.out;
  std::smatch needs;
  ASSERT_TRUE(
      std::regex_search(outcome.err, needs, std::regex("needs ([0-9.]+) GiB")))
      << outcome.err;
  EXPECT_LE(std::stod(needs[1].str()), 43);
  const std::string limit = LimitIn(outcome.err);
  EXPECT_LE(std::stod(limit), 43) << outcome.err;
  EXPECT_EQ(plan(limit.c_str()).code, 0);
}

TEST(LimitThatWorksTest, IsThatOfAllStepsForATrainer) {
  const struct {
    const char* job;
    const char* batch;
    const char* trainer;
    const char* limit;
  } cases[] = {
      {"llama3-8b", "text", "torch", "20GiB"},
      {"llama3-8b", "text", "megatron-stock", "20GiB"},
      {"qwen2.5-vl-7b", "image_text", "deepspeed", "12GiB"},
      {"qwen2.5-vl-7b", "image_text", "megatron", "12GiB"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.job, " ", one.trainer));
    ExpectNamedLimitWorks(one.limit, 2, [&](const std::string& limit) {
      return Pipeloom({"plan", one.job, "--batch", one.batch, "--for",
                       one.trainer, "--microbatches", "6", "--replicas", "1",
                       "--steps", "3", "--evaluations", "20", "--memory-limit",
                       limit});
    });
  }
}

}  // namespace
}  // namespace pipeloom::cli
