// plan --for: the trainer's files and launch arguments.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainerPlanTest : public ::testing::Test {
 protected:
  TrainerPlanTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-trainer-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~TrainerPlanTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  static Outcome Plan(const std::string& job, const std::string& batch,
                      std::vector<std::string> more) {
    std::vector<std::string> args = {
        "plan",          job,  "--batch",        batch, "--replicas", "1",
        "--evaluations", "30", "--microbatches", "6"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  }
  std::string folder_{};
};

TEST_F(TrainerPlanTest, WritesAScheduleAndLaunchArgumentsNextToThePlan) {
  const struct {
    const char* trainer;
    const char* file;
    const char* launch;
    const char* says;
  } cases[] = {
      {"torch", "plan.csv", "plan-launch.txt", "STAGES_OF_RANK"},
      {"torchtitan", "plan.csv", "plan-launch.py",
       "pipeline_parallel_schedule_csv"},
      {"megatron", "plan.pb", "plan-launch.txt",
       "--pipeline-model-parallel-layout"},
      {"megatron-stock", "plan.order", "plan-launch.txt",
       "--pipeline-model-parallel-layout"},
      {"deepspeed", "plan.deepspeed", "plan-launch.txt", "PARTS = ["},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.trainer);
    const Outcome made = Plan("llama3-8b", "text",
                              {"--for", one.trainer, "--out", Path("plan.pb")});
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr(one.says));
    EXPECT_TRUE(ReadFile(Path(one.file)).ok());
    const auto launch = ReadFile(Path(one.launch));
    ASSERT_TRUE(launch.ok());
    EXPECT_THAT(made.out, HasSubstr(*launch));
    EXPECT_THAT(made.err, Not(HasSubstr("left out")));
  }
  // The command `export` takes such a plan, too.
  const Outcome again =
      Pipeloom({"import", Path("plan.csv"), "--from", "torch-csv", "--dialect",
                "2.6", "--out", Path("again.pb")});
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(TrainerPlanTest, AKeptPartitionIsNotForATrainer) {
  setenv("PIPELOOM_CACHE_DIR", folder_.c_str(), 1);
  setenv("PIPELOOM_PARTITION", "", 1);
  const Outcome searched = Plan("qwen2.5-vl-7b", "image_text", {});
  const Outcome limited =
      Plan("qwen2.5-vl-7b", "image_text", {"--for", "deepspeed"});
  unsetenv("PIPELOOM_CACHE_DIR");
  setenv("PIPELOOM_PARTITION", "rule", 1);
  ASSERT_EQ(searched.code, 0) << searched.err;
  EXPECT_THAT(searched.err, HasSubstr("kept in "));
  EXPECT_EQ(limited.code, 0) << limited.err;
  EXPECT_THAT(limited.err, Not(HasSubstr("searched")));
}

TEST_F(TrainerPlanTest, ForPipeloomIsThePlanWithoutLimits) {
  const Outcome plain =
      Plan("dip-vlm-s", "image_text", {"--out", Path("plain.txt")});
  const Outcome limited = Plan("dip-vlm-s", "image_text",
                               {"--for", "pipeloom", "--out", Path("own.txt")});
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(limited.code, 0) << limited.err;
  EXPECT_EQ(*ReadFile(Path("plain.txt")), *ReadFile(Path("own.txt")));
  EXPECT_THAT(limited.out, Not(HasSubstr("launch arguments")));
}

TEST_F(TrainerPlanTest, AComparisonLeavesOutWhatTheTrainerCannotExecute) {
  const auto compare = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"compare",        "qwen2.5-vl-7b",
                                     "--batch",        "image_text",
                                     "--for",          "deepspeed",
                                     "--replicas",     "1",
                                     "--steps",        "1",
                                     "--evaluations",  "30",
                                     "--microbatches", "6"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  };
  const Outcome made =
      compare({"--strategies", "gpipe,1f1b,zb-h1,dip,pipeloom"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("all for deepspeed"));
  EXPECT_THAT(made.out, HasSubstr("\n1f1b "));
  EXPECT_THAT(made.out, HasSubstr("\npipeloom "));
  for (const char* line :
       {"left out: gpipe: --for deepspeed: strategy gpipe goes forward twice",
        "left out: zb-h1: --for deepspeed: strategy zb-h1 runs weight",
        "left out: dip: --for deepspeed: strategy dip chooses memory"}) {
    EXPECT_THAT(made.out, HasSubstr(line));
  }
  EXPECT_THAT(made.out, Not(HasSubstr("\ngpipe ")));
  EXPECT_EQ(compare({"--static"}).code, 2);
  EXPECT_EQ(compare({"--robust"}).code, 2);
  EXPECT_NE(compare({"--strategies", "dip"}).code, 0);
}

// The steps of these samples have 5 to 8 of 8 microbatches.
std::vector<std::string> PlanUneven(const std::string& trainer,
                                    const std::string& microbatches,
                                    const std::string& out) {
  return {"plan",           "llama3-8b", "--batch",       "interleaved",
          "--steps",        "3",         "--for",         trainer,
          "--out",          out,         "--evaluations", "100",
          "--microbatches", microbatches};
}

TEST_F(TrainerPlanTest, AFileForOneNumberOfMicrobatchesNeedsItInAllSteps) {
  for (const char* trainer :
       {"megatron-stock", "torch", "torchtitan", "deepspeed"}) {
    SCOPED_TRACE(trainer);
    const Outcome uneven = Pipeloom(PlanUneven(trainer, "8", Path("plan.pb")));
    EXPECT_EQ(uneven.code, 1);
    EXPECT_THAT(uneven.err,
                AllOf(HasSubstr(absl::StrCat("--for ", trainer)),
                      HasSubstr("step 2, replica 1 has 5"),
                      HasSubstr("with --microbatches 9 all have as many")));
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  }
  const Outcome even =
      Pipeloom(PlanUneven("megatron-stock", "5", Path("plan.pb")));
  ASSERT_EQ(even.code, 0) << even.err;
  EXPECT_THAT(even.out, HasSubstr("# microbatches of a step and replica: 5\n"));
  for (const char* file : {"plan-0000.order", "plan-0002-r1.order"}) {
    const auto order = ReadFile(Path(file));
    ASSERT_TRUE(order.ok()) << file;
    EXPECT_THAT(*order, HasSubstr(" microbatches 5 "));
  }
}

TEST_F(TrainerPlanTest, SaysInWhichOrderMicrobatchesAreFed) {
  for (const char* trainer : {"torch", "torchtitan", "deepspeed"}) {
    SCOPED_TRACE(trainer);
    std::vector<std::string> args = PlanUneven(trainer, "5", Path("plan.pb"));
    args.insert(args.end(), {"--format", "json"});
    const Outcome made = Pipeloom(args);
    ASSERT_EQ(made.code, 0) << made.err;
    const Json plan = Json::parse(made.out);
    const bool in_launch = std::string(trainer) != "deepspeed";
    const std::string launch = plan["launch"];
    int reordered = 0;
    for (const Json& step : plan["steps"]) {
      for (const Json& replica : step["replicas"]) {
        std::vector<int32_t> order = replica["feed_order"];
        const int number = step["step"].get<int>();
        const int of_replica = replica["replica"].get<int>();
        const std::string of = absl::StrCat(
            "# step ", number, ", replica ", of_replica, ", plan-000", number,
            of_replica > 0 ? "-r1" : "", ".csv");
        const std::string says =
            absl::StrCat(of, ": feed microbatches in the order ",
                         absl::StrJoin(order, ","), "\n");
        EXPECT_EQ(absl::StrContains(launch, of), in_launch);
        const bool sorted = std::is_sorted(order.begin(), order.end());
        if (!sorted) ++reordered;
        EXPECT_EQ(absl::StrContains(launch, says), in_launch && !sorted);
        std::sort(order.begin(), order.end());
        EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
        EXPECT_EQ(replica["microbatch_samples"].size(), 5u);
      }
    }
    EXPECT_GT(reordered, 0);
  }
}

// torchtitan loads one file for all steps and replicas.
TEST_F(TrainerPlanTest, NamesTheFileOfEachPlanFromTheFolderOfTheLaunch) {
  for (const char* trainer : {"torch", "torchtitan"}) {
    SCOPED_TRACE(trainer);
    const bool one_file = std::string(trainer) == "torchtitan";
    const Outcome several =
        Pipeloom({"plan", "llama3-8b", "--batch", "text", "--steps", "2",
                  "--for", trainer, "--microbatches", "6", "--evaluations",
                  "30", "--out", Path("plan.pb")});
    ASSERT_EQ(several.code, 0) << several.err;
    const std::string launch =
        *ReadFile(Path(one_file ? "plan-launch.py" : "plan-launch.txt"));
    EXPECT_THAT(launch, HasSubstr("\"plan-0000.csv\""));
    EXPECT_THAT(launch, Not(HasSubstr(folder_)));
    for (const char* file : {"step 0, replica 0, plan-0000.csv",
                             "step 0, replica 1, plan-0000-r1.csv",
                             "step 1, replica 0, plan-0001.csv",
                             "step 1, replica 1, plan-0001-r1.csv"}) {
      EXPECT_THAT(launch, HasSubstr(absl::StrCat("\n# ", file)));
    }
    for (const std::string& text : {launch, several.err}) {
      EXPECT_EQ(absl::StrContains(text, "torchtitan loads one file"), one_file);
    }
    const Outcome one =
        Plan("llama3-8b", "text", {"--for", trainer, "--out", Path("one.pb")});
    ASSERT_EQ(one.code, 0) << one.err;
    EXPECT_THAT(one.out, HasSubstr("\"one.csv\""));
    EXPECT_THAT(one.err, Not(HasSubstr("loads one file")));
  }
}

// The message says which plans a format can say, and these it can.
TEST_F(TrainerPlanTest, AnExportOfSplitBackwardsNamesThePlanThatHasNone) {
  const Outcome split = Plan(
      "llama3-8b", "text", {"--strategy", "zb-h1", "--out", Path("split.pb")});
  ASSERT_EQ(split.code, 0) << split.err;
  const struct {
    const char* format;
    const char* trainer;
  } cases[] = {{"megatron-order", "megatron-stock"},
               {"deepspeed", "deepspeed"}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.format);
    const Outcome refused = Pipeloom(
        {"export", Path("split.pb"), "--to", one.format, "--drop-memory"});
    EXPECT_EQ(refused.code, 1);
    EXPECT_THAT(refused.err,
                AllOf(HasSubstr("has its weight gradient apart"),
                      HasSubstr(absl::StrCat("`plan --for ", one.trainer,
                                             "` makes a plan"))));
    const Outcome whole = Plan(
        "llama3-8b", "text", {"--for", one.trainer, "--out", Path("whole.pb")});
    ASSERT_EQ(whole.code, 0) << whole.err;
    const Outcome written = Pipeloom(
        {"export", Path("whole.pb"), "--to", one.format, "--drop-memory"});
    EXPECT_EQ(written.code, 0) << written.err;
  }
}

TEST_F(TrainerPlanTest, SplitIsForPairsOfPasses) {
  const auto exported = [&](const std::string& strategy,
                            std::vector<std::string> more) {
    EXPECT_EQ(Plan("llama3-8b", "text",
                   {"--strategy", strategy, "--partition", "rule", "--out",
                    Path("plan.pb")})
                  .code,
              0);
    std::vector<std::string> args = {"export", Path("plan.pb"), "--to",
                                     "torch-csv", "--drop-memory"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args).out;
  };
  EXPECT_THAT(exported("dualpipe-v", {}), HasSubstr("OVERLAP_F_B"));
  EXPECT_THAT(exported("dualpipe-v", {"--split"}),
              Not(HasSubstr("OVERLAP_F_B")));
  EXPECT_EQ(exported("1f1b", {}), exported("1f1b", {"--split"}));
  EXPECT_THAT(Pipeloom({"export", "--help"}).out,
              HasSubstr("torch-csv: write pairs of passes one after another"));
}

TEST_F(TrainerPlanTest, PlanRunnerTakesTheNumberOfEachPlan) {
  const Outcome made = Pipeloom(PlanUneven("megatron", "8", Path("plan.pb")));
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_THAT(made.out, HasSubstr("replica: 5 to 8; call Megatron with"));
}

TEST_F(TrainerPlanTest, NamesWhatCannotBePlanned) {
  EXPECT_EQ(Plan("llama3-8b", "text", {"--for", "pytorch"}).code, 2);
  const Outcome other =
      Plan("llama3-8b", "text", {"--for", "torch", "--strategy", "1f1b"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("only pipeloom plans"));
  EXPECT_EQ(Plan("llama3-8b", "text", {"--for", "torch", "--robust"}).code, 2);
  const Outcome parallel =
      Plan("qwen2.5-omni-7b", "mixed", {"--for", "deepspeed"});
  EXPECT_NE(parallel.code, 0);
  EXPECT_THAT(parallel.err, HasSubstr("does not feed module"));
  EXPECT_THAT(parallel.err, HasSubstr("--for pipeloom"));
  const Outcome dip =
      Plan("dip-vlm-s", "image_text", {"--for", "torch", "--partition", "dip"});
  EXPECT_NE(dip.code, 0);
  EXPECT_THAT(dip.err, HasSubstr("--for torch: the partition"));
}

}  // namespace
}  // namespace pipeloom::cli
