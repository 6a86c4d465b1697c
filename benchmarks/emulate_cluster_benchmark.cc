// Emulation of the whole step of job dip-vlm-xl: 16,384 H100 as 128 replicas of
// 16 pipeline ranks of 8 GPUs, each replica with samples of its own, in a 1F1B
// order.
//
//   BM_EmulateCluster   starts from plans: all replicas, the barrier, the
//                       reduction and the update
//   BM_PriceAndEmulate  starts from the samples: also microbatches, costs of
//                       stages, graphs, orders and plans; no price is known at
//                       the start (with `warm` 1 those of an earlier step are)
//
// The device's profile is loaded once, as in a process. With `reuse` 0 every
// layer of every stage of every GPU is priced anew, and every GPU is emulated
// anew; the ratio of times shows what reuse saves.
#include <benchmark/benchmark.h>

#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "emulator/cluster/emulate_cluster.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/cost/shared_costs.h"
#include "emulator/ops/op_cost.h"
#include "emulator/stage/stage_cost.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/profile_reader.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/lower/lower_plan.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::emulator {
namespace {

constexpr char kData[] = PIPELOOM_SOURCE_DIR "/workloads";

absl::StatusOr<std::string> Read(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Job {
  JobSpec spec{};
  DeviceProfile profile{};
  std::shared_ptr<const OpCostModel> operators{};
  partition::PackedStep packed{};
  Partition partition{};
  IdVector<RankId, RankUpdate> updates{};

  std::unique_ptr<const OpCostModel> Costs() const {
    return std::make_unique<SharedCosts>(operators);
  }
};

// Returns the job with the shipped image-text samples, repeated.
const Job& TheJob() {
  static const Job* const job = [] {
    auto* made = new Job;
    auto spec = formats::LoadJob("dip-vlm-xl", kData, Read);
    PIPELOOM_CHECK(spec.ok());
    made->spec = *std::move(spec);
    auto profile = formats::ParseDeviceProfile(
        *Read(std::string(kData) + "/profiles/h100-sxm.json"), "profile");
    PIPELOOM_CHECK(profile.ok());
    made->profile = *std::move(profile);
    made->operators =
        MakeOpCosts(made->spec.cluster, made->spec.parallel, &made->profile,
                    made->spec.cluster.device.kernel_overhead);
    std::vector<std::string> warnings;
    auto batch = formats::ParseBatch(
        *Read(std::string(kData) + "/batches/image_text.jsonl"), "batch",
        &warnings);
    PIPELOOM_CHECK(batch.ok());
    BatchMetadata samples;
    while (samples.samples.size() < 60'000) {
      for (const SampleMetadata& s : batch->samples) {
        samples.samples.push_back(s);
      }
    }
    auto packed = partition::PackStep(made->spec, samples, 0);
    PIPELOOM_CHECK(packed.ok());
    made->packed = *std::move(packed);
    auto strategy = planner::MakeStrategy("1f1b");
    PIPELOOM_CHECK(strategy.ok());
    const StageCostModel costs(made->spec, made->Costs());
    auto cut = (*strategy)->MakePartition(costs, *batch, {});
    PIPELOOM_CHECK(cut.ok());
    made->partition = *std::move(cut);
    made->updates = costs.Updates(made->partition);
    return made;
  }();
  return *job;
}

ExecutionPlan PlanOf(const Job& job, const StageCostModel& costs,
                     int32_t replica) {
  auto microbatches = partition::SplitMicrobatches(job.spec, job.packed,
                                                   replica, job.partition);
  PIPELOOM_CHECK(microbatches.ok());
  // Recomputes everything, as otherwise it does not fit.
  auto built = partition::BuildStageGraph(
      costs, job.partition, *microbatches,
      {.memory = PolicyByStage(AllRecomputed(job.partition), job.partition,
                               *microbatches)});
  PIPELOOM_CHECK(built.ok());
  auto orders = planner::OneFOneBOrders(
      planner::VirtualPipeline(built->graph, job.partition));
  PIPELOOM_CHECK(orders.ok());
  const auto schedule = TimeSchedule(built->graph, *std::move(orders));
  PIPELOOM_CHECK(schedule.ok());
  auto plan = planner::LowerPlan(std::move(built->graph), *schedule);
  PIPELOOM_CHECK(plan.ok());
  return *std::move(plan);
}

std::vector<ExecutionPlan> PlansOf(const Job& job,
                                   const StageCostModel& costs) {
  std::vector<ExecutionPlan> plans;
  plans.reserve(static_cast<size_t>(job.spec.parallel.dp));
  for (int32_t d = 0; d < job.spec.parallel.dp; ++d) {
    plans.push_back(PlanOf(job, costs, d));
  }
  return plans;
}

ClusterResult Emulate(const Job& job, const std::vector<ExecutionPlan>& plans,
                      bool reuse) {
  std::vector<const ExecutionPlan*> replicas;
  for (const ExecutionPlan& plan : plans) replicas.push_back(&plan);
  ClusterOptions options;
  options.gpus_per_rank = job.spec.parallel.gpus_per_rank();
  options.reuse = reuse;
  auto result = EmulateCluster(replicas, job.updates, options);
  PIPELOOM_CHECK(result.ok());
  return *std::move(result);
}

void Show(benchmark::State& state, const ClusterResult& result) {
  state.counters["step_ms"] = ToMilliseconds(result.step.step_time());
  state.counters["gpus"] = static_cast<double>(result.counters.gpus);
  state.counters["emulated"] =
      static_cast<double>(result.counters.gpus_emulated);
  state.counters["tasks"] = static_cast<double>(result.counters.tasks_emulated);
  state.counters["hit_ratio"] = result.counters.hit_ratio();
}

void BM_EmulateCluster(benchmark::State& state) {
  const Job& job = TheJob();
  const StageCostModel costs(job.spec, job.Costs());
  const std::vector<ExecutionPlan> plans = PlansOf(job, costs);
  ClusterResult result;
  for (auto _ : state) result = Emulate(job, plans, state.range(0) != 0);
  Show(state, result);
}
BENCHMARK(BM_EmulateCluster)
    ->ArgName("reuse")
    ->Arg(1)
    ->Arg(0)
    ->Unit(benchmark::kMillisecond);

// With `warm`, costs of stages are known from earlier steps with the same
// shapes.
void BM_PriceAndEmulate(benchmark::State& state) {
  const Job& job = TheJob();
  const bool reuse = state.range(0) != 0;
  const StageCostModel known(job.spec, job.Costs());
  if (state.range(1) != 0) PlansOf(job, known);
  ClusterResult result;
  CacheCounters cache;
  for (auto _ : state) {
    std::optional<StageCostModel> fresh;
    if (state.range(1) == 0) {
      fresh.emplace(job.spec, job.Costs(),
                    reuse ? PriceReuse::kOn : PriceReuse::kOff);
    }
    const StageCostModel& costs = fresh.has_value() ? *fresh : known;
    // Without reuse each GPU of a rank is priced and emulated by itself.
    const int32_t peers = reuse ? 1 : job.spec.parallel.gpus_per_rank();
    for (int32_t peer = 0; peer < peers; ++peer) {
      const std::vector<ExecutionPlan> plans = PlansOf(job, costs);
      ClusterResult one = Emulate(job, plans, true);
      if (peer > 0) PIPELOOM_CHECK(one.step == result.step);
      result = std::move(one);
    }
    cache = costs.cache();
  }
  Show(state, result);
  state.counters["layers_priced"] = static_cast<double>(cache.misses);
  state.counters["layers_known"] = static_cast<double>(cache.hits);
}
BENCHMARK(BM_PriceAndEmulate)
    ->ArgNames({"reuse", "warm"})
    ->Args({1, 1})
    ->Args({1, 0})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_PriceAndEmulate)
    ->ArgNames({"reuse", "warm"})
    ->Args({0, 0})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace pipeloom::emulator
