#include "emulator/stage/stage_cost.h"

#include <algorithm>
#include <utility>

#include "base/numeric.h"
#include "emulator/cost/copies_cost.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/ops/layer_tokens.h"
#include "emulator/stage/stage_cost_state.h"

namespace pipeloom::emulator {
namespace {

// Where Megatron's sends block, the host waits for the end of a pass before it
// launches the transfer, and for its end before it launches the next pass: it
// synchronizes the device behind each batch of sends and receives
// (pipeline_parallel/p2p_communication.py, batch_p2p_sync). DeepSpeed
// (runtime/pipe/p2p.py) and torch.distributed.pipelining (schedules.py,
// _wait_batch_p2p) wait on the stream only: their host launches ahead.
constexpr int kLaunchesATransfer = 2;

}  // namespace

StageCostModel::StageCostModel(const JobSpec& job, PriceReuse reuse)
    : StageCostModel(job, nullptr, reuse) {}

StageCostModel::StageCostModel(const JobSpec& job,
                               std::unique_ptr<const OpCostModel> costs,
                               PriceReuse reuse) {
  const auto common = std::make_shared<StageCostShared>(
      job, std::move(costs), reuse == PriceReuse::kOn);
  state_ = std::make_unique<StageCostState>(common, common->views[0]);
  for (size_t v = 1; v < common->views.size(); ++v) {
    others_.push_back(std::unique_ptr<StageCostModel>(new StageCostModel(
        std::make_unique<StageCostState>(common, common->views[v]))));
  }
}

StageCostModel::StageCostModel(std::unique_ptr<StageCostState> state)
    : state_(std::move(state)) {}

StageCostModel::~StageCostModel() = default;

const StageCostModel& StageCostModel::ForReplica(int32_t replica) const {
  const int32_t view =
      state_->common->view_of_replica[static_cast<size_t>(replica)];
  return view == 0 ? *this : *others_[static_cast<size_t>(view - 1)];
}

StageCost StageCostModel::Cost(const Stage& stage, const WorkShape& given,
                               bool needs_input_grad,
                               double attention_density) const {
  const StageCostState& state = *state_;
  if (stage.num_layers == 0) return {};
  const WorkShape shape =
      state.job.training.batching == SequenceBatching::kPadded ? given.Padded()
                                                               : given;
  const RankPlace place = state.view.PlaceOf(stage.rank);
  const Precision precision =
      state.PrecisionOn(state.ModuleOf(stage), stage.rank);
  const auto price = [&](const WorkShape& work) {
    if (!state.common->reuse) {
      return state.Sum(stage, work, {}, needs_input_grad, precision,
                       attention_density);
    }
    const Fingerprint print = work.fingerprint();
    const Fingerprint key = FingerprintBuilder()
                                .Add(state.PrintOf(stage))
                                .Add(print)
                                .Add(needs_input_grad)
                                .Add(attention_density)
                                .Build();
    bool known = true;
    const StageCost found = state.common->stages.Get(key, [&] {
      known = false;
      return state.Sum(stage, work, print, needs_input_grad, precision,
                       attention_density);
    });
    if (known) state.cache.CountHits(stage.num_layers);
    return found;
  };
  StageCost total = price(shape);
  // Work on padding is no work of the model.
  if (shape != given) total.model_flops = price(given).model_flops;
  PassFactors factors;
  if (!state.common->corrections.empty()) {
    factors = state.common->corrections[stage.module];
  }
  // The factor of a fused pass is the mean of those of both gradients, weighted
  // by their times.
  const double split_time = ToSeconds(total.backward + total.weight_grad);
  const double fused_factor =
      split_time > 0 ? (factors.backward * ToSeconds(total.backward) +
                        factors.weight_grad * ToSeconds(total.weight_grad)) /
                           split_time
                     : 1;
  const auto slow = [&](double factor, Duration* time) {
    *time = StageCostState::Slowed(
        *time,
        factor * place.slow * state.job.setup.stretch * state.common->slowest);
  };
  slow(factors.forward, &total.forward);
  slow(factors.forward, &total.forward_again);
  slow(factors.backward, &total.backward);
  slow(factors.backward, &total.backward_gap);
  slow(factors.weight_grad, &total.weight_grad);
  slow(fused_factor, &total.fused);
  slow(fused_factor, &total.fused_gap);
  slow(factors.forward, &total.forward_gap);
  slow(factors.forward, &total.forward_compute);
  slow(factors.backward, &total.backward_compute);
  slow(fused_factor, &total.fused_compute);
  for (GroupCost& group : total.groups) slow(factors.forward, &group.again);
  return total;
}

StageRow StageCostModel::Row(absl::Span<const Stage> stages) const {
  const StageCostState& state = *state_;
  struct Slot {
    Fingerprint print{};
    double slow = 1;
    bool above_trained = false;
    bool operator==(const Slot&) const = default;
  };
  StageRow row;
  row.slot_of.reserve(stages.size());
  std::vector<Slot> slots;
  FingerprintBuilder all;
  for (const Stage& stage : stages) {
    const Slot own{.print = state.PrintOf(stage),
                   .slow = state.view.PlaceOf(stage.rank).slow,
                   .above_trained = !row.slot_of.empty() &&
                                    !state.common->frozen[stage.module]};
    const auto known = state.common->reuse
                           ? std::find(slots.begin(), slots.end(), own)
                           : slots.end();
    row.slot_of.push_back(static_cast<int32_t>(known - slots.begin()));
    if (known == slots.end()) {
      slots.push_back(own);
      row.of_slot.push_back(stage);
      row.print_of_slot.push_back(
          FingerprintBuilder().Add(own.print).Add(own.slow).Build());
      row.layers_priced += stage.num_layers;
      all.Add(own.print).Add(own.slow).Add(own.above_trained);
    } else {
      row.layers_shared += stage.num_layers;
    }
  }
  row.fingerprint = all.Build();
  return row;
}

std::vector<StageCost> StageCostModel::PriceSlots(
    const StageRow& row, const WorkShape& shape, bool fed_by_trainable,
    double attention_density) const {
  std::vector<StageCost> costs;
  costs.reserve(row.of_slot.size());
  for (const Stage& stage : row.of_slot) {
    // Only the first stage has no trained layers below it.
    const bool above_trained =
        !costs.empty() && !state_->common->frozen[stage.module];
    costs.push_back(Cost(stage, shape, fed_by_trainable || above_trained,
                         attention_density));
  }
  state_->cache.CountHits(row.layers_shared);
  return costs;
}

StageCostModel::CostRow StageCostModel::Costs(const StageRow& row,
                                              const WorkShape& shape,
                                              bool fed_by_trainable,
                                              double attention_density) const {
  const StageCostState& state = *state_;
  const auto price = [&] {
    return std::make_shared<const std::vector<StageCost>>(
        PriceSlots(row, shape, fed_by_trainable, attention_density));
  };
  if (!state.common->reuse) return price();
  bool known = true;
  CostRow result = rows_.Get(FingerprintBuilder()
                                 .Add(row.fingerprint)
                                 .Add(shape.fingerprint())
                                 .Add(fed_by_trainable)
                                 .Add(attention_density)
                                 .Build(),
                             [&]() -> CostRow {
                               known = false;
                               return price();
                             });
  if (known) state.cache.CountHits(row.layers_shared + row.layers_priced);
  return result;
}

void StageCostModel::SetCorrections(IdVector<ModuleId, PassFactors> factors) {
  state_->common->corrections = std::move(factors);
}

StageCostModel::StepRanks StageCostModel::Ranks(
    const Partition& partition,
    const IdVector<StageId, PassTimes>& passes) const {
  const auto find = [&]() -> std::shared_ptr<const RankCosts> {
    RankCosts found{.ranks = IdVector<RankId, RankSpec>(partition.num_ranks),
                    .updates = Updates(partition)};
    for (const RankId r : found.ranks.ids()) {
      found.ranks[r].memory.limit = MemoryLimit(r);
      found.ranks[r].memory.overhead = Overhead(partition, r).total();
    }
    for (const Stage& stage : partition.stages) {
      const StageMemory memory = Memory(stage);
      RankMemory& rank = found.ranks[stage.rank].memory;
      rank.weights += memory.weights;
      rank.gradients += memory.gradients;
      rank.optimizer += memory.optimizer;
    }
    return std::make_shared<const RankCosts>(std::move(found));
  };
  std::shared_ptr<const RankCosts> known;
  if (state_->common->reuse) {
    FingerprintBuilder key;
    key.Add(partition.num_ranks);
    for (const Stage& stage : partition.stages) {
      key.Add(stage.module.value())
          .Add(stage.first_layer.value())
          .Add(stage.num_layers)
          .Add(stage.rank.value());
    }
    known = ranks_.Get(key.Build(), find);
  } else {
    known = find();
  }
  StepRanks step{
      .ranks = known->ranks,
      .update = MakeStepUpdate(state_->job, partition, known->updates, passes)};
  for (const RankId r : step.ranks.ids()) {
    step.ranks[r].epilogue = step.update.expected[r];
  }
  return step;
}

StageCostModel::Transfer StageCostModel::TransferTime(RankId from, RankId to,
                                                      Bytes payload) const {
  LinkTimes link =
      TransferBetween(state_->job, state_->view, from, to, payload);
  const TrainingSetup& setup = state_->job.setup;
  if (setup.overlap == CommunicationOverlap::kNone && IsMegatron(setup)) {
    const Duration launches = kLaunchesATransfer * setup.host_per_kernel;
    link.time += launches;
    link.occupancy += launches;
  }
  if (!setup.sequence_parallel && setup.scattered_sends) {
    const int32_t tp = state_->job.parallel.tp;
    link.time += state_->GatherTime(GroupKind::kTensor, tp,
                                    Real((payload * tp).count()), to);
  }
  const double stretch = setup.stretch;
  return {.time = StageCostState::Slowed(link.time, stretch),
          .occupancy = StageCostState::Slowed(link.occupancy, stretch)};
}

Bytes StageCostModel::MemoryLimit(RankId rank) const {
  return state_->job.MemoryLimit(state_->DeviceOn(rank));
}

double StageCostModel::PeakFlopsPerSecond() const {
  double sum = 0;
  for (const RankId rank : state_->view.ranks.ids()) {
    sum += state_->DeviceOn(rank).bf16.flops_per_second;
  }
  return sum * state_->job.parallel.gpus_per_rank();
}

SharedLinks StageCostModel::Links() const {
  return SharedLinksOf(state_->job, state_->view.replica);
}

bool StageCostModel::reuses() const { return state_->common->reuse; }

void StageCostModel::CountReused(int64_t layers) const {
  state_->cache.CountHits(layers);
}

const JobSpec& StageCostModel::job() const { return state_->job; }

CacheCounters StageCostModel::cache() const {
  return {.hits = state_->cache.hits(), .misses = state_->cache.misses()};
}

}  // namespace pipeloom::emulator
