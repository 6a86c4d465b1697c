// Tests of modulo schedules: every answer against an independent expansion to
// many microbatches, periods against a search through all starts, and those of
// V schedules known from the literature.
#include "planner/construct/modulo_schedule.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "formats/graph/problem_suite.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/stage_graph.h"
#include "planner/core/flat_graph.h"
#include "planner/search/search_graph.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

// Returns the graph of equal stages, with a limit in activations of a chunk.
StageGraph Pipeline(int32_t ranks, int32_t chunks, bool vee, bool split,
                    double forward_ms, double backward_ms,
                    double weight_grad_ms, int64_t activations,
                    int32_t microbatches = 4, double delay_ms = 0) {
  formats::PipelineProblem problem;
  problem.ranks = ranks;
  problem.microbatches = microbatches;
  problem.split_backward = split;
  problem.memory_limit = Bytes(1000 * activations);
  problem.delay = Microseconds(1000 * delay_ms);
  problem.modules = {{.name = "model",
                      .chunks = chunks,
                      .vee = vee,
                      .forward = Microseconds(1000 * forward_ms),
                      .backward = Microseconds(1000 * backward_ms),
                      .weight_grad = Microseconds(1000 * weight_grad_ms),
                      .activation = Bytes(1000)}};
  auto graph = formats::MakePipelineGraph("problem", problem);
  EXPECT_THAT(graph, testing::IsOk());
  return *std::move(graph);
}

// Expands a schedule to enough microbatches for a steady state and looks at
// every slot. Returns what is wrong, or nothing.
std::string Fault(const MeanMicrobatch& mean, const ModuloSearch& search,
                  int32_t period) {
  int32_t length = 0;
  std::vector<int32_t> slots;
  for (const MeanMicrobatch::TaskClass& c : mean.classes) {
    slots.push_back(
        static_cast<int32_t>((c.duration + search.slot() / 2) / search.slot()));
  }
  for (size_t c = 0; c < slots.size(); ++c) {
    length = std::max(length, search.start()[c] + slots[c]);
    for (const MeanMicrobatch::Producer& producer : mean.classes[c].producers) {
      if (search.start()[c] <
          search.start()[producer.of] + slots[producer.of]) {
        return "a task begins before its producer ends";
      }
    }
  }
  const int32_t microbatches = 2 * (length / period + 2);
  const int32_t end = microbatches * period + length;
  for (size_t r = 0; r < mean.capacity.size(); ++r) {
    std::vector<int32_t> running(static_cast<size_t>(end), 0);
    std::vector<int64_t> change(static_cast<size_t>(end) + 1, 0);
    for (size_t c = 0; c < slots.size(); ++c) {
      const MeanMicrobatch::TaskClass& task = mean.classes[c];
      if (task.rank != static_cast<int32_t>(r)) continue;
      for (int32_t m = 0; m < microbatches; ++m) {
        const int32_t start = m * period + search.start()[c];
        for (int32_t i = 0; i < slots[c]; ++i) {
          if (++running[start + i] > 1) return "two tasks run at once";
        }
        change[start] += task.alloc;
        change[start + slots[c]] -= task.free;
      }
    }
    int64_t held = 0;
    for (const int64_t bytes : change) {
      held += bytes;
      if (held > mean.capacity[r]) return "memory is over its limit";
    }
  }
  return "";
}

TEST(ModuloScheduleTest, WhatFitsHoldsForAnyNumberOfMicrobatches) {
  int found = 0;
  for (const int32_t ranks : {2, 4, 8}) {
    for (const int32_t chunks : {1, 2, 3, 4}) {
      for (const bool vee : {false, true}) {
        for (const bool split : {false, true}) {
          const StageGraph graph = Pipeline(ranks, chunks, vee, split, 1.1, 1.4,
                                            0.8, chunks + ranks, 4, 0.3);
          const MeanMicrobatch mean(graph);
          ASSERT_TRUE(mean.is_valid());
          ModuloSearch search(mean);
          Random random(7);
          int32_t period = search.least_period();
          while (period <= ModuloSearch::kMaxSlots &&
                 !search.Search(period, 500, random)) {
            ++period;
          }
          if (period > ModuloSearch::kMaxSlots) continue;
          ++found;
          EXPECT_EQ(Fault(mean, search, period), "")
              << ranks << " ranks, " << chunks << " chunks, vee " << vee
              << ", split " << split;
        }
      }
    }
  }
  EXPECT_EQ(found, 48);
}

// Qi et al., "Pipeline parallelism with controllable memory": with passes of
// equal length, V-Min needs no more than a third of 1F1B's memory and V-Half
// half of it (both rounded up), at full load.
TEST(ModuloScheduleTest, FindsThePeriodsOfVSchedules) {
  for (const int32_t ranks : {4, 8}) {
    for (const int32_t activations : {ranks, ranks + 2}) {
      const StageGraph graph =
          Pipeline(ranks, 2, true, true, 1, 1, 1, activations);
      const MeanMicrobatch mean(graph);
      ModuloSearch search(mean);
      EXPECT_EQ(search.least_period(), 6);
      Random random(1);
      EXPECT_TRUE(search.Search(6, 20'000, random))
          << ranks << " ranks, " << activations << " activations";
    }
  }
}

// Tries every start below `latest` for all classes in turn. Returns whether
// some schedule of the period keeps rank, order and memory.
bool AnyScheduleFits(const MeanMicrobatch& mean,
                     const std::vector<int32_t>& slots, int32_t period,
                     int32_t latest, std::vector<int32_t>& start) {
  const size_t c = start.size();
  if (c == slots.size()) {
    for (size_t r = 0; r < mean.capacity.size(); ++r) {
      for (int32_t slot = 0; slot < period; ++slot) {
        int64_t held = 0;
        for (size_t k = 0; k < c; ++k) {
          const MeanMicrobatch::TaskClass& task = mean.classes[k];
          if (task.rank != static_cast<int32_t>(r)) continue;
          for (int32_t m = 0; m <= 4 * latest / period; ++m) {
            const int32_t begin = start[k] + m * period;
            const int32_t now = 4 * latest / period * period + slot;
            if (begin <= now) held += task.alloc;
            if (begin + slots[k] <= now) held -= task.free;
          }
        }
        if (held > mean.capacity[r]) return false;
      }
    }
    return true;
  }
  int32_t first = 0;
  for (const MeanMicrobatch::Producer& p : mean.classes[c].producers) {
    first = std::max(first, start[p.of] + slots[p.of]);
  }
  for (int32_t at = first; at <= latest; ++at) {
    bool meets = false;
    for (size_t k = 0; k < c; ++k) {
      if (mean.classes[k].rank != mean.classes[c].rank) continue;
      for (int32_t i = 0; i < slots[c]; ++i) {
        for (int32_t j = 0; j < slots[k]; ++j) {
          meets = meets || (at + i) % period == (start[k] + j) % period;
        }
      }
    }
    if (meets) continue;
    start.push_back(at);
    const bool fits = AnyScheduleFits(mean, slots, period, latest, start);
    start.pop_back();
    if (fits) return true;
  }
  return false;
}

TEST(ModuloScheduleTest, ShortestPeriodIsThatOfAllSchedules) {
  int checked = 0;
  for (const bool split : {false, true}) {
    for (const int32_t backward : {1, 2}) {
      for (const int64_t activations : {1, 2, 3}) {
        const StageGraph graph =
            Pipeline(2, 1, false, split, 1, backward, 1, activations, 2);
        const MeanMicrobatch mean(graph);
        ModuloSearch search(mean);
        std::vector<int32_t> slots;
        for (const MeanMicrobatch::TaskClass& c : mean.classes) {
          slots.push_back(static_cast<int32_t>(
              (c.duration + search.slot() / 2) / search.slot()));
        }
        std::vector<int32_t> start;
        int32_t shortest = 1;
        while (!AnyScheduleFits(mean, slots, shortest, 16, start)) ++shortest;
        EXPECT_LE(search.least_period(), shortest);
        Random random(3);
        int32_t found = search.least_period();
        while (found < 40 && !search.Search(found, 2000, random)) ++found;
        EXPECT_EQ(found, shortest)
            << "split " << split << ", backward " << backward << ", "
            << activations << " activations";
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, 12);
}

// Two microbatches' memory on 8 ranks with four chunks each: without modulo
// schedules the search had 132 ms after ten seconds.
TEST(ModuloScheduleTest, TheSearchUsesThemUnderTightMemory) {
  const StageGraph graph =
      Pipeline(8, 4, true, true, 0.25, 0.25, 0.25, 8, /*microbatches=*/19);
  const auto result = SearchGraph(graph, 1, {.max_evaluations = 1500});
  ASSERT_THAT(result, testing::IsOk());
  EXPECT_LE(ToMilliseconds(result->schedule.step_time()), 107);
}

TEST(ModuloScheduleTest, StepsWithTiesBetweenMicrobatchesHaveNone) {
  IdVector<TaskId, Task> tasks;
  for (const int32_t m : {0, 1}) {
    tasks.push_back({.rank = RankId(0),
                     .module = ModuleId(0),
                     .stage = StageId(0),
                     .microbatch = MicrobatchId(m),
                     .duration = Nanoseconds(5)});
  }
  IdVector<EdgeId, Dependency> edges;
  edges.push_back({.from = TaskId(0), .to = TaskId(1)});
  const auto graph =
      StageGraph::Create("tied", IdVector<RankId, RankSpec>(1), {""},
                         std::move(tasks), std::move(edges));
  ASSERT_THAT(graph, testing::IsOk());
  EXPECT_FALSE(MeanMicrobatch(*graph).is_valid());
}

}  // namespace
}  // namespace pipeloom::planner
