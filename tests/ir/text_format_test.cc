#include "ir/text/text_format.h"

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
      {"job \"j\"", std::string(100, '[') + " \"j\"",
       "line 2: expected \"job\", found \"" + std::string(80, '[') + "...\""},
      {"schedule \"s\"", "schedule \"s", "line 2: expected a closing quote"},
      {"job \"j\"", "job j", "line 2: expected a quoted string"},
      {"step 0", "step x", "expected a whole number after \"step\""},
      {"step 0", "step -1", "a number of at least 0 after \"step\""},
      {"replica 0", "replica -1", "at least 0 after \"replica\""},
      {"lower_bound_ns 0", "lower_bound_ns -1", "line 3: expected a number"},
      {"model_flops 0", "model_flops nan", "line 3: expected a finite number"},
      {"model_flops 0", "model_flops inf", "line 3: expected a finite number"},
      {"model_flops 0", "model_flops -1", "line 3: expected a finite number"},
      {"job \"j\"", "job \"\\377\"", "line 2: expected UTF-8 text"},
      {"job \"j\"", "job \"\\355\\240\\200\"", "expected UTF-8 text"},
      {"replica 0", "replica 4294967296", "a number of 32 bits"},
      {"time 5", "time", "line 7: expected a whole number after \"time\""},
      {"time 5", "time -5", "task 0: duration -5"},
      {"time 5", "time 99999999999999999999", "expected a whole number"},
      {"task 0 F", "task 1 F", "line 7: expected task 0"},
      {"task 0 F", "task 0 X", "expected F, B or W, found \"X\""},
      {"free 1", "free 1 recompute", "line 7: expected the end of the line"},
      {"compute 0", "compute 7", "names a task or edge"},
      {"compute 0", "compute -1", "line 9: expected a number of at least 0"},
      {"compute 0", "offload 0 bytes -5", "at least 0 after \"bytes\""},
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

Schedule RandomSchedule(uint64_t seed) {
  const StageGraph graph = RandomGraph(seed, {.with_epilogues = true});
  Random random(seed);
  return *TimeSchedule(graph, testing::RandomOrders(graph, random));
}

TEST(TextFormatTest, SchedulesParseBack) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Schedule schedule = RandomSchedule(seed);
    ASSERT_OK_AND_ASSIGN(const Schedule again,
                         ParseSchedule(ToString(schedule)));
    EXPECT_EQ(again, schedule);
  }
}

StepTrace RandomTrace(uint64_t seed) {
  Random random(seed);
  StepTrace trace;
  trace.num_ranks = static_cast<int32_t>(random.Between(1, 4));
  const auto time = [&] { return SimTime(Nanoseconds(random.Below(1000))); };
  const auto rank = [&] {
    return RankId(static_cast<int32_t>(random.Below(trace.num_ranks)));
  };
  for (int i = 0; i < 30; ++i) {
    Span span;
    span.rank = rank();
    span.stream = static_cast<Stream>(random.Below(4));
    span.kind = static_cast<SpanKind>(random.Below(4));
    const auto id = static_cast<int32_t>(random.Below(50));
    if (span.kind == SpanKind::kTask) {
      span.task = TaskId(id);
    } else if (span.kind != SpanKind::kEpilogue) {
      span.edge = EdgeId(id);
    }
    span.start = time();
    span.end = span.start + Nanoseconds(random.Below(100));
    trace.spans.push_back(span);
    MemoryStep step;
    step.rank = rank();
    step.at = time();
    step.item = static_cast<MemoryItem>(random.Below(kNumMemoryItems));
    step.delta = Bytes(random.Between(-100, 100));
    trace.memory.push_back(step);
  }
  trace.finish = time();
  return trace;
}

TEST(TextFormatTest, TracesParseBack) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepTrace trace = RandomTrace(seed);
    ASSERT_OK_AND_ASSIGN(const StepTrace again,
                         ParseStepTrace(ToString(trace)));
    EXPECT_EQ(again, trace);
  }
}

TEST(TextFormatTest, EveryCutOffScheduleAndTraceIsRefused) {
  const std::string schedule = ToString(RandomSchedule(3));
  for (size_t length = 0; length + 1 < schedule.size(); ++length) {
    EXPECT_FALSE(ParseSchedule(schedule.substr(0, length)).ok()) << length;
  }
  const std::string trace = ToString(RandomTrace(3));
  for (size_t length = 0; length + 1 < trace.size(); ++length) {
    EXPECT_FALSE(ParseStepTrace(trace.substr(0, length)).ok()) << length;
  }
}

TEST(TextFormatTest, MistakesInSchedulesAreNamedWithTheirLine) {
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"", "expected \"schedule\""},
      {"schedule version 2\n", "schedule version is 2; this program reads 1"},
      {"schedule version 1\ntasks_finish 1\n", "line 2: expected \"finish\""},
      {"schedule version 1\ntasks_finish 1 finish 1\norder 0 -1\nend\n",
       "line 3: expected a whole number of at least 0, found \"-1\""},
      {"schedule version 1\ntasks_finish 1 finish 1\norder 4294967296\nend\n",
       "line 3: expected task numbers of 32 bits"},
      {"schedule version 1\ntasks_finish 1 finish 1\nbegin\n",
       "line 3: expected order, peak, start or end, found \"begin\""},
      {"schedule version 1\ntasks_finish 1 finish 1\n", "expected \"end\""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(ParseSchedule(c.text),
                FailsWith(kInvalid, HasSubstr(c.message)));
  }
}

TEST(TextFormatTest, MistakesInTracesAreNamedWithTheirLine) {
  const std::string head = "trace version 1 ranks 2 finish 9\n";
  const struct {
    std::string text;
    std::string message;
  } cases[] = {
      {"trace version 3 ranks 2 finish 9\n", "trace version is 3"},
      {"trace version 1 ranks 2000000000 finish 9\n", "at most 1048576 ranks"},
      {head + "span rank 2 copy epilogue from 0 to 1\nend\n",
       "line 2: expected a rank below 2"},
      {head + "span rank 0 cpu epilogue from 0 to 1\nend\n",
       "line 2: expected compute, send, receive or copy, found \"cpu\""},
      {head + "span rank 0 copy sleep 1 from 0 to 1\nend\n",
       "line 2: expected task, transfer, wait or epilogue, found \"sleep\""},
      {head + "span rank 0 compute task 1 from 5 to 4\nend\n",
       "line 2: expected a number of at least 5 after \"to\""},
      {head + "memory rank 0 cache delta 1 at 1\nend\n",
       "line 2: expected an item of memory, found \"cache\""},
      {head + "jump\n", "line 2: expected span, memory or end"},
      {head, "expected \"end\""},
      {head + "end\nend\n", "nothing after \"end\""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(ParseStepTrace(c.text),
                FailsWith(kInvalid, HasSubstr(c.message)));
  }
}

}  // namespace
}  // namespace pipeloom
