// Costs of keeping, recomputing and offloading: the memory choices of a step
// with their times and bytes, for searches that choose among them.
//
// Time: a fully recomputed layer adds its forward to the backward, one that is
// recomputed in part the time of its groups. Memory: a recomputed layer holds
// its input, or what its groups leave; while the forward is in it, also the
// tensors between its operators. The backward goes through the layers
// last to first; a layer's activations are whole only during its own time,
// those of layers that share a checkpoint (MemoryChoice::period) during theirs.
// Layers that are done hold what the weight gradient needs, if that is a
// separate task, else nothing. The backward's peak is the most on this walk. An
// offloaded layer holds nothing between the copy out after the forward and the
// copy back before the backward.
//
// Copies run on one stream per direction, overlapped with compute, and release
// memory as they go. A choice whose copies last longer than the pass they
// belong to is not offered, so no queue builds up: a copy is done at most the
// longest copy M of its rank after its forward, begins at most M before its
// backward, and at any time no more bytes are in flight, in each direction,
// than the rank's largest copy has. So twice those bytes are reserved on the
// rank (RankMemory::overhead), and a backward starts at least 2 M after its
// forward (the dependency's delay). Host memory is assumed to be enough.
#ifndef PIPELOOM_PARTITION_GRAPH_MEMORY_CANDIDATES_H_
#define PIPELOOM_PARTITION_GRAPH_MEMORY_CANDIDATES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "emulator/stage/stage_cost.h"
#include "ir/ids.h"
#include "ir/plan/memory_policy.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::partition {

// One stage pair and its tasks in a graph.
struct StagePair {
  TaskId forward{};
  TaskId backward{};     // None: the stage has no backward, and no choice.
  TaskId weight_grad{};  // None: not split.
  EdgeId edge{};         // From forward to backward.
  StageId stage{};
  SubMicrobatchId sub_microbatch{};
  bool needs_input_grad = false;
  // Whether its backward is the one that makes the stage's gradients
  // (emulator/stage/made_gradients.h).
  bool makes_gradients = false;
  bool operator==(const StagePair&) const = default;
};

// The form of a pair's gradients (emulator/ops/op_graph.h, LayerOps). In a
// graph with weight-gradient tasks those of fused pairs take no time and hold
// nothing.
enum class PassForm : uint8_t {
  kSplit,  // Input gradient, and the weight gradient any time after it.
  kFused,  // Both gradients in the backward.
};

// The times and bytes of a pair's tasks under a choice.
struct MemoryEffect {
  Duration backward{};     // Time of the backward task, with recomputation.
  Duration weight_grad{};  // 0 if fused.
  Duration extra{};        // Part of `backward` that is recomputation.
  // How much other compute fits into `backward` while the compute stream waits
  // for collectives.
  Duration gap{};
  // How much of `backward` can run while a forward waits for collectives; the
  // same the other way round for the pair's forward, which no choice changes.
  Duration compute{};
  Duration forward_gap{};
  Duration forward_compute{};
  Duration copy{};  // Time to the host; the same back.
  // Taken when the forward starts, and given back when it ends: what is
  // offloaded, and tensors between operators that are recomputed.
  Bytes forward_alloc{};
  Bytes forward_free{};
  Bytes offloaded{};  // Part of forward_free that goes to the host.
  Bytes backward_alloc{};
  Bytes backward_free{};
  Bytes weight_grad_free{};
  bool operator==(const MemoryEffect&) const = default;

  // Returns the bytes held from the forward's end to the backward's start.
  Bytes held() const { return forward_alloc - forward_free; }
  // Returns the bytes held while the backward runs.
  Bytes backward_peak() const { return held() + backward_alloc; }
};

// Prices of a stage's layers at one shape.
class LayerCosts {
 public:
  LayerCosts(const emulator::StageCostModel& costs, const Stage& stage,
             const WorkShape& shape, bool needs_input_grad,
             bool makes_gradients = false)
      : LayerCosts(costs, stage, RowOf(costs, stage), shape, needs_input_grad,
                   makes_gradients) {}
  // The same with RowOf(costs, stage), for several shapes.
  LayerCosts(const emulator::StageCostModel& costs, const Stage& stage,
             const emulator::StageRow& row, const WorkShape& shape,
             bool needs_input_grad, bool makes_gradients = false);
  // Returns the layers of the stage as stages of their own.
  static emulator::StageRow RowOf(const emulator::StageCostModel& costs,
                                  const Stage& stage);
  bool operator==(const LayerCosts&) const = default;

  // Returns the costs of the single layers.
  absl::Span<const emulator::StageCost> layers() const { return layers_; }
  // Returns the input of layer `index`, also if the layer keeps less.
  Bytes input(size_t index) const { return inputs_[index]; }
  Duration forward() const { return forward_; }
  // Returns the times and bytes of the pair's tasks. REQUIRES: the choice has
  // no layers or as many as the stage.
  MemoryEffect Effect(const MemoryChoice& choice, PassForm form) const;
  // Returns whether the choice's copies are no longer than the passes they
  // belong to.
  bool CopiesKeepUp(const MemoryEffect& effect) const {
    return effect.copy <= forward_ && effect.copy <= effect.backward;
  }

 private:
  // Returns the most that the layers [first, end), which are treated alike and
  // keep `kept` together, hold while the forward is in them.
  Bytes ForwardPeak(size_t first, size_t end, const LayerMemory& memory,
                    Bytes kept) const;

  std::vector<emulator::StageCost> layers_{};
  std::vector<Bytes> inputs_{};  // Input of each layer, also if it keeps less.
  // Sums over the layers.
  Duration forward_{};
  Duration backward_{};
  Duration weight_grad_{};
  Duration fused_{};
  Duration backward_gap_{};
  Duration fused_gap_{};
  Duration forward_gap_{};
  Duration forward_compute_{};
  Duration backward_compute_{};
  Duration fused_compute_{};
  Bandwidth host_bandwidth_{};
  bool makes_gradients_ = false;
};

// A memory choice with its effect.
struct MemoryCandidate {
  MemoryChoice choice{};
  MemoryEffect effect{};
  bool operator==(const MemoryCandidate&) const = default;
};

// Lists of candidates. Copies share them until one is changed, as searches copy
// StepMemory often, but only change which list a pair has. Copies may be read
// and changed from different threads.
class CandidateLists {
 public:
  using List = std::vector<MemoryCandidate>;
  size_t size() const { return lists_->size(); }
  const List& operator[](size_t list) const { return (*lists_)[list]; }
  auto begin() const { return lists_->cbegin(); }
  auto end() const { return lists_->cend(); }
  // Returns the lists to change: first copies them if they are shared.
  std::vector<List>& Change() {
    if (lists_.use_count() > 1) {
      lists_ = std::make_shared<std::vector<List>>(*lists_);
    }
    return *lists_;
  }

 private:
  std::shared_ptr<std::vector<List>> lists_ =
      std::make_shared<std::vector<List>>();
};

// Index of a candidate for each pair.
using MemorySelection = IdVector<StagePairId, int32_t>;
// The form of each pair's passes.
using FormSelection = IdVector<StagePairId, PassForm>;

// All memory choices of a step. A pair's candidate 0 keeps everything.
struct StepMemory {
  IdVector<StagePairId, StagePair> pairs{};
  IdVector<StagePairId, int32_t> list_of{};  // Index into `lists`.
  CandidateLists lists{};
  // For each list, the list of the same candidates in the other form of the
  // passes; -1 if there is none, as the pair has no separate weight gradient.
  std::vector<int32_t> other_form{};
  std::vector<PassForm> form_of_list{};

  // Returns the candidates of a pair.
  const std::vector<MemoryCandidate>& candidates(StagePairId pair) const {
    return lists[static_cast<size_t>(list_of[pair])];
  }
  const MemoryEffect& effect(StagePairId pair, int32_t candidate) const {
    return candidates(pair)[static_cast<size_t>(candidate)].effect;
  }
  // Returns candidate 0 of every pair.
  MemorySelection KeepEverything() const {
    return MemorySelection(pairs.size(), 0);
  }
  // Returns for each pair the candidate that holds least; ties: the smallest
  // backward peak, then the fastest.
  MemorySelection MinMemory() const;
  // Returns for each pair the candidate that needs least if `at_once` such
  // pairs are held on a rank and one of them runs its backward; ties: the least
  // held bytes, then the fastest. With 1 it has the lowest peak, with many it
  // holds least. REQUIRES: at_once >= 1.
  MemorySelection Lean(int64_t at_once) const;
  // Returns for each pair the candidate whose held bytes are nearest to `share`
  // of the way from everything (0) to the least (1).
  MemorySelection Level(double share) const;
  // Returns for each pair the candidate that holds least among those that
  // recompute nothing and copy at most `largest`; everything is kept if there
  // is none.
  MemorySelection Copied(Bytes largest) const;
  // Returns whether some pair has more than one candidate.
  bool has_choices() const;
  // Returns the most that each pair can copy, in ascending order, without pairs
  // that can copy nothing.
  std::vector<Bytes> CopySizes() const;
  // Returns the same choices without those that copy.
  StepMemory WithoutCopies() const;
  PassForm form(StagePairId pair) const {
    return form_of_list[static_cast<size_t>(list_of[pair])];
  }
  bool has_other_form(StagePairId pair) const {
    return other_form[static_cast<size_t>(list_of[pair])] >= 0;
  }
  // Returns the effect of the candidate in the other form of the pair's passes.
  // REQUIRES: has_other_form(pair).
  const MemoryEffect& effect_in_other_form(StagePairId pair,
                                           int32_t candidate) const {
    const int32_t list = other_form[static_cast<size_t>(list_of[pair])];
    return lists[static_cast<size_t>(list)][static_cast<size_t>(candidate)]
        .effect;
  }
  // Returns the form of each pair.
  FormSelection forms() const;
  // Gives every pair that has both forms the form in `forms`. Empty: changes
  // none.
  void SetForms(const FormSelection& forms);
  // Gives the pair's passes the other form. REQUIRES: has_other_form(pair).
  void SwitchForm(StagePairId pair) {
    list_of[pair] = other_form[static_cast<size_t>(list_of[pair])];
  }
};

// Makes the choices of a step. `pairs`: BuiltGraph::pairs of the graph with
// everything kept, for these microbatches. `choices`: offered for the pairs of
// each stage in addition to keeping everything; a choice whose copies would not
// keep up at the shape of a pair is left out there. Pairs with a separate
// weight gradient begin split. O(pairs x layers x choices), less if shapes
// repeat.
StepMemory MakeStepMemory(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    const IdVector<StagePairId, StagePair>& pairs,
    const IdVector<StageId, std::vector<MemoryChoice>>& choices);

// Returns the graph with the times and bytes of the selection, equal to that
// which BuildStageGraph makes of PolicyOf(memory, selection). `graph`: the one
// with everything kept; its limits may have been changed. InvalidArgument: the
// times add up to more than a StageGraph holds. O(tasks + edges).
absl::StatusOr<StageGraph> ApplyMemory(const StageGraph& graph,
                                       const StepMemory& memory,
                                       const MemorySelection& selection);

// Does the same to the parts of a graph, with the effect of each pair; null for
// pairs without a backward.
void ApplyEffects(const IdVector<StagePairId, StagePair>& pairs,
                  const IdVector<StagePairId, const MemoryEffect*>& effects,
                  IdVector<RankId, RankSpec>* ranks,
                  IdVector<TaskId, Task>* tasks,
                  IdVector<EdgeId, Dependency>* edges);

// Does the same for a plan whose own instructions carry out the copies: tasks
// take and release only what does not wait on the host, and nothing is delayed
// or reserved.
absl::StatusOr<StageGraph> ApplyMemoryWithCopyTasks(
    const StageGraph& graph, const StepMemory& memory,
    const MemorySelection& selection);

// Converts a selection of WithoutCopies() to one of `memory`.
MemorySelection FromWithoutCopies(const StepMemory& memory,
                                  const MemorySelection& selection);

// Returns the policy with the choices of a selection.
MemoryPolicy PolicyOf(const StepMemory& memory,
                      const MemorySelection& selection);

}  // namespace pipeloom::partition

#endif  // PIPELOOM_PARTITION_GRAPH_MEMORY_CANDIDATES_H_
