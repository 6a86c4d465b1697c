#include "service/served_job.h"

#include <utility>

#include "base/status_macros.h"
#include "emulator/profile_cost.h"
#include "proto/convert/job_proto.h"

namespace pipeloom::service {
namespace {

constexpr int32_t kMostMicrobatches = 1'000'000;
constexpr int32_t kMostSampled = 2048;

// The operators' prices are the job's; each epoch's model has its own cache.
class SharedCosts : public emulator::OpCostModel {
 public:
  explicit SharedCosts(std::shared_ptr<const emulator::OpCostModel> costs)
      : costs_(std::move(costs)) {}
  Duration Cost(const emulator::Op& op) const override {
    return costs_->Cost(op);
  }
  emulator::OpPrice Price(const emulator::Op& op) const override {
    return costs_->Price(op);
  }

 private:
  std::shared_ptr<const emulator::OpCostModel> costs_;
};

Fingerprint FingerprintOf(const Partition& partition) {
  FingerprintBuilder print;
  print.Add(partition.num_ranks).Add(partition.num_segments);
  for (const Stage& s : partition.stages) {
    print.Add(s.module.value())
        .Add(s.first_layer.value())
        .Add(s.num_layers)
        .Add(s.rank.value())
        .Add(s.segment.value());
  }
  for (const int64_t n : partition.sub_microbatch_instances) print.Add(n);
  return print.Build();
}

}  // namespace

Fingerprint FingerprintOf(const JobSpec& job) {
  // Without maps, so that equal messages have equal bytes.
  return FingerprintBuilder()
      .Add(convert::ToProto(job).SerializeAsString())
      .Build();
}

absl::StatusOr<std::shared_ptr<const ServedJob>> ServedJob::Create(
    std::string id, JobSpec job, const BatchMetadata& sample,
    std::optional<Partition> partition,
    std::shared_ptr<const DeviceProfile> profile) {
  std::shared_ptr<ServedJob> served(new ServedJob());
  served->id_ = std::move(id);
  served->spec_ = std::move(job);
  const JobSpec& spec = served->spec_;
  served->unlimited_ = spec;
  served->unlimited_.parallel.dp = 1;
  served->unlimited_.training.microbatches = kMostMicrobatches;
  PIPELOOM_ASSIGN_OR_RETURN(served->strategy_,
                            planner::MakeStrategy(spec.search.schedule));
  served->operators_ =
      emulator::MakeOpCosts(spec.cluster, spec.parallel, profile.get(),
                            spec.cluster.device.kernel_overhead);
  if (partition.has_value()) {
    served->partition_ = *std::move(partition);
  } else {
    if (sample.samples.empty()) {
      return absl::InvalidArgumentError(
          "sample.samples is empty; without `partition` it must have at least "
          "one");
    }
    BatchMetadata first;
    for (const SampleId s : sample.samples.ids()) {
      if (s.value() >= kMostSampled) break;
      first.samples.push_back(sample.samples[s]);
    }
    const emulator::StageCostModel costs(
        spec, std::make_unique<SharedCosts>(served->operators_));
    PIPELOOM_ASSIGN_OR_RETURN(
        planner::PreparedJob prepared,
        planner::PrepareJob(*served->strategy_, costs, first));
    served->partition_ = std::move(prepared.partition);
  }
  served->print_ = FingerprintBuilder()
                       .Add(FingerprintOf(spec))
                       .Add(FingerprintOf(served->partition_))
                       .Build();
  return std::shared_ptr<const ServedJob>(std::move(served));
}

std::shared_ptr<const CostEpoch> ServedJob::MakeEpoch(
    const IdVector<ModuleId, emulator::PassFactors>& factors) const {
  auto epoch = std::make_shared<CostEpoch>();
  epoch->factors = factors;
  auto costs = std::make_unique<emulator::StageCostModel>(
      spec_, std::make_unique<SharedCosts>(operators_));
  costs->SetCorrections(factors);
  epoch->costs = std::move(costs);
  epoch->prepared = {.strategy = strategy_.get(),
                     .costs = epoch->costs.get(),
                     .partition = partition_};
  FingerprintBuilder print;
  print.Add(print_);
  for (const emulator::PassFactors& f : factors) {
    print.Add(f.forward).Add(f.backward).Add(f.weight_grad);
  }
  epoch->context = print.Build();
  return epoch;
}

}  // namespace pipeloom::service
