#include "planner/memory/memory_levels.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/units.h"
#include "planner/core/memory_feasibility.h"
#include "planner/core/memory_guard.h"

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
  // Indexed by rank and microbatch.
  IdVector<RankId, std::vector<double>> held(graph.num_ranks());
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    const Task& forward = graph.task(memory.pairs[id].forward);
    const auto m = static_cast<size_t>(forward.microbatch.value());
    std::vector<double>& of_rank = held[forward.rank];
    of_rank.resize(std::max(of_rank.size(), m + 1));
    of_rank[m] +=
        static_cast<double>(memory.effect(id, selection[id]).held().count());
  }
  double fewest = std::numeric_limits<double>::infinity();
  for (const RankId r : graph.rank_ids()) {
    double sum = 0;
    double squares = 0;
    for (const double bytes : held[r]) {
      sum += bytes;
      squares += bytes * bytes;
    }
    const RankMemory& rank = graph.rank(r).memory;
    if (rank.limit == Bytes(0) || sum <= 0) continue;
    const Bytes room = rank.limit - rank.static_bytes();
    fewest =
        std::min(fewest, static_cast<double>(room.count()) * sum / squares);
  }
  return fewest;
}

namespace {

// Sorts levels by `badness(level)`; equal ones stay in order.
template <typename Badness>
void SortLevels(const Badness& badness, std::vector<MemorySelection>* levels) {
  std::vector<std::pair<double, MemorySelection>> sorted;
  for (MemorySelection& level : *levels) {
    const double bad = badness(level);
    sorted.emplace_back(bad, std::move(level));
  }
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    (*levels)[i] = std::move(sorted[i].second);
  }
}

}  // namespace

void PutRoomyLevelsFirst(const StageGraph& graph, const StepMemory& memory,
                         std::vector<MemorySelection>* levels) {
  constexpr double kLeastShare = 0.5;
  const double enough = kLeastShare * graph.num_ranks();
  SortLevels(
      [&](const MemorySelection& level) {
        const double fit = MicrobatchesThatFit(graph, memory, level);
        return std::max(0.0, enough - fit);
      },
      levels);
}

std::vector<MemorySelection> ShortestLevels(
    const StageGraph& graph, const StepMemory& memory,
    std::vector<MemorySelection> levels) {
  constexpr double kFullShares[] = {0.9, 2};
  double work = 0;
  for (const Task& task : graph.tasks()) {
    work += static_cast<double>(task.duration.count());
  }
  struct Level {
    MemorySelection selection{};
    double time = 0;  // Sum over all passes, ns.
    double fit = 0;   // MicrobatchesThatFit.
  };
  std::vector<Level> left;
  for (MemorySelection& selection : levels) {
    double time = work;
    for (const StagePairId id : memory.pairs.ids()) {
      if (memory.pairs[id].backward.is_none()) continue;
      time +=
          static_cast<double>(memory.effect(id, selection[id]).extra.count());
    }
    const double fit = MicrobatchesThatFit(graph, memory, selection);
    left.push_back({std::move(selection), time, fit});
  }
  std::vector<MemorySelection> shortest;
  for (const double share : kFullShares) {
    if (left.empty()) break;
    const double full = share * graph.num_ranks();
    const auto estimate = [&](const Level& level) {
      return level.time * std::max(1.0, full / level.fit);
    };
    const auto best = std::min_element(left.begin(), left.end(),
                                       [&](const Level& a, const Level& b) {
                                         return estimate(a) < estimate(b);
                                       });
    shortest.push_back(std::move(best->selection));
    left.erase(best);
  }
  return shortest;
}

std::vector<MemorySelection> StartLevels(const StageGraph& graph,
                                         const StepMemory& memory,
                                         const Partition& partition) {
  // 0.3 to 0.6 is best for dip-vlm-s, dip-vlm-l, qwen2.5-vl-72b and dip-t2v-l.
  constexpr double kShares[] = {0.4, 0.6, 0.2, 1, 0.8, 0};
  constexpr double kManyShares[] = {0,   0.1, 0.2, 0.3, 0.4, 0.5,
                                    0.6, 0.7, 0.8, 0.9, 1};
  std::vector<MemorySelection> levels = ShortestLevels(
      graph, memory, MemoryLevels(memory, partition, kManyShares));
  std::vector<MemorySelection> others =
      MemoryLevels(memory, partition, kShares);
  PutRoomyLevelsFirst(graph, memory, &others);
  for (MemorySelection& level : others) {
    if (std::find(levels.begin(), levels.end(), level) == levels.end()) {
      levels.push_back(std::move(level));
    }
  }
  return levels;
}

bool MemoryIsTight(const StageGraph& graph, const StepMemory& memory) {
  const absl::StatusOr<StageGraph> chosen =
      partition::ApplyMemory(graph, memory, memory.Level(1));
  if (!chosen.ok()) return false;
  const FlatGraph flat(*chosen);
  if (!MemoryIsShort(flat)) return false;
  const std::vector<int64_t> alone = MemoryGuard(flat).shortage().needed;
  for (size_t r = 0; r < alone.size(); ++r) {
    if (2 * alone[r] > flat.capacity[r]) return true;
  }
  return false;
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

namespace {

// Weight gradients of which gaps leave more than this share are tasks of their
// own. Chosen among 0.3, 0.5, 0.7 and 0.9 on eight steps of qwen2.5-vl-72b and
// dip-t2v-s in 1 s.
constexpr double kRestApart = 0.5;
// If they take less than this share of the time of all backwards they are not:
// then more tasks cost more than their places gain. They take 0.1 % of
// dip-t2v-s, which got 0.9 % longer in 100 ms, and 19 % of qwen2.5-vl-72b.
constexpr double kLeastRests = 0.04;

// The time of a weight gradient that the gap of one backward leaves.
Duration RestOf(const partition::MemoryEffect& split) {
  return split.weight_grad - std::min(split.gap, split.weight_grad);
}

// For each list of fused candidates: whether the search places the weight
// gradients of its pairs as separate tasks.
std::vector<bool> WithRestsApart(const StepMemory& memory) {
  const auto is_apart = [&](size_t list) {
    if (memory.other_form[list] < 0) return false;
    const auto& kept =
        memory.lists[static_cast<size_t>(memory.other_form[list])][0].effect;
    return memory.form_of_list[list] == partition::PassForm::kFused &&
           ToSeconds(RestOf(kept)) > kRestApart * ToSeconds(kept.weight_grad);
  };
  std::vector<bool> apart(memory.lists.size());
  for (size_t list = 0; list < apart.size(); ++list) {
    apart[list] = is_apart(list);
  }
  double rests = 0;
  double all = 0;
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    // Pairs begin split.
    const partition::MemoryEffect& kept = memory.candidates(id)[0].effect;
    all += ToSeconds(kept.backward + RestOf(kept));
    const int32_t fused =
        memory.other_form[static_cast<size_t>(memory.list_of[id])];
    if (fused >= 0 && apart[static_cast<size_t>(fused)]) {
      rests += ToSeconds(RestOf(kept));
    }
  }
  if (rests < kLeastRests * all) apart.assign(apart.size(), false);
  return apart;
}

// Makes AsIfPaired or, unless `splits`, AsIfPairedAndFused.
StepMemory AsIf(const StepMemory& memory, bool splits) {
  const std::vector<bool> apart = WithRestsApart(memory);
  StepMemory paired = memory;
  paired.SetForms(partition::FormSelection(memory.pairs.size(),
                                           partition::PassForm::kFused));
  std::vector<partition::CandidateLists::List>& lists = paired.lists.Change();
  for (size_t list = 0; list < lists.size(); ++list) {
    if (memory.other_form[list] < 0 ||
        memory.form_of_list[list] != partition::PassForm::kFused) {
      continue;
    }
    partition::CandidateLists::List& others =
        lists[static_cast<size_t>(memory.other_form[list])];
    for (size_t i = 0; i < lists[list].size(); ++i) {
      partition::MemoryEffect& fused = lists[list][i].effect;
      partition::MemoryEffect& split = others[i].effect;
      split.weight_grad = RestOf(split);
      fused.backward =
          std::min(fused.backward, split.backward + split.weight_grad);
      if (!apart[list]) continue;
      const Bytes more =
          std::max(Bytes(0), split.backward_peak() - fused.backward_peak());
      fused.backward_alloc += more;
      fused.backward_free += more;
    }
  }
  for (const StagePairId id : paired.pairs.ids()) {
    if (splits && apart[static_cast<size_t>(paired.list_of[id])]) {
      paired.SwitchForm(id);
    }
  }
  paired.other_form.assign(paired.other_form.size(), -1);
  return paired;
}

}  // namespace

StepMemory AsIfPaired(const StepMemory& memory) {
  return AsIf(memory, /*splits=*/true);
}

StepMemory AsIfPairedAndFused(const StepMemory& memory) {
  return AsIf(memory, /*splits=*/false);
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
