// The schedule search from 1,000 to 100,000 tasks, on pipelines whose
// microbatches have 0.5 to 1.5 times the mean work, at the memory of 1F1B.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "planner/search/search_graph.h"
#include "tests/support/random_problem.h"

namespace pipeloom::planner {
namespace {

StageGraph Pipeline(const benchmark::State& state) {
  const StageGraph equal = testing::UniformGraph(
      {.ranks = static_cast<int32_t>(state.range(0)),
       .chunks = 2,
       .microbatches = static_cast<int32_t>(state.range(1)),
       .vee = true,
       .split_backward = true,
       .limit = Bytes(2000 * state.range(0))});
  Random random(/*seed=*/1);
  std::vector<double> work(static_cast<size_t>(state.range(1)));
  for (double& w : work) w = 0.5 + random.Unit();
  IdVector<TaskId, Task> tasks;
  for (const TaskId t : equal.task_ids()) {
    Task task = equal.task(t);
    task.duration =
        Microseconds(1000 * work[static_cast<size_t>(task.microbatch.value())]);
    tasks.push_back(task);
  }
  auto graph = StageGraph::Create("uneven", equal.ranks(), equal.module_names(),
                                  std::move(tasks), equal.edges());
  PIPELOOM_CHECK(graph.ok());
  return *std::move(graph);
}

// Searches for a schedule; empty after an error.
SearchResult Search(const StageGraph& graph, int64_t evaluations,
                    benchmark::State& state) {
  SearchBudget budget;
  budget.max_evaluations = evaluations;
  auto result = SearchGraph(graph, /*seed=*/1, budget);
  if (!result.ok()) {
    state.SkipWithError(result.status().ToString().c_str());
    return {};
  }
  return *std::move(result);
}

// Items are evaluations.
void BM_SearchGrowth(benchmark::State& state) {
  const StageGraph graph = Pipeline(state);
  int64_t evaluations = 0;
  for (auto _ : state) {
    evaluations += Search(graph, 200, state).evaluations;
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

// Runs a search that ends as soon as its answer is within 1 % of the answer
// after `final` evaluations. The number of evaluations this takes is found
// beforehand, to about 10 %.
void BM_SearchToOnePercent(benchmark::State& state) {
  const StageGraph graph = Pipeline(state);
  const SearchResult last = Search(graph, state.range(2), state);
  const auto final_time =
      static_cast<double>(last.schedule.step_time().count());
  int64_t enough = 1;
  while (enough < state.range(2) &&
         static_cast<double>(
             Search(graph, enough, state).schedule.step_time().count()) >
             1.01 * final_time) {
    enough = std::max(enough + 1, enough * 11 / 10);
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(Search(graph, enough, state));
  }
  state.counters["tasks"] = graph.num_tasks();
  state.counters["evaluations"] = static_cast<double>(enough);
  state.counters["final_gap"] = last.gap_ratio();
}
BENCHMARK(BM_SearchToOnePercent)
    ->Args({8, 24, 20'000})
    ->Args({8, 64, 10'000})
    ->Args({8, 256, 3'000})
    ->Args({64, 64, 1'000})
    ->Args({64, 256, 300})
    ->ArgNames({"ranks", "microbatches", "final"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pipeloom::planner
