#include "ir/plan/memory_policy.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

namespace pipeloom {

bool MemoryChoice::keeps_everything() const {
  return std::all_of(layers.begin(), layers.end(),
                     [](const LayerMemory& layer) { return layer.keeps(); });
}

size_t MemoryChoice::CheckpointEnd(size_t begin) const {
  const size_t most =
      std::min(layers.size(), begin + static_cast<size_t>(period));
  size_t end = begin + 1;
  while (end < most && layers[end].recomputes_fully()) ++end;
  return end;
}

MemoryChoice RecomputeUniform(int32_t num_layers, int32_t period) {
  MemoryChoice choice;
  choice.layers.assign(static_cast<size_t>(num_layers),
                       MemoryStrategy::kRecompute);
  choice.period = period;
  return choice;
}

MemoryChoice RecomputeWhole(int32_t num_layers) {
  return RecomputeUniform(num_layers, std::max(num_layers, 1));
}

MemoryChoice RecomputeBlock(int32_t num_layers, int32_t count) {
  MemoryChoice choice;
  choice.layers.resize(static_cast<size_t>(num_layers));
  std::fill_n(choice.layers.begin(), count, MemoryStrategy::kRecompute);
  return choice;
}

MemoryChoice RecomputeGroups(int32_t num_layers, OperatorGroups groups) {
  MemoryChoice choice;
  choice.layers.assign(static_cast<size_t>(num_layers),
                       LayerMemory(MemoryStrategy::kRecompute, groups));
  return choice;
}

absl::Status ValidateMemoryChoice(const MemoryChoice& choice) {
  if (choice.period < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "period is %d; it counts the layers of a checkpoint, at least 1",
        choice.period));
  }
  for (size_t i = 0; i < choice.layers.size(); ++i) {
    const LayerMemory& layer = choice.layers[i];
    if (layer.strategy == MemoryStrategy::kRecompute || layer.groups.empty()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "layer %d: groups is %s, but the layer is %s; only a recomputed layer "
        "has groups",
        i, ToString(layer.groups), layer.keeps() ? "kept" : "offloaded"));
  }
  return absl::OkStatus();
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
  // Each choice is checked once, for the first pair that has it.
  std::vector<uint8_t> checked(policy.choices.size(), 0);
  IdVector<ModuleId, std::vector<const Stage*>> stages_of;
  for (const Stage& stage : partition.stages) {
    if (stage.module.value() >= stages_of.size()) {
      stages_of.resize(stage.module.value() + 1);
    }
    stages_of[stage.module].push_back(&stage);
  }
  StagePairId pair(0);
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    if (!stages_of.Contains(sub.module)) continue;
    for (const Stage* const stage : stages_of[sub.module]) {
      const int32_t index = policy.choice_of[pair];
      if (index < 0 || static_cast<size_t>(index) >= policy.choices.size()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "memory policy, stage pair %d: choice %d; there are %d choices",
            pair.value(), index, policy.choices.size()));
      }
      const MemoryChoice& choice = policy.of(pair);
      if (checked[static_cast<size_t>(index)] == 0) {
        if (const absl::Status valid = ValidateMemoryChoice(choice);
            !valid.ok()) {
          return absl::InvalidArgumentError(
              absl::StrFormat("memory policy, stage pair %d: %s", pair.value(),
                              std::string(valid.message())));
        }
        checked[static_cast<size_t>(index)] = 1;
      }
      if (!choice.layers.empty() &&
          static_cast<int32_t>(choice.layers.size()) != stage->num_layers) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "memory policy, stage pair %d: the choice is for %d layers; the "
            "stage has %d",
            pair.value(), choice.layers.size(), stage->num_layers));
      }
      ++pair;
    }
  }
  return absl::OkStatus();
}

IdVector<StageId, MemoryChoice> AllRecomputed(const Partition& partition) {
  IdVector<StageId, MemoryChoice> choices;
  for (const Stage& stage : partition.stages) {
    choices.push_back(RecomputeUniform(stage.num_layers));
  }
  return choices;
}

MemoryPolicy PolicyByStage(const IdVector<StageId, MemoryChoice>& choices,
                           const Partition& partition,
                           const Microbatches& microbatches) {
  MemoryPolicy policy;
  policy.choices = choices.items();
  for (const SubMicrobatch& sub : microbatches.sub_microbatches) {
    for (const StageId s : partition.stages.ids()) {
      if (partition.stages[s].module != sub.module) continue;
      policy.choice_of.push_back(s.value());
    }
  }
  return policy;
}

}  // namespace pipeloom
