#include "ir/text_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/random.h"
#include "tests/support/random_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::RandomGraph;
using ::pipeloom::testing::RandomPlan;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(TextFormatTest, GraphsAndPlansParseBack) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = RandomGraph(seed, {.with_epilogues = true});
    ASSERT_OK_AND_ASSIGN(const StageGraph graph_again,
                         ParseStageGraph(ToString(graph)));
    EXPECT_EQ(graph_again, graph);
    const ExecutionPlan plan = RandomPlan(seed);
    ASSERT_OK_AND_ASSIGN(const ExecutionPlan plan_again,
                         ParseExecutionPlan(ToString(plan)));
    EXPECT_EQ(plan_again, plan);
  }
}

TEST(TextFormatTest, KeepsStringsWithQuotesAndNewLines) {
  ExecutionPlan plan = RandomPlan(1);
  plan.job = "a \"job\"\nwith # two lines \\ and \xc3\xa9";
  plan.schedule = "";
  plan.model_flops = Flops{1.0 / 3.0};
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan again,
                       ParseExecutionPlan(ToString(plan)));
  EXPECT_EQ(again, plan);
}

TEST(TextFormatTest, SkipsCommentsAndBlankLines) {
  const ExecutionPlan plan = RandomPlan(2);
  std::string text = "# made by hand\n\n";
  for (const char c : ToString(plan)) {
    text += c;
    if (c == '\n') text += "   \r\n # note\n";
  }
  ASSERT_OK_AND_ASSIGN(const ExecutionPlan again, ParseExecutionPlan(text));
  EXPECT_EQ(again, plan);
}

TEST(TextFormatTest, EveryCutOffTextIsRefused) {
  const std::string text = ToString(RandomPlan(3));
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_FALSE(ParseExecutionPlan(text.substr(0, length)).ok()) << length;
  }
}

// Replaces the first `from` in the text of a small plan.
std::string Changed(const std::string& from, const std::string& to) {
  std::string text =
      "plan version 1\n"
      "job \"j\" step 0 replica 0 schedule \"s\"\n"
      "predicted_step_time_ns 0 lower_bound_ns 0 model_flops 0 "
      "peak_flops_per_second 0\n"
      "graph \"g\"\n"
      "module \"m\"\n"
      "rank 0 limit 0 weights 0 gradients 0 optimizer 0 overhead 0 epilogue "
      "0\n"
      "task 0 F rank 0 module 0 stage 0 microbatch 0 sub 0 time 5 alloc 1 free "
      "1\n"
      "program 0\n"
      "  compute 0\n"
      "end\n";
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TextFormatTest, MistakesAreNamedWithTheirLine) {
  EXPECT_TRUE(ParseExecutionPlan(Changed("\"j\"", "\"j\"")).ok());
  const struct {
    std::string from;
    std::string to;
    std::string message;
  } cases[] = {
      {"plan version 1", "plan version 9", "plan version is 9"},
      {"job \"j\"", "jobs \"j\"", "line 2: expected \"job\", found \"jobs\""},
      {"schedule \"s\"", "schedule \"s", "line 2: expected a closing quote"},
      {"job \"j\"", "job j", "line 2: expected a quoted string"},
      {"step 0", "step x", "expected a whole number after \"step\""},
      {"replica 0", "replica 4294967296", "a number of 32 bits"},
      {"time 5", "time", "line 7: expected a whole number after \"time\""},
      {"time 5", "time -5", "task 0: duration -5"},
      {"time 5", "time 99999999999999999999", "expected a whole number"},
      {"task 0 F", "task 1 F", "line 7: expected task 0"},
      {"task 0 F", "task 0 X", "expected F, B or W, found \"X\""},
      {"free 1", "free 1 recompute", "line 7: expected the end of the line"},
      {"compute 0", "compute 7", "names a task or edge"},
      {"compute 0", "compute -1", "names a task or edge"},
      {"compute 0", "jump 0", "line 9: expected compute, send"},
      {"program 0", "program 1", "expected program 0"},
      {"program 0\n  compute 0\n", "", "there are 0 programs"},
      {"end\n", "end\nend\n", "nothing after \"end\""},
      {"end\n", "", "expected \"end\", found the end"},
      {"rank 0 module 0", "rank 3 module 0", "rank 3 does not exist"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.to);
    EXPECT_THAT(ParseExecutionPlan(Changed(c.from, c.to)),
                FailsWith(kInvalid, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace pipeloom
