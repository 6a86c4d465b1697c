// Work once a job or once a step other than scheduling: assigning samples to
// replicas, sizing disaggregated units, and the partition search. The search's
// counters are emulated step times: of the partition found, and of DIP's rule.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "partition/batching/assign_loads.h"
#include "partition/placement/orchestration.h"
#include "planner/layout/partition_search.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "tests/support/small_job.h"

namespace pipeloom {
namespace {

// Assigns samples of log-normal cost, like that of images.
void BM_AssignLoads(benchmark::State& state) {
  Random random(1);
  std::vector<int64_t> weights(static_cast<size_t>(state.range(0)));
  for (int64_t& weight : weights) {
    const double u = random.Unit() + random.Unit() + random.Unit() - 1.5;
    weight = std::llround(1e6 * std::exp(1.5 * u));
  }
  const auto groups = static_cast<int32_t>(state.range(1));
  double spread = 0;
  for (auto _ : state) {
    const std::vector<int32_t> group = partition::AssignLoads(weights, groups);
    benchmark::DoNotOptimize(group.data());
    state.PauseTiming();
    int64_t most = 0;
    int64_t total = 0;
    for (const int64_t load : partition::GroupLoads(weights, group, groups)) {
      most = std::max(most, load);
      total += load;
    }
    spread = static_cast<double>(most) * groups / static_cast<double>(total);
    state.ResumeTiming();
  }
  state.counters["max_over_mean"] = spread;
}
BENCHMARK(BM_AssignLoads)
    ->ArgNames({"samples", "replicas"})
    ->Args({3000, 64})
    ->Args({100'000, 128})
    ->Unit(benchmark::kMillisecond);

// A problem of the size of DistTrain's largest case, with costs of that order.
void BM_Orchestrate(benchmark::State& state) {
  partition::OrchestrationProblem problem;
  problem.gpus = static_cast<int32_t>(state.range(0));
  problem.batch = 1920;
  problem.most_stages = 80;
  problem.memory_bytes = 75e9;
  for (const int32_t tp : {1, 2, 4, 8}) {
    const double loss = 1 + 0.05 * std::log2(tp);
    const auto option = [&](double seconds, double parameters) {
      return partition::UnitOption{.tp = tp,
                                   .seconds = seconds / tp * loss,
                                   .weight_bytes = 6 * parameters / tp,
                                   .optimizer_bytes = 12 * parameters / tp,
                                   .activation_bytes = 20e9 / tp};
    };
    problem.encoder.options.push_back(option(1.1, 0.7e9));
    problem.backbone.options.push_back(option(25, 70e9));
    problem.generator.options.push_back(option(2.3, 1e9));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(partition::Orchestrate(problem));
  }
}
BENCHMARK(BM_Orchestrate)
    ->ArgName("gpus")
    ->Arg(112)
    ->Arg(1296)
    ->Unit(benchmark::kMillisecond);

void BM_SearchPartition(benchmark::State& state) {
  const JobSpec job = testing::SmallVlmJob();
  const emulator::StageCostModel costs(job);
  const BatchMetadata sample = testing::RandomBatch(1, 400, 6);
  const auto strategy = planner::MakeStrategy("pipeloom");
  planner::PartitionSearchOptions options;
  options.partitions = static_cast<int32_t>(state.range(0));
  for (auto _ : state) {
    const auto found =
        planner::SearchPartition(**strategy, costs, sample, options);
    if (!found.ok()) {
      state.SkipWithError(std::string(found.status().message()).c_str());
      break;
    }
    state.counters["found_ms"] = ToSeconds(found->step_time) * 1e3;
    state.counters["rule_ms"] = ToSeconds(found->rule_time) * 1e3;
  }
}
BENCHMARK(BM_SearchPartition)
    ->ArgName("partitions")
    ->Arg(20)
    ->Arg(120)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pipeloom
