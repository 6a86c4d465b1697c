// EmulateStep on 1F1B-like plans of 8 ranks: items are tasks.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "emulator/emulate_step.h"
#include "ir/execution_plan.h"
#include "tests/support/random_problem.h"

namespace pipeloom::emulator {
namespace {

// Ranks run their tasks by id, with receives one task ahead.
ExecutionPlan PlanOf(int32_t num_tasks) {
  constexpr int32_t kRanks = 8;
  ExecutionPlan plan;
  plan.graph = testing::UniformGraph({.ranks = kRanks,
                                      .microbatches = num_tasks / kRanks / 2,
                                      .weight_grad = kZero,
                                      .delay = Microseconds(20)});
  const StageGraph& graph = plan.graph;
  plan.programs.resize(graph.num_ranks());
  const auto crosses = [&](EdgeId e) {
    return graph.task(graph.edge(e).from).rank !=
           graph.task(graph.edge(e).to).rank;
  };
  for (const RankId rank : graph.rank_ids()) {
    std::vector<Instruction>& program = plan.programs[rank];
    const auto tasks = graph.tasks_of(rank);
    const auto post = [&](size_t k) {
      if (k >= tasks.size()) return;
      for (const EdgeId e : graph.incoming(tasks[k])) {
        if (crosses(e)) program.push_back(Recv{e});
      }
    };
    post(0);
    for (size_t k = 0; k < tasks.size(); ++k) {
      post(k + 1);
      for (const EdgeId e : graph.incoming(tasks[k])) {
        if (crosses(e)) program.push_back(WaitRecv{e});
      }
      program.push_back(Compute{tasks[k]});
      for (const EdgeId e : graph.incoming(tasks[k])) {
        if (crosses(e)) program.push_back(Free{e});
      }
      for (const EdgeId e : graph.outgoing(tasks[k])) {
        if (crosses(e)) program.push_back(Send{e});
      }
    }
    for (const TaskId task : tasks) {
      for (const EdgeId e : graph.outgoing(task)) {
        if (crosses(e)) program.push_back(WaitSend{e});
      }
    }
  }
  return plan;
}

void BM_EmulateStep(benchmark::State& state) {
  const ExecutionPlan plan = PlanOf(static_cast<int32_t>(state.range(0)));
  const EmulateOptions options{.full_trace = state.range(1) != 0};
  for (auto _ : state) {
    auto trace = EmulateStep(plan, options);
    PIPELOOM_CHECK(trace.ok());
    benchmark::DoNotOptimize(trace);
  }
  state.SetItemsProcessed(state.iterations() * plan.graph.num_tasks());
}
BENCHMARK(BM_EmulateStep)
    ->ArgNames({"tasks", "full_trace"})
    ->ArgsProduct({{1'000, 10'000, 100'000}, {0, 1}});

}  // namespace
}  // namespace pipeloom::emulator
