// EmulateStep on 1F1B-like plans of 8 ranks. Items are tasks.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "emulator/step/emulate_step.h"
#include "emulator/step/step_engine.h"
#include "emulator/step/step_program.h"
#include "emulator/step/trace_builder.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "tests/support/random_problem.h"

namespace pipeloom::emulator {
namespace {

constexpr int32_t kRanks = 8;

StageGraph GraphOf(int32_t num_tasks) {
  return testing::UniformGraph({.ranks = kRanks,
                                .microbatches = num_tasks / kRanks / 2,
                                .weight_grad = kZero,
                                .delay = Microseconds(20)});
}

// Makes a plan whose receives are posted one task ahead.
ExecutionPlan PlanOf(StageGraph problem, const RankOrders& orders) {
  ExecutionPlan plan;
  plan.graph = std::move(problem);
  const StageGraph& graph = plan.graph;
  plan.programs.resize(graph.num_ranks());
  const auto crosses = [&](EdgeId e) {
    return graph.task(graph.edge(e).from).rank !=
           graph.task(graph.edge(e).to).rank;
  };
  for (const RankId rank : graph.rank_ids()) {
    std::vector<Instruction>& program = plan.programs[rank];
    const std::vector<TaskId>& tasks = orders[rank];
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

// Makes a plan whose ranks run their tasks by id.
ExecutionPlan PlanOf(int32_t num_tasks) {
  StageGraph graph = GraphOf(num_tasks);
  RankOrders orders(graph.num_ranks());
  for (const TaskId t : graph.task_ids()) {
    orders[graph.task(t).rank].push_back(t);
  }
  return PlanOf(std::move(graph), orders);
}

void PerTask(benchmark::State& state, const ExecutionPlan& plan) {
  state.SetItemsProcessed(state.iterations() * plan.graph.num_tasks());
  state.counters["a_task"] = benchmark::Counter(
      plan.graph.num_tasks(), benchmark::Counter::kIsIterationInvariantRate |
                                  benchmark::Counter::kInvert);
}

EmulateOptions OptionsOf(int64_t sharing) {
  EmulateOptions options{.links = SharedLinks{}};
  options.links->sharing = static_cast<LinkSharing>(sharing);
  return options;
}

// Emulates a plan once: compiles and runs it, with a trace in fresh memory.
void BM_EmulateStep(benchmark::State& state) {
  const ExecutionPlan plan = PlanOf(static_cast<int32_t>(state.range(0)));
  EmulateOptions options = OptionsOf(state.range(1));
  options.full_trace = state.range(2) != 0;
  for (auto _ : state) {
    auto trace = EmulateStep(plan, options);
    PIPELOOM_CHECK(trace.ok());
    benchmark::DoNotOptimize(trace);
  }
  PerTask(state, plan);
}
BENCHMARK(BM_EmulateStep)
    ->ArgNames({"tasks", "sharing", "full_trace"})
    ->ArgsProduct({{1'000, 10'000, 100'000}, {1, 2}, {0, 1}});

// The same for plan after plan, reusing the memory of the one before.
void BM_EmulateStepAgain(benchmark::State& state) {
  const ExecutionPlan plan = PlanOf(static_cast<int32_t>(state.range(0)));
  const EmulateOptions options = OptionsOf(state.range(1));
  StepEmulator emulator;
  StepTrace trace;
  for (auto _ : state) {
    PIPELOOM_CHECK(emulator.Emulate(plan, options, &trace).ok());
    benchmark::DoNotOptimize(trace);
  }
  PerTask(state, plan);
}
BENCHMARK(BM_EmulateStepAgain)
    ->ArgNames({"tasks", "sharing"})
    ->ArgsProduct({{1'000, 10'000, 100'000}, {1, 2}});

// Runs a compiled plan again, in reused memory: links, contention and, with
// `trace`, all spans and the memory timeline.
void BM_RunCompiledStep(benchmark::State& state) {
  const ExecutionPlan plan = PlanOf(static_cast<int32_t>(state.range(0)));
  const EmulateOptions options = OptionsOf(state.range(1));
  const auto program = CompileStep(plan, options);
  PIPELOOM_CHECK(program.ok());
  StepEngine engine(*program, TimesOf(*program, plan, options));
  StepTrace trace;
  for (auto _ : state) {
    PIPELOOM_CHECK(engine.Run().ok());
    if (state.range(2) != 0) BuildTrace(plan.graph, engine, true, &trace);
    benchmark::DoNotOptimize(trace);
    benchmark::DoNotOptimize(engine.finish());
  }
  PerTask(state, plan);
}
BENCHMARK(BM_RunCompiledStep)
    ->ArgNames({"tasks", "sharing", "trace"})
    ->ArgsProduct({{1'000, 10'000, 100'000},
                   {static_cast<int64_t>(LinkSharing::kNone),
                    static_cast<int64_t>(LinkSharing::kPerPair),
                    static_cast<int64_t>(LinkSharing::kPerRank),
                    static_cast<int64_t>(LinkSharing::kFairNic)},
                   {0, 1}});

void BM_CompileStep(benchmark::State& state) {
  const ExecutionPlan plan = PlanOf(static_cast<int32_t>(state.range(0)));
  const EmulateOptions options = OptionsOf(1);
  for (auto _ : state) {
    auto program = CompileStep(plan, options);
    PIPELOOM_CHECK(program.ok());
    benchmark::DoNotOptimize(TimesOf(*program, plan, options));
  }
  PerTask(state, plan);
}
BENCHMARK(BM_CompileStep)
    ->ArgName("tasks")
    ->Arg(1'000)
    ->Arg(10'000)
    ->Arg(100'000);

}  // namespace
}  // namespace pipeloom::emulator
