// The schedule search and its inner loops on uniform pipelines.
#include <benchmark/benchmark.h>

#include <utility>
#include <vector>

#include "planner/fixed_order.h"
#include "planner/list_scheduler.h"
#include "planner/lower_bound.h"
#include "planner/retime.h"
#include "planner/search_graph.h"
#include "tests/support/random_problem.h"

namespace pipeloom::planner {
namespace {

StageGraph Pipeline(const benchmark::State& state, Bytes limit) {
  return testing::UniformGraph(
      {.ranks = static_cast<int32_t>(state.range(0)),
       .chunks = 2,
       .microbatches = static_cast<int32_t>(state.range(1)),
       .vee = true,
       .split_backward = true,
       .limit = limit});
}

void BM_Retime(benchmark::State& state) {
  const FlatGraph graph(Pipeline(state, Bytes(0)));
  ListScheduler scheduler(graph);
  scheduler.Run({});
  Retimer retimer(graph);
  for (auto _ : state) {
    benchmark::DoNotOptimize(retimer.Retime(scheduler.sequence()));
  }
  state.SetItemsProcessed(state.iterations() * graph.num_tasks);
}
BENCHMARK(BM_Retime)
    ->ArgsProduct({{4, 8, 64}, {24, 256}})
    ->ArgNames({"ranks", "microbatches"});

// One order with other durations each time: alone, and kLanes sets at once
// (items are tasks times sets).
void BM_FixedOrder(benchmark::State& state) {
  const FlatGraph graph(Pipeline(state, Bytes(0)));
  ListScheduler scheduler(graph);
  scheduler.Run({});
  const FixedOrder order(graph, scheduler.sequence());
  FixedOrder::Durations durations;
  FixedOrder::Workspace workspace;
  order.Arrange(graph.duration, durations);
  for (auto _ : state) {
    benchmark::DoNotOptimize(order.Time(durations, workspace));
  }
  state.SetItemsProcessed(state.iterations() * graph.num_tasks);
}
BENCHMARK(BM_FixedOrder)
    ->ArgsProduct({{4, 8, 64}, {24, 256}})
    ->ArgNames({"ranks", "microbatches"});

void BM_FixedOrderBatch(benchmark::State& state) {
  const FlatGraph graph(Pipeline(state, Bytes(0)));
  ListScheduler scheduler(graph);
  scheduler.Run({});
  const FixedOrder order(graph, scheduler.sequence());
  FixedOrder::BatchDurations durations;
  FixedOrder::Workspace workspace;
  std::vector<int64_t> by_task = graph.duration;
  for (int32_t lane = 0; lane < FixedOrder::kLanes; ++lane) {
    for (int64_t& duration : by_task) duration += lane;
    order.Arrange(by_task, lane, durations);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(order.Time(durations, workspace));
  }
  state.SetItemsProcessed(state.iterations() * graph.num_tasks *
                          FixedOrder::kLanes);
}
BENCHMARK(BM_FixedOrderBatch)
    ->ArgsProduct({{4, 8, 64}, {24, 256}})
    ->ArgNames({"ranks", "microbatches"});

void BM_ListSchedule(benchmark::State& state) {
  const bool limited = state.range(2) != 0;
  const FlatGraph graph(
      Pipeline(state, Bytes(limited ? 2000 * state.range(0) : 0)));
  ListScheduler scheduler(graph);
  for (auto _ : state) benchmark::DoNotOptimize(scheduler.Run({}));
  state.SetItemsProcessed(state.iterations() * graph.num_tasks);
}
BENCHMARK(BM_ListSchedule)
    ->ArgsProduct({{4, 8, 64}, {24, 256}, {0, 1}})
    ->ArgNames({"ranks", "microbatches", "limited"});

void BM_LowerBound(benchmark::State& state) {
  const FlatGraph graph(Pipeline(state, Bytes(0)));
  for (auto _ : state) benchmark::DoNotOptimize(LowerBound(graph));
  state.SetItemsProcessed(state.iterations() * graph.num_tasks);
}
BENCHMARK(BM_LowerBound)
    ->ArgsProduct({{4, 8}, {24, 256}})
    ->ArgNames({"ranks", "microbatches"});

// Memory for half of what 1F1B needs: the bound is out of reach, so every
// evaluation is made.
void BM_SearchGraph(benchmark::State& state) {
  const StageGraph graph = Pipeline(state, Bytes(1000 * state.range(0)));
  SearchBudget budget;
  budget.max_evaluations = 2000;
  double gap_ratio = 0;
  for (auto _ : state) {
    const auto result = SearchGraph(graph, /*seed=*/1, budget);
    if (!result.ok()) {
      state.SkipWithError(result.status().ToString().c_str());
      break;
    }
    gap_ratio = result->gap_ratio();
  }
  state.SetItemsProcessed(state.iterations() * budget.max_evaluations);
  state.counters["gap_ratio"] = gap_ratio;
}
BENCHMARK(BM_SearchGraph)
    ->ArgsProduct({{4, 8}, {8, 24}})
    ->ArgNames({"ranks", "microbatches"})
    ->Unit(benchmark::kMillisecond);

// Evaluations a second from 1,000 to 100,000 tasks; items are evaluations.
void BM_SearchGrowth(benchmark::State& state) {
  const StageGraph graph = Pipeline(state, Bytes(2000 * state.range(0)));
  SearchBudget budget;
  budget.max_evaluations = 200;
  int64_t evaluations = 0;
  for (auto _ : state) {
    const auto result = SearchGraph(graph, /*seed=*/1, budget);
    if (!result.ok()) {
      state.SkipWithError(result.status().ToString().c_str());
      break;
    }
    evaluations += result->evaluations;
  }
  state.SetItemsProcessed(evaluations);
  state.counters["tasks"] = graph.num_tasks();
}
BENCHMARK(BM_SearchGrowth)
    ->Args({8, 24})
    ->Args({8, 64})
    ->Args({8, 256})
    ->Args({64, 64})
    ->Args({64, 256})
    ->ArgNames({"ranks", "microbatches"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pipeloom::planner
