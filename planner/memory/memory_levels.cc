#include "planner/memory/memory_levels.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/units.h"

namespace pipeloom::planner {

using partition::MemorySelection;
using partition::StepMemory;

namespace {

// Shares of the way from keeping everything to min-memory, for all modules.
constexpr double kLevels[] = {0.4, 0.6, 0.2, 1, 0.8, 0};

}  // namespace

std::vector<MemorySelection> MemoryLevels(const StepMemory& memory,
                                          const Partition& partition) {
  std::vector<MemorySelection> levels;
  const auto add = [&](MemorySelection selection) {
    if (std::find(levels.begin(), levels.end(), selection) == levels.end()) {
      levels.push_back(std::move(selection));
    }
  };
  const std::vector<Bytes> copies = memory.CopySizes();
  const StepMemory uncopied = copies.empty() ? memory : memory.WithoutCopies();
  const auto without_copies = [&](MemorySelection selection) {
    return copies.empty() ? selection : FromWithoutCopies(memory, selection);
  };
  for (const double share : kLevels) {
    add(without_copies(uncopied.Level(share)));
  }
  // The choices that hold least may peak high in the backward, and the other
  // way round.
  for (const int64_t at_once : {int64_t{partition.num_ranks}, int64_t{1}}) {
    add(without_copies(uncopied.Lean(at_once)));
  }
  const MemorySelection min_memory = without_copies(uncopied.MinMemory());
  std::vector<ModuleId> modules;
  for (const partition::StagePair& pair : memory.pairs) {
    const ModuleId module = partition.stages[pair.stage].module;
    if (std::find(modules.begin(), modules.end(), module) == modules.end()) {
      modules.push_back(module);
    }
  }
  if (modules.size() > 1) {
    for (const ModuleId module : modules) {
      MemorySelection selection = memory.KeepEverything();
      for (const StagePairId pair : memory.pairs.ids()) {
        if (partition.stages[memory.pairs[pair].stage].module == module) {
          selection[pair] = min_memory[pair];
        }
      }
      add(std::move(selection));
    }
  }
  return levels;
}

}  // namespace pipeloom::planner
