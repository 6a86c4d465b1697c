#include "planner/memory/memory_levels.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/units.h"

namespace pipeloom::planner {

using partition::MemorySelection;
using partition::StepMemory;

std::vector<MemorySelection> MemoryLevels(const StepMemory& memory,
                                          const Partition& partition,
                                          absl::Span<const double> shares) {
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
  for (const double share : shares) {
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

double MicrobatchesThatFit(const StageGraph& graph, const StepMemory& memory,
                           const MemorySelection& selection) {
  IdVector<RankId, double> held(graph.num_ranks(), 0.0);
  MicrobatchId last(0);
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    const Task& forward = graph.task(memory.pairs[id].forward);
    held[forward.rank] +=
        static_cast<double>(memory.effect(id, selection[id]).held().count());
    last = std::max(last, forward.microbatch);
  }
  const double microbatches = last.value() + 1;
  double fewest = std::numeric_limits<double>::infinity();
  for (const RankId r : graph.rank_ids()) {
    const RankMemory& rank = graph.rank(r).memory;
    if (rank.limit == Bytes(0) || held[r] <= 0) continue;
    const Bytes room = rank.limit - rank.static_bytes();
    fewest = std::min(
        fewest, static_cast<double>(room.count()) * microbatches / held[r]);
  }
  return fewest;
}

void PutRoomyLevelsFirst(const StageGraph& graph, const StepMemory& memory,
                         std::vector<MemorySelection>* levels) {
  constexpr double kLeastShare = 0.5;
  const double enough = kLeastShare * graph.num_ranks();
  std::vector<std::pair<double, MemorySelection>> by_lack;
  for (MemorySelection& level : *levels) {
    const double fit = MicrobatchesThatFit(graph, memory, level);
    by_lack.emplace_back(std::max(0.0, enough - fit), std::move(level));
  }
  std::stable_sort(
      by_lack.begin(), by_lack.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < by_lack.size(); ++i) {
    (*levels)[i] = std::move(by_lack[i].second);
  }
}

FlatGraph WithFastestChoices(const StageGraph& graph,
                             const StepMemory& memory) {
  FlatGraph flat(graph);
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    int64_t& time =
        flat.duration[static_cast<size_t>(memory.pairs[id].backward.value())];
    for (const partition::MemoryCandidate& c : memory.candidates(id)) {
      time = std::min(time, c.effect.backward.count());
    }
  }
  return flat;
}

StepMemory AsIfPaired(const StepMemory& memory) {
  StepMemory paired = memory;
  paired.SetForms(partition::FormSelection(memory.pairs.size(),
                                           partition::PassForm::kFused));
  std::vector<partition::CandidateLists::List>& lists = paired.lists.Change();
  for (size_t list = 0; list < lists.size(); ++list) {
    const int32_t other = memory.other_form[list];
    paired.other_form[list] = -1;
    if (other < 0 || memory.form_of_list[list] != partition::PassForm::kFused) {
      continue;
    }
    for (size_t i = 0; i < lists[list].size(); ++i) {
      const partition::MemoryEffect& split =
          lists[static_cast<size_t>(other)][i].effect;
      Duration& backward = lists[list][i].effect.backward;
      backward = std::min(backward, split.backward + split.weight_grad -
                                        std::min(split.gap, split.weight_grad));
    }
  }
  return paired;
}

bool GapsHideWeightGrads(const StepMemory& memory) {
  constexpr double kLeastShare = 0.1;
  double hidden = 0;
  double all = 0;
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none() || !memory.has_other_form(id)) {
      continue;
    }
    const partition::MemoryEffect& kept = memory.candidates(id)[0].effect;
    hidden += ToSeconds(std::min(kept.gap, kept.weight_grad));
    all += ToSeconds(kept.weight_grad);
  }
  return hidden > 0 && hidden >= kLeastShare * all;
}

}  // namespace pipeloom::planner
