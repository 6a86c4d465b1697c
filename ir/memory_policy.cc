#include "ir/memory_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace pipeloom {

bool MemoryChoice::keeps_everything() const {
  return std::all_of(layers.begin(), layers.end(), [](MemoryStrategy s) {
    return s == MemoryStrategy::kKeep;
  });
}

MemoryChoice RecomputeWhole(int32_t num_layers) {
  MemoryChoice choice;
  choice.layers.assign(static_cast<size_t>(num_layers),
                       MemoryStrategy::kRecompute);
  choice.grouped = true;
  return choice;
}

int32_t NumStagePairs(const Partition& partition,
                      const Microbatches& microbatches) {
  IdVector<ModuleId, int32_t> stages;
  for (const Stage& stage : partition.stages) {
    if (stage.module.value() >= stages.size()) {
      stages.resize(stage.module.value() + 1);
    }
    ++stages[stage.module];
  }
  int32_t pairs = 0;
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    if (stages.Contains(sub.module)) pairs += stages[sub.module];
  }
  return pairs;
}

absl::Status ValidateMemoryPolicy(const MemoryPolicy& policy,
                                  const Partition& partition,
                                  const Microbatches& microbatches) {
  if (policy.empty()) return absl::OkStatus();
  const int32_t pairs = NumStagePairs(partition, microbatches);
  if (policy.choice_of.size() != pairs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the memory policy has %d stage pairs; the step has %d",
                        policy.choice_of.size(), pairs));
  }
  StagePairId pair(0);
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    for (const Stage& stage : partition.stages) {
      if (stage.module != sub.module) continue;
      const int32_t index = policy.choice_of[pair];
      if (index < 0 || static_cast<size_t>(index) >= policy.choices.size()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "memory policy, stage pair %d: choice %d; there are %d choices",
            pair.value(), index, policy.choices.size()));
      }
      const MemoryChoice& choice = policy.of(pair);
      if (!choice.layers.empty() &&
          static_cast<int32_t>(choice.layers.size()) != stage.num_layers) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "memory policy, stage pair %d: the choice is for %d layers; the "
            "stage has %d",
            pair.value(), choice.layers.size(), stage.num_layers));
      }
      ++pair;
    }
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
