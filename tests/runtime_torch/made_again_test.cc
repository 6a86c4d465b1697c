// Stages that throw results away and make them again: the same gradients, and
// no more held than the account of their layers says. Bytes are counted by the
// allocator.
#include "runtime/torch/made_again.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "emulator/stage/layer_memory.h"
#include "ir/plan/memory_policy.h"
#include "runtime/torch/stage_run.h"
#include "tests/runtime_torch/counting_allocator.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;
using enum OperatorGroup;

// Since the last reset, over what was out then.
class Counted {
 public:
  Counted() {
    CountingAllocator::Use();
    CountingAllocator::CountInto(&count_);
    Reset();
  }
  void Reset() { before_ = count_.most = count_.live; }
  int64_t live() const { return count_.live - before_; }
  int64_t most() const { return count_.most - before_; }

 private:
  // Tensors that outlive a test's use of it give their bytes back to it.
  static inline ByteCount count_;
  int64_t before_ = 0;
};

constexpr int64_t kRows = 384;

LayerSpec Block(bool gated) {
  LayerSpec layer{.kind = LayerKind::kTransformer, .hidden = 64};
  layer.attention = {.kind = AttentionKind::kCausal,
                     .heads = 4,
                     .kv_heads = 2,
                     .head_dim = 16};
  layer.ffn = {.hidden = 192, .gated = gated};
  return layer;
}

// `layers` equal ones in the middle of a module.
struct Model {
  Model(const LayerSpec& layer, int32_t layers, bool frozen = false) {
    UseAgainEngine();
    ModuleSpec module;
    module.name = "m";
    module.layers.assign(layers + 2, layer);
    TorchOptions options;
    for (int32_t l = 0; l < layers; ++l) {
      stage.push_back(std::make_unique<TorchLayer>(
          module, LayerId(l + 1), /*feeds=*/true, frozen, options));
    }
    sequences = {{.own = kRows / 2, .output = kRows / 2},
                 {.own = kRows / 2, .output = kRows / 2}};
  }
  StageRunOptions Options(const MemoryChoice& memory, bool split) const {
    return {.stage = &stage,
            .sequences = &sequences,
            .has_backward = true,
            .needs_input_gradient = true,
            .splits_backward = split,
            .memory = memory};
  }
  TorchStage stage{};
  TorchSequences sequences{};
};

struct Outcome {
  std::vector<Tensor> values{};  // Output, input gradient, parameters'.
  int64_t held = 0;              // Bytes between forward and backward.
  int64_t peak = 0;              // Most bytes during the backward.
};

Outcome RunStage(const Model& model, const MemoryChoice& memory, bool split) {
  Counted counted;
  for (const auto& layer : model.stage) {
    for (const Parameter& p : layer->parameters()) {
      // There already, so that they do not count.
      p.value.mutable_grad() = at::zeros_like(p.value);
    }
  }
  at::manual_seed(7);
  const Tensor in = at::randn({kRows, 64});
  const Tensor gradient = at::randn({kRows, 64});
  Outcome outcome;
  counted.Reset();
  StageRun run(model.Options(memory, split));
  TorchState state{.rows = in.clone()};
  const Tensor out = run.Forward(state).rows;
  state = {};
  outcome.held = counted.live() - static_cast<int64_t>(out.nbytes());
  const int64_t most_before = counted.most();
  const Tensor below = run.Backward({.rows = gradient}).rows;
  if (split) run.WeightGradient();
  outcome.peak = std::max(counted.most(), most_before);
  outcome.values = {out, below};
  for (const auto& layer : model.stage) {
    for (const Parameter& p : layer->parameters()) {
      outcome.values.push_back(p.value.grad());
      p.value.mutable_grad() = Tensor();
    }
  }
  return outcome;
}

void ExpectSame(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double off = (a.values[i] - b.values[i]).norm().item<double>() /
                       std::max(1e-30, b.values[i].norm().item<double>());
    EXPECT_LE(off, 1e-5) << "value " << i;
  }
}

WorkShape Shape() {
  return {.instances = 2,
          .tokens = kRows,
          .output_tokens = kRows,
          .squared_tokens = 2.0 * (kRows / 2) * (kRows / 2)};
}

// Returns the bytes of the groups in the layer's account.
int64_t AccountOf(const LayerSpec& layer, OperatorGroups groups, bool frozen) {
  const emulator::LayerActivations kept =
      emulator::ActivationsOf(layer, Shape(), {}, Precision::kFp32);
  int64_t bytes = 0;
  for (const OperatorGroup g : kAllOperatorGroups) {
    const auto& part = kept.groups[static_cast<size_t>(g)];
    if (groups.Has(g)) bytes += (frozen ? part.frozen : part.trained).count();
  }
  return bytes;
}

MemoryChoice RandomChoice(Random& random, int32_t layers) {
  MemoryChoice choice{.period =
                          static_cast<int32_t>(random.Between(1, layers + 1))};
  for (int32_t l = 0; l < layers; ++l) {
    LayerMemory layer(static_cast<MemoryStrategy>(random.Below(3)));
    if (layer.recomputes_fully() && random.Below(3) > 0) {
      layer.groups = OperatorGroups::FromBits(
          static_cast<uint32_t>(random.Between(1, OperatorGroups::kAllBits)));
    }
    choice.layers.push_back(layer);
  }
  return choice;
}

TEST(MadeAgain, GradientsAreThoseOfKeepingEverything) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const auto layers = static_cast<int32_t>(random.Between(1, 5));
    const bool frozen = seed % 5 == 0;
    const Model model(Block(seed % 2 == 0), layers, frozen);
    const bool split = !frozen && seed % 3 == 0;
    const Outcome kept = RunStage(model, {}, split);
    const MemoryChoice choice = RandomChoice(random, layers);
    ExpectSame(RunStage(model, choice, split), kept);
    if (HasFailure()) return;
  }
}

// Recomputing a group frees the bytes that the account says, to within 2.5 % of
// the bytes held.
TEST(MadeAgain, GroupsHoldNoMoreThanTheAccountSays) {
  for (const bool gated : {false, true}) {
    const LayerSpec layer = Block(gated);
    const Model model(layer, 3);
    for (const bool split : {false, true}) {
      const Outcome kept = RunStage(model, {}, split);
      for (uint32_t bits = 1; bits <= OperatorGroups::kAllBits; ++bits) {
        const OperatorGroups groups = OperatorGroups::FromBits(bits);
        SCOPED_TRACE(::testing::Message()
                     << ToString(groups) << " gated " << gated);
        const Outcome again =
            RunStage(model, RecomputeGroups(3, groups), split);
        const int64_t less = 3 * AccountOf(layer, groups, false);
        EXPECT_LE(static_cast<double>(again.held),
                  1.025 * static_cast<double>(kept.held - less));
        // With all of them, the two norm inputs and little else.
        if (bits == OperatorGroups::kAllBits) {
          const int64_t inputs = 3 * 2 * kRows * 64 * 4;
          EXPECT_GE(again.held, inputs);
          EXPECT_LE(again.held, inputs + inputs / 20);
        }
      }
    }
  }
}

TEST(MadeAgain, FullyRecomputedLayersHoldTheirCheckpoints) {
  const Model model(Block(true), 6);
  constexpr int64_t kInput = kRows * 64 * 4;
  for (const int32_t period : {1, 2, 3, 4, 6}) {
    const Outcome again =
        RunStage(model, RecomputeUniform(6, period), /*split=*/false);
    EXPECT_EQ(again.held, (6 + period - 1) / period * kInput) << period;
  }
}

// One layer's transients at a time, those of a period, or of the whole stage.
TEST(MadeAgain, TheBackwardPeaksWithOnePeriodsLayers) {
  constexpr int64_t kInput = kRows * 64 * 4;
  const Model model(Block(true), 6);
  const auto alone = [&](int32_t layers) {
    return RunStage(Model(Block(true), layers), {}, false).peak;
  };
  const auto peak = [&](const MemoryChoice& choice) {
    return RunStage(model, choice, false).peak;
  };
  const int64_t slack = 4 * kInput;
  EXPECT_LE(peak(RecomputeUniform(6)), 6 * kInput + alone(1) + slack);
  EXPECT_LE(peak(RecomputeUniform(6, 2)), 3 * kInput + alone(2) + slack);
  EXPECT_LT(peak(RecomputeUniform(6)), peak(RecomputeUniform(6, 3)));
  EXPECT_LT(peak(RecomputeUniform(6, 3)), peak(RecomputeWhole(6)));
  // Groups are made again for one layer at a time.
  const OperatorGroups all = OperatorGroups::FromBits(OperatorGroups::kAllBits);
  EXPECT_LT(peak(RecomputeGroups(6, all)), 6 * 2 * kInput + alone(2) + slack);
  EXPECT_LT(peak(RecomputeGroups(6, {kNorms, kActivations})),
            peak(MemoryChoice{}));
}

}  // namespace
}  // namespace pipeloom::runtime
