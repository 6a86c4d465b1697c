#include <string>
#include <vector>

#include "base/random.h"
#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kDiamond[] = R"({
  "name": "diamond",
  "ranks": [{"memory_limit_bytes": 100, "static_bytes": 7}, {}],
  "tasks": [
    {"id": 30, "rank": 1, "kind": "BACKWARD", "module": "text",
     "duration_us": 0.001, "free_bytes": 5},
    {"id": "7", "rank": 0, "kind": "FORWARD", "module": "image", "stage": 2,
     "microbatch": 3, "sub_microbatch": 1, "duration_us": 12.5,
     "alloc_bytes": "5"},
    {"id": -4, "rank": 1, "kind": "WEIGHT_GRAD", "module": "text",
     "duration_us": 1},
    {"id": 8, "kind": "FORWARD", "module": "text", "duration_us": 2}],
  "edges": [{"from": 7, "to": 30, "delay_us": 0.25}, {"from": 30, "to": -4},
            {"from": "8", "to": 30}]
})";

TEST(ParseTaskGraphTest, NumbersTasksTopologicallySmallestIdFirst) {
  ASSERT_OK_AND_ASSIGN(const LoadedGraph loaded,
                       ParseTaskGraph(kDiamond, "g.json"));
  const StageGraph& graph = loaded.graph;
  EXPECT_THAT(loaded.external_id.items(), ::testing::ElementsAre(7, 8, 30, -4));
  EXPECT_EQ(graph.name(), "diamond");
  EXPECT_EQ(graph.num_ranks(), 2);
  EXPECT_EQ(graph.rank(RankId(0)).memory.limit, Bytes(100));
  EXPECT_EQ(graph.rank(RankId(0)).memory.static_bytes(), Bytes(7));
  EXPECT_THAT(graph.module_names(), ::testing::ElementsAre("image", "text"));
  const Task& first = graph.task(TaskId(0));
  EXPECT_EQ(first.duration, Nanoseconds(12500));
  EXPECT_EQ(first.alloc, Bytes(5));
  EXPECT_EQ(first.stage, StageId(2));
  EXPECT_EQ(first.microbatch, MicrobatchId(3));
  EXPECT_EQ(first.sub_microbatch, 1);
  EXPECT_EQ(graph.task(TaskId(2)).duration, Nanoseconds(1));
  EXPECT_EQ(graph.task(TaskId(3)).pass, Pass::kWeightGrad);
  EXPECT_EQ(graph.edge(EdgeId(0)).delay, Nanoseconds(250));
  EXPECT_EQ(graph.edge(EdgeId(1)).to, TaskId(3));
}

TEST(PrintTaskGraphTest, ComesBackEqual) {
  ASSERT_OK_AND_ASSIGN(const LoadedGraph loaded,
                       ParseTaskGraph(kDiamond, "g.json"));
  ASSERT_OK_AND_ASSIGN(
      const LoadedGraph again,
      ParseTaskGraph(PrintTaskGraph(loaded.graph), "printed.json"));
  EXPECT_EQ(again.graph, loaded.graph);
  for (const TaskId id : again.external_id.ids()) {
    EXPECT_EQ(again.external_id[id], id.value());
  }
}

TEST(PrintTaskGraphTest, PrintingAgainIsTheSameForRandomGraphs) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StageGraph graph = testing::RandomGraph(seed);
    const std::string printed = PrintTaskGraph(graph);
    ASSERT_OK_AND_ASSIGN(const LoadedGraph loaded,
                         ParseTaskGraph(printed, "printed.json"));
    EXPECT_EQ(loaded.graph.num_tasks(), graph.num_tasks());
    EXPECT_EQ(PrintTaskGraph(loaded.graph), printed);
    ASSERT_OK_AND_ASSIGN(
        const LoadedGraph again,
        ParseTaskGraph(PrintTaskGraph(loaded.graph), "printed.json"));
    EXPECT_EQ(again.graph, loaded.graph);
  }
}

TEST(ParseTaskGraphTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string name;
    std::string tasks;
    std::string edges;
    std::string expected;
  };
  const std::string two =
      R"({"id": 1, "kind": "FORWARD", "duration_us": 1},
{"id": 2, "kind": "FORWARD", "duration_us": 1})";
  const Case cases[] = {
      {"circle", two, R"({"from": 1, "to": 2}, {"from": 2, "to": 1})",
       "g.json:2: tasks wait for each other in a circle of 2: 1 -> 2 -> 1"},
      {"itself", two, R"({"from": 2, "to": 2})",
       "g.json:3: tasks wait for each other in a circle of 1: 2 -> 2"},
      {"rank", R"({"id": 1, "rank": 3, "kind": "FORWARD", "duration_us": 1})",
       "", "g.json:2: field \"tasks[0].rank\" is 3; it must be in [0, 0]"},
      {"same id",
       R"({"id": 1, "kind": "FORWARD", "duration_us": 1},
{"id": "1", "kind": "BACKWARD", "duration_us": 1})",
       "", "g.json:3: id 1 is also that of the task in line 2"},
      {"negative time", R"({"kind": "FORWARD", "duration_us": -1})", "",
       "g.json:2: field \"tasks[0].duration_us\" is -1; it must be in [0, "
       "1e+12]"},
      {"negative bytes",
       R"({"kind": "FORWARD", "duration_us": 1, "free_bytes": -8})", "",
       "field \"tasks[0].free_bytes\" is -8; it must be in [0, "},
      {"no such task", two, "\n{\"from\": 1, \"to\": 9}",
       "g.json:5: field \"edges[0].to\" is 9; it must be the id of a task"},
      {"edge without end", two, R"({"from": 1})",
       "the edge has no \"to\", which means 0; there is no task 0"},
      {"kind", R"({"kind": "SIDEWARD", "duration_us": 1})", "",
       "field \"tasks[0].kind\" is \"SIDEWARD\"; it must be one of FORWARD, "
       "BACKWARD, WEIGHT_GRAD"},
      {"no kind", R"({"duration_us": 1})", "",
       "field \"tasks[0].kind\" is missing"},
      {"unknown field", R"({"kind": "FORWARD", "duration_us": 1, "cost": 2})",
       "", "field \"tasks[0].cost\" is not known; it must be one of "},
      {"fraction as id", R"({"id": 0.5, "kind": "FORWARD", "duration_us": 1})",
       "", "field \"tasks[0].id\" is 0.5; it must be an integer in "},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string text = "{\"ranks\": [{}], \"tasks\": [\n" + c.tasks +
                             "], \n\"edges\": [" + c.edges + "]}";
    EXPECT_THAT(ParseTaskGraph(text, "g.json"),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          AllOf(StartsWith("g.json:"), HasSubstr(c.expected))));
  }
}

TEST(ParseTaskGraphTest, NamesOnlyTasksOfTheCircle) {
  // 1 -> 2 -> 3 -> 2, 3 -> 4: only 2 and 3 wait for each other.
  EXPECT_THAT(ParseTaskGraph(R"({"ranks": [{}], "tasks": [
        {"id": 1, "kind": "FORWARD", "duration_us": 1},
        {"id": 2, "kind": "FORWARD", "duration_us": 1},
        {"id": 3, "kind": "FORWARD", "duration_us": 1},
        {"id": 4, "kind": "FORWARD", "duration_us": 1}],
        "edges": [{"from": 1, "to": 2}, {"from": 2, "to": 3},
                  {"from": 3, "to": 2}, {"from": 3, "to": 4}]})",
                             "g.json"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("in a circle of 2: 2 -> 3 -> 2")));
}

TEST(ParseTaskGraphTest, RefusesTimesWhoseSumOverflows) {
  std::string tasks;
  for (int i = 0; i < 3000; ++i) {
    if (i > 0) tasks += ",";
    tasks += "{\"id\":" + std::to_string(i) +
             ",\"kind\":\"FORWARD\",\"duration_us\":1e12}";
  }
  EXPECT_THAT(
      ParseTaskGraph("{\"ranks\":[{}],\"tasks\":[" + tasks + "]}", "g.json"),
      FailsWith(absl::StatusCode::kInvalidArgument,
                HasSubstr("times in nanoseconds add up to more than")));
}

}  // namespace
}  // namespace pipeloom::formats
