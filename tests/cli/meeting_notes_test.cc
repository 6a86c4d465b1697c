// Remarks of `plan` and `compare` on replicas that meet within passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSharding[] =
    "training.optimizer_sharding=OPTIMIZER_SHARDING_ZERO3";

// Returns the remarks on a step of 4 microbatches.
std::string NotesOf(const std::string& command,
                    const std::vector<std::string>& job,
                    const std::vector<std::string>& more) {
  std::vector<std::string> args = {command};
  args.insert(args.end(), job.begin(), job.end());
  args.insert(args.end(), {"--microbatches", "4", "--evaluations", "4"});
  args.insert(args.end(), more.begin(), more.end());
  const Outcome outcome = Pipeloom(args);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.err;
}

TEST(MeetingNotesTest, ExpertsOfReplicasWaitForTheSlowest) {
  const std::vector<std::string> job = {"deepseek-v2", "--batch", "text"};
  EXPECT_THAT(NotesOf("plan", job, {"--replicas", "2", "--strategy", "1f1b"}),
              AllOf(HasSubstr("the experts of a layer are spread over 8 "
                              "replicas (parallel.ep)"),
                    HasSubstr("together the step takes")));
  EXPECT_THAT(
      NotesOf("compare", job, {"--replicas", "2", "--strategies", "1f1b"}),
      HasSubstr("note: 1f1b: step 0: the experts"));
  const std::vector<std::string> emulated = {"--replicas", "2", "--strategy",
                                             "1f1b"};
  EXPECT_THAT(NotesOf("emulate", job, emulated),
              HasSubstr("together the step takes"));
  // One replica waits for none.
  EXPECT_THAT(NotesOf("plan", job, {"--replicas", "1", "--strategy", "1f1b"}),
              Not(HasSubstr("replicas (parallel.ep)")));
}

TEST(MeetingNotesTest, ReplicasThatShareWeightsNeedOneOrder) {
  const std::vector<std::string> job = {"qwen2.5-vl-7b", "--batch",
                                        "interleaved"};
  const auto notes = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> more = {"--strategy", "1f1b"};
    for (const std::string& set : sets) {
      more.insert(more.end(), {"--set", set});
    }
    return NotesOf("plan", job, more);
  };
  EXPECT_THAT(notes({kSharding}),
              HasSubstr("4 replicas gather the weights of each pass together"));
  // Some replicas have no image in some microbatches.
  EXPECT_THAT(
      notes({kSharding, "training.microbatch_samples=1", "parallel.pp=2"}),
      HasSubstr("cannot run together"));
  EXPECT_THAT(notes({}), Not(HasSubstr("replicas gather")));
}

}  // namespace
}  // namespace pipeloom::cli
