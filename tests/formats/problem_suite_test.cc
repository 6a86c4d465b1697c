#include "formats/graph/problem_suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "formats/job/spec_loader.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Shipped() {
  std::ifstream in(PIPELOOM_SOURCE_DIR "/workloads/bench/suite.json");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Another maker of uniform pipelines, task by task.
TEST(ProblemSuiteTest, UniformPipelinesEqualThoseOfTheTests) {
  for (const bool vee : {false, true}) {
    for (const bool split : {false, true}) {
      PipelineProblem problem{.ranks = 4,
                              .microbatches = 5,
                              .split_backward = split,
                              .memory_limit = Bytes(9000),
                              .delay = Microseconds(100),
                              .modules = {{.name = "model",
                                           .chunks = 3,
                                           .vee = vee,
                                           .forward = Microseconds(500),
                                           .backward = Microseconds(700),
                                           .weight_grad = Microseconds(300),
                                           .activation = Bytes(1000)}}};
      ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                           MakePipelineGraph("uniform", problem));
      const StageGraph expected =
          testing::UniformGraph({.ranks = 4,
                                 .chunks = 3,
                                 .microbatches = 5,
                                 .vee = vee,
                                 .split_backward = split,
                                 .forward = Microseconds(500),
                                 .backward = Microseconds(700),
                                 .weight_grad = Microseconds(300),
                                 .delay = Microseconds(100),
                                 .activation = Bytes(1000),
                                 .limit = Bytes(9000)});
      ASSERT_EQ(graph.num_tasks(), expected.num_tasks());
      Duration total{};
      Duration expected_total{};
      Duration delays{};
      Duration expected_delays{};
      for (const TaskId t : graph.task_ids()) {
        total += graph.task(t).duration * (graph.task(t).rank.value() + 1);
        expected_total +=
            expected.task(t).duration * (expected.task(t).rank.value() + 1);
      }
      for (const Dependency& e : graph.edges()) delays += e.delay;
      for (const Dependency& e : expected.edges()) expected_delays += e.delay;
      EXPECT_EQ(total, expected_total);
      EXPECT_EQ(delays, expected_delays);
      EXPECT_EQ(graph.ranks(), expected.ranks());
    }
  }
}

TEST(ProblemSuiteTest, ScaleGoesRoundByMicrobatch) {
  PipelineProblem problem{.ranks = 1,
                          .microbatches = 3,
                          .modules = {{.name = "encoder",
                                       .forward = Microseconds(100),
                                       .backward = Microseconds(10),
                                       .scale = {0.5, 2}}}};
  ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                       MakePipelineGraph("scaled", problem));
  std::vector<double> forwards;
  for (const Task& task : graph.tasks()) {
    if (task.pass == Pass::kForward) {
      forwards.push_back(ToMicroseconds(task.duration));
    }
  }
  EXPECT_THAT(forwards, ElementsAre(50, 200, 50));
}

TEST(ProblemSuiteTest, AModuleMayBeAPipelineOfItsOwnOnSomeRanks) {
  ASSERT_OK_AND_ASSIGN(const ProblemSuite suite,
                       ParseProblemSuite(R"({
    "problems": [{"name": "two models", "pipeline": {
      "ranks": 3, "microbatches": 2, "modules": [
        {"name": "actor", "forward_us": 10, "backward_us": 20},
        {"name": "critic", "microbatches": 1, "first_rank": 1, "ranks": 2,
         "reverse": true, "forward_us": 1, "backward_us": 2}]}}]})",
                                         "suite.json"));
  ASSERT_OK_AND_ASSIGN(
      const StageGraph graph,
      MakePipelineGraph("two models", *suite.problems[0].pipeline));
  std::vector<std::string> words;
  for (const Task& task : graph.tasks()) {
    words.push_back(absl::StrCat(
        task.pass == Pass::kForward ? "F" : "B", task.microbatch.value(), "@",
        task.rank.value(), task.module.value() == 1 ? " critic" : ""));
  }
  EXPECT_THAT(
      words, ElementsAre("F0@0", "F0@1", "F0@2", "B0@2", "B0@1", "B0@0", "F1@0",
                         "F1@1", "F1@2", "B1@2", "B1@1", "B1@0", "F0@2 critic",
                         "F0@1 critic", "B0@1 critic", "B0@2 critic"));
  // Chains of six, six and four tasks; none between them.
  EXPECT_EQ(graph.num_edges(), 5 + 5 + 3);
}

TEST(ProblemSuiteTest, EveryShippedProblemCanBeMade) {
  ASSERT_OK_AND_ASSIGN(const ProblemSuite suite,
                       ParseProblemSuite(Shipped(), "suite.json"));
  EXPECT_GE(suite.problems.size(), 50u);
  for (const SuiteProblem& problem : suite.problems) {
    SCOPED_TRACE(problem.name);
    if (problem.job) {
      EXPECT_THAT(ShippedJobNames(), ::testing::Contains(problem.job->job));
      continue;
    }
    ASSERT_TRUE(problem.pipeline.has_value());
    ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                         MakePipelineGraph(problem.name, *problem.pipeline));
    EXPECT_GT(problem.best_known, kZero);
    // The work of the busiest rank is no more than the best known schedule.
    for (const RankId r : graph.rank_ids()) {
      Duration busy{};
      for (const TaskId t : graph.tasks_of(r)) busy += graph.task(t).duration;
      EXPECT_LE(busy, problem.best_known);
    }
  }
}

TEST(ProblemSuiteTest, ErrorsNameFieldValueAndWhatWouldBeRight) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {R"({})", "\"problems\" is missing"},
      {R"({"problems": [{"name": "a"}]})", "0 of the fields pipeline, graph"},
      {R"({"problems": [{"name": "a", "pipeline": {"ranks": 4,
           "microbatches": 2, "modules": [{"forward_us": 1, "first_rank": 3,
           "ranks": 2}]}}]})",
       "on ranks 3 to 4; the pipeline has 4, counted from 0"},
      {R"({"problems": [{"name": "a", "graph": "g.json", "job": "dip-vlm-s",
           "batch": "video"}]})",
       "2 of the fields"},
      {R"({"problems": [{"name": "a", "job": "dip-vlm-s"}]})",
       "\"problems[0].batch\" is missing"},
      {R"({"problems": [{"name": "a", "graph": "g"},
                        {"name": "a", "graph": "h"}]})",
       "a name that no other problem has"},
      {R"({"problems": [{"name": "a", "pipeline": {"ranks": 0,
           "microbatches": 1, "modules": [{"forward_us": 1}]}}]})",
       "[1, 4096]"},
      {R"({"problems": [{"name": "a", "pipeline": {"ranks": 4096,
           "microbatches": 100000, "modules": [{"forward_us": 1}]}}]})",
       "at most 2000000"},
      {R"({"problems": [{"name": "a", "pipeline": {"ranks": 1,
           "microbatches": 1, "modules": [{"forward_us": 1,
           "map": "zigzag"}]}}]})",
       "looped, vee"},
      {R"({"problems": [{"name": "a", "graph": "g", "grph": "h"}]})", "grph"},
  };
  for (const auto& c : kCases) {
    const auto suite = ParseProblemSuite(c.text, "s.json");
    ASSERT_FALSE(suite.ok()) << c.text;
    EXPECT_THAT(std::string(suite.status().message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(suite.status().message()), HasSubstr("s.json"));
  }
}

TEST(ProblemSuiteTest, AnswersAreListsOfIdsByRank) {
  ASSERT_OK_AND_ASSIGN(
      const auto orders,
      ParseAnswerOrders(R"({"makespan_us": 3, "order": [[1, 0], []]})", "a"));
  EXPECT_THAT(orders, ElementsAre(ElementsAre(1, 0), ElementsAre()));
  EXPECT_FALSE(ParseAnswerOrders(R"({"makespan_us": 3})", "a").ok());
  EXPECT_FALSE(ParseAnswerOrders(R"({"order": [3]})", "a").ok());
  EXPECT_FALSE(ParseAnswerOrders(R"({"order": [["x"]]})", "a").ok());
}

}  // namespace
}  // namespace pipeloom::formats
