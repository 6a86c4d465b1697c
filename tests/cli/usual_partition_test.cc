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
        "--microbatches", "6",         "--replicas", "1",
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
  const Outcome third = Pipeloom(
      Small("plan", {"--seed", "3", "--threads", "2", "--deadline", "10ms"}));
  EXPECT_THAT(third.err, Not(HasSubstr("searched")));

  const Outcome rule = Pipeloom(Small("plan", {"--partition", "rule"}));
  ASSERT_EQ(rule.code, 0) << rule.err;
  EXPECT_LT(TimeOf(first), TimeOf(rule));

  // Commands that take the job plan with it too.
  const Outcome valid =
      Pipeloom({"validate", folder_ + "/p.pb", "--job", "llama3-8b", "--batch",
                "text", "--microbatches", "6"});
  EXPECT_EQ(valid.code, 0) << valid.out << valid.err;
  const Outcome other =
      Pipeloom({"validate", folder_ + "/p.pb", "--job", "llama3-8b", "--batch",
                "text", "--microbatches", "6", "--partition", "rule"});
  EXPECT_EQ(other.code, 1) << other.out;
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
                "6", "--replicas", "1", "--evaluations", "5", "--strategies",
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

TEST_F(UsualPartitionTest, AFolderThatCannotBeWrittenIsTold) {
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "no folder";
  setenv("PIPELOOM_CACHE_DIR", file.c_str(), 1);
  const Outcome plan = Pipeloom(Small("plan"));
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("the partition is not kept: "));
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
  EXPECT_THAT(plan.err, HasSubstr("`pipeloom partition llama3-8b --layouts`"));
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
  }
  EXPECT_THAT(Files(), SizeIs(256));
  EXPECT_TRUE(FileExists(kept.PathOf({0, 259})));
}

}  // namespace
}  // namespace pipeloom::cli
