// A measured pipeline replayed: with the measured duration of every task, the
// emulated step must last as long as the measured one. Nothing is fitted but
// one constant, the hand-over between tasks, taken from iteration 2; the
// claims are about iterations 3 to 20. Data: the header of
// workloads/validation/pipeline_replay_pp8.csv.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "emulator/step/emulate_step.h"
#include "gtest/gtest.h"
#include "planner/lower/lower_plan.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/virtual_pipeline.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using testing::IsOk;

constexpr int32_t kRanks = 8;
constexpr int32_t kMicrobatches = 16;

struct Iteration {
  Duration total{};
  // Indexed by rank and microbatch.
  Duration forward[kRanks][kMicrobatches] = {};
  Duration backward[kRanks][kMicrobatches] = {};
};

struct Recording {
  Duration handover{};
  std::map<int, Iteration> iterations{};
};

Recording ReadRecording() {
  Recording recording;
  std::ifstream file(PIPELOOM_SOURCE_DIR
                     "/workloads/validation/pipeline_replay_pp8.csv");
  EXPECT_TRUE(file.is_open());
  std::string line;
  while (std::getline(file, line)) {
    absl::string_view text = line;
    int64_t value = 0;
    if (absl::ConsumePrefix(&text, "# handover_us=")) {
      EXPECT_TRUE(absl::SimpleAtoi(text, &value));
      recording.handover = Nanoseconds(1000 * value);
    }
    if (text.empty() || text[0] == '#' || text[0] == 'i') continue;
    std::vector<int64_t> numbers;
    for (const absl::string_view cell : absl::StrSplit(text, ',')) {
      EXPECT_TRUE(absl::SimpleAtoi(cell, &value)) << cell;
      numbers.push_back(value);
    }
    if (numbers.size() != 3 + 2 * kMicrobatches) continue;
    Iteration& iteration = recording.iterations[static_cast<int>(numbers[0])];
    iteration.total = Nanoseconds(1000 * numbers[2]);
    const auto rank = static_cast<size_t>(numbers[1]);
    for (size_t m = 0; m < kMicrobatches; ++m) {
      iteration.forward[rank][m] = Nanoseconds(1000 * numbers[3 + m]);
      iteration.backward[rank][m] =
          Nanoseconds(1000 * numbers[3 + kMicrobatches + m]);
    }
  }
  return recording;
}

// Returns the graph of an iteration of the recording's framework: a send keeps
// its rank busy for the hand-over, and the last rank takes as long from a
// forward to its backward.
StageGraph GraphOf(const Iteration& iteration, Duration handover) {
  IdVector<TaskId, Task> tasks;
  IdVector<EdgeId, Dependency> edges;
  const auto add = [&](Pass pass, int32_t r, int32_t m, Duration duration) {
    return tasks.push_back({.rank = RankId(r),
                            .pass = pass,
                            .module = ModuleId(0),
                            .stage = StageId(r),
                            .microbatch = MicrobatchId(m),
                            .duration = duration});
  };
  const auto connect = [&](TaskId from, TaskId to) {
    const bool crosses = tasks[from].rank != tasks[to].rank;
    edges.push_back({.from = from,
                     .to = to,
                     .delay = handover,
                     .occupancy = crosses ? handover : kZero,
                     .payload = Bytes(crosses ? 1 : 0),
                     .rows = crosses,
                     .width = crosses});
  };
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    TaskId before{};
    TaskId forwards[kRanks] = {};
    for (int32_t r = 0; r < kRanks; ++r) {
      const TaskId task = add(Pass::kForward, r, m, iteration.forward[r][m]);
      if (r > 0) connect(before, task);
      forwards[r] = before = task;
    }
    for (int32_t r = kRanks - 1; r >= 0; --r) {
      const TaskId task = add(Pass::kBackward, r, m, iteration.backward[r][m]);
      connect(before, task);
      if (before != forwards[r]) {
        edges.push_back({.from = forwards[r], .to = task});
      }
      before = task;
    }
  }
  auto graph = StageGraph::Create("pp8", IdVector<RankId, RankSpec>(kRanks),
                                  {"model"}, tasks, edges);
  EXPECT_THAT(graph, IsOk());
  return graph.ok() ? *std::move(graph) : StageGraph();
}

Duration Emulated(const Iteration& iteration, Duration handover) {
  const StageGraph graph = GraphOf(iteration, handover);
  auto orders = planner::OneFOneBOrders(planner::VirtualPipeline(graph));
  EXPECT_THAT(orders, IsOk());
  const auto schedule = TimeSchedule(graph, *std::move(orders));
  EXPECT_THAT(schedule, IsOk());
  const auto plan = planner::LowerPlan(graph, *schedule);
  EXPECT_THAT(plan, IsOk());
  EmulateOptions options{.links = SharedLinks{}};
  options.links->blocking_sends = true;
  options.full_trace = false;
  const auto trace = EmulateStep(*plan, options);
  EXPECT_THAT(trace, IsOk());
  return trace.ok() ? trace->step_time() : kZero;
}

struct Errors {
  double mean = 0;  // Mean of absolute errors.
  double worst = 0;
};

Errors ErrorsOf(const Recording& recording, Duration handover) {
  Errors errors;
  int count = 0;
  for (const auto& [number, iteration] : recording.iterations) {
    if (number < 3) continue;
    const double error = std::abs(ToSeconds(Emulated(iteration, handover)) /
                                      ToSeconds(iteration.total) -
                                  1);
    errors.mean += error;
    errors.worst = std::max(errors.worst, error);
    ++count;
  }
  errors.mean /= std::max(count, 1);
  return errors;
}

TEST(Replay, MeasuredOneFOneBIsWithinHalfAPercent) {
  const Recording recording = ReadRecording();
  ASSERT_EQ(recording.iterations.size(), 19);
  ASSERT_GT(recording.handover, kZero);
  const Errors errors = ErrorsOf(recording, recording.handover);
  RecordProperty("mean_percent", std::to_string(100 * errors.mean));
  RecordProperty("worst_percent", std::to_string(100 * errors.worst));
  std::printf("pp8: mean error %.3f %%, worst %.3f %%\n", 100 * errors.mean,
              100 * errors.worst);
  EXPECT_LE(errors.mean, 0.005);
  EXPECT_LE(errors.worst, 0.005);
}

TEST(Replay, WithoutAnyHandoverTheErrorIsTheGapsBetweenTasks) {
  const Recording recording = ReadRecording();
  const Errors errors = ErrorsOf(recording, kZero);
  // 22 fills and drains and 15 turns, each with a gap or two.
  EXPECT_GT(errors.mean, 0.008);
  EXPECT_LT(errors.worst, 0.02);
}

}  // namespace
}  // namespace pipeloom::emulator
