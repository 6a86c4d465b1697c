// The schedule search and its inner loops on uniform pipelines.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "planner/bounds/lower_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/fixed_order.h"
#include "planner/core/retime.h"
#include "planner/search/search_graph.h"
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

// Times one order with other durations each time: alone, and kLanes sets at
// once (items are tasks times sets).
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

// The minimum of a list scheduler: for each rank a heap of tasks that have
// arrived and one of tasks that will arrive, and a heap of decisions; no memory
// limits, no patience, no order except backward, forward, weight gradient and
// then id.
int64_t BareListSchedule(const FlatGraph& g) {
  using Entry = std::pair<int64_t, int32_t>;
  using Heap =
      std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>>;
  constexpr int64_t kOrder[] = {1, 0, 2};  // Indexed by pass.
  const auto ranks = static_cast<size_t>(g.num_ranks);
  std::vector<Heap> coming(ranks);
  std::vector<Heap> ready(ranks);
  std::vector<int64_t> free_at(ranks, 0);
  std::vector<int32_t> missing(g.duration.size());
  std::vector<int64_t> arrival(g.duration.size(), 0);
  Heap decisions;
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    missing[t] = g.pred_offset[t + 1] - g.pred_offset[t];
    if (missing[t] > 0) continue;
    coming[g.rank[t]].emplace(0, t);
    decisions.emplace(0, g.rank[t]);
  }
  int64_t finish = 0;
  while (!decisions.empty()) {
    const auto [now, r] = decisions.top();
    decisions.pop();
    if (now < free_at[r]) continue;
    while (!coming[r].empty() && coming[r].top().first <= now) {
      const int32_t t = coming[r].top().second;
      ready[r].emplace(kOrder[static_cast<size_t>(g.pass[t])] * g.num_tasks + t,
                       t);
      coming[r].pop();
    }
    if (ready[r].empty()) continue;
    const int32_t t = ready[r].top().second;
    ready[r].pop();
    const int64_t end = now + g.duration[t];
    free_at[r] = end;
    finish = std::max(finish, end);
    decisions.emplace(end, r);
    for (int32_t e = g.succ_offset[t]; e < g.succ_offset[t + 1]; ++e) {
      const int32_t next = g.succ[e];
      arrival[next] = std::max(arrival[next], end + g.succ_delay[e]);
      if (--missing[next] > 0) continue;
      const int32_t other = g.rank[next];
      coming[other].emplace(arrival[next], next);
      decisions.emplace(std::max(arrival[next], free_at[other]), other);
    }
  }
  return finish;
}

void BM_BareListSchedule(benchmark::State& state) {
  const FlatGraph graph(Pipeline(state, Bytes(0)));
  if (BareListSchedule(graph) != ListScheduler(graph).Run({})) {
    state.SkipWithError("the two list schedulers differ");
  }
  for (auto _ : state) benchmark::DoNotOptimize(BareListSchedule(graph));
  state.SetItemsProcessed(state.iterations() * graph.num_tasks);
}
BENCHMARK(BM_BareListSchedule)
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

// Memory is half of what 1F1B needs: the bound is out of reach, so every
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
