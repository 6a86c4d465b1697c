// Operation logs: made by a slow walk over random pipelines whose parts are
// known, replayed, and their slowdown attributed.
#include "trace/oplog/op_log.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/schedule.h"
#include "tests/support/status_matchers.h"
#include "trace/oplog/logged_pipeline.h"
#include "trace/oplog/op_replay.h"
#include "trace/oplog/slowdown.h"

namespace pipeloom::trace {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A training's shape and the time of each operation.
struct Model {
  int32_t replicas = 1;
  int32_t stages = 1;
  int32_t microbatches = 1;
  std::function<int64_t(OpKind kind, int32_t replica, int32_t stage,
                        int32_t microbatch)>
      time{};         // In us.
  int64_t pause = 0;  // Between two operations, in us.
};

struct Planned {
  OpKind kind = OpKind::kForward;
  int32_t microbatch = -1;
  std::string meeting{};  // Empty: local.
};

// Returns the program of a worker: all forwards first, so that sends that wait
// for their receiver cannot close a circle.
std::vector<Planned> ProgramOf(const Model& model, int32_t r, int32_t s) {
  std::vector<Planned> program = {
      {OpKind::kAllGather, -1, absl::StrCat("AG", s)}};
  int32_t sent = 0, received = 0, back_sent = 0, back_received = 0;
  const auto forward = [&](int32_t m) {
    if (s > 0) {
      program.push_back({OpKind::kReceiveForward, -1,
                         absl::StrFormat("F%d.%d.%d", r, s, received++)});
    }
    program.push_back({OpKind::kForward, m, ""});
    if (s + 1 < model.stages) {
      program.push_back({OpKind::kSendForward, -1,
                         absl::StrFormat("F%d.%d.%d", r, s + 1, sent++)});
    }
  };
  const auto backward = [&](int32_t m) {
    if (s + 1 < model.stages) {
      program.push_back({OpKind::kReceiveBackward, -1,
                         absl::StrFormat("B%d.%d.%d", r, s, back_received++)});
    }
    program.push_back({OpKind::kBackward, m, ""});
    if (s > 0) {
      program.push_back({OpKind::kSendBackward, -1,
                         absl::StrFormat("B%d.%d.%d", r, s - 1, back_sent++)});
    }
  };
  for (int32_t m = 0; m < model.microbatches; ++m) forward(m);
  for (int32_t m = 0; m < model.microbatches; ++m) backward(m);
  if (s == 0 || s + 1 == model.stages) {
    program.push_back({OpKind::kEmbedding, -1, absl::StrCat("EM", r)});
  }
  program.push_back({OpKind::kReduceScatter, -1, absl::StrCat("RS", s)});
  program.push_back({OpKind::kClip, -1, "CLIP"});
  program.push_back({OpKind::kOptimizer, -1, ""});
  return program;
}

// Walks all programs until nothing changes, and writes the log. Also returns
// the step's time in us.
std::pair<std::string, int64_t> LogOf(const Model& model, int64_t number = 7) {
  struct Worker {
    std::vector<Planned> program{};
    std::vector<int64_t> start{};
    std::vector<int64_t> end{};
  };
  std::vector<Worker> workers;
  std::map<std::string, std::vector<std::pair<size_t, size_t>>> meetings;
  for (int32_t r = 0; r < model.replicas; ++r) {
    for (int32_t s = 0; s < model.stages; ++s) {
      Worker worker{.program = ProgramOf(model, r, s)};
      for (size_t i = 0; i < worker.program.size(); ++i) {
        const std::string& name = worker.program[i].meeting;
        if (!name.empty()) meetings[name].emplace_back(workers.size(), i);
      }
      worker.start.assign(worker.program.size(), 0);
      worker.end.assign(worker.program.size(), 0);
      workers.push_back(std::move(worker));
    }
  }
  bool changed = true;
  while (changed) {
    changed = false;
    for (size_t w = 0; w < workers.size(); ++w) {
      Worker& worker = workers[w];
      for (size_t i = 0; i < worker.program.size(); ++i) {
        const Planned& p = worker.program[i];
        const int64_t start = (i == 0 ? 0 : worker.end[i - 1]) + model.pause;
        int64_t from = start;
        if (!p.meeting.empty()) {
          for (const auto& [other, at] : meetings.at(p.meeting)) {
            from = std::max(from, workers[other].start[at]);
          }
        }
        const int64_t end =
            from + model.time(p.kind, static_cast<int32_t>(w) / model.stages,
                              static_cast<int32_t>(w) % model.stages,
                              p.microbatch);
        changed |= start != worker.start[i] || end != worker.end[i];
        worker.start[i] = start;
        worker.end[i] = end;
      }
    }
  }
  std::string csv = "step,dp,stage,start_ms,op,microbatch,duration_ms\n";
  int64_t last = 0;
  for (size_t w = 0; w < workers.size(); ++w) {
    const Worker& worker = workers[w];
    for (size_t i = 0; i < worker.program.size(); ++i) {
      const Planned& p = worker.program[i];
      absl::StrAppendFormat(
          &csv, "%d,%d,%d,%.3f,%s,%s,%.3f\n", number,
          static_cast<int32_t>(w) / model.stages,
          static_cast<int32_t>(w) % model.stages,
          static_cast<double>(worker.start[i]) / 1e3,
          std::string(OpName(p.kind)),
          p.microbatch < 0 ? "" : absl::StrCat(p.microbatch),
          static_cast<double>(worker.end[i] - worker.start[i]) / 1e3);
      last = std::max(last, worker.end[i]);
    }
  }
  return {csv, last};
}

// 1 ms forwards and 2 ms backwards; 10 us for everything else.
int64_t Usual(OpKind kind) {
  return kind == OpKind::kForward    ? 1000
         : kind == OpKind::kBackward ? 2000
                                     : 10;
}

Slowdown SlowdownOf(const Model& model) {
  const auto log = ParseOpLog(LogOf(model).first, "log.csv");
  PIPELOOM_CHECK(log.ok());
  const auto slowdown = AnalyzeSlowdown(*log);
  PIPELOOM_CHECK(slowdown.ok());
  return *slowdown;
}

TEST(OpReplayTest, TheReplayOfARandomLogIsTheLog) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    Model model;
    model.replicas = 1 + static_cast<int32_t>(random.Below(3));
    model.stages = 1 + static_cast<int32_t>(random.Below(4));
    model.microbatches = 1 + static_cast<int32_t>(random.Below(5));
    model.pause = static_cast<int64_t>(random.Below(20));
    // Both sides of a transfer take the same time.
    model.time = [&](OpKind kind, int32_t r, int32_t s, int32_t m) {
      const bool sends =
          kind == OpKind::kSendForward || kind == OpKind::kReceiveForward ||
          kind == OpKind::kSendBackward || kind == OpKind::kReceiveBackward;
      if (sends) return int64_t{1} + r;
      Random own(seed * 1000003 +
                 static_cast<uint64_t>(
                     ((static_cast<int>(kind) * 7 + r) * 11 + s) * 13 + m + 1));
      return static_cast<int64_t>(1 + own.Below(500));
    };
    const auto [csv, time] = LogOf(model);
    ASSERT_OK_AND_ASSIGN(const OpLog log, ParseOpLog(csv, "log.csv"));
    ASSERT_EQ(log.steps.size(), 1u);
    EXPECT_EQ(log.steps[0].number, 7);
    EXPECT_EQ(log.steps[0].time(), Duration(time * 1000));
    ASSERT_OK_AND_ASSIGN(const OpReplay replay, OpReplay::Create(log.steps[0]));
    EXPECT_EQ(replay.StepTime(), Duration(time * 1000));
    // Twice as long without pauses is twice the time.
    std::vector<Duration> twice;
    for (const OwnTime& o : replay.operations()) twice.push_back(2 * o.time);
    EXPECT_EQ(replay.StepTime(twice, false), 2 * replay.StepTime(false));
    model.pause = 0;
    EXPECT_EQ(replay.StepTime(false), Duration(LogOf(model).second * 1000));
  }
}

TEST(OpReplayTest, SendsAndReceivesBegunAtOnceEndTogether) {
  // Stage 0 sends forward 1 and receives backward 0 in one group, which ends
  // with the later of the two, whatever its own time is.
  const std::string csv =
      "step,dp,stage,start_ms,op,microbatch,duration_ms\n"
      "0,0,0,0,F,0,1\n0,0,0,1,FS,,0.1\n0,0,0,1.1,F,1,1\n"
      "0,0,0,2.1,FS,,2.1\n0,0,0,2.1,BR,,2.1\n0,0,0,4.2,B,0,2\n"
      "0,0,0,6.2,BR,,1.1\n0,0,0,7.3,B,1,2\n"
      "0,0,1,0,FR,,1.1\n0,0,1,1.1,F,0,1\n0,0,1,2.1,B,0,2\n"
      "0,0,1,4.1,BS,,0.1\n0,0,1,4.1,FR,,0.1\n0,0,1,4.2,F,1,1\n"
      "0,0,1,5.2,B,1,2\n0,0,1,7.2,BS,,0.1\n";
  ASSERT_OK_AND_ASSIGN(const OpLog log, ParseOpLog(csv, "log.csv"));
  ASSERT_OK_AND_ASSIGN(const OpReplay replay, OpReplay::Create(log.steps[0]));
  EXPECT_EQ(replay.StepTime(), log.steps[0].time());
  for (const OwnTime& o : replay.operations()) {
    if (IsLocal(o.kind)) continue;
    EXPECT_EQ(o.time, Microseconds(100));
  }
  ASSERT_OK_AND_ASSIGN(const LoggedPipeline pipeline, PipelineOf(replay, 0, 2));
  ASSERT_OK_AND_ASSIGN(const Schedule logged,
                       TimeSchedule(pipeline.graph, pipeline.order));
  // Sends do not hold up the worker there: stage 1 goes on 0.1 ms earlier.
  EXPECT_EQ(logged.step_time(), Microseconds(9200));
}

TEST(SlowdownTest, EvenStepsHaveNone) {
  const Slowdown s = SlowdownOf(
      {.replicas = 2,
       .stages = 4,
       .microbatches = 4,
       .time = [](OpKind k, int32_t, int32_t, int32_t) { return Usual(k); }});
  EXPECT_NEAR(s.whole, 1, 1e-9);
  EXPECT_NEAR(s.even_both, 1, 1e-9);
  EXPECT_LT(s.worst_error, 1e-9);
  EXPECT_THAT(CauseOf(s), StartsWith("none"));
}

TEST(SlowdownTest, ALongLastStageIsTheCause) {
  const Slowdown s = SlowdownOf(
      {.replicas = 2,
       .stages = 4,
       .microbatches = 8,
       .time = [](OpKind k, int32_t, int32_t stage, int32_t) {
         return Usual(k) * (stage == 3 && k == OpKind::kForward ? 2 : 1);
       }});
  EXPECT_EQ(CauseOf(s), "a long stage: 3, the last");
  EXPECT_GT(s.whole, 1.1);
  EXPECT_GT(s.by_stage[3].alone, s.by_stage[0].alone);
  EXPECT_GT(s.by_kind[0].explains, 0.9);
  EXPECT_NEAR(s.by_kind[1].explains, 0, 1e-9);
  EXPECT_LT(s.even_stages, 0.95);
}

TEST(SlowdownTest, ASlowWorkerIsTheCause) {
  const Slowdown s =
      SlowdownOf({.replicas = 4,
                  .stages = 4,
                  .microbatches = 8,
                  .time = [](OpKind k, int32_t r, int32_t stage, int32_t) {
                    const bool slow = r == 2 && stage == 1 && IsLocal(k);
                    return Usual(k) * (slow ? 3 : 1);
                  }});
  EXPECT_EQ(CauseOf(s), "one slow worker: stage 1 of replica 2");
  EXPECT_GT(s.worst_worker.explains, 0.9);
  EXPECT_NEAR(s.by_replica[0].explains, 0, 0.2);
}

TEST(SlowdownTest, MicrobatchesOfDifferentSizesAreTheCause) {
  const Slowdown s =
      SlowdownOf({.replicas = 4,
                  .stages = 4,
                  .microbatches = 8,
                  .time = [](OpKind k, int32_t r, int32_t, int32_t m) {
                    if (m < 0) return Usual(k);
                    return Usual(k) * (10 + (r * 7 + m * 5) % 11) / 10;
                  }});
  EXPECT_EQ(CauseOf(s), "microbatches of different sizes");
  EXPECT_GT(s.forward_backward_correlation, 0.99);
  EXPECT_LT(s.even_microbatches, 0.97);
}

TEST(OpLogTest, FaultsAreNamed) {
  Model model{
      .replicas = 2,
      .stages = 2,
      .microbatches = 2,
      .time = [](OpKind k, int32_t, int32_t, int32_t) { return Usual(k); }};
  const std::string good = LogOf(model).first;
  const auto fault = [&](const std::string& from, const std::string& to) {
    const auto log =
        ParseOpLog(absl::StrReplaceAll(good, {{from, to}}), "log.csv");
    if (!log.ok()) return std::string(log.status().message());
    return std::string(AnalyzeSlowdown(*log).status().message());
  };
  EXPECT_EQ(fault("x", "x"), "");
  EXPECT_THAT(fault("duration_ms", "length"),
              HasSubstr("there is no column \"duration_ms\""));
  EXPECT_THAT(fault(",OPT,", ",ADAM,"),
              HasSubstr("op is \"ADAM\"; it must be one of F B FS"));
  EXPECT_THAT(fault("7,1,1,0.000", "7,1,1,-3"),
              HasSubstr("start_ms is \"-3\"; it must be milliseconds"));
  EXPECT_THAT(fault("7,1,1,", "7,1,2,"),
              HasSubstr("no operation of replica 0, stage 2"));
  EXPECT_THAT(fault("7,1,1,0.000,AG", "7,1,1,0.000,LN"),
              HasSubstr("is carried out by 1 of 2 workers"));
  EXPECT_THAT(ParseOpLog("step,dp,stage,start_ms,op,microbatch,duration_ms\n",
                         "log.csv")
                  .status()
                  .message(),
              HasSubstr("no operation"));
}

TEST(OpLogTest, ManyMutantsAreReadOrRefused) {
  Model model{
      .replicas = 2,
      .stages = 3,
      .microbatches = 3,
      .time = [](OpKind k, int32_t, int32_t, int32_t) { return Usual(k); }};
  const std::string good = LogOf(model).first;
  int read = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    std::string text = good;
    for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
      const auto at = static_cast<size_t>(random.Below(text.size()));
      static constexpr char kChars[] = "0123456789,.-\nFBSRe";
      if (random.Below(3) == 0) {
        text.erase(at, 1 + random.Below(40));
      } else {
        text[at] = kChars[random.Below(sizeof(kChars) - 1)];
      }
    }
    const auto log = ParseOpLog(text, "log.csv");
    if (!log.ok()) continue;
    const auto slowdown = AnalyzeSlowdown(*log);
    if (!slowdown.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(slowdown.status()));
      continue;
    }
    EXPECT_GT(slowdown->replayed, kZero);
    ++read;
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace pipeloom::trace
