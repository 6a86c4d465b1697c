// Measured traces come back: costs, clocks, critical path; broken ones are
// refused.
#include "trace/trace_import.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "emulator/step/emulate_step.h"
#include "ir/plan/schedule.h"
#include "planner/lower/lower_plan.h"
#include "tests/support/random_problem.h"
#include "tests/support/sample_step.h"
#include "tests/support/status_matchers.h"
#include "trace/chrome_trace.h"
#include "trace/trace_analysis.h"

namespace pipeloom::trace {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::TwoModuleGraph;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TraceSource Source(std::string name, std::string text) {
  auto at = std::make_shared<size_t>(0);
  return {std::move(name),
          [text = std::move(text), at](char* buffer,
                                       size_t size) -> absl::StatusOr<size_t> {
            // In odd chunks, so that tokens are cut.
            const size_t n = std::min({size, size_t{1009}, text.size() - *at});
            std::copy_n(text.data() + *at, n, buffer);
            *at += n;
            return n;
          }};
}

struct Step {
  ExecutionPlan plan{};
  StepTrace trace{};
};

Step OneForwardOneBackward(const StageGraph& graph) {
  RankOrders order(graph.num_ranks());
  Random random(7);
  auto schedule =
      TimeSchedule(graph, ::pipeloom::testing::RandomOrders(graph, random));
  EXPECT_TRUE(schedule.ok());
  auto plan = planner::LowerPlan(graph, *schedule);
  EXPECT_TRUE(plan.ok());
  auto trace = emulator::EmulateStep(*plan);
  EXPECT_TRUE(trace.ok());
  return {*std::move(plan), *std::move(trace)};
}

// The events of one rank, its clock ahead by `offset_us` and too fast.
std::string RankFile(const std::string& whole, int rank, double offset_us,
                     double drift) {
  Json json = Json::parse(whole);
  Json events = Json::array();
  for (Json event : json["traceEvents"]) {
    if (event["pid"] != rank) continue;
    if (event.contains("ts")) {
      const double ts = event["ts"];
      event["ts"] = ts * (1 + drift) + offset_us;
      if (event.contains("dur")) {
        event["dur"] = event["dur"].get<double>() * (1 + drift);
      }
    }
    events.push_back(std::move(event));
  }
  return Json{{"schemaVersion", 1},
              {"traceEvents", events},
              {"distributedInfo", {{"backend", "nccl"}, {"rank", rank}}}}
      .dump();
}

// Without the number, which an import gives anew.
std::string NameOf(const StageGraph& graph, TaskId task) {
  const std::string text = DescribeTask(graph, task);
  return text.substr(text.find('('));
}

std::vector<std::string> CriticalTasks(const ExecutionPlan& plan,
                                       const StepTrace& trace) {
  std::vector<std::string> tasks;
  for (const PathPiece& piece : Analyze(plan, trace).critical) {
    if (piece.kind == PathPiece::Kind::kTask) {
      tasks.push_back(NameOf(plan.graph, piece.task));
    }
  }
  return tasks;
}

TEST(ImportTraceTest, OneFileOfTheWholeStepComesBackAsItWas) {
  const Step step = OneForwardOneBackward(TwoModuleGraph(4, 6));
  const std::string json = ChromeTrace({{{&step.plan, &step.trace}}});
  ASSERT_OK_AND_ASSIGN(const ImportedStep imported,
                       ImportTrace({Source("run.json", json)}));
  EXPECT_EQ(imported.plan.graph.num_tasks(), step.plan.graph.num_tasks());
  EXPECT_EQ(imported.plan.graph.num_edges(), step.plan.graph.num_edges());
  EXPECT_EQ(imported.measured.step_time(), step.trace.step_time());
  EXPECT_EQ(imported.iterations, 1);
  EXPECT_EQ(CriticalTasks(imported.plan, imported.measured),
            CriticalTasks(step.plan, step.trace));
  ASSERT_OK_AND_ASSIGN(const StepTrace replay,
                       emulator::EmulateStep(imported.plan));
  EXPECT_EQ(replay.step_time(), step.trace.step_time());
}

TEST(ImportTraceTest, SkewedClocksOfFilesARankAreBroughtTogether) {
  const Step step = OneForwardOneBackward(TwoModuleGraph(4, 8));
  const std::string whole = ChromeTrace({{{&step.plan, &step.trace}}});
  const double offsets_us[] = {1e6, -3e6, 2.5e7, 12345.678};
  const double drifts[] = {0, 5e-5, -8e-5, 2e-5};
  std::vector<TraceSource> files;
  for (int r = 0; r < 4; ++r) {
    files.push_back(Source(absl::StrCat("rank", r, ".json"),
                           RankFile(whole, r, offsets_us[r], drifts[r])));
  }
  ASSERT_OK_AND_ASSIGN(const ImportedStep imported, ImportTrace(files));
  const StageGraph& graph = imported.plan.graph;
  ASSERT_EQ(graph.num_tasks(), step.plan.graph.num_tasks());
  // Costs within 1 %.
  std::map<std::string, Duration> costs;
  for (const TaskId t : step.plan.graph.task_ids()) {
    costs[NameOf(step.plan.graph, t)] = step.plan.graph.task(t).duration;
  }
  for (const TaskId t : graph.task_ids()) {
    const double wanted = ToSeconds(costs[NameOf(graph, t)]);
    EXPECT_NEAR(ToSeconds(graph.task(t).duration), wanted, 0.01 * wanted);
  }
  const double seconds = ToSeconds(step.trace.step_time());
  EXPECT_NEAR(ToSeconds(imported.measured.step_time()), seconds,
              0.01 * seconds);
  EXPECT_EQ(CriticalTasks(imported.plan, imported.measured),
            CriticalTasks(step.plan, step.trace));
}

TEST(ImportTraceTest, NamesOfTorchSchedulesAreUnderstood) {
  // Two ranks of one stage each; rank 1's clock is a second ahead.
  const auto event = [](const char* name, double ts, double dur) {
    return Json{{"ph", "X"},  {"name", name}, {"ts", ts},
                {"dur", dur}, {"pid", 77},    {"tid", 1}};
  };
  const Json first = {event("PP:0F0", 0, 10), event("PP:0F1", 10, 10),
                      event("PP:0B0", 45, 20), event("PP:0B1", 75, 20),
                      event("aten::mm", 1, 2)};
  const Json second = {
      event("PP:1F0", 1000015, 10), event("PP:1B0", 1000025, 15),
      event("PP:1F1", 1000040, 10), event("PP:1B1", 1000050, 20)};
  ASSERT_OK_AND_ASSIGN(const ImportedStep imported,
                       ImportTrace({Source("trace_0.json", first.dump()),
                                    Source("trace_1.json", second.dump())}));
  EXPECT_EQ(imported.plan.graph.num_tasks(), 8);
  EXPECT_EQ(imported.events, 9);
  // Forwards take at least 5 us from 0 to 1 and backwards 5 us back.
  EXPECT_NEAR(imported.clocks[RankId(1)].offset_ns, -1e9, 200);
  EXPECT_EQ(imported.measured.step_time(), Microseconds(95));
  const std::vector<MeasuredCost> costs = CostsOf(imported.plan.graph);
  ASSERT_EQ(costs.size(), 4u);
  EXPECT_EQ(costs[0].median, Microseconds(10));
}

TEST(ImportTraceTest, SeveralIterationsAreToldApart) {
  Json events = Json::array();
  for (int i = 0; i < 3; ++i) {
    for (const char* name : {"PP:0F0", "PP:0B0"}) {
      events.push_back({{"ph", "X"},
                        {"name", name},
                        {"ts", i * 1000 + (name[4] == 'B' ? 50 : 0)},
                        {"dur", 10 * (i + 1)},
                        {"pid", 0},
                        {"tid", 0}});
    }
  }
  for (const int i : {0, 1, 2, -1}) {
    ASSERT_OK_AND_ASSIGN(const ImportedStep imported,
                         ImportTrace({Source("t.json", events.dump())}, i));
    EXPECT_EQ(imported.iterations, 3);
    EXPECT_EQ(imported.plan.graph.task(TaskId(0)).duration,
              Microseconds(10 * ((i < 0 ? 2 : i) + 1)));
  }
  EXPECT_THAT(
      ImportTrace({Source("t.json", events.dump())}, 3),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("3 whole ones")));
}

// Steps of one plan each, which need not have the same tasks.
TEST(ImportTraceTest, TasksOfOtherStepsDoNotCount) {
  Json events = Json::array();
  const auto add = [&](int step, const char* module, int task, double ts,
                       const std::string& inputs) {
    events.push_back({{"ph", "X"},
                      {"name", "F0"},
                      {"ts", 1000.0 * step + ts},
                      {"dur", 10 + step},
                      {"pid", 0},
                      {"tid", 0},
                      {"args",
                       {{"pass", "forward"},
                        {"module", module},
                        {"stage", task},
                        {"microbatch", 0},
                        {"rank", 0},
                        {"step", step},
                        {"task", task},
                        {"inputs", inputs}}}});
  };
  for (const int step : {4, 5, 6}) {
    if (step == 5) add(step, "vision", 1, 0, "");
    add(step, "text", 0, 100, step == 5 ? "1" : "");
  }
  add(7, "text", 0, 100, "1");  // Its other task is cut off.
  for (const int i : {0, 1, 2, -1}) {
    SCOPED_TRACE(i);
    ASSERT_OK_AND_ASSIGN(const ImportedStep imported,
                         ImportTrace({Source("t.json", events.dump())}, i));
    EXPECT_EQ(imported.iterations, 4);
    EXPECT_EQ(imported.plan.graph.num_tasks(), i == 1 ? 2 : 1);
    EXPECT_EQ(imported.plan.graph.task(TaskId(0)).duration,
              Microseconds(10 + (i < 0 ? 6 : 4 + i)));
  }
}

Json Event(const std::string& name, double ts, double dur,
           const char* category = "cpu_op") {
  return {{"ph", "X"},  {"name", name}, {"cat", category}, {"ts", ts},
          {"dur", dur}, {"pid", 0},     {"tid", 0}};
}

// PyTorch's profiler writes each range twice.
TEST(ImportTraceTest, LaunchesOnTheCpuAreLeftOutWhereTheGpuHasThem) {
  Json launches = Json::array();
  Json both = Json::array();
  for (int i = 0; i < 3; ++i) {
    for (const char* name : {"PP:0F0", "PP:0B0"}) {
      const double ts = i * 1000 + (name[4] == 'B' ? 50 : 0);
      launches.push_back(Event(name, ts, 3, "user_annotation"));
      both.push_back(launches.back());
      both.push_back(Event(name, ts + 7, 30, "gpu_user_annotation"));
    }
  }
  ASSERT_OK_AND_ASSIGN(ImportedStep imported,
                       ImportTrace({Source("t.json", both.dump())}));
  EXPECT_EQ(imported.iterations, 3);
  EXPECT_EQ(imported.plan.graph.task(TaskId(0)).duration, Microseconds(30));
  ASSERT_OK_AND_ASSIGN(imported,
                       ImportTrace({Source("t.json", launches.dump())}));
  EXPECT_EQ(imported.iterations, 3);
  EXPECT_EQ(imported.plan.graph.task(TaskId(0)).duration, Microseconds(3));
}

TEST(ImportTraceTest, AMissingTaskIsNamed) {
  const auto import = [](const std::vector<std::string>& names) {
    Json events = Json::array();
    double ts = 0;
    for (const std::string& name : names) {
      events.push_back(Event(name, ts += 10, 5));
    }
    return ImportTrace({Source("t.json", events.dump())}).status();
  };
  const auto says = [](const char* text) {
    return FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(import({"0F0", "0F1", "1F0", "1F1", "1B0", "1B1", "0B0"}),
              says("PP:0B1 (stage 0, backward of microbatch 1) is missing"));
  EXPECT_THAT(import({"0F0", "0F1", "1F0", "1B0", "1B1", "0B0", "0B1"}),
              says("PP:1F1 (stage 1, forward of microbatch 1) is missing"));
  EXPECT_THAT(import({"0F0", "0I0"}), says("PP:0W0"));
  EXPECT_EQ(import({"0F0", "0I0", "0W0", "0F1", "0B1"}), absl::OkStatus());
  EXPECT_EQ(import({"0F0", "0F1", "1F0", "1F1"}),
            absl::OkStatus());  // Inference.
  // The first stage is frozen.
  EXPECT_EQ(import({"0F0", "1F0", "1B0"}), absl::OkStatus());
  // Three iterations, without one task of the middle one.
  EXPECT_THAT(
      import({"0F0", "0F1", "0B0", "0B1", "0F0", "0F1", "0B0", "0F0", "0F1",
              "0B0", "0B1"}),
      says("PP:0B1 (stage 0, backward of microbatch 1) is missing in an "
           "iteration before number 2"));
  // The last iteration was cut off.
  EXPECT_EQ(import({"0F0", "0F1", "0B0", "0B1", "0F0", "0F1"}),
            absl::OkStatus());
}

TEST(ImportTraceTest, ANegativeDurationIsRefused) {
  const Json events = {Event("PP:0F0", 0, -50), Event("PP:0B0", 10, 5)};
  EXPECT_THAT(ImportTrace({Source("t.json", events.dump())}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("\"dur\" of PP:0F0 is -50 us")));
}

TEST(ImportTraceTest, BrokenFilesSayWhereAndWhat) {
  const struct {
    std::string text;
    const char* says;
  } cases[] = {
      {"", "at byte 0"},
      {"{", "at byte"},
      {"[{\"name\": \"x\"", "at byte"},
      {"{\"a\": 1}", "no list of events"},
      {"[]", "none of the 0 events"},
      {"[{\"name\":\"PP:0F0\",\"ph\":\"X\",\"ts\":1e300,\"dur\":1}]",
       "microseconds"},
      {absl::StrCat("[{\"name\":\"", std::string(3 << 20, 'x'), "\"}]"),
       "mebibyte"},
      {std::string(100000, '['), "deep"},
      {"[{\"name\":\"aten::mm\",\"ph\":\"X\",\"ts\":1,\"dur\":1}]",
       "is a task of a pipeline"},
      {"\xff\xfe[]", "at byte"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text.substr(0, 60));
    EXPECT_THAT(
        ImportTrace({Source("bad.json", c.text)}),
        FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(c.says)));
  }
}

TEST(ImportTraceTest, EveryPrefixOfATraceIsRefusedOrRead) {
  const Step step = OneForwardOneBackward(TwoModuleGraph(2, 1));
  const std::string json = ChromeTrace({{{&step.plan, &step.trace}}});
  for (size_t n = 0; n + 3 < json.size(); n += 97) {
    EXPECT_FALSE(ImportTrace({Source("cut.json", json.substr(0, n))}).ok())
        << n;
  }
}

TEST(ImportTraceTest, ALongTraceIsReadInBoundedMemory) {
  // 20 MB of events that are none of ours, made as they are read.
  int64_t left = 200000;
  std::string pending = "[";
  const auto read = [&](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    while (pending.size() < size && left >= 0) {
      pending +=
          left-- > 0
              ? "{\"ph\":\"X\",\"name\":\"kernel\",\"ts\":1,\"dur\":2,\"args\":"
                "{\"shape\":[[1,2],[3]],\"stream\":7,\"x\":\"yyyyyyyyyyyyy\"}},"
              : "{\"ph\":\"X\",\"name\":\"PP:0F0\",\"ts\":1,\"dur\":2}]";
    }
    const size_t n = std::min(size, pending.size());
    std::copy_n(pending.data(), n, buffer);
    pending.erase(0, n);
    return n;
  };
  ASSERT_OK_AND_ASSIGN(const ImportedStep imported,
                       ImportTrace({{"long.json", read}}));
  EXPECT_EQ(imported.events, 200001);
  EXPECT_EQ(imported.plan.graph.num_tasks(), 1);
}

}  // namespace
}  // namespace pipeloom::trace
