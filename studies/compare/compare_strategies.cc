#include "studies/compare/compare_strategies.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/strategies/registry.h"
#include "planner/strategies/static_order.h"
#include "planner/strategy.h"
#include "planner/trainer/trainer_strategy.h"
#include "studies/job/planner_input.h"

namespace pipeloom::studies {
namespace {

constexpr absl::string_view kStaticSchedules[] = {
    "gpipe",  "1f1b",  "interleaved", "zb-h1",    "zb-2p",          "zb-v",
    "v-half", "v-min", "dualpipe-v",  "megatron", "megatron-tuned", "nnscaler"};

// Returns whether the strategy can plan with any partition, not only its own.
bool TakesAnyPartition(absl::string_view strategy) {
  return strategy == "pipeloom" || absl::StartsWith(strategy, "dip");
}

// Plans all steps with the row's strategy.
absl::Status PlanRow(const JobInput& input,
                     const std::vector<partition::PackedStep>& packed,
                     const emulator::StageCostModel& costs,
                     const CompareOptions& options, planner::Strategy& strategy,
                     const StudyContext& context,
                     const ProgressCallback& progress, StrategyRow* row) {
  SearchSettings settings = options.search;
  // A replayed order is that of a search of pipeloom too.
  if (strategy.name() == "pipeloom") settings.warm_up = options.lessons;
  planner::PreparedJob prepared{.strategy = &strategy, .costs = &costs};
  row->given_partition =
      options.partition.has_value() &&
      (options.partition_for_all || TakesAnyPartition(strategy.name()));
  if (row->given_partition) {
    prepared.partition = *options.partition;
  } else if (options.searched.has_value() && strategy.name() == "pipeloom") {
    prepared.partition = *options.searched;
  } else {
    PIPELOOM_ASSIGN_OR_RETURN(
        prepared, PrepareOwnPartition(input, strategy, costs, context.stop));
  }
  if (auto* const limited =
          dynamic_cast<planner::TrainerStrategy*>(&strategy)) {
    PIPELOOM_RETURN_IF_ERROR(
        limited->FixRecompute(prepared, packed, input.replicas, context.stop));
  }
  if (options.slow_costs != nullptr) prepared.costs = options.slow_costs;
  std::unique_ptr<planner::Strategy> replayed;
  if (row->schedule == kStaticRow) {
    planner::PlanInput typical;
    typical.packed = &packed.front();
    typical.seed = settings.seed;
    typical.budget = StartBudget(settings, context.stop);
    typical.carried = settings.warm_up;
    PIPELOOM_ASSIGN_OR_RETURN(replayed, planner::MakeStatic(prepared, typical));
    prepared.strategy = replayed.get();
  }
  for (size_t s = 0; s < packed.size(); ++s) {
    PIPELOOM_ASSIGN_OR_RETURN(
        PlannedStep planned,
        PlanReplicas(prepared, packed[s], static_cast<int64_t>(s),
                     input.replicas, settings, context.stop, progress,
                     row->schedule, row->steps));
    row->steps.push_back(std::move(planned));
  }
  return absl::OkStatus();
}

// Makes the row's strategy.
absl::StatusOr<std::unique_ptr<planner::Strategy>> StrategyOf(
    const std::string& name, const TrainerLimits* trainer) {
  if (trainer == nullptr || trainer->everything) {
    return planner::MakeStrategy(name == kStaticRow ? "pipeloom" : name);
  }
  std::unique_ptr<planner::Strategy> rival;
  if (name != "pipeloom") {
    PIPELOOM_ASSIGN_OR_RETURN(rival, planner::MakeStrategy(name));
  }
  return std::make_unique<planner::TrainerStrategy>(*trainer, std::move(rival));
}

}  // namespace

absl::StatusOr<std::vector<StrategyRow>> CompareStrategies(
    const JobInput& input, const std::vector<partition::PackedStep>& packed,
    const emulator::StageCostModel& costs, const CompareOptions& options,
    const StudyContext& context) {
  const ProgressCallback progress = context.StartProgress(
      "planning", static_cast<int64_t>(packed.size()) * input.replicas);
  std::vector<StrategyRow> rows;
  for (const std::string& name : options.strategies) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<planner::Strategy> strategy,
                              StrategyOf(name, options.trainer));
    StrategyRow& row = rows.emplace_back();
    row.schedule = name;
    row.status = PlanRow(input, packed, costs, options, *strategy, context,
                         progress, &row);
    if (context.stop.stop_requested()) return absl::CancelledError("stopped");
  }
  return rows;
}

const StrategyRow* BestStatic(const std::vector<StrategyRow>& rows) {
  const StrategyRow* best = nullptr;
  for (const StrategyRow& row : rows) {
    if (!row.status.ok() || row.steps.empty() ||
        std::find(std::begin(kStaticSchedules), std::end(kStaticSchedules),
                  row.schedule) == std::end(kStaticSchedules)) {
      continue;
    }
    if (best == nullptr ||
        MeansOf(row.steps).step_time < MeansOf(best->steps).step_time) {
      best = &row;
    }
  }
  return best;
}

Duration BestStaticTime(const std::vector<StrategyRow>& rows) {
  const StrategyRow* best = BestStatic(rows);
  return best == nullptr ? kZero : MeansOf(best->steps).step_time;
}

Duration MegatronTime(const std::vector<StrategyRow>& rows) {
  for (const StrategyRow& row : rows) {
    if (row.schedule == "megatron" && row.status.ok()) {
      return MeansOf(row.steps).step_time;
    }
  }
  return kZero;
}

std::optional<Duration> MeanP90(const StrategyRow& row) {
  Duration sum{};
  for (const PlannedStep& step : row.steps) {
    if (!step.slowest().robust.has_value()) return std::nullopt;
    sum += step.slowest().robust->chosen.p90;
  }
  if (row.steps.empty()) return std::nullopt;
  return sum / static_cast<int64_t>(row.steps.size());
}

}  // namespace pipeloom::studies
