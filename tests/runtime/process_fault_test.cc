// Every fault that can befall a rank of a run of processes, at its first, a
// middle and its last instruction: the other ranks end in time, with exit code
// 1 and the rank, step, instruction and cause, the optimizer has stepped on all
// of them or on none, and nothing is left behind. Each case is one mpirun of
// mpi_rank_program.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
// The failure timeout that the ranks are given, and the bound that holds by
// default.
constexpr int kTimeoutMs = 1500;
constexpr double kBoundSeconds = 5;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The command line of every process that knows `word`.
std::vector<std::string> ProcessesWith(const std::string& word) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!isdigit(static_cast<unsigned char>(name[0]))) continue;
    const std::string line = ReadAll(entry.path() / "cmdline");
    if (line.find(word) != std::string::npos) found.push_back(name + line);
  }
  return found;
}

struct Ended {
  bool wrote = false;
  int code = -1;
  int64_t at_ns = 0;
  std::string words{};
};

struct Case {
  std::string fault{};
  int rank = 1;
  std::string place{};
  std::string cause{};  // A regular expression that the message contains.
};

class ProcessFaultTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/pipeloom-fault-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Start(const std::string& fault, int rank, const std::string& place) {
    // All that Open MPI keeps in files lies here, to be seen if left behind.
    std::filesystem::create_directory(directory_ + "/session");
    // Open MPI 4.1's launcher sometimes waits for itself at its end, in
    // PMIx_server_finalize, when all ranks are gone.
    const std::string command = absl::StrFormat(
        "timeout --foreground -k 2 60 "
        "%s --allow-run-as-root --oversubscribe --mca "
        "btl_vader_backing_directory %s/session --mca orte_tmpdir_base "
        "%s/session -n %d %s %s %s %d 2 %s %d > %s/log 2>&1",
        PIPELOOM_MPIRUN, directory_, directory_, kRanks,
        PIPELOOM_MPI_RANK_PROGRAM, directory_, fault, rank, place, kTimeoutMs,
        directory_);
    exit_ = std::system(command.c_str());
  }

  Ended End(int rank) const {
    Ended end;
    std::ifstream file(absl::StrFormat("%s/end.%d", directory_, rank));
    end.wrote = static_cast<bool>(file >> end.code >> end.at_ns);
    std::getline(file, end.words);
    std::getline(file, end.words);
    return end;
  }
  size_t OptimizerSteps(int rank) const {
    return ReadAll(absl::StrFormat("%s/optimizer.%d", directory_, rank)).size();
  }

  void ExpectNothingLeft() const {
    EXPECT_THAT(ProcessesWith(directory_), ::testing::IsEmpty());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             directory_ + "/session")) {
      EXPECT_TRUE(entry.is_directory()) << entry.path();
    }
  }

  std::string directory_{};
  int exit_ = 0;
};

TEST_F(ProcessFaultTest, WithoutAFaultAllEndWell) {
  Start("none", 0, "first");
  EXPECT_EQ(exit_, 0) << ReadAll(directory_ + "/log");
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(End(r).code, 0) << End(r).words;
    EXPECT_EQ(OptimizerSteps(r), 4u);
  }
  ExpectNothingLeft();
}

TEST_P(ProcessFaultTest, TheOthersEndInTimeAndSayWhy) {
  const Case& c = GetParam();
  Start(c.fault, c.rank, c.place);
  EXPECT_NE(exit_, 0);
  const int64_t fault_ns = std::atoll(ReadAll(directory_ + "/fault").c_str());
  ASSERT_GT(fault_ns, 0) << ReadAll(directory_ + "/log");
  const bool victim_speaks = c.fault != "kill" && c.fault != "stop";
  size_t steps = 0;
  for (int r = 0; r < kRanks; ++r) {
    if (r == c.rank && !victim_speaks) continue;
    SCOPED_TRACE(absl::StrFormat("rank %d", r));
    const Ended end = End(r);
    ASSERT_TRUE(end.wrote) << ReadAll(directory_ + "/log");
    EXPECT_EQ(end.code, 1);
    EXPECT_LT(static_cast<double>(end.at_ns - fault_ns) * 1e-9, kBoundSeconds);
    if (r != c.rank) {
      EXPECT_THAT(end.words,
                  AllOf(ContainsRegex(absl::StrFormat(
                            "rank %d, step 2, instruction [0-9]+ \\(", c.rank)),
                        ContainsRegex(c.cause)));
      if (steps == 0) steps = OptimizerSteps(r);
      EXPECT_EQ(OptimizerSteps(r), steps) << "applied on some ranks only";
    }
  }
  // The last instruction comes after the optimizer step, as `commit` does; a
  // rank that throws there has stepped like the others.
  EXPECT_EQ(steps, c.place == "last" || c.place == "commit" ? 3u : 2u);
  ExpectNothingLeft();
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* place : {"first", "middle", "last"}) {
    cases.push_back({"kill", 1, place, "its process is gone"});
    cases.push_back({"stop", 1, place, "nothing was heard of it for"});
    cases.push_back({"throw", 1, place, "it threw: the device is on fire"});
    cases.push_back({"oom", 1, place, "out of memory"});
    cases.push_back({"cut", 1, place, "nothing was heard of it for|is gone"});
  }
  cases.push_back({"oom", 1, "before", "out of memory"});
  // The rank that leads the others, and the moment at which a step counts.
  cases.push_back({"kill", 0, "middle", "its process is gone"});
  cases.push_back({"stop", 0, "middle", "nothing was heard of it for"});
  cases.push_back({"kill", 0, "commit", "its process is gone"});
  cases.push_back({"kill", 3, "commit", "its process is gone"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Mpi, ProcessFaultTest, ::testing::ValuesIn(AllCases()),
                         [](const ::testing::TestParamInfo<Case>& which) {
                           return absl::StrFormat(
                               "%s_rank_%d_%s", which.param.fault,
                               which.param.rank, which.param.place);
                         });

// Its own process cannot be asked any more: the mesh, or mpirun, ends it.
TEST_F(ProcessFaultTest, ADeviceThatHangsEndsWithTheOthers) {
  Start("hang", 2, "middle");
  EXPECT_NE(exit_, 0);
  for (const int r : {0, 1, 3}) {
    EXPECT_EQ(End(r).code, 1) << ReadAll(directory_ + "/log");
    EXPECT_THAT(End(r).words, HasSubstr("rank 2, step 2, instruction"));
  }
  ExpectNothingLeft();
}

TEST_F(ProcessFaultTest, ARankWithAnotherPlanIsRefused) {
  Start("limit", 2, "first");
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(End(r).code, 1);
    EXPECT_THAT(End(r).words,
                HasSubstr("rank 2, step 2: the plan is refused: it is of step "
                          "3, not of step 2"));
    EXPECT_EQ(OptimizerSteps(r), 2u);
  }
}

// MPI itself waits for all ranks without end.
TEST_F(ProcessFaultTest, ARankStoppedBeforeMpiStartsIsNamedByTheOthers) {
  Start("stop", 1, "start");
  EXPECT_NE(exit_, 0);
  const int64_t fault_ns = std::atoll(ReadAll(directory_ + "/fault").c_str());
  size_t named = 0;  // mpirun kills the others once one of them has ended.
  for (const int r : {0, 2, 3}) {
    const Ended end = End(r);
    if (!end.wrote) continue;
    ++named;
    EXPECT_EQ(end.code, 1);
    EXPECT_LT(static_cast<double>(end.at_ns - fault_ns) * 1e-9, kBoundSeconds);
    EXPECT_THAT(end.words,
                AllOf(HasSubstr("MPI has not started within 1.5 s"),
                      ContainsRegex("rank 1 \\(process [0-9]+\\) is stopped")));
  }
  EXPECT_GE(named, 1u) << ReadAll(directory_ + "/log");
  ExpectNothingLeft();
}

// It may hang inside MPI, be refused a thread or abort, by how little is left;
// whichever it is, the run ends and says which rank it was.
TEST_F(ProcessFaultTest, ARankWithoutAddressSpaceForMpiEndsTheRun) {
  Start("oom", 1, "start");
  EXPECT_NE(exit_, 0);
  std::string words = ReadAll(directory_ + "/log");
  for (int r = 0; r < kRanks; ++r) words += End(r).words;
  EXPECT_THAT(words, ContainsRegex("rank 1|\\[1\\]|,1\\]"));
  EXPECT_THAT(ProcessesWith(directory_), ::testing::IsEmpty());
}

TEST_F(ProcessFaultTest, AnInterruptEndsAllCleanly) {
  Start("interrupt", 1, "middle");
  EXPECT_NE(exit_, 0);
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_THAT(End(r).words, HasSubstr("stopped by request"));
    EXPECT_EQ(OptimizerSteps(r), 2u);
  }
  ExpectNothingLeft();
}

}  // namespace
}  // namespace pipeloom::runtime
