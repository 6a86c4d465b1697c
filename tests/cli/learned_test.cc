// Times that runs measure, and plans that are priced with them.
#include <filesystem>
#include <fstream>
#include <regex>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/input/learned_file.h"
#include "emulator/calibration/cost_learner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Args = std::vector<std::string>;

class LearnedTest : public ::testing::Test {
 protected:
  LearnedTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-learned-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~LearnedTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }

  // Returns the outcome of a command on the job's first step.
  static Outcome OfJob(const std::string& command, const Args& more) {
    Args args = {command,          "dip-vlm-s", "--batch",    "image_text",
                 "--microbatches", "2",         "--replicas", "1",
                 "--evaluations",  "10",        "--threads",  "1"};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  }

  // Plans with the options; returns the step's time in us, 0 after a failure.
  static double StepTime(const Args& more, std::string* notes = nullptr) {
    Args args = more;
    args.insert(args.end(), {"--format", "json"});
    const Outcome outcome = OfJob("plan", args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    if (notes != nullptr) *notes = outcome.err;
    std::smatch found;
    double time = 0;
    if (std::regex_search(outcome.out, found,
                          std::regex("\"step_time_us\": ([0-9.e+]+)"))) {
      EXPECT_TRUE(absl::SimpleAtod(found[1].str(), &time));
    }
    return time;
  }

  // Writes a file with one factor for every module and pass.
  std::string WriteFactor(const std::string& name, double factor) const {
    emulator::CostLearner learned;
    for (const char* module : {"vision_encoder", "backbone"}) {
      for (const Pass pass :
           {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
        EXPECT_TRUE(learned.Assume(module, pass, factor, 4).ok());
      }
    }
    std::ofstream(Path(name)) << learned.ToString();
    return Path(name);
  }

  std::string folder_{};
};

// At this time scale a thread wakes up later than its next tasks would have
// ended, and their spans say nothing of the work.
TEST_F(LearnedTest, ALateRankDoesNotChangeWhatTheSyntheticDeviceTeaches) {
  const std::string path = Path("seen.txt");
  for (const double scale : {1e-5, 1e-4}) {
    const Outcome run = OfJob("run", {"--steps", "2", "--time-scale",
                                      absl::StrCat(scale), "--learn", path});
    ASSERT_EQ(run.code, 0) << run.err;
  }
  const auto file = ReadLearned(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const emulator::CostLearner* learned = &file->costs;
  for (const char* module : {"vision_encoder", "backbone"}) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      EXPECT_GT(learned->Tasks(module, pass), 0);
      EXPECT_NEAR(learned->Factor(module, pass), 1, 1e-6) << module;
    }
  }
  EXPECT_NEAR(StepTime({"--learned", path}) / StepTime({}), 1, 1e-3);
}

TEST_F(LearnedTest, ARunWithLearnedTimesLearnsThemAgain) {
  const std::string twice = WriteFactor("twice.txt", 2);
  const std::string path = Path("seen.txt");
  const Outcome run = OfJob(
      "run", {"--time-scale", "1e-4", "--learned", twice, "--learn", path});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_NEAR(StepTime({"--learned", path}) / StepTime({"--learned", twice}), 1,
              1e-3);
}

TEST_F(LearnedTest, FactorsOfAnotherMachineAreClampedWithANote) {
  std::string notes;
  const double clamped =
      StepTime({"--learned", WriteFactor("low.txt", 5e-4)}, &notes);
  EXPECT_THAT(notes, AllOf(HasSubstr("low.txt"), HasSubstr("[0.125, 8]"),
                           HasSubstr("backbone pass F (0.0005)"),
                           HasSubstr("MFU is ")));
  EXPECT_EQ(clamped,
            StepTime({"--learned", WriteFactor("least.txt", 0.125)}, &notes));
  EXPECT_THAT(notes, Not(HasSubstr("is outside")));
  EXPECT_EQ(StepTime({"--learned", WriteFactor("high.txt", 100)}),
            StepTime({"--learned", WriteFactor("most.txt", 8)}));
  for (const char* command : {"run", "emulate", "compare"}) {
    Args args = {"--learned", Path("low.txt")};
    if (command == std::string("run")) {
      args.insert(args.end(), {"--time-scale", "1e-4"});
    }
    const Outcome outcome = OfJob(command, args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("low.txt: measured over priced"))
        << command;
  }
}

TEST_F(LearnedTest, AFileOfAnotherModelIsRefusedAndOneOfAPartIsNoted) {
  const auto write = [this](const std::string& module) {
    emulator::CostLearner learned;
    EXPECT_TRUE(learned.Assume(module, Pass::kForward, 2, 4).ok());
    EXPECT_TRUE(learned.Assume(module, Pass::kBackward, 2, 4).ok());
    std::ofstream(Path(module)) << learned.ToString();
    return Path(module);
  };
  for (const char* command : {"plan", "run", "emulate", "compare"}) {
    const Outcome other = OfJob(command, {"--learned", write("tower")});
    EXPECT_EQ(other.code, 1) << command;
    EXPECT_THAT(other.err, HasSubstr("tower: it has times of no module of "));
    EXPECT_THAT(other.err, HasSubstr("(vision_encoder, backbone)"));
  }
  std::string notes;
  EXPECT_GT(StepTime({"--learned", write("backbone")}, &notes), StepTime({}));
  EXPECT_THAT(notes, HasSubstr("no times of vision_encoder were measured"));
  StepTime({"--learned", WriteFactor("both.txt", 2)}, &notes);
  EXPECT_THAT(notes, Not(HasSubstr("were measured;")));
}

TEST_F(LearnedTest, AFileOfAnotherJobWithEqualModulesIsNoted) {
  const std::string path = Path("seen.txt");
  ASSERT_EQ(OfJob("run", {"--time-scale", "1e-4", "--learn", path}).code, 0);
  std::string notes;
  StepTime({"--learned", path}, &notes);
  EXPECT_THAT(notes, Not(HasSubstr("measured on")));
  const Args other = {
      "plan",          "dip-vlm-m", "--batch",        "image_text",
      "--replicas",    "1",         "--microbatches", "2",
      "--evaluations", "10",        "--learned",      path};
  const Outcome noted = Pipeloom(other);
  ASSERT_EQ(noted.code, 0) << noted.err;
  EXPECT_THAT(noted.err,
              HasSubstr("seen.txt: it was measured on dip-vlm-s, and "
                        "this job is dip-vlm-m"));
  // A file that both have taught is of both.
  ASSERT_EQ(Pipeloom({"run", "dip-vlm-m", "--batch", "image_text", "--replicas",
                      "1", "--microbatches", "2", "--evaluations", "10",
                      "--time-scale", "1e-4", "--learn", path})
                .code,
            0);
  EXPECT_THAT(Pipeloom(other).err, Not(HasSubstr("measured on")));
  EXPECT_THAT(ReadLearned(path)->jobs,
              ::testing::ElementsAre("dip-vlm-m", "dip-vlm-s"));
}

TEST_F(LearnedTest, AStepAsPricedHasNoNoteOnItsMfu) {
  std::string notes;
  EXPECT_GT(StepTime({}, &notes), 0);
  EXPECT_THAT(notes, Not(HasSubstr("MFU")));
}

}  // namespace
}  // namespace pipeloom::cli
