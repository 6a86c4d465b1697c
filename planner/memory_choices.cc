#include "planner/memory_choices.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace pipeloom::planner {
namespace {

// Modules whose stages have a backward pass: trainable themselves, or fed by
// something trainable.
IdVector<ModuleId, bool> ModulesWithBackward(const JobSpec& job) {
  const ModelSpec& model = job.model;
  IdVector<ModuleId, bool> result(model.modules.size(), false);
  for (const ModuleId m : model.modules.ids()) {
    result[m] = !job.IsFrozen(m);
    for (const ModuleEdge& edge : model.edges) {
      if (edge.to == m && result[edge.from]) result[m] = true;
    }
  }
  return result;
}

}  // namespace

std::vector<RecomputeChoice> MemoryChoices(const JobSpec& job,
                                           const Partition& partition) {
  const int32_t num_stages = partition.stages.size();
  if (!job.Allows(MemoryStrategy::kRecompute)) {
    return {RecomputeChoice(num_stages, false)};
  }
  const IdVector<ModuleId, bool> has_backward = ModulesWithBackward(job);
  std::vector<std::pair<int64_t, ModuleId>> modules;
  for (const ModuleId m : job.model.modules.ids()) {
    if (has_backward[m]) {
      modules.emplace_back(-Parameters(job.model.modules[m]), m);
    }
  }
  std::sort(modules.begin(), modules.end());

  // Bit b of a mask stands for the b-th largest module; modules beyond the last
  // bit go with the largest.
  const int bits =
      std::min(static_cast<int>(modules.size()), kMaxChosenModules);
  std::vector<std::pair<int64_t, uint32_t>> masks;
  for (uint32_t mask = 0; mask < (1u << bits); ++mask) {
    int64_t recomputed = 0;
    for (size_t i = 0; i < modules.size(); ++i) {
      const int bit = static_cast<int>(i) < bits ? static_cast<int>(i) : 0;
      if ((mask >> bit) & 1u) recomputed -= modules[i].first;
    }
    masks.emplace_back(recomputed, mask);
  }
  std::sort(masks.begin(), masks.end());

  std::vector<RecomputeChoice> choices;
  for (const auto& [recomputed, mask] : masks) {
    RecomputeChoice choice(num_stages, false);
    for (size_t i = 0; i < modules.size(); ++i) {
      const int bit = static_cast<int>(i) < bits ? static_cast<int>(i) : 0;
      if (((mask >> bit) & 1u) == 0) continue;
      for (const StageId s : partition.StagesOf(modules[i].second)) {
        choice[s] = true;
      }
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

}  // namespace pipeloom::planner
