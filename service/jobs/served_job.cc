#include "service/jobs/served_job.h"

#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/cost/shared_costs.h"
#include "planner/job/warm_up.h"
#include "planner/layout/partition_search.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"

namespace pipeloom::service {
namespace {

constexpr int32_t kMaxMicrobatches = 1'000'000;
constexpr int32_t kMaxSampled = 2048;

}  // namespace

Fingerprint FingerprintOf(const JobSpec& job) {
  // The message has no maps, so equal messages have equal bytes.
  return FingerprintBuilder()
      .Add(convert::ToProto(job).SerializeAsString())
      .Build();
}

absl::StatusOr<std::shared_ptr<const ServedJob>> ServedJob::Create(
    std::string id, JobSpec job, const BatchMetadata& sample,
    std::optional<Partition> partition, const ProfileSource& profiles,
    const PartitionEffort& effort, bool defer_surplus) {
  std::shared_ptr<ServedJob> served(new ServedJob());
  served->defer_surplus_ = defer_surplus;
  served->id_ = std::move(id);
  served->spec_ = std::move(job);
  const JobSpec& spec = served->spec_;
  served->unlimited_ = spec;
  served->unlimited_.parallel.dp = 1;
  served->unlimited_.training.microbatches = kMaxMicrobatches;
  absl::Status bad_profile;
  served->operators_ = emulator::MakeOpCosts(
      spec.cluster, spec.parallel,
      [&](const std::string& device) -> const DeviceProfile* {
        if (!profiles) return nullptr;
        auto profile = profiles(device);
        if (!profile.ok()) {
          bad_profile = profile.status();
          return nullptr;
        }
        served->profiles_.push_back(*std::move(profile));
        return served->profiles_.back().get();
      });
  PIPELOOM_RETURN_IF_ERROR(bad_profile);
  const bool balanced = spec.training.assignment == SampleAssignment::kBalanced;
  if (balanced && defer_surplus) {
    return absl::InvalidArgumentError(
        "defer_surplus is set, and the job's training.assignment is balanced; "
        "it must be in order");
  }
  if (sample.samples.empty() && (balanced || !partition.has_value())) {
    return absl::InvalidArgumentError(
        balanced ? "sample.samples is empty; the job's training.assignment is "
                   "balanced, so it must have at least one"
                 : "sample.samples is empty; without `partition` it must have "
                   "at least one");
  }
  BatchMetadata first;
  for (const SampleId s : sample.samples.ids()) {
    if (s.value() >= kMaxSampled) break;
    first.samples.push_back(sample.samples[s]);
  }
  const bool given = partition.has_value();
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<const planner::JobPlanner> planner,
      served->MakePlanner(first, std::move(partition), {}, effort.left));
  served->partition_ = planner->partition();
  if (balanced) {
    PIPELOOM_ASSIGN_OR_RETURN(
        served->sample_costs_,
        partition::SampleCosts::Create(spec, planner->costs(), first));
    served->sample_ = first;
  }
  if (!given && effort.expired) {
    PIPELOOM_RETURN_IF_ERROR(served->SearchPartition(*planner, first, effort));
  }
  served->warm_up_ = effort.lessons;
  if (effort.warm_up && !first.samples.empty() && served->warm_up_.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::unique_ptr<const planner::JobPlanner> chosen,
        served->MakePlanner({}, served->partition_));
    PIPELOOM_ASSIGN_OR_RETURN(
        served->warm_up_,
        planner::WarmUp(chosen->prepared(), first, served->spec_.search.seed,
                        effort.warm_up()));
  }
  FingerprintBuilder print;
  print.Add(FingerprintOf(spec)).Add(FingerprintOf(served->partition_));
  if (defer_surplus) print.Add("deferred");
  if (balanced) print.Add(convert::ToProto(first).SerializeAsString());
  served->print_ = print.Build();
  return std::shared_ptr<const ServedJob>(std::move(served));
}

absl::StatusOr<std::unique_ptr<const planner::JobPlanner>>
ServedJob::MakePlanner(const BatchMetadata& sample,
                       std::optional<Partition> partition,
                       const IdVector<ModuleId, emulator::PassFactors>& factors,
                       std::stop_token stop) const {
  planner::JobPlannerOptions options;
  options.stop = std::move(stop);
  options.operators = std::make_unique<emulator::SharedCosts>(operators_);
  options.correct = [&factors](emulator::StageCostModel* costs) {
    costs->SetCorrections(factors);
    return absl::OkStatus();
  };
  options.partition = std::move(partition);
  return planner::JobPlanner::Create(spec_, sample, std::move(options));
}

absl::Status ServedJob::SearchPartition(const planner::JobPlanner& planner,
                                        const BatchMetadata& sample,
                                        const PartitionEffort& effort) {
  // Other strategies cut the model by their own rule.
  if (planner.strategy().name() != "pipeloom") return absl::OkStatus();
  planner::PartitionSearchOptions options;
  options.seed = spec_.search.seed;
  options.threads = effort.threads;
  options.stop = effort.stop;
  options.expired = effort.expired;
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PartitionSearchResult found,
      planner::ImprovePartition(planner.strategy(), planner.costs(), sample,
                                partition_, std::move(options)));
  partition_ = std::move(found.partition);
  partitions_tried_ = found.tried;
  return absl::OkStatus();
}

std::shared_ptr<const CostEpoch> ServedJob::MakeEpoch(
    const IdVector<ModuleId, emulator::PassFactors>& factors) const {
  auto epoch = std::make_shared<CostEpoch>();
  epoch->factors = factors;
  auto planner = MakePlanner({}, partition_, factors);
  PIPELOOM_CHECK(planner.ok());  // As the first one of this job was made.
  epoch->planner = *std::move(planner);
  FingerprintBuilder print;
  print.Add(print_);
  for (const emulator::PassFactors& f : factors) {
    print.Add(f.forward).Add(f.backward).Add(f.weight_grad);
  }
  epoch->context = print.Build();
  return epoch;
}

}  // namespace pipeloom::service
