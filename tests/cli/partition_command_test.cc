// `partition` as people use it: layouts with expert and context parallelism,
// and modules on GPUs of their own.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class PartitionCommandTest : public ::testing::Test {
 protected:
  PartitionCommandTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-partition-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~PartitionCommandTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  std::string folder_;
};

// DeepSeek-V2, 160 experts: 128 GPUs in layouts of tp 1, cp 2, pp 8, dp 8 with
// ep of 1 to 16.
TEST_F(PartitionCommandTest, LayoutsOfAMixtureOfExpertsWithEpAndCp) {
  const Outcome found =
      Pipeloom({"partition", "deepseek-v2", "--batch", "text", "--layouts",
                "--tp", "1", "--cp", "2", "--pp", "8", "--microbatches", "8",
                "--tries", "1", "--threads", "1", "--out", Path("p.json")});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr("of 5 layouts of 128 GPUs"));
  // Experts of 128 GPUs' layouts without expert parallelism do not fit.
  EXPECT_TRUE(std::regex_search(
      found.out, std::regex("tp 1 cp 2 pp 8 dp 8 .* does not fit")))
      << found.out;
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(Path("p.json")));
  const Json layout = Json::parse(text)["layout"];
  EXPECT_EQ(layout["tp"], 1);
  EXPECT_EQ(layout["cp"], 2);
  EXPECT_EQ(layout["pp"], 8);
  EXPECT_EQ(layout["dp"], 8);
  EXPECT_THAT(layout["ep"].get<int>(), AnyOf(2, 4, 8, 16));
  // `plan` takes the layout over, and has its memory.
  const Outcome plan = Pipeloom(
      {"plan", "deepseek-v2", "--batch", "text", "--partition", Path("p.json"),
       "--replicas", "1", "--evaluations", "2", "--format", "json"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("has its own layout: tp 1 cp 2 ep"));
  const Json step = Json::parse(plan.out)["steps"][0];
  EXPECT_EQ(step["peak_bytes"].size(), 8u);
}

// The file splits the same global batch over another number of replicas, so a
// replica has another number of microbatches than --microbatches says.
TEST_F(PartitionCommandTest, OptionsThatChangeTheBatchOfALayoutAreTold) {
  const Outcome found = Pipeloom(
      {"partition", "llama3-8b", "--batch", "text", "--set", "parallel.dp=2",
       "--set", "parallel.tp=1", "--microbatches", "4", "--layouts", "--dp",
       "1", "--tries", "1", "--threads", "1", "--out", Path("p.json")});
  ASSERT_EQ(found.code, 0) << found.err;
  // Means over sample steps stand in another column than times of one step.
  EXPECT_THAT(found.out, HasSubstr("step time, mean  time of one step"));
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(Path("p.json")));
  ASSERT_EQ(Json::parse(text)["layout"]["microbatches"], 8) << text;
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {
        "plan",        "llama3-8b",     "--batch",       "text",
        "--set",       "parallel.dp=2", "--set",         "parallel.tp=1",
        "--partition", Path("p.json"),  "--evaluations", "1"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  const std::string changed = plan({"--microbatches", "4"});
  EXPECT_THAT(changed, HasSubstr(" dp 1, 8 microbatches; job llama3-8b has "));
  EXPECT_THAT(changed, HasSubstr("--microbatches 4 is used instead of the 8 "
                                 "microbatches of "));
  EXPECT_THAT(changed, HasSubstr("the global batch of a step is 4 microbatches "
                                 "instead of 8"));
  for (const std::string& same : {plan({}), plan({"--microbatches", "8"})}) {
    EXPECT_THAT(same, HasSubstr(" dp 1, 8 microbatches; job llama3-8b has "));
    EXPECT_THAT(same, Not(HasSubstr("is used instead of")));
  }
}

TEST_F(PartitionCommandTest, DisaggregateSizesUnitsAndShowsAllPlacements) {
  const Outcome found = Pipeloom(
      {"partition", "disttrain-9b", "--batch", "mixed", "--disaggregate"});
  ASSERT_EQ(found.code, 0) << found.err;
  int used = 0;
  int all = 0;
  ASSERT_EQ(std::sscanf(found.out.c_str(), "disttrain-9b: %d of %d GPUs", &used,
                        &all),
            2)
      << found.out;
  EXPECT_EQ(all, 1296);
  EXPECT_LE(used, all);
  // Each unit's GPUs are tp x dp x pp, and they add up.
  int sum = 0;
  for (const char* unit : {"encoder", "backbone", "generator"}) {
    const size_t at = found.out.find(absl::StrCat("\n", unit, " "));
    ASSERT_NE(at, std::string::npos) << found.out;
    int gpus = 0, tp = 0, dp = 0, pp = 0;
    ASSERT_EQ(std::sscanf(found.out.c_str() + at + 1, "%*s %d %d %d %d", &gpus,
                          &tp, &dp, &pp),
              4);
    EXPECT_EQ(gpus, tp * dp * pp) << unit;
    sum += gpus;
  }
  EXPECT_EQ(sum, used);
  // The paper's baseline is 1.7 to 2.2 times slower there; ours lies beyond.
  std::smatch ratio;
  ASSERT_TRUE(std::regex_search(
      found.out, ratio,
      std::regex("encoder and generator as stages.* ([0-9.]+)x")));
  EXPECT_GT(std::stod(ratio[1]), 1.7);
  EXPECT_THAT(found.out, AnyOf(HasSubstr("disaggregating is faster"),
                               HasSubstr("the job's layout is faster")));
}

// The job's layout counts with the job's own strategy, as `plan` plans it, and
// not by the slower fixed schedule alone.
TEST_F(PartitionCommandTest, DisaggregateComparesWithTheStrategyOfTheJob) {
  const Outcome found = Pipeloom({"partition", "dip-vlm-m", "--batch", "mixed",
                                  "--microbatches", "4", "--disaggregate"});
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out, HasSubstr(" dp 1, megatron "));
  EXPECT_THAT(found.out, HasSubstr(" dp 1, pipeloom "));
  EXPECT_THAT(found.out, HasSubstr("\nthe job's layout is faster\n"));
  // A layout that was never found has no sizes.
  EXPECT_THAT(found.out, Not(HasSubstr("tp 0")));
  // The same step as that of `compare`, all replicas.
  const std::vector<std::string> job = {
      "qwen2.5-vl-7b", "--batch", "mixed", "--microbatches", "4",
      "--format",      "json"};
  std::vector<std::string> args = {"partition", "--disaggregate"};
  args.insert(args.end(), job.begin(), job.end());
  const Json placed = Json::parse(Pipeloom(args).out);
  args = {"compare", "--strategies", "megatron", "--evaluations", "1"};
  args.insert(args.end(), job.begin(), job.end());
  const Json compared = Json::parse(Pipeloom(args).out);
  EXPECT_NEAR(placed["job_layout_us"].get<double>(),
              compared["rows"][0]["mean_step_time_us"].get<double>(),
              1e-3 * placed["job_layout_us"].get<double>())
      << compared;
}

// The vision encoder of 8 GPUs a rank in copies of its own size; the file says
// so, and `plan` and `compare` take that over.
TEST_F(PartitionCommandTest, ByModuleTheEncoderMayHaveATpOfItsOwn) {
  const Outcome found =
      Pipeloom({"partition", "dip-vlm-s", "--batch", "image_text", "--layouts",
                "--by-module", "--tp", "8", "--cp", "1", "--pp", "2", "--tries",
                "1", "--threads", "1", "--out", Path("p.json")});
  ASSERT_EQ(found.code, 0) << found.err;
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(Path("p.json")));
  const Json layout = Json::parse(text)["layout"];
  EXPECT_EQ(layout["tp"], 8);
  ASSERT_EQ(layout["modules"].size(), 1u) << text;
  EXPECT_EQ(layout["modules"][0]["module"], "vision_encoder");
  const int own = layout["modules"][0]["tp"].get<int>();
  EXPECT_LT(own, 8);
  EXPECT_THAT(found.out, HasSubstr(absl::StrCat("vision_encoder tp ", own)));
  const Outcome plan =
      Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text", "--partition",
                Path("p.json"), "--replicas", "1", "--evaluations", "2"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err,
              HasSubstr(absl::StrCat("has its own layout: tp 8 pp 2 dp 1, "
                                     "vision_encoder tp ",
                                     own)));
}

TEST_F(PartitionCommandTest, AnInterruptWritesTheBestUntilThen) {
  std::stop_source now;
  now.request_stop();
  const Outcome found = Pipeloom({"partition", "dip-vlm-s", "--batch",
                                  "image_text", "--out", Path("p.json")},
                                 now.get_token());
  EXPECT_EQ(found.code, 130) << found.err;
  EXPECT_THAT(found.out, HasSubstr("the best until the interrupt: "));
  EXPECT_THAT(found.err, HasSubstr("interrupted"));
  const Outcome plan =
      Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text", "--partition",
                Path("p.json"), "--replicas", "1", "--evaluations", "1"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  // Before any layout was planned there is none to write.
  const Outcome none =
      Pipeloom({"partition", "dip-vlm-s", "--batch", "image_text", "--layouts",
                "--out", Path("none.json")},
               now.get_token());
  EXPECT_EQ(none.code, 130) << none.err;
  EXPECT_FALSE(ReadFile(Path("none.json")).ok());
}

// The strategy's own partition is the start, as where `plan` searches: from
// DIP's rule alone this search ends 5 % slower.
TEST_F(PartitionCommandTest, ItFindsWhatPlanFinds) {
  const std::vector<std::string> job = {"step-video-t2v", "--batch", "video"};
  const auto run = [&](std::vector<std::string> args,
                       const std::vector<std::string>& more) {
    args.insert(args.end(), job.begin(), job.end());
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const auto first_step = [&](const std::string& partition) {
    const std::string out =
        run({"plan"}, {"--partition", partition, "--replicas", "1",
                       "--evaluations", "5", "--format", "json"});
    return Json::parse(out)["steps"][0]["step_time_us"].get<double>();
  };
  const Json found = Json::parse(
      run({"partition"}, {"--out", Path("p.json"), "--format", "json"}));
  EXPECT_LE(found["step_time_us"], found["rule_time_us"]);
  const double searched = first_step("search");
  EXPECT_DOUBLE_EQ(first_step(Path("p.json")), searched);
  EXPECT_LE(searched, first_step("dip"));
}

TEST_F(PartitionCommandTest, MisuseIsExplained) {
  const Outcome both = Pipeloom({"partition", "disttrain-9b", "--batch",
                                 "mixed", "--disaggregate", "--layouts"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("leave out --layouts"));
  const Outcome alone = Pipeloom(
      {"partition", "dip-vlm-s", "--batch", "image_text", "--by-module"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, HasSubstr("--by-module are for --layouts"));
  const Outcome none = Pipeloom({"partition", "deepseek-v2", "--batch", "text",
                                 "--layouts", "--cp", "3"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("cp"));
}

}  // namespace
}  // namespace pipeloom::cli
