// Settings of memory for a whole step, as an engineer makes them by hand: each
// module has one setting for all its stages and microbatches. Strategies that
// do not choose memory by stage pair choose among these.
//
//   nothing          everything is kept
//   groups           the same operator groups of every layer are recomputed
//   block            the first 25, 50 or 75 % of a stage's layers are fully
//                    recomputed
//   uniform          all layers are recomputed, with a checkpoint every 1, 2 or
//   4 host             if the job allows it: the first 25, 50 or 100 % of a
//                    stage's layers are offloaded
#ifndef PIPELOOM_PLANNER_MEMORY_MEMORY_RULES_H_
#define PIPELOOM_PLANNER_MEMORY_MEMORY_RULES_H_

#include <cstdint>
#include <vector>

#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"
#include "partition/graph/memory_candidates.h"

namespace pipeloom::planner {

// Indexed by module: the index of its setting; 0 keeps everything.
using MemoryRule = IdVector<ModuleId, int32_t>;

// The settings of a step and their effects.
class MemoryRules {
 public:
  // Makes the choices of all settings. `pairs` belong to the graph with
  // everything kept.
  MemoryRules(const emulator::StageCostModel& costs, const Partition& partition,
              const Microbatches& microbatches,
              const IdVector<StagePairId, partition::StagePair>& pairs);

  // Returns the memory choices of all settings.
  const partition::StepMemory& memory() const { return memory_; }
  // Returns the selection that a rule stands for.
  partition::MemorySelection SelectionOf(const MemoryRule& rule) const;

  // Returns the time that the busiest rank computes; no step with the rule is
  // shorter. `graph` has everything kept.
  Duration BusiestRank(const StageGraph& graph, const MemoryRule& rule) const;

  // Returns the rules with the same setting for all modules, first the one that
  // keeps everything, then by ascending time and descending memory. No rule
  // takes more time than another that nowhere needs more memory. Not empty.
  std::vector<MemoryRule> SameForAll() const;
  // Returns `rule` with each setting of module `m` that takes less time, by
  // ascending time.
  std::vector<MemoryRule> Cheaper(const MemoryRule& rule, ModuleId m) const;

 private:
  struct Sums {
    Duration extra{};
    Bytes held{};
    bool possible = true;  // Whether all copies keep up.
  };
  bool Possible(const MemoryRule& rule) const;
  Duration Extra(const MemoryRule& rule) const;
  // Returns whether `a` is no worse than `b` for any stage pair.
  bool Covers(const MemoryRule& a, const MemoryRule& b) const;
  const partition::MemoryEffect& Effect(size_t list, int32_t setting) const;

  int32_t num_settings_ = 1;
  partition::StepMemory memory_{};
  std::vector<ModuleId> module_of_list_{};
  // Indexed by list and setting; -1 if not possible.
  std::vector<std::vector<int32_t>> candidate_{};
  // Indexed by module and setting.
  IdVector<ModuleId, std::vector<Sums>> sums_{};
};

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_MEMORY_MEMORY_RULES_H_
