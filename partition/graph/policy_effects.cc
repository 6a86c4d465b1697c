#include "partition/graph/policy_effects.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"

namespace pipeloom::partition {
namespace {

using emulator::StageCostModel;

// The times and bytes of a stage pair under its choice of the policy.
struct PolicyEffect {
  MemoryEffect effect{};
  bool copies_keep_up = true;
};

// The inputs of a stage pair's effect, apart from its slot and shape.
struct Variant {
  int32_t choice = 0;  // The first of those that equal the pair's.
  bool needs_input_grad = false;
  bool split = false;
  bool makes_gradients = false;
  bool operator==(const Variant&) const = default;
};

Fingerprint FingerprintOf(const MemoryChoice& choice) {
  FingerprintBuilder builder;
  builder.Add(choice.period);
  for (const LayerMemory& layer : choice.layers) {
    builder.Add(layer.strategy).Add(layer.groups.bits());
  }
  return builder.Build();
}

// Returns for each choice the first that equals it.
std::vector<int32_t> FirstEqualChoices(const std::vector<Fingerprint>& prints) {
  absl::flat_hash_map<Fingerprint, int32_t> first;
  std::vector<int32_t> equal;
  equal.reserve(prints.size());
  for (const Fingerprint& print : prints) {
    equal.push_back(first.try_emplace(print, static_cast<int32_t>(equal.size()))
                        .first->second);
  }
  return equal;
}

// Makes the effects of one step, each once.
class EffectMaker {
 public:
  EffectMaker(const StageCostModel& costs, const Partition& partition,
              const StageSlots& slots, const MemoryPolicy& policy)
      : costs_(costs),
        partition_(partition),
        slots_(slots),
        policy_(policy),
        layers_of_(slots.prints.size()) {
    choice_prints_.reserve(policy.choices.size());
    for (const MemoryChoice& choice : policy.choices) {
      choice_prints_.push_back(FingerprintOf(choice));
    }
    first_equal_ = FirstEqualChoices(choice_prints_);
  }

  Variant VariantOf(StagePairId id, const StagePair& pair) const {
    return {.choice = first_equal_[static_cast<size_t>(policy_.choice_of[id])],
            .needs_input_grad = pair.needs_input_grad,
            .split = !pair.weight_grad.is_none(),
            .makes_gradients = pair.makes_gradients};
  }

  // Returns the effect of a variant on a stage at a shape.
  const PolicyEffect& Of(StageId id, const WorkShape& shape,
                         const Fingerprint& shape_print,
                         const Variant& variant) {
    const auto slot = static_cast<size_t>(slots_.slot_of[id]);
    const Fingerprint key =
        FingerprintBuilder()
            .Add(slots_.prints[slot])
            .Add(shape_print)
            .Add(variant.needs_input_grad)
            .Add(variant.split)
            .Add(variant.makes_gradients)
            .Add(choice_prints_[static_cast<size_t>(variant.choice)])
            .Build();
    const auto [entry, is_new] = known_.try_emplace(
        FingerprintBuilder().Add(slot).Add(key).Build(), nullptr);
    if (is_new) {
      const Stage& stage = partition_.stages[id];
      entry->second = costs_.Derived<PolicyEffect>(key, stage.num_layers, [&] {
        return Make(stage, slot, shape, variant);
      });
    }
    return *entry->second;
  }

  // Hands over what holds the effects.
  std::vector<std::shared_ptr<const void>> TakeOwned() {
    std::vector<std::shared_ptr<const void>> owned;
    owned.reserve(known_.size());
    for (auto& [print, effect] : known_) owned.push_back(std::move(effect));
    known_.clear();
    return owned;
  }

 private:
  PolicyEffect Make(const Stage& stage, size_t slot, const WorkShape& shape,
                    const Variant& variant) {
    std::optional<emulator::StageRow>& row = layers_of_[slot];
    if (!row.has_value()) row = LayerCosts::RowOf(costs_, stage);
    const LayerCosts layers(costs_, stage, *row, shape,
                            variant.needs_input_grad, variant.makes_gradients);
    PolicyEffect made{.effect = layers.Effect(
                          policy_.choices[static_cast<size_t>(variant.choice)],
                          variant.split ? PassForm::kSplit : PassForm::kFused)};
    made.copies_keep_up = layers.CopiesKeepUp(made.effect);
    return made;
  }

  const StageCostModel& costs_;
  const Partition& partition_;
  const StageSlots& slots_;
  const MemoryPolicy& policy_;
  std::vector<Fingerprint> choice_prints_{};
  std::vector<int32_t> first_equal_{};
  // Rows of the slots' layers, made where needed. Indexed by slot.
  std::vector<std::optional<emulator::StageRow>> layers_of_{};
  // Keys are of slot, shape and variant.
  absl::flat_hash_map<Fingerprint, std::shared_ptr<const PolicyEffect>>
      known_{};
};

}  // namespace

absl::StatusOr<PolicyEffects> PolicyEffects::Create(
    const StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches, const StageSlots& slots,
    const MemoryPolicy& policy, const IdVector<StagePairId, StagePair>& pairs,
    const IdVector<TaskId, Task>& tasks) {
  // The last pair of a slot: the next one is often equal.
  struct Last {
    SubMicrobatchId sub_microbatch{};
    Variant variant{};
    const MemoryEffect* effect = nullptr;
  };
  std::vector<Last> last_of(slots.prints.size());
  EffectMaker maker(costs, partition, slots, policy);
  PolicyEffects effects;
  effects.of_pair_.resize(pairs.size());
  SubMicrobatchId current;
  Fingerprint shape_print;
  for (const StagePairId id : pairs.ids()) {
    const StagePair& pair = pairs[id];
    if (pair.backward.is_none()) continue;
    const Variant variant = maker.VariantOf(id, pair);
    Last& last = last_of[static_cast<size_t>(slots.slot_of[pair.stage])];
    if (last.sub_microbatch == pair.sub_microbatch && last.variant == variant) {
      effects.of_pair_[id] = last.effect;
      continue;
    }
    const WorkShape& shape =
        microbatches.sub_microbatches[pair.sub_microbatch].shape;
    if (pair.sub_microbatch != current) {
      current = pair.sub_microbatch;
      shape_print = shape.fingerprint();
    }
    const PolicyEffect& made =
        maker.Of(pair.stage, shape, shape_print, variant);
    if (!made.copies_keep_up) {
      const Task& forward = tasks[pair.forward];
      return absl::InvalidArgumentError(absl::StrFormat(
          "memory policy, stage pair %d (%s): its copies to the host take "
          "%s, longer than its forward or backward pass",
          id.value(),
          DescribeTask(forward, pair.forward,
                       costs.job().model.modules[forward.module].name),
          FormatDuration(made.effect.copy)));
    }
    last = {pair.sub_microbatch, variant, &made.effect};
    effects.of_pair_[id] = &made.effect;
  }
  effects.owned_ = maker.TakeOwned();
  return effects;
}

}  // namespace pipeloom::partition
