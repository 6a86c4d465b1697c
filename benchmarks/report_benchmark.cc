// Output for people: analysing a step's trace, writing it as a report and as a
// Chrome trace, and reading such a trace back. Items are tasks of a 1F1B step
// on 64 ranks; bytes are those of the text.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "cli/report/report.h"
#include "emulator/step/emulate_step.h"
#include "planner/lower/lower_plan.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/virtual_pipeline.h"
#include "tests/support/random_problem.h"
#include "trace/chrome_trace.h"
#include "trace/trace_analysis.h"
#include "trace/trace_import.h"

namespace pipeloom::cli {
namespace {

struct Sample {
  ExecutionPlan plan{};
  StepTrace trace{};
};

Sample MakeSample(int32_t num_tasks) {
  constexpr int32_t kRanks = 64;
  const StageGraph graph =
      testing::UniformGraph({.ranks = kRanks,
                             .microbatches = num_tasks / kRanks / 2,
                             .weight_grad = kZero,
                             .delay = Microseconds(20)});
  auto orders = planner::OneFOneBOrders(planner::VirtualPipeline(graph));
  PIPELOOM_CHECK(orders.ok());
  const auto schedule = TimeSchedule(graph, *std::move(orders));
  PIPELOOM_CHECK(schedule.ok());
  auto plan = planner::LowerPlan(graph, *schedule);
  PIPELOOM_CHECK(plan.ok());
  auto trace = emulator::EmulateStep(*plan);
  PIPELOOM_CHECK(trace.ok());
  return {*std::move(plan), *std::move(trace)};
}

void Sizes(benchmark::internal::Benchmark* b) {
  b->Arg(1 << 10)->Arg(10 << 10)->Arg(100 << 10)->Unit(benchmark::kMillisecond);
}

void BM_Analyze(benchmark::State& state) {
  const Sample sample = MakeSample(static_cast<int32_t>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(trace::Analyze(sample.plan, sample.trace));
  }
  state.SetItemsProcessed(state.iterations() * sample.plan.graph.num_tasks());
}
BENCHMARK(BM_Analyze)->Apply(Sizes);

void BM_WriteReport(benchmark::State& state) {
  const Sample sample = MakeSample(static_cast<int32_t>(state.range(0)));
  Report report;
  report.title = "a step";
  report.steps = {
      {.title = "Step 0", .plan = &sample.plan, .trace = &sample.trace}};
  int64_t bytes = 0;
  for (auto _ : state) {
    bytes += static_cast<int64_t>(ReportHtml(report).size());
  }
  state.SetBytesProcessed(bytes);
  state.SetItemsProcessed(state.iterations() * sample.plan.graph.num_tasks());
}
BENCHMARK(BM_WriteReport)->Apply(Sizes);

void BM_WriteChromeTrace(benchmark::State& state) {
  const Sample sample = MakeSample(static_cast<int32_t>(state.range(0)));
  int64_t bytes = 0;
  for (auto _ : state) {
    bytes += static_cast<int64_t>(
        trace::ChromeTrace({{{&sample.plan, &sample.trace}}}).size());
  }
  state.SetBytesProcessed(bytes);
}
BENCHMARK(BM_WriteChromeTrace)->Apply(Sizes);

void BM_ReadChromeTrace(benchmark::State& state) {
  const Sample sample = MakeSample(static_cast<int32_t>(state.range(0)));
  const std::string text =
      trace::ChromeTrace({{{&sample.plan, &sample.trace}}});
  for (auto _ : state) {
    auto at = std::make_shared<size_t>(0);
    const auto imported = trace::ImportTrace(
        {{"trace.json",
          [&text, at](char* buffer, size_t size) -> absl::StatusOr<size_t> {
            const size_t n = std::min(size, text.size() - *at);
            std::copy_n(text.data() + *at, n, buffer);
            *at += n;
            return n;
          }}});
    PIPELOOM_CHECK(imported.ok());
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
}
BENCHMARK(BM_ReadChromeTrace)->Apply(Sizes);

}  // namespace
}  // namespace pipeloom::cli
