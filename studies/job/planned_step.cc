#include "studies/job/planned_step.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "emulator/cluster/meeting_replicas.h"
#include "ir/job/device_generation.h"
#include "partition/batching/balance_step.h"
#include "planner/bounds/job_bound.h"
#include "planner/job/common_order.h"
#include "planner/job/plan_deferred.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::studies {
namespace {

// The number of latest steps that a search may go on from.
constexpr size_t kCarried = 8;

// Returns the highest MFU that products on a device allow. `precision`: of all
// modules on it; absent: each module's own.
double MostMfu(const JobSpec& job, const DeviceSpec& device,
               std::optional<Precision> precision) {
  bool low = job.setup.fp8_products;
  for (const ModuleSpec& module : job.model.modules) {
    low |= precision.value_or(module.precision) == Precision::kFp8;
  }
  if (!low) return 1;
  const bool fp4 = job.setup.fp8_recipe == Fp8Recipe::kFp4 ||
                   job.setup.fp8_recipe == Fp8Recipe::kFp4Plain;
  // FP4 products are twice as fast as those in fp8.
  return std::max(1.0, device.fp8.flops_per_second /
                           device.bf16.flops_per_second *
                           (fp4 && IsBlackwell(device) ? 2 : 1));
}

}  // namespace

std::vector<std::string> UsualSchedules() {
  std::vector<std::string> names;
  for (const absl::string_view name : planner::StrategyNames()) {
    if (!absl::StartsWith(name, "dip-")) names.emplace_back(name);
  }
  return names;
}

Duration PlannedStep::step_time() const {
  return std::max(together, slowest().predicted.step_time());
}

Duration PlannedStep::lower_bound() const {
  Duration bound{};
  for (const planner::PlanResult& r : replicas) {
    bound = std::max(bound, r.lower_bound);
  }
  return bound;
}

const char* PlannedStep::bound_source() const {
  for (const planner::PlanResult& r : replicas) {
    if (r.lower_bound == lower_bound()) return r.bound_source;
  }
  return "";
}

double PlannedStep::gap_ratio() const {
  if (lower_bound() <= kZero) return 0;
  return ToSeconds(step_time()) / ToSeconds(lower_bound()) - 1;
}

double PlannedStep::any_partition_gap() const {
  if (any_partition_bound <= kZero) return 0;
  return ToSeconds(step_time()) / ToSeconds(any_partition_bound) - 1;
}

double PlannedStep::bubble_ratio() const {
  double sum = 0;
  for (const planner::PlanResult& r : replicas) {
    sum += BubbleRatio(r.plan.graph, step_time());
  }
  return sum / static_cast<double>(replicas.size());
}

double PlannedStep::epilogue_ratio() const {
  double sum = 0;
  for (const planner::PlanResult& r : replicas) {
    sum += EpilogueRatio(r.plan.graph, step_time());
  }
  return sum / static_cast<double>(replicas.size());
}

double PlannedStep::mfu() const {
  double sum = 0;
  for (const planner::PlanResult& r : replicas) sum += Mfu(r.plan, step_time());
  return sum / static_cast<double>(replicas.size());
}

std::vector<Bytes> PlannedStep::peak_bytes() const {
  std::vector<Bytes> peaks;
  for (const planner::PlanResult& r : replicas) {
    const std::vector<Bytes> mine = r.peak_bytes();
    peaks.resize(std::max(peaks.size(), mine.size()));
    for (size_t i = 0; i < mine.size(); ++i) {
      peaks[i] = std::max(peaks[i], mine[i]);
    }
  }
  return peaks;
}

Bytes PlannedStep::peak() const {
  Bytes most;
  for (const Bytes b : peak_bytes()) most = std::max(most, b);
  return most;
}

int64_t PlannedStep::evaluations() const {
  int64_t sum = 0;
  for (const planner::PlanResult& r : replicas) sum += r.evaluations;
  return sum;
}

const planner::PlanResult& PlannedStep::slowest() const {
  return *std::max_element(replicas.begin(), replicas.end(),
                           [](const auto& a, const auto& b) {
                             return a.predicted.finish < b.predicted.finish;
                           });
}

StepMeans MeansOf(const std::vector<PlannedStep>& steps) {
  StepMeans means;
  if (steps.empty()) return means;
  const auto count = static_cast<int64_t>(steps.size());
  Duration time{};
  Duration search{};
  Duration bound{};
  Duration any_bound{};
  for (const PlannedStep& step : steps) {
    const double seconds = ToSeconds(step.step_time());
    time += step.step_time();
    search += step.search_time;
    bound += step.lower_bound();
    any_bound += step.any_partition_bound;
    means.bubble_ratio += step.bubble_ratio() * seconds;
    means.epilogue_ratio += step.epilogue_ratio() * seconds;
    means.mfu += step.mfu() * seconds;
    means.peak = std::max(means.peak, step.peak());
  }
  means.step_time = time / count;
  means.search_time = search / count;
  if (bound > kZero) means.gap_ratio = ToSeconds(time) / ToSeconds(bound) - 1;
  if (any_bound > kZero) {
    means.any_partition_gap = ToSeconds(time) / ToSeconds(any_bound) - 1;
  }
  if (time > kZero) {
    means.bubble_ratio /= ToSeconds(time);
    means.epilogue_ratio /= ToSeconds(time);
    means.mfu /= ToSeconds(time);
  }
  return means;
}

std::vector<std::string> MfuNotes(const JobSpec& job, double mfu) {
  double most = MostMfu(job, job.cluster.device, std::nullopt);
  for (const NodeGroup& group : job.cluster.node_groups) {
    most = std::max(most, MostMfu(job, group.device, group.precision));
  }
  if (mfu <= most) return {};
  return {absl::StrFormat(
      "MFU is %.1f %%, and the GPUs' peak allows %.0f %%: passes are priced "
      "shorter than the GPUs can run them; check measured times (--learned, "
      "--costs-from), the operators' profile (--costs) and "
      "device.bf16_flops_per_second",
      100 * mfu, 100 * most)};
}

namespace {

absl::StatusOr<emulator::MeetingStep> Meet(
    const emulator::StageCostModel& costs, const PlannedStep& step) {
  std::vector<const ExecutionPlan*> replicas;
  for (const planner::PlanResult& r : step.replicas) {
    replicas.push_back(&r.plan);
  }
  return emulator::EmulateMeeting(costs.job(), replicas);
}

}  // namespace

std::vector<std::string> MeetingNotes(const emulator::StageCostModel& costs,
                                      const PlannedStep& step) {
  const JobSpec& job = costs.job();
  const int32_t meet = emulator::ReplicasThatMeet(job);
  if (meet == 1 || step.replicas.size() < 2) return {};
  const absl::StatusOr<emulator::MeetingStep> meeting = Meet(costs, step);
  if (!meeting.ok()) return {};
  const OptimizerSharding sharding = job.training.optimizer_sharding;
  const bool shards = sharding >= OptimizerSharding::kZero2;
  const std::string why =
      shards
          ? absl::StrFormat(
                "step %d: %d replicas %s of each pass together "
                "(training.optimizer_sharding)",
                step.step, meet,
                sharding == OptimizerSharding::kZero2 ? "reduce the gradients"
                                                      : "gather the weights")
          : absl::StrFormat(
                "step %d: the experts of a layer are spread over %d "
                "replicas (parallel.ep), which meet in each of its passes",
                step.step, meet);
  if (meeting->different.has_value()) {
    return {absl::StrFormat(
        "%s, but their plans have other passes or another order on rank %d "
        "and cannot run together: that takes as many microbatches in each "
        "replica, with the same modules in each; or %s",
        why, meeting->different->value(),
        shards ? "a sharding below ZeRO-2"
               : "experts on the GPUs of one rank")};
  }
  constexpr double kWorthSaying = 1.005;
  const Duration alone = step.slowest().predicted.step_time();
  if (ToSeconds(meeting->step_time) <= kWorthSaying * ToSeconds(alone)) {
    return {};
  }
  return {absl::StrFormat(
      "%s: together the step takes %s or more, as no pass ends before that of "
      "the slowest of them; it would take %s if none waited for another",
      why, FormatDuration(meeting->step_time), FormatDuration(alone))};
}

Throughput ThroughputOf(const JobSpec& job,
                        const std::vector<PlannedStep>& steps) {
  double seconds = 0;
  double samples = 0;
  double tokens = 0;
  double flops = 0;
  for (const PlannedStep& step : steps) {
    if (step.replicas.empty()) continue;
    seconds += ToSeconds(step.step_time());
    samples += static_cast<double>(step.num_samples);
    const double replicas = static_cast<double>(job.parallel.dp) /
                            static_cast<double>(step.replicas.size());
    for (const planner::PlanResult& r : step.replicas) {
      flops += r.plan.model_flops.count * replicas;
      for (const SubMicrobatch& s : r.microbatches.sub_microbatches) {
        if (job.model.modules[s.module].role == ModuleRole::kBackbone) {
          tokens += static_cast<double>(s.data().tokens) * replicas;
        }
      }
    }
  }
  if (!(seconds > 0)) return {};
  const auto gpus = static_cast<double>(job.parallel.num_gpus());
  return {.samples_per_second = samples / seconds,
          .tokens_per_second = tokens / seconds,
          .tokens_per_gpu = tokens / seconds / gpus,
          .flops_per_gpu = flops / seconds / gpus};
}

absl::StatusOr<PlannedStep> PlanReplicas(
    const planner::PreparedJob& prepared, const partition::PackedStep& packed,
    int64_t step, int32_t replicas, const SearchSettings& settings,
    const std::stop_token& stop, const ProgressCallback& progress,
    absl::string_view detail, absl::Span<const PlannedStep> before,
    bool keeps_cut) {
  using Clock = std::chrono::steady_clock;
  PlannedStep planned;
  planned.step = step;
  planned.num_samples = packed.num_samples;
  std::vector<std::shared_ptr<const CarriedStep>> carried = settings.warm_up;
  const auto carry = [&](const planner::PlanResult& result) {
    if (result.carried != nullptr) carried.push_back(result.carried);
  };
  for (const PlannedStep& earlier :
       before.subspan(before.size() - std::min(kCarried, before.size()))) {
    for (const planner::PlanResult& result : earlier.replicas) carry(result);
  }
  const int32_t meet = emulator::ReplicasThatMeet(prepared.costs->job());
  const bool shares_order =
      replicas > 1 && !settings.defer && planner::NeedsCommonOrder(prepared);
  std::optional<planner::CommonOrder> common;
  for (int32_t replica = 0; replica < replicas; ++replica) {
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    if (progress) progress(step * replicas + replica, detail);
    const Clock::time_point begin = Clock::now();
    planner::PlanInput input;
    input.packed = &packed;
    input.step = step;
    input.replica = replica;
    input.seed = settings.seed;
    input.budget = StartBudget(settings, stop);
    input.robust = settings.robust;
    // A search by evaluations does not depend on what was planned before.
    input.carried = settings.deadline.has_value() ? carried : settings.warm_up;
    if (settings.defer) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const auto costs,
          partition::SampleCosts::Create(prepared.costs->job(), *prepared.costs,
                                         packed.samples));
      PIPELOOM_ASSIGN_OR_RETURN(planner::DeferredPlan result,
                                planner::PlanDeferred(prepared, input, costs));
      planned.replicas.push_back(std::move(result.plan));
    } else if (shares_order) {
      if (replica % meet == 0) {
        PIPELOOM_ASSIGN_OR_RETURN(
            common, planner::CommonOrder::Search(prepared, input));
        carry(*common->searched());
      }
      input.budget = StartBudget(settings, stop);
      PIPELOOM_ASSIGN_OR_RETURN(planner::PlanResult result,
                                common->Plan(input));
      if (replica % meet == 0) {
        result.evaluations += common->searched()->evaluations;
      }
      planned.replicas.push_back(std::move(result));
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(planner::PlanResult result,
                                planner::PlanStep(prepared, input));
      planned.replicas.push_back(std::move(result));
    }
    carry(planned.replicas.back());
    planned.search_time +=
        std::chrono::duration_cast<Duration>(Clock::now() - begin);
    if (settings.defer) continue;
    PIPELOOM_ASSIGN_OR_RETURN(
        const Duration bound,
        planner::BoundOfAnyPartition(prepared.costs->ForReplica(replica),
                                     packed, replica));
    planned.any_partition_bound = std::max(planned.any_partition_bound, bound);
  }
  if (stop.stop_requested() && !keeps_cut) {
    return absl::CancelledError("stopped");
  }
  if (meet > 1 && replicas > 1) {
    PIPELOOM_ASSIGN_OR_RETURN(const emulator::MeetingStep meeting,
                              Meet(*prepared.costs, planned));
    planned.together = meeting.step_time;
  }
  return planned;
}

}  // namespace pipeloom::studies
