// The partition of jobs that are planned without --partition: searched once for
// each content and kept.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/console/files.h"
#include "cli/report/kept_partitions.h"
#include "pipeloom/v1/carried_step.pb.h"
#include "tests/cli/run_command.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;
namespace fs = std::filesystem;

class UsualPartitionTest : public ::testing::Test {
 protected:
  UsualPartitionTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-kept-XXXXXX";
    folder_ = mkdtemp(name.data());
    setenv("PIPELOOM_CACHE_DIR", folder_.c_str(), 1);
    setenv("PIPELOOM_PARTITION", "", 1);
  }
  ~UsualPartitionTest() override {
    unsetenv("PIPELOOM_CACHE_DIR");
    unsetenv("PIPELOOM_PARTITION");
    fs::remove_all(folder_);
  }

  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(folder_))) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }
  // A job whose search takes a second, and in which it gains.
  static std::vector<std::string> Small(
      const std::string& command, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {
        command,          "llama3-8b", "--batch",    "text",
        "--microbatches", "8",         "--replicas", "1",
        "--evaluations",  "5",         "--threads",  "1",
        "--format",       "json"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  static double TimeOf(const Outcome& plan) {
    return Json::parse(plan.out)["steps"][0]["step_time_us"].get<double>();
  }

  std::string folder_;
};

TEST_F(UsualPartitionTest, ItIsSearchedOnceAndKept) {
  const Outcome first = Pipeloom(Small("plan"));
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("the partition of this job is searched"));
  EXPECT_THAT(first.err, HasSubstr("kept in "));
  ASSERT_THAT(Files(), SizeIs(1));

  // Other budgets, seeds and threads plan with the same partition.
  const Outcome second = Pipeloom(Small("plan", {"--out", folder_ + "/p.pb"}));
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr("searched")));
  EXPECT_EQ(TimeOf(second), TimeOf(first));
  const Outcome third =
      Pipeloom(Small("plan", {"--seed", "3", "--threads", "2", "--deadline",
                              "10ms", "--warm-up", "0s"}));
  EXPECT_THAT(third.err, Not(HasSubstr("searched")));

  const Outcome rule = Pipeloom(Small("plan", {"--partition", "rule"}));
  ASSERT_EQ(rule.code, 0) << rule.err;
  EXPECT_LT(TimeOf(first), TimeOf(rule));

  // Commands that take the job plan with it too.
  const Outcome valid =
      Pipeloom({"validate", folder_ + "/p.pb", "--job", "llama3-8b", "--batch",
                "text", "--microbatches", "8"});
  EXPECT_EQ(valid.code, 0) << valid.out << valid.err;
  const Outcome other =
      Pipeloom({"validate", folder_ + "/p.pb", "--job", "llama3-8b", "--batch",
                "text", "--microbatches", "8", "--partition", "rule"});
  EXPECT_EQ(other.code, 1) << other.out;
}

// `explain` of a job tells of the plan that `plan` makes of it, and each of its
// proposals has the step time that its command finds.
TEST_F(UsualPartitionTest, ExplainTellsOfThePlanThatPlanMakes) {
  // The number of microbatches is a --set, as a proposal may change it.
  const auto run = [](const std::string& command,
                      const std::vector<std::string>& more) {
    std::vector<std::string> args = {
        command,         "llama3-8b",
        "--batch",       "text",
        "--replicas",    "1",
        "--threads",     "1",
        "--evaluations", "5",
        "--format",      "json",
        "--set",         "training.microbatches=8"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  };
  const Json found = Json::parse(run("explain", {"--suggestions", "2"}).out);
  const double now = found["step_time_us"];
  const Outcome plan = run("plan", {});
  EXPECT_THAT(plan.err, Not(HasSubstr("searched")));
  EXPECT_EQ(now, TimeOf(plan));
  const Json by_rule = Json::parse(
      run("explain", {"--partition", "rule", "--suggestions", "0"}).out);
  EXPECT_GT(by_rule["step_time_us"].get<double>(), now);
  ASSERT_FALSE(found["suggestions"].empty());
  for (const Json& suggestion : found["suggestions"]) {
    SCOPED_TRACE(suggestion["label"].get<std::string>());
    std::vector<std::string> more;
    for (const Json& set : suggestion["set"]) {
      more.insert(more.end(), {"--set", set.get<std::string>()});
    }
    if (suggestion.contains("partition")) {
      more.insert(more.end(), {"--partition", suggestion["partition"]});
    }
    const double shown = suggestion["step_time_us"];
    EXPECT_LT(shown, now);
    const Json applied = Json::parse(run("whatif", more).out);
    EXPECT_EQ(applied["configurations"][0]["step_time_us"].get<double>(),
              shown);
  }
}

TEST_F(UsualPartitionTest, WhatIfSaysThatItPlansByTheRule) {
  const Outcome help = Pipeloom({"whatif", "--help"});
  ASSERT_EQ(help.code, 0) << help.err;
  EXPECT_THAT(help.out, HasSubstr("whatever PIPELOOM_PARTITION says"));
  EXPECT_THAT(help.out, Not(HasSubstr("seconds to minutes")));
}

TEST_F(UsualPartitionTest, AnotherContentIsAnotherPartition) {
  ASSERT_EQ(Pipeloom(Small("plan")).code, 0);
  const Outcome other = Pipeloom(Small("plan", {"--memory-limit", "60GiB"}));
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("searched"));
  EXPECT_THAT(Files(), SizeIs(2));
}

TEST_F(UsualPartitionTest, OtherStrategiesKeepTheirOwn) {
  const Outcome plan = Pipeloom(Small("plan", {"--strategy", "dip"}));
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, Not(HasSubstr("searched")));
  const Outcome table =
      Pipeloom({"compare", "llama3-8b", "--batch", "text", "--microbatches",
                "8", "--replicas", "1", "--evaluations", "5", "--strategies",
                "dip,pipeloom"});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("pipeloom on the partition that it "
                                   "searched, others on their own"));
}

TEST_F(UsualPartitionTest, ADamagedFileIsSearchedAgainAndReplaced) {
  ASSERT_EQ(Pipeloom(Small("plan")).code, 0);
  ASSERT_THAT(Files(), SizeIs(1));
  const std::string path = Files()[0];
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
  for (const std::string& bad :
       {std::string(), std::string("{"), good.substr(0, good.size() / 2)}) {
    std::ofstream(path) << bad;
    const Outcome again = Pipeloom(Small("plan"));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_THAT(again.err, HasSubstr("searched"));
    ASSERT_OK_AND_ASSIGN(const std::string written, ReadFile(path));
    EXPECT_EQ(written, good);
  }
}

// Lessons of sample steps are kept next to the partition.
TEST_F(UsualPartitionTest, SampleStepsAreSearchedOnceAndKept) {
  const auto plan = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"--deadline", "20ms"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(Small("plan", args));
  };
  const auto lessons = [&] {
    std::vector<std::string> files;
    for (const std::string& file : Files()) {
      if (fs::path(file).extension() == ".lessons") files.push_back(file);
    }
    return files;
  };
  constexpr char kTold[] = "sample steps of this job are searched";
  // Not for searches by evaluations, nor if nobody wants them.
  EXPECT_THAT(Pipeloom(Small("plan")).err, Not(HasSubstr(kTold)));
  EXPECT_THAT(plan({"--warm-up", "0s"}).err, Not(HasSubstr(kTold)));
  EXPECT_THAT(plan({"--partition", "rule"}).err, Not(HasSubstr(kTold)));
  EXPECT_THAT(lessons(), SizeIs(0));

  const Outcome first = plan({});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr(kTold));
  ASSERT_THAT(lessons(), SizeIs(1));
  const Outcome second = plan({});
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err, Not(HasSubstr(kTold)));
  EXPECT_THAT(lessons(), SizeIs(1));
}

// `compare` plans pipeloom's rows with what `plan` plans with.
TEST_F(UsualPartitionTest, CompareGoesOnFromTheSampleSteps) {
  const auto compare = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"compare",        "llama3-8b",
                                     "--batch",        "text",
                                     "--microbatches", "8",
                                     "--replicas",     "1",
                                     "--deadline",     "20ms",
                                     "--threads",      "1",
                                     "--strategies",   "1f1b,pipeloom"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  };
  constexpr char kTold[] = "sample steps of this job are searched";
  constexpr char kGoesOn[] = "pipeloom goes on from plans of sample steps";
  for (const std::vector<std::string>& none :
       std::vector<std::vector<std::string>>{{"--warm-up", "0s"},
                                             {"--partition", "rule"},
                                             {"--same-partition", "1f1b"},
                                             {"--strategies", "1f1b"}}) {
    const Outcome cold = compare(none);
    ASSERT_EQ(cold.code, 0) << cold.err;
    EXPECT_THAT(cold.err, Not(HasSubstr(kTold))) << none[0];
    EXPECT_THAT(cold.out, Not(HasSubstr(kGoesOn))) << none[0];
    std::vector<std::string> as_json = none;
    as_json.insert(as_json.end(), {"--format", "json"});
    EXPECT_FALSE(Json::parse(compare(as_json).out)["warmed_up"].get<bool>());
  }
  const Outcome table = compare({});
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.err, HasSubstr(kTold));
  EXPECT_THAT(table.out, HasSubstr(kGoesOn));
  const Outcome json = compare({"--format", "json"});
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_TRUE(Json::parse(json.out)["warmed_up"].get<bool>());
  // They are the same as those of `plan`.
  const Outcome plan = Pipeloom(Small("plan", {"--deadline", "20ms"}));
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, Not(HasSubstr(kTold)));
  // Asked for, they are made with any partition.
  const Outcome asked = compare({"--partition", "rule", "--warm-up", "50ms"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr(kGoesOn));
}

TEST_F(UsualPartitionTest, DamagedLessonsAreNotFound) {
  const KeptPartitions kept(folder_);
  const Partition partition{.num_ranks = 2};
  CarriedStep step;
  step.work = {Nanoseconds(7)};
  step.microbatches.resize(1);
  step.places.resize(1);
  const Fingerprint key{1, 2};
  EXPECT_FALSE(kept.FindLessons(key, partition).has_value());
  ASSERT_THAT(kept.KeepLessons(key, partition,
                               {std::make_shared<const CarriedStep>(step)}),
              IsOk());
  const auto found = kept.FindLessons(key, partition);
  ASSERT_TRUE(found.has_value());
  ASSERT_THAT(*found, SizeIs(1));
  EXPECT_EQ(*(*found)[0], step);
  EXPECT_FALSE(kept.FindLessons(key, {.num_ranks = 3}).has_value());

  ASSERT_THAT(Files(), SizeIs(1));
  const std::string path = Files()[0];
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
  v1::CarriedSteps wrong;
  ASSERT_TRUE(wrong.ParseFromString(good));
  wrong.mutable_steps(0)->mutable_microbatches(0)->set_work_ns(-1);
  for (const std::string& bad : {std::string(), good.substr(0, good.size() / 2),
                                 wrong.SerializeAsString()}) {
    std::ofstream(path) << bad;
    EXPECT_FALSE(kept.FindLessons(key, partition).has_value());
  }
}

TEST_F(UsualPartitionTest, AFolderThatCannotBeWrittenIsTold) {
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "no folder";
  setenv("PIPELOOM_CACHE_DIR", file.c_str(), 1);
  const Outcome plan = Pipeloom(Small("plan"));
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("the partition is not kept: "));
  const Outcome warm = Pipeloom(Small("plan", {"--deadline", "20ms"}));
  EXPECT_EQ(warm.code, 0) << warm.err;
  EXPECT_THAT(warm.err, HasSubstr("note: their plans are not kept: "));
}

TEST_F(UsualPartitionTest, WithoutAFolderOfTheUserItSaysThatNothingIsKept) {
  const char* const home = std::getenv("HOME");
  const std::string kept_home = home == nullptr ? "" : home;
  unsetenv("PIPELOOM_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  const Outcome plan = Pipeloom(Small("plan"));
  if (home != nullptr) setenv("HOME", kept_home.c_str(), 1);
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("the partition is not kept, and the next "
                                  "command searches it again: set "
                                  "PIPELOOM_CACHE_DIR"));
}

TEST_F(UsualPartitionTest, TheVariableNamesAnotherSource) {
  setenv("PIPELOOM_PARTITION", "rule", 1);
  const Outcome rule = Pipeloom(Small("plan"));
  ASSERT_EQ(rule.code, 0) << rule.err;
  EXPECT_THAT(rule.err, Not(HasSubstr("searched")));
  EXPECT_THAT(Files(), SizeIs(0));
  setenv("PIPELOOM_PARTITION", "best", 1);
  const Outcome wrong = Pipeloom(Small("plan"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("PIPELOOM_PARTITION=best: it must be rule, "
                                   "dip or search"));
}

TEST_F(UsualPartitionTest, AMuchFasterLayoutIsNamedWithItsCommand) {
  // Tensor parallelism over slow links costs most of the step.
  const std::vector<std::string> slow = {
      "--set", "parallel.tp=2",
      "--set", "parallel.dp=1",
      "--set", "cluster.intra_node.bandwidth_bytes_per_second=2e9"};
  const Outcome plan = Pipeloom(Small("plan", slow));
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("note: at a first look tp 1 "));
  // With the job as it was given, so that the command searches for this job.
  EXPECT_THAT(plan.err,
              HasSubstr("`pipeloom partition llama3-8b --batch text "
                        "--set 'parallel.tp=2' --set 'parallel.dp=1' --set "
                        "'cluster.intra_node.bandwidth_bytes_per_second=2e9' "
                        "--set 'training.microbatches=8' --layouts`"));
  // Told once, with the search.
  const Outcome again = Pipeloom(Small("plan", slow));
  EXPECT_THAT(again.err, Not(HasSubstr("first look")));
}

TEST_F(UsualPartitionTest, OnlyTheLastFilesAreKept) {
  const JobSpec job = testing::SmallVlmJob();
  Partition partition;
  partition.num_ranks = job.parallel.pp;
  partition.sub_microbatch_instances.assign(job.model.modules.size(), 0);
  const KeptPartitions kept(folder_ + "/some/new/folder");
  for (uint64_t i = 0; i < 260; ++i) {
    ASSERT_THAT(kept.Keep({0, i}, job, partition, "a comment"), IsOk());
    ASSERT_THAT(kept.KeepLessons({0, i}, partition, {}), IsOk());
  }
  // The last partition's predecessors went with their lessons.
  EXPECT_THAT(Files(), SizeIs(2 * 256));
  EXPECT_TRUE(FileExists(kept.PathOf({0, 259})));
  EXPECT_TRUE(kept.FindLessons({0, 259}, partition).has_value());
  EXPECT_FALSE(kept.FindLessons({0, 0}, partition).has_value());
}

}  // namespace
}  // namespace pipeloom::cli
