#include "partition/graph/memory_candidates.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/fingerprint.h"
#include "emulator/stage/layer_memory.h"

namespace pipeloom::partition {
namespace {

using emulator::StageCost;

Bytes BytesOf(const StageCost& layer, OperatorGroups groups) {
  Bytes bytes;
  for (const OperatorGroup g : kAllOperatorGroups) {
    if (groups.Has(g)) bytes += layer.groups[static_cast<size_t>(g)].bytes;
  }
  return bytes;
}

Duration TimeOf(const StageCost& layer, OperatorGroups groups) {
  Duration time{};
  for (const OperatorGroup g : kAllOperatorGroups) {
    if (groups.Has(g)) time += layer.groups[static_cast<size_t>(g)].again;
  }
  return time;
}

// Layers that the backward treats together, and the memory they hold.
struct Segment {
  Bytes before{};  // When the backward begins; offloaded layers are back.
  Bytes during{};  // The most while the backward is in them.
  // When the backward is done with them, for the weight gradient.
  Bytes after{};
};

// Returns the most that all hold while the backward goes from last to first.
Bytes WalkBack(const std::vector<Segment>& segments) {
  Bytes live;
  for (const Segment& segment : segments) live += segment.before;
  Bytes peak = live;
  for (size_t k = segments.size(); k-- > 0;) {
    live -= segments[k].before;
    peak = std::max(peak, live + segments[k].during);
    live += segments[k].after;
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

emulator::StageRow LayerCosts::RowOf(const emulator::StageCostModel& costs,
                                     const Stage& stage) {
  std::vector<Stage> single(static_cast<size_t>(stage.num_layers), stage);
  int32_t layer = stage.first_layer.value();
  for (Stage& one : single) {
    one.first_layer = LayerId(layer++);
    one.num_layers = 1;
  }
  return costs.Row(single);
}

LayerCosts::LayerCosts(const emulator::StageCostModel& costs,
                       const Stage& stage, const emulator::StageRow& row,
                       const WorkShape& shape, bool needs_input_grad,
                       bool makes_gradients)
    : host_bandwidth_(costs.job().cluster.device.host_bandwidth),
      makes_gradients_(makes_gradients) {
  const WorkShape share =
      LargestShare(shape, costs.job().CopiesOf(stage.module));
  const std::vector<StageCost> of_slot =
      costs.PriceSlots(row, shape, needs_input_grad);
  const auto count = static_cast<size_t>(stage.num_layers);
  layers_.reserve(count);
  inputs_.reserve(count);
  const auto& specs = costs.job().model.modules[stage.module].layers;
  const ParallelLayout layout = costs.job().LayoutOf(stage.module);
  for (size_t i = 0; i < count; ++i) {
    const StageCost& cost =
        layers_.emplace_back(of_slot[static_cast<size_t>(row.slot_of[i])]);
    forward_ += cost.forward;
    backward_ += cost.backward;
    weight_grad_ += cost.weight_grad;
    fused_ += cost.fused;
    backward_gap_ += cost.backward_gap;
    fused_gap_ += cost.fused_gap;
    forward_gap_ += cost.forward_gap;
    forward_compute_ += cost.forward_compute;
    backward_compute_ += cost.backward_compute;
    fused_compute_ += cost.fused_compute;
    const LayerId id(stage.first_layer.value() + static_cast<int32_t>(i));
    const int64_t width_before =
        id.value() > 0 ? specs[LayerId(id.value() - 1)].hidden : 0;
    inputs_.push_back(
        std::max(cost.input,
                 emulator::InputBytes(specs[id], share, width_before, layout)));
  }
}

Bytes LayerCosts::ForwardPeak(size_t first, size_t end,
                              const LayerMemory& memory, Bytes kept) const {
  // The tensors between the operators of a layer. Edges hold the last output.
  const auto between = [&](size_t layer) {
    const StageCost& cost = layers_[layer];
    const Bytes handed_on =
        layer + 1 == layers_.size() ? cost.output : Bytes(0);
    return std::max(Bytes(0), cost.scratch.forward - handed_on);
  };
  if (memory.recomputes_partly()) {
    return std::min(layers_[first].activations, kept + between(first));
  }
  Bytes peak = kept;
  if (!memory.recomputes_fully()) return peak;
  for (size_t layer = first; layer < end; ++layer) {
    const Bytes input = layer == first ? Bytes(0) : inputs_[layer];
    peak = std::max(peak, kept + input + between(layer));
  }
  return peak;
}

MemoryEffect LayerCosts::Effect(const MemoryChoice& choice,
                                PassForm form) const {
  const bool split = form == PassForm::kSplit;
  PIPELOOM_CHECK(choice.layers.empty() ||
                 choice.layers.size() == layers_.size());
  MemoryEffect effect;
  effect.backward = split ? backward_ : fused_;
  effect.gap = split ? backward_gap_ : fused_gap_;
  effect.compute = split ? backward_compute_ : fused_compute_;
  effect.forward_gap = forward_gap_;
  effect.forward_compute = forward_compute_;
  if (split) effect.weight_grad = weight_grad_;
  std::vector<Segment> segments;
  segments.reserve(layers_.size());
  Bytes held_after;       // After the input gradient.
  Bytes made;             // Gradients, which stay after the backward.
  Bytes before_segments;  // Kept by the segments so far.
  Bytes forward_peak;
  for (size_t i = 0; i < layers_.size();) {
    const LayerMemory memory =
        choice.layers.empty() ? LayerMemory() : choice.layers[i];
    const size_t end =
        memory.recomputes_fully() ? choice.CheckpointEnd(i) : i + 1;
    Segment segment;
    Duration forward{};
    emulator::ScratchOfLayers scratch;
    for (size_t j = i; j < end; ++j) {
      segment.during += layers_[j].activations;
      if (split) {
        segment.after += layers_[j].activations - layers_[j].freed_by_backward;
      }
      forward += layers_[j].forward_again;
      scratch.Add(inputs_[j], layers_[j].activations,
                  layers_[j].freed_by_backward, layers_[j].scratch);
    }
    held_after += segment.after;
    segment.before = segment.during;
    if (memory.recomputes_fully()) {
      segment.before = std::min(inputs_[i], segment.during);
      effect.extra += forward;
    } else if (memory.recomputes_partly()) {
      segment.before -= BytesOf(layers_[i], memory.groups);
      effect.extra += TimeOf(layers_[i], memory.groups);
    } else if (memory.offloads()) {
      effect.offloaded += segment.before;
    }
    forward_peak =
        std::max(forward_peak,
                 before_segments + ForwardPeak(i, end, memory, segment.before));
    before_segments += segment.before;
    segment.during += split ? scratch.Get().split : scratch.Get().fused;
    for (size_t j = i; j < end && makes_gradients_; ++j) {
      segment.during += layers_[j].made.scratch;
      segment.after += layers_[j].made.held;
      made += layers_[j].made.held;
    }
    segments.push_back(segment);
    i = end;
  }
  // Memory is counted beyond that of gradients which the backward makes: the
  // rank holds it throughout the step.
  const Bytes held =
      std::max(Bytes(0), before_segments - effect.offloaded - made);
  effect.forward_alloc = std::max(
      {forward_peak - made, before_segments - made, held + effect.offloaded});
  effect.forward_free = effect.forward_alloc - held;
  effect.backward += effect.extra;
  // Copies are back when the backward begins.
  effect.backward_alloc =
      std::max(WalkBack(segments) - made - held, effect.offloaded);
  effect.backward_free = held + effect.backward_alloc - held_after;
  effect.weight_grad_free = held_after;
  effect.copy = TransferTime(effect.offloaded, host_bandwidth_);
  return effect;
}

namespace {

// Returns the candidate with the least key for each pair.
template <typename Key>
MemorySelection Least(const StepMemory& memory, const Key& key) {
  std::vector<int32_t> least;  // Indexed by list.
  for (const std::vector<MemoryCandidate>& list : memory.lists) {
    int32_t best = 0;
    for (int32_t j = 1; j < static_cast<int32_t>(list.size()); ++j) {
      if (key(list[static_cast<size_t>(j)].effect) <
          key(list[static_cast<size_t>(best)].effect)) {
        best = j;
      }
    }
    least.push_back(best);
  }
  MemorySelection selection(memory.pairs.size());
  for (const StagePairId pair : memory.pairs.ids()) {
    selection[pair] = least[static_cast<size_t>(memory.list_of[pair])];
  }
  return selection;
}

}  // namespace

MemorySelection StepMemory::MinMemory() const {
  return Least(*this, [](const MemoryEffect& e) {
    return std::tuple(e.held(), e.backward_peak(), e.backward);
  });
}

MemorySelection StepMemory::Lean(int64_t at_once) const {
  return Least(*this, [&](const MemoryEffect& e) {
    return std::tuple((at_once - 1) * e.held() + e.backward_peak(), e.held(),
                      e.backward);
  });
}

MemorySelection StepMemory::Level(double share) const {
  std::vector<int32_t> chosen;  // Indexed by list.
  for (const std::vector<MemoryCandidate>& list : lists) {
    const auto held = [](const MemoryCandidate& c) {
      return static_cast<double>(c.effect.held().count());
    };
    double least = held(list[0]);
    for (const MemoryCandidate& c : list) least = std::min(least, held(c));
    const double wanted = held(list[0]) + share * (least - held(list[0]));
    int32_t best = 0;
    for (int32_t j = 1; j < static_cast<int32_t>(list.size()); ++j) {
      const auto distance = [&](int32_t index) {
        return std::abs(held(list[static_cast<size_t>(index)]) - wanted);
      };
      if (distance(j) < distance(best)) best = j;
    }
    chosen.push_back(best);
  }
  MemorySelection selection(pairs.size());
  for (const StagePairId pair : pairs.ids()) {
    selection[pair] = chosen[static_cast<size_t>(list_of[pair])];
  }
  return selection;
}

MemorySelection StepMemory::Copied(Bytes largest) const {
  std::vector<int32_t> chosen;  // Indexed by list.
  for (const std::vector<MemoryCandidate>& list : lists) {
    int32_t best = 0;
    for (int32_t j = 1; j < static_cast<int32_t>(list.size()); ++j) {
      const MemoryEffect& e = list[static_cast<size_t>(j)].effect;
      const MemoryEffect& b = list[static_cast<size_t>(best)].effect;
      if (e.extra == kZero && e.offloaded <= largest && e.held() < b.held()) {
        best = j;
      }
    }
    chosen.push_back(best);
  }
  MemorySelection selection(pairs.size());
  for (const StagePairId pair : pairs.ids()) {
    selection[pair] = chosen[static_cast<size_t>(list_of[pair])];
  }
  return selection;
}

std::vector<Bytes> StepMemory::CopySizes() const {
  std::vector<Bytes> of_list;
  for (const std::vector<MemoryCandidate>& list : lists) {
    Bytes& most = of_list.emplace_back();
    for (const MemoryCandidate& c : list) {
      most = std::max(most, c.effect.offloaded);
    }
  }
  std::vector<Bytes> sizes;
  for (const int32_t list : list_of) {
    const Bytes most = of_list[static_cast<size_t>(list)];
    if (most > Bytes(0)) sizes.push_back(most);
  }
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

StepMemory StepMemory::WithoutCopies() const {
  StepMemory without = *this;
  for (std::vector<MemoryCandidate>& list : without.lists.Change()) {
    std::erase_if(list, [](const MemoryCandidate& c) {
      return c.effect.offloaded > Bytes(0);
    });
  }
  return without;
}

FormSelection StepMemory::forms() const {
  FormSelection forms(pairs.size());
  for (const StagePairId id : pairs.ids()) forms[id] = form(id);
  return forms;
}

void StepMemory::SetForms(const FormSelection& forms) {
  for (const StagePairId id : forms.ids()) {
    if (has_other_form(id) && form(id) != forms[id]) SwitchForm(id);
  }
}

bool StepMemory::has_choices() const {
  return std::any_of(list_of.begin(), list_of.end(), [&](int32_t list) {
    return lists[static_cast<size_t>(list)].size() > 1;
  });
}

StepMemory MakeStepMemory(
    const emulator::StageCostModel& costs, const Partition& partition,
    const Microbatches& microbatches,
    const IdVector<StagePairId, StagePair>& pairs,
    const IdVector<StageId, std::vector<MemoryChoice>>& choices) {
  PIPELOOM_CHECK(choices.size() == partition.stages.size());
  StepMemory memory;
  memory.pairs = pairs;
  memory.list_of.resize(pairs.size());
  // The list of pairs without a backward.
  memory.lists.Change().push_back({MemoryCandidate{}});
  memory.other_form.push_back(-1);
  memory.form_of_list.push_back(PassForm::kFused);
  using Key = std::tuple<StageId, Fingerprint, bool, bool>;
  std::map<Key, int32_t> known;
  // Most stages of a module are alike: equal ones with equal choices have one
  // list at equal shapes.
  struct Like {
    LayerCosts layers;
    StageId stage{};
    int32_t list = 0;
  };
  using LikeKey = std::tuple<ModuleId, Fingerprint, bool, bool>;
  std::map<LikeKey, std::vector<Like>> alike;
  for (const StagePairId id : pairs.ids()) {
    const StagePair& pair = pairs[id];
    if (pair.backward.is_none()) {
      memory.list_of[id] = 0;
      continue;
    }
    const WorkShape& shape =
        microbatches.sub_microbatches[pair.sub_microbatch].shape;
    const bool split = !pair.weight_grad.is_none();
    const auto [entry, is_new] = known.try_emplace(
        Key(pair.stage, shape.fingerprint(), pair.needs_input_grad, split),
        static_cast<int32_t>(memory.lists.size()));
    memory.list_of[id] = entry->second;
    if (!is_new) continue;
    LayerCosts layers(costs, partition.stages[pair.stage], shape,
                      pair.needs_input_grad, pair.makes_gradients);
    std::vector<Like>& others =
        alike[LikeKey(partition.stages[pair.stage].module, shape.fingerprint(),
                      pair.needs_input_grad, split)];
    const auto equal =
        std::find_if(others.begin(), others.end(), [&](const Like& other) {
          return other.layers == layers &&
                 choices[other.stage] == choices[pair.stage];
        });
    if (equal != others.end()) {
      memory.list_of[id] = entry->second = equal->list;
      continue;
    }
    // Lists of both forms have the same candidates.
    std::vector<MemoryCandidate> fused;
    std::vector<MemoryCandidate> apart;
    const auto add = [&](const MemoryChoice& choice) {
      const MemoryEffect whole = layers.Effect(choice, PassForm::kFused);
      const MemoryEffect parts = layers.Effect(choice, PassForm::kSplit);
      if (!layers.CopiesKeepUp(whole) ||
          (split && !layers.CopiesKeepUp(parts))) {
        return;
      }
      fused.push_back({.choice = choice, .effect = whole});
      if (split) apart.push_back({.choice = choice, .effect = parts});
    };
    add({});
    for (const MemoryChoice& choice : choices[pair.stage]) {
      if (!choice.keeps_everything()) add(choice);
    }
    if (split) {
      const auto own = static_cast<int32_t>(memory.lists.size());
      memory.lists.Change().push_back(std::move(apart));
      memory.other_form.push_back(own + 1);
      memory.form_of_list.push_back(PassForm::kSplit);
      memory.lists.Change().push_back(std::move(fused));
      memory.other_form.push_back(own);
      memory.form_of_list.push_back(PassForm::kFused);
    } else {
      memory.lists.Change().push_back(std::move(fused));
      memory.other_form.push_back(-1);
      memory.form_of_list.push_back(PassForm::kFused);
    }
    others.push_back({.layers = std::move(layers),
                      .stage = pair.stage,
                      .list = entry->second});
  }
  return memory;
}

namespace {

// Changes the parts of a graph to the effect of each pair, effect_of(id), which
// is called for pairs with a backward.
template <typename EffectOf>
void Apply(const IdVector<StagePairId, StagePair>& pairs,
           const EffectOf& effect_of, bool copy_tasks,
           IdVector<RankId, RankSpec>* the_ranks,
           IdVector<TaskId, Task>* the_tasks,
           IdVector<EdgeId, Dependency>* the_edges) {
  IdVector<RankId, RankSpec>& ranks = *the_ranks;
  IdVector<TaskId, Task>& tasks = *the_tasks;
  IdVector<EdgeId, Dependency>& edges = *the_edges;
  IdVector<RankId, Duration> longest(ranks.size());
  IdVector<RankId, Bytes> largest(ranks.size());
  for (const StagePairId id : pairs.ids()) {
    const StagePair& pair = pairs[id];
    if (pair.backward.is_none()) continue;
    const MemoryEffect& effect = effect_of(id);
    Task& forward = tasks[pair.forward];
    forward.alloc = effect.forward_alloc;
    forward.free = effect.forward_free;
    if (copy_tasks) forward.free -= effect.offloaded;
    Task& backward = tasks[pair.backward];
    backward.duration = effect.backward;
    backward.alloc = effect.backward_alloc;
    if (copy_tasks) backward.alloc -= effect.offloaded;
    backward.free = effect.backward_free;
    backward.recomputes = effect.extra > kZero;
    if (!pair.weight_grad.is_none()) {
      tasks[pair.weight_grad].duration = effect.weight_grad;
      tasks[pair.weight_grad].free = effect.weight_grad_free;
    }
    if (copy_tasks) continue;
    longest[forward.rank] = std::max(longest[forward.rank], effect.copy);
    largest[forward.rank] = std::max(largest[forward.rank], effect.offloaded);
  }
  for (const StagePairId id : pairs.ids()) {
    const StagePair& pair = pairs[id];
    if (pair.backward.is_none()) continue;
    if (effect_of(id).offloaded == Bytes(0)) continue;
    edges[pair.edge].delay += 2 * longest[tasks[pair.forward].rank];
  }
  for (const RankId r : ranks.ids()) {
    ranks[r].memory.overhead += 2 * largest[r];
  }
}

absl::StatusOr<StageGraph> ApplyTo(const StageGraph& graph,
                                   const StepMemory& memory,
                                   const MemorySelection& selection,
                                   bool copy_tasks) {
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  IdVector<TaskId, Task> tasks = graph.tasks();
  IdVector<EdgeId, Dependency> edges = graph.edges();
  PIPELOOM_CHECK(selection.size() == memory.pairs.size());
  Apply(
      memory.pairs,
      [&](StagePairId id) -> const MemoryEffect& {
        return memory.effect(id, selection[id]);
      },
      copy_tasks, &ranks, &tasks, &edges);
  return StageGraph::Create(graph.name(), std::move(ranks),
                            graph.module_names(), std::move(tasks),
                            std::move(edges));
}

}  // namespace

void ApplyEffects(const IdVector<StagePairId, StagePair>& pairs,
                  const IdVector<StagePairId, const MemoryEffect*>& effects,
                  IdVector<RankId, RankSpec>* ranks,
                  IdVector<TaskId, Task>* tasks,
                  IdVector<EdgeId, Dependency>* edges) {
  PIPELOOM_CHECK(effects.size() == pairs.size());
  Apply(
      pairs,
      [&](StagePairId id) -> const MemoryEffect& { return *effects[id]; },
      /*copy_tasks=*/false, ranks, tasks, edges);
}

absl::StatusOr<StageGraph> ApplyMemory(const StageGraph& graph,
                                       const StepMemory& memory,
                                       const MemorySelection& selection) {
  return ApplyTo(graph, memory, selection, /*copy_tasks=*/false);
}

absl::StatusOr<StageGraph> ApplyMemoryWithCopyTasks(
    const StageGraph& graph, const StepMemory& memory,
    const MemorySelection& selection) {
  return ApplyTo(graph, memory, selection, /*copy_tasks=*/true);
}

MemorySelection FromWithoutCopies(const StepMemory& memory,
                                  const MemorySelection& selection) {
  MemorySelection whole(selection.size(), 0);
  for (const StagePairId id : selection.ids()) {
    int32_t rest = selection[id];
    for (const MemoryCandidate& c : memory.candidates(id)) {
      if (c.effect.offloaded == Bytes(0) && rest-- == 0) break;
      ++whole[id];
    }
  }
  return whole;
}

MemoryPolicy PolicyOf(const StepMemory& memory,
                      const MemorySelection& selection) {
  PIPELOOM_CHECK(selection.size() == memory.pairs.size());
  MemoryPolicy policy;
  policy.choice_of.resize(selection.size());
  const auto less = [](const MemoryChoice* a, const MemoryChoice* b) {
    if (a->period != b->period) return a->period < b->period;
    return std::lexicographical_compare(
        a->layers.begin(), a->layers.end(), b->layers.begin(), b->layers.end(),
        [](const LayerMemory& x, const LayerMemory& y) {
          return std::pair(x.strategy, x.groups.bits()) <
                 std::pair(y.strategy, y.groups.bits());
        });
  };
  std::map<const MemoryChoice*, int32_t, decltype(less)> known(less);
  for (const StagePairId id : selection.ids()) {
    const MemoryChoice& choice =
        memory.candidates(id)[static_cast<size_t>(selection[id])].choice;
    const auto [entry, is_new] =
        known.try_emplace(&choice, static_cast<int32_t>(policy.choices.size()));
    if (is_new) policy.choices.push_back(choice);
    policy.choice_of[id] = entry->second;
  }
  return policy;
}

}  // namespace pipeloom::partition
