// The schedule search and its inner loops on uniform pipelines.
#include <benchmark/benchmark.h>

#include <utility>

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

}  // namespace
}  // namespace pipeloom::planner
