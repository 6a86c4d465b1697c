#include "partition/graph/memory_candidates.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/plan/schedule.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "tests/partition/random_job.h"
#include "tests/support/random_problem.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::IsOk;

// A job's step, cut and split.
struct Step {
  Step(const JobSpec& job, const BatchMetadata& batch) : costs(job) {
    const auto packed = PackStep(job, batch, 0);
    const auto separated = SeparatedPartition(job, costs, batch);
    if (!packed.ok() || !separated.ok()) return;
    partition = *separated;
    const auto split = SplitMicrobatches(job, *packed, 0, partition);
    if (!split.ok()) return;
    microbatches = *split;
    ok = true;
  }
  emulator::StageCostModel costs;
  Partition partition{};
  Microbatches microbatches{};
  bool ok = false;
};

MemoryChoice RandomChoice(Random& random, int32_t num_layers, bool offload) {
  MemoryChoice choice;
  for (int32_t i = 0; i < num_layers; ++i) {
    LayerMemory layer(
        static_cast<MemoryStrategy>(random.Below(offload ? 3 : 2)));
    if (layer.recomputes_fully() && random.Below(2) == 0) {
      layer.groups = OperatorGroups::FromBits(
          static_cast<uint32_t>(random.Below(OperatorGroups::kAllBits + 1)));
    }
    choice.layers.push_back(layer);
  }
  choice.period = static_cast<int32_t>(random.Between(1, num_layers + 1));
  return choice;
}

// Some choices for each stage.
IdVector<StageId, std::vector<MemoryChoice>> RandomChoices(
    Random& random, const Partition& partition, bool offload) {
  IdVector<StageId, std::vector<MemoryChoice>> choices;
  for (const Stage& stage : partition.stages) {
    std::vector<MemoryChoice> own;
    for (int i = 0; i < 4; ++i) {
      own.push_back(RandomChoice(random, stage.num_layers, offload));
    }
    choices.push_back(std::move(own));
  }
  return choices;
}

MemorySelection RandomSelection(Random& random, const StepMemory& memory) {
  MemorySelection selection = memory.KeepEverything();
  for (const StagePairId pair : selection.ids()) {
    selection[pair] = static_cast<int32_t>(
        random.Below(static_cast<int64_t>(memory.candidates(pair).size())));
  }
  return selection;
}

// A forward and a backward over tensors, each taken and given back by name.
class TensorWalk {
 public:
  TensorWalk(const LayerCosts& layers, const MemoryChoice& choice, bool split,
             absl::Span<const Bytes> inputs)
      : layers_(layers.layers()), split_(split) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const LayerMemory memory =
          choice.layers.empty() ? LayerMemory() : choice.layers[i];
      const bool follows = i > 0 && memory.recomputes_fully() &&
                           choice.layers[i - 1].recomputes_fully();
      run_ = follows ? run_ + 1 : 0;
      if (memory.recomputes_fully()) {
        // A checkpoint is the input of a run's every period-th layer.
        if (run_ % choice.period == 0) {
          checkpoints_.push_back(i);
          Bytes all;
          for (size_t j = i; j < layers_.size() && SameCheckpoint(choice, i, j);
               ++j) {
            all += layers_[j].activations;
          }
          live_[{i, "input"}] = std::min(inputs[i], all);
        }
        of_[i] = checkpoints_.back();
        live_[{i, "between operators"}] = Between(i);
        if (of_[i] != i) live_[{i, "passing"}] = inputs[i];
        forward_peak = std::max(forward_peak, Live());
        live_.erase({i, "between operators"});
        live_.erase({i, "passing"});
        continue;
      }
      if (memory.offloads()) offloaded += layers_[i].activations;
      for (const auto& [name, bytes] : Parts(i)) {
        if (name != kRest && memory.groups.Has(GroupNamed(name))) continue;
        live_[{i, name}] = bytes;
      }
      Bytes dropped = layers_[i].activations;
      for (const auto& [key, bytes] : live_) {
        if (key.first == i) dropped -= bytes;
      }
      live_[{i, "between operators"}] = std::min(dropped, Between(i));
      forward_peak = std::max(forward_peak, Live());
      live_.erase({i, "between operators"});
    }
    held = Live() - offloaded;
    peak = Live();
    for (size_t i = layers_.size(); i-- > 0;) {
      if (of_.contains(i)) {
        // The first time: all layers of the checkpoint run again.
        const size_t first = of_.at(i);
        live_.erase({first, "input"});
        for (const auto& [j, begin] : of_) {
          if (begin != first || j > i || done_.contains(j)) continue;
          for (const auto& [name, bytes] : Parts(j)) live_[{j, name}] = bytes;
        }
      } else {
        for (const auto& [name, bytes] : Parts(i)) live_[{i, name}] = bytes;
      }
      peak = std::max(peak, Live() + (split_ ? layers_[i].scratch.split
                                             : layers_[i].scratch.fused));
      for (const auto& [name, bytes] : Parts(i)) live_.erase({i, name});
      if (split_) {
        live_[{i, "for the weight gradient"}] =
            layers_[i].activations - layers_[i].freed_by_backward;
      }
      done_.insert(i);
      peak = std::max(peak, Live());
    }
    after = Live();
  }

  Bytes held{};
  Bytes offloaded{};
  Bytes forward_peak{};
  Bytes peak{};
  Bytes after{};

 private:
  static constexpr const char* kRest = "rest";
  // REQUIRES: not kRest.
  static OperatorGroup GroupNamed(const std::string& name) {
    for (const OperatorGroup g : kAllOperatorGroups) {
      if (name == NameOf(g)) return g;
    }
    return OperatorGroup::kNorms;
  }
  static bool SameCheckpoint(const MemoryChoice& choice, size_t first,
                             size_t layer) {
    if (layer >= first + static_cast<size_t>(choice.period)) return false;
    for (size_t k = first; k <= layer; ++k) {
      if (!choice.layers[k].recomputes_fully()) return false;
    }
    return true;
  }
  std::map<std::string, Bytes> Parts(size_t i) const {
    std::map<std::string, Bytes> parts;
    Bytes rest = layers_[i].activations;
    for (const OperatorGroup g : kAllOperatorGroups) {
      const Bytes bytes = layers_[i].groups[static_cast<size_t>(g)].bytes;
      parts[std::string(NameOf(g))] = bytes;
      rest -= bytes;
    }
    parts[kRest] = rest;
    return parts;
  }
  // Returns the tensors between the layer's operators, without an output that
  // goes to the next stage.
  Bytes Between(size_t i) const {
    Bytes bytes = layers_[i].scratch.forward;
    if (i + 1 == layers_.size()) bytes -= std::min(bytes, layers_[i].output);
    return bytes;
  }
  Bytes Live() const {
    Bytes sum;
    for (const auto& [key, bytes] : live_) sum += bytes;
    return sum;
  }

  absl::Span<const emulator::StageCost> layers_;
  bool split_;
  int32_t run_ = 0;
  std::vector<size_t> checkpoints_{};
  std::map<size_t, size_t> of_{};  // Indexed by fully recomputed layer.
  std::set<size_t> done_{};
  std::map<std::pair<size_t, std::string>, Bytes> live_{};
};

TEST(MemoryCandidates, HoldWhatAWalkOverTensorsHolds) {
  int checked = 0;
  int lower = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    JobSpec job = testing::RandomJob(seed);
    job.cluster.device.host_bandwidth.bytes_per_second = 1e13;
    const Step step(job, testing::RandomMixedBatch(seed, 12));
    if (!step.ok) continue;
    const auto& subs = step.microbatches.sub_microbatches;
    for (int i = 0; i < 20; ++i) {
      const SubMicrobatch& sub = subs[SubMicrobatchId(
          static_cast<int32_t>(random.Below(subs.size())))];
      const std::vector<StageId> stages = step.partition.StagesOf(sub.module);
      const Stage& stage = step.partition.stages[stages[static_cast<size_t>(
          random.Below(static_cast<int64_t>(stages.size())))]];
      const LayerCosts layers(step.costs, stage, sub.shape, true);
      const MemoryChoice choice = RandomChoice(random, stage.num_layers, true);
      const bool split = random.Below(2) == 0 && !job.IsFrozen(stage.module);
      std::vector<Bytes> inputs;
      for (size_t l = 0; l < layers.layers().size(); ++l) {
        inputs.push_back(layers.input(l));
        EXPECT_GE(inputs.back(), layers.layers()[l].input);
      }
      const PassForm form = split ? PassForm::kSplit : PassForm::kFused;
      const TensorWalk walk(layers, choice, split, inputs);
      const MemoryEffect effect = layers.Effect(choice, form);
      EXPECT_EQ(effect.held(), walk.held);
      EXPECT_EQ(effect.offloaded, walk.offloaded);
      EXPECT_EQ(effect.forward_alloc, walk.forward_peak);
      EXPECT_EQ(effect.backward_peak(), walk.peak);
      EXPECT_EQ(effect.weight_grad_free, walk.after);
      EXPECT_EQ(
          effect.forward_alloc + effect.backward_alloc,
          effect.forward_free + effect.backward_free + effect.weight_grad_free);
      Duration extra{};
      for (size_t l = 0; l < choice.layers.size(); ++l) {
        const LayerMemory& memory = choice.layers[l];
        if (memory.recomputes_fully()) extra += layers.layers()[l].forward;
        for (const OperatorGroup g : kAllOperatorGroups) {
          if (!memory.groups.Has(g)) continue;
          extra += layers.layers()[l].groups[static_cast<size_t>(g)].again;
        }
      }
      EXPECT_EQ(effect.extra, extra);
      lower += effect.backward_peak() < layers.Effect({}, form).held() ? 1 : 0;
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000);
  EXPECT_GT(lower, 300);
}

// 32 layers of Llama-3-8B, 32k tokens on one GPU: in the closed form a layer
// keeps 139,392 bytes a token and its input has 8,192.
TEST(MemoryCandidates, RecomputingEveryLayerHoldsInputsAndOneLayersTransients) {
  JobSpec job = testing::SmallVlmJob();
  LayerSpec layer{.kind = LayerKind::kTransformer, .hidden = 4096};
  layer.attention = {.kind = AttentionKind::kCausal,
                     .heads = 32,
                     .kv_heads = 8,
                     .head_dim = 128};
  layer.ffn = {.hidden = 14336, .gated = true};
  layer.vector_parameters = 2 * 4096;
  job.model.modules.resize(1);
  job.model.modules[ModuleId(0)].role = ModuleRole::kBackbone;
  job.model.modules[ModuleId(0)].layers.clear();
  for (int i = 0; i < 32; ++i) {
    job.model.modules[ModuleId(0)].layers.push_back(layer);
  }
  job.model.edges.clear();
  job.parallel = {};
  job.training.frozen_modules.clear();
  const emulator::StageCostModel costs(job);
  constexpr int64_t kTokens = 32768;
  WorkShape shape;
  shape.tokens = kTokens;
  shape.instances = 1;
  shape.squared_tokens = static_cast<double>(kTokens) * kTokens;
  const Stage stage{.module = ModuleId(0),
                    .first_layer = LayerId(0),
                    .num_layers = 32,
                    .rank = RankId(0)};
  const LayerCosts layers(costs, stage, shape, /*needs_input_grad=*/false);
  const Bytes kept = kTokens * Bytes(139'392);
  const Bytes input = kTokens * Bytes(8'192);
  // Gradients coming in and at the activation function's inputs.
  const Bytes scratch = kTokens * Bytes(2 * 4096 + 4 * 14336);
  EXPECT_EQ(layers.Effect({}, PassForm::kFused).backward_peak(),
            32 * kept + scratch);
  // The gradient of the down product's input is there together with that
  // input, which its own weight gradient still needs.
  EXPECT_EQ(layers.layers()[0].scratch.split,
            scratch + kTokens * Bytes(2 * 14336));
  const MemoryEffect every =
      layers.Effect(RecomputeUniform(32), PassForm::kFused);
  EXPECT_EQ(every.held(), 32 * input);
  EXPECT_EQ(every.backward_peak(), 31 * input + kept + scratch);
  EXPECT_LT(every.backward_peak(), Bytes(32 * kept.count() / 9));
  // Megatron's uniform with a period, its block, and one checkpoint.
  const MemoryEffect fours =
      layers.Effect(RecomputeUniform(32, 4), PassForm::kFused);
  EXPECT_EQ(fours.held(), 8 * input);
  EXPECT_EQ(fours.backward_peak(), 7 * input + 4 * kept + scratch);
  const MemoryEffect block =
      layers.Effect(RecomputeBlock(32, 24), PassForm::kFused);
  EXPECT_EQ(block.held(), 24 * input + 8 * kept);
  EXPECT_EQ(block.backward_peak(), block.held() + scratch);
  const MemoryEffect whole =
      layers.Effect(RecomputeWhole(32), PassForm::kFused);
  EXPECT_EQ(whole.held(), input);
  EXPECT_EQ(whole.backward_peak(), 32 * kept + scratch);
  for (const MemoryEffect& effect : {every, fours, whole}) {
    EXPECT_EQ(effect.extra, layers.forward());
  }
  // Norms and activations: 32 % of the bytes for less than 5 % of the time.
  const MemoryEffect parts = layers.Effect(
      RecomputeGroups(32, {OperatorGroup::kNorms, OperatorGroup::kActivations}),
      PassForm::kFused);
  const Bytes made = kTokens * Bytes(16'384 + 28'672);
  EXPECT_EQ(parts.held(), 32 * (kept - made));
  EXPECT_EQ(parts.backward_peak(), 31 * (kept - made) + kept + scratch);
  EXPECT_LT(ToSeconds(parts.extra), 0.05 * ToSeconds(layers.forward()));
}

TEST(MemoryCandidates, AppliedAndBuiltGraphsAreEqualAndGiveAllBack) {
  int built = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Step step(testing::RandomJob(seed),
                    testing::RandomMixedBatch(seed, 12));
    if (!step.ok) continue;
    for (const bool split : {false, true}) {
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph kept,
          BuildStageGraph(step.costs, step.partition, step.microbatches,
                          {.split_backward = split}));
      ASSERT_EQ(kept.pairs.size(),
                NumStagePairs(step.partition, step.microbatches));
      const StepMemory memory = MakeStepMemory(
          step.costs, step.partition, step.microbatches, kept.pairs,
          RandomChoices(random, step.partition, /*offload=*/true));
      ASSERT_OK_AND_ASSIGN(
          const StageGraph same,
          ApplyMemory(kept.graph, memory, memory.KeepEverything()));
      EXPECT_EQ(same, kept.graph);
      const MemorySelection selection = RandomSelection(random, memory);
      ASSERT_OK_AND_ASSIGN(const StageGraph applied,
                           ApplyMemory(kept.graph, memory, selection));
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph again,
          BuildStageGraph(step.costs, step.partition, step.microbatches,
                          {.split_backward = split,
                           .memory = PolicyOf(memory, selection)}));
      EXPECT_EQ(applied, again.graph);
      IdVector<RankId, Bytes> held(applied.num_ranks());
      for (const Task& task : applied.tasks()) {
        held[task.rank] += task.alloc - task.free;
        EXPECT_GE(task.alloc, Bytes(0));
        EXPECT_GE(task.free, Bytes(0));
      }
      for (const Bytes rest : held) EXPECT_EQ(rest, Bytes(0));
      ++built;
    }
  }
  EXPECT_GT(built, 40);
}

// The effects of a policy are kept with the prices: a model that has seen other
// policies gives the same graphs as one that prices everything anew.
TEST(MemoryCandidates, PoliciesSeenBeforeDoNotChangeAGraph) {
  int built = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const JobSpec job = testing::RandomJob(seed);
    const Step step(job, testing::RandomMixedBatch(seed, 12));
    if (!step.ok) continue;
    const emulator::StageCostModel anew(job, emulator::PriceReuse::kOff);
    ASSERT_OK_AND_ASSIGN(
        const BuiltGraph kept,
        BuildStageGraph(step.costs, step.partition, step.microbatches, {}));
    const StepMemory memory = MakeStepMemory(
        step.costs, step.partition, step.microbatches, kept.pairs,
        RandomChoices(random, step.partition, /*offload=*/true));
    for (int i = 0; i < 4; ++i) {
      const MemoryPolicy policy =
          PolicyOf(memory, RandomSelection(random, memory));
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph first,
          BuildStageGraph(anew, step.partition, step.microbatches,
                          {.memory = policy}));
      for (int again = 0; again < 2; ++again) {
        ASSERT_OK_AND_ASSIGN(
            const BuiltGraph graph,
            BuildStageGraph(step.costs, step.partition, step.microbatches,
                            {.memory = policy}));
        EXPECT_EQ(graph.graph, first.graph);
        ++built;
      }
    }
  }
  EXPECT_GT(built, 100);
}

TEST(MemoryCandidates, RecomputingMoreHoldsLessAndTakesTheLayersForwards) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Step step(testing::SmallVlmJob(), testing::RandomBatch(seed, 40, 3));
    ASSERT_TRUE(step.ok);
    const auto& subs = step.microbatches.sub_microbatches;
    const SubMicrobatch& sub =
        subs[SubMicrobatchId(static_cast<int32_t>(random.Below(subs.size())))];
    const Stage& stage =
        step.partition.stages[step.partition.StagesOf(sub.module)[0]];
    const LayerCosts layers(step.costs, stage, sub.shape, true);
    const emulator::StageCost whole = step.costs.Cost(stage, sub.shape, true);
    for (const PassForm form : {PassForm::kFused, PassForm::kSplit}) {
      const bool split = form == PassForm::kSplit;
      const MemoryEffect kept = layers.Effect({}, form);
      EXPECT_EQ(kept.held(), whole.activations);
      EXPECT_EQ(kept.backward, split ? whole.backward : whole.fused);
      EXPECT_EQ(kept.weight_grad, split ? whole.weight_grad : kZero);
      EXPECT_EQ(kept.gap, split ? whole.backward_gap : whole.fused_gap);
      EXPECT_EQ(kept.backward_alloc,
                split ? whole.scratch.split : whole.scratch.fused);
      MemoryChoice choice = RecomputeBlock(stage.num_layers, 0);
      MemoryEffect last = kept;
      Duration extra{};
      for (size_t i = 0; i < choice.layers.size(); ++i) {
        choice.layers[i] = MemoryStrategy::kRecompute;
        extra += layers.layers()[i].forward;
        const MemoryEffect now = layers.Effect(choice, form);
        EXPECT_EQ(now.extra, extra);
        EXPECT_EQ(now.backward, kept.backward + extra);
        EXPECT_LE(now.held(), last.held());
        EXPECT_LE(now.backward_peak(), kept.backward_peak());
        // In one group: less is held, more is needed in the backward.
        MemoryChoice grouped = choice;
        grouped.period = stage.num_layers;
        const MemoryEffect one = layers.Effect(grouped, form);
        EXPECT_LE(one.held(), now.held());
        EXPECT_GE(one.backward_alloc, now.backward_alloc);
        EXPECT_EQ(one.extra, now.extra);
        last = now;
      }
    }
  }
}

// Copies as two first-in first-out streams, out as soon and back as late as
// they can be.
TEST(MemoryCandidates, CopiesAreDoneInTheTimeAndMemorySetAsideForThem) {
  int copies = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    JobSpec job = testing::SmallVlmJob();
    job.cluster.device.host_bandwidth.bytes_per_second = 1e11;
    const Step step(job, testing::RandomBatch(seed, 40, 3));
    ASSERT_TRUE(step.ok);
    ASSERT_OK_AND_ASSIGN(
        const BuiltGraph kept,
        BuildStageGraph(step.costs, step.partition, step.microbatches,
                        {.split_backward = seed % 2 == 0}));
    const StepMemory memory = MakeStepMemory(
        step.costs, step.partition, step.microbatches, kept.pairs,
        RandomChoices(random, step.partition, /*offload=*/true));
    const MemorySelection selection = RandomSelection(random, memory);
    ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                         ApplyMemory(kept.graph, memory, selection));
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(graph, testing::RandomOrders(graph, random)));
    for (const RankId r : graph.rank_ids()) {
      struct Copy {
        SimTime ready{};  // The forward's end.
        SimTime due{};    // The backward's start.
        Duration time{};
        Bytes bytes{};
        SimTime out{};
        SimTime back{};
      };
      std::vector<Copy> list;
      for (const StagePairId id : memory.pairs.ids()) {
        const StagePair& pair = memory.pairs[id];
        if (pair.backward.is_none() || graph.task(pair.forward).rank != r) {
          continue;
        }
        const MemoryEffect& effect = memory.effect(id, selection[id]);
        if (effect.offloaded == Bytes(0)) continue;
        list.push_back({.ready = schedule.start[pair.forward] +
                                 graph.task(pair.forward).duration,
                        .due = schedule.start[pair.backward],
                        .time = effect.copy,
                        .bytes = effect.offloaded});
      }
      copies += static_cast<int>(list.size());
      Duration longest{};
      Bytes largest{};
      for (const Copy& c : list) {
        longest = std::max(longest, c.time);
        largest = std::max(largest, c.bytes);
      }
      EXPECT_EQ(graph.rank(r).memory.overhead,
                kept.graph.rank(r).memory.overhead + 2 * largest);
      std::sort(list.begin(), list.end(),
                [](const Copy& a, const Copy& b) { return a.ready < b.ready; });
      SimTime free_at{};
      for (Copy& c : list) {
        free_at = std::max(free_at, c.ready) + c.time;
        c.out = free_at;
        // The rest of all copies takes at most the time of the longest.
        EXPECT_LE(c.out, c.ready + longest);
      }
      std::sort(list.begin(), list.end(),
                [](const Copy& a, const Copy& b) { return a.due > b.due; });
      SimTime next = SimTime::max();
      for (Copy& c : list) {
        next = std::min(next, c.due) - c.time;
        c.back = next;
        EXPECT_GE(c.back, c.due - longest);
        EXPECT_GE(c.back, c.out);
      }
    }
  }
  EXPECT_GT(copies, 500);
}

TEST(MemoryCandidates, ACopyLongerThanItsPassIsRefused) {
  JobSpec job = testing::SmallVlmJob();
  job.cluster.device.host_bandwidth.bytes_per_second = 1e6;
  const Step step(job, testing::RandomBatch(1, 40, 3));
  ASSERT_TRUE(step.ok);
  MemoryPolicy policy;
  for (const SubMicrobatch& sub : step.microbatches.sub_microbatches) {
    for (const Stage& stage : step.partition.stages) {
      if (stage.module != sub.module) continue;
      policy.choice_of.push_back(static_cast<int32_t>(policy.choices.size()));
      MemoryChoice choice = RecomputeWhole(stage.num_layers);
      choice.layers.back() = LayerMemory(MemoryStrategy::kOffload);
      policy.choices.push_back(choice);
    }
  }
  const auto refused = BuildStageGraph(step.costs, step.partition,
                                       step.microbatches, {.memory = policy});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              ::testing::HasSubstr("longer than its forward"));
  policy.choice_of.resize(policy.choice_of.size() - 1);
  const auto short_of_one = BuildStageGraph(
      step.costs, step.partition, step.microbatches, {.memory = policy});
  EXPECT_THAT(short_of_one.status().message(),
              ::testing::HasSubstr("stage pairs"));
}

}  // namespace
}  // namespace pipeloom::partition
