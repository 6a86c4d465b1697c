// State spaces and gated delta nets: the operations of their chunked forms, as
// small implementations count them, what tensor and context parallelism
// exchange, and what layers hold and keep.
#include <cmath>
#include <cstdint>
#include <random>
#include <variant>
#include <vector>

#include "emulator/cost/device_cycles.h"
#include "emulator/cost/roofline_cost.h"
#include "emulator/ops/op_graph.h"
#include "emulator/stage/layer_memory.h"
#include "emulator/stage/layer_weights.h"
#include "emulator/stage/stage_cost.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"

namespace pipeloom::emulator {
namespace {

// Returns the layer's operations other than those of its products and of the
// convolution.
double ScanFlops(const LayerSpec& layer, const WorkShape& shape) {
  const int64_t convolution =
      layer.state_space.convolved() * layer.state_space.kernel +
      layer.delta_net.convolved() * layer.delta_net.kernel;
  return BuildLayerOps(layer, shape, {}, {}, {}).forward_flops.count -
         2.0 *
             static_cast<double>(ActiveMatrixParameters(layer) + convolution) *
             static_cast<double>(shape.tokens);
}

// A matrix of random numbers that counts what products with it take.
struct Matrix {
  Matrix(int r, int c) : rows(r), columns(c), values(r * c, 0.0) {}
  double& at(int r, int c) { return values[r * columns + c]; }
  double at(int r, int c) const { return values[r * columns + c]; }
  int rows;
  int columns;
  std::vector<double> values;
};

Matrix Random(int rows, int columns, std::mt19937* random) {
  Matrix m(rows, columns);
  std::normal_distribution<double> normal(0, 0.3);
  for (double& v : m.values) v = normal(*random);
  return m;
}

// Adds a * b to `sum`, transposed as told. Counts a multiplication and a sum of
// each term, or of those of the lower half only.
void Multiply(const Matrix& a, bool turn_a, const Matrix& b, bool turn_b,
              bool lower, Matrix* sum, double* flops) {
  const int inner = turn_a ? a.rows : a.columns;
  for (int r = 0; r < sum->rows; ++r) {
    for (int c = 0; c < sum->columns; ++c) {
      for (int k = 0; k < inner; ++k) {
        if (lower && k > r) break;
        sum->at(r, c) += (turn_a ? a.at(k, r) : a.at(r, k)) *
                         (turn_b ? b.at(c, k) : b.at(k, c));
        *flops += 2;
      }
    }
  }
}

// One head and group of Mamba-2 by chunks, as mamba_ssm computes it, against
// the recurrence.
TEST(Mixers, AStateSpaceTakesTheOperationsOfItsChunkedForm) {
  constexpr int kLength = 64;
  constexpr int kChunk = 16;
  constexpr int kWidth = 8;
  constexpr int kState = 12;
  std::mt19937 random(7);
  const Matrix x = Random(kLength, kWidth, &random);
  const Matrix in = Random(kLength, kState, &random);
  const Matrix out = Random(kLength, kState, &random);
  std::vector<double> decay(kLength);
  for (double& d : decay)
    d = 0.5 + 0.4 * std::tanh(Random(1, 1, &random).at(0, 0));

  Matrix state(kWidth, kState);
  Matrix expected(kLength, kWidth);
  for (int t = 0; t < kLength; ++t) {
    for (int p = 0; p < kWidth; ++p) {
      for (int n = 0; n < kState; ++n) {
        state.at(p, n) = decay[t] * state.at(p, n) + x.at(t, p) * in.at(t, n);
        expected.at(t, p) += state.at(p, n) * out.at(t, n);
      }
    }
  }

  double flops = 0;
  Matrix carried(kWidth, kState);
  for (int begin = 0; begin < kLength; begin += kChunk) {
    const auto rows = [&](const Matrix& m) {
      Matrix part(kChunk, m.columns);
      for (int t = 0; t < kChunk; ++t) {
        for (int c = 0; c < m.columns; ++c) part.at(t, c) = m.at(begin + t, c);
      }
      return part;
    };
    const Matrix cx = rows(x);
    const Matrix cin = rows(in);
    const Matrix cout = rows(out);
    std::vector<double> log_decay(kChunk);
    double sum = 0;
    for (int t = 0; t < kChunk; ++t) {
      log_decay[t] = sum += std::log(decay[begin + t]);
    }
    Matrix scores(kChunk, kChunk);
    Multiply(cout, false, cin, true, false, &scores, &flops);
    for (int t = 0; t < kChunk; ++t) {
      for (int s = 0; s < kChunk; ++s) {
        scores.at(t, s) *= s > t ? 0 : std::exp(log_decay[t] - log_decay[s]);
      }
    }
    Matrix y(kChunk, kWidth);
    Multiply(cout, false, carried, true, false, &y, &flops);
    for (int t = 0; t < kChunk; ++t) {
      for (int p = 0; p < kWidth; ++p) y.at(t, p) *= std::exp(log_decay[t]);
    }
    Multiply(scores, false, cx, false, /*lower=*/true, &y, &flops);
    for (int t = 0; t < kChunk; ++t) {
      for (int p = 0; p < kWidth; ++p) {
        EXPECT_NEAR(y.at(t, p), expected.at(begin + t, p), 1e-9);
      }
    }
    Matrix weighted = cx;
    for (int t = 0; t < kChunk; ++t) {
      for (int p = 0; p < kWidth; ++p) {
        weighted.at(t, p) *= std::exp(log_decay[kChunk - 1] - log_decay[t]);
      }
    }
    for (double& v : carried.values) v *= std::exp(log_decay[kChunk - 1]);
    Multiply(weighted, true, cin, false, false, &carried, &flops);
  }

  LayerSpec layer;
  layer.hidden = 32;
  layer.state_space = {.heads = 1,
                       .head_dim = kWidth,
                       .state_dim = kState,
                       .groups = 1,
                       .chunk = kChunk};
  // The model takes half of the square in place of the half with its diagonal.
  const double diagonals = kLength * kWidth;
  EXPECT_DOUBLE_EQ(ScanFlops(layer, Sequences(1, kLength)), flops - diagonals);
}

// One head of the gated delta rule by chunks, as flash-linear-attention
// computes it, against the recurrence.
TEST(Mixers, ADeltaNetTakesTheOperationsOfItsChunkedForm) {
  constexpr int kLength = 64;
  constexpr int kChunk = 16;
  constexpr int kKey = 8;
  constexpr int kValue = 12;
  std::mt19937 random(3);
  const Matrix q = Random(kLength, kKey, &random);
  Matrix k = Random(kLength, kKey, &random);
  const Matrix v = Random(kLength, kValue, &random);
  std::vector<double> decay(kLength);
  std::vector<double> beta(kLength);
  for (int t = 0; t < kLength; ++t) {
    decay[t] = 0.6 + 0.3 * std::tanh(Random(1, 1, &random).at(0, 0));
    beta[t] = 0.5 + 0.3 * std::tanh(Random(1, 1, &random).at(0, 0));
    double norm = 0;
    for (int i = 0; i < kKey; ++i) norm += k.at(t, i) * k.at(t, i);
    for (int i = 0; i < kKey; ++i) k.at(t, i) /= std::sqrt(norm);
  }

  Matrix state(kKey, kValue);
  Matrix expected(kLength, kValue);
  for (int t = 0; t < kLength; ++t) {
    for (double& s : state.values) s *= decay[t];
    for (int j = 0; j < kValue; ++j) {
      double read = 0;
      for (int i = 0; i < kKey; ++i) read += k.at(t, i) * state.at(i, j);
      for (int i = 0; i < kKey; ++i) {
        state.at(i, j) += beta[t] * k.at(t, i) * (v.at(t, j) - read);
      }
      for (int i = 0; i < kKey; ++i) {
        expected.at(t, j) += q.at(t, i) * state.at(i, j);
      }
    }
  }

  double flops = 0;
  double solving = 0;
  Matrix carried(kKey, kValue);
  for (int begin = 0; begin < kLength; begin += kChunk) {
    std::vector<double> g(kChunk);
    double sum = 0;
    for (int t = 0; t < kChunk; ++t) g[t] = sum += std::log(decay[begin + t]);
    const auto rows = [&](const Matrix& m, auto factor) {
      Matrix part(kChunk, m.columns);
      for (int t = 0; t < kChunk; ++t) {
        for (int c = 0; c < m.columns; ++c) {
          part.at(t, c) = m.at(begin + t, c) * factor(t);
        }
      }
      return part;
    };
    const auto one = [](int) { return 1.0; };
    const Matrix ck = rows(k, one);
    const Matrix cq = rows(q, one);
    Matrix products(kChunk, kChunk);
    Multiply(rows(k, [&](int t) { return beta[begin + t]; }), false, ck, true,
             false, &products, &flops);
    // The inverse of 1 + the lower half, by rows.
    Matrix inverse(kChunk, kChunk);
    for (int t = 0; t < kChunk; ++t) {
      inverse.at(t, t) = 1;
      for (int s = 0; s < t; ++s) {
        for (int r = s; r < t; ++r) {
          inverse.at(t, s) -=
              products.at(t, r) * std::exp(g[t] - g[r]) * inverse.at(r, s);
          solving += 2;
        }
      }
    }
    Matrix w(kChunk, kKey);
    Multiply(inverse, false,
             rows(k, [&](int t) { return beta[begin + t] * std::exp(g[t]); }),
             false, false, &w, &flops);
    Matrix added(kChunk, kValue);
    Multiply(inverse, false, rows(v, [&](int t) { return beta[begin + t]; }),
             false, false, &added, &flops);
    Matrix known(kChunk, kValue);
    Multiply(w, false, carried, false, false, &known, &flops);
    for (size_t i = 0; i < added.values.size(); ++i) {
      added.values[i] -= known.values[i];
    }
    Matrix o(kChunk, kValue);
    Multiply(rows(q, [&](int t) { return std::exp(g[t]); }), false, carried,
             false, false, &o, &flops);
    Matrix scores(kChunk, kChunk);
    Multiply(cq, false, ck, true, false, &scores, &flops);
    for (int t = 0; t < kChunk; ++t) {
      for (int s = 0; s < kChunk; ++s) {
        scores.at(t, s) *= s > t ? 0 : std::exp(g[t] - g[s]);
      }
    }
    Multiply(scores, false, added, false, false, &o, &flops);
    for (int t = 0; t < kChunk; ++t) {
      for (int j = 0; j < kValue; ++j) {
        EXPECT_NEAR(o.at(t, j), expected.at(begin + t, j), 1e-9);
      }
    }
    for (double& s : carried.values) s *= std::exp(g[kChunk - 1]);
    Multiply(rows(k, [&](int t) { return std::exp(g[kChunk - 1] - g[t]); }),
             true, added, false, false, &carried, &flops);
  }

  LayerSpec layer;
  layer.hidden = 32;
  layer.delta_net = {.key_heads = 1,
                     .value_heads = 1,
                     .key_dim = kKey,
                     .value_dim = kValue,
                     .chunk = kChunk};
  const double priced = ScanFlops(layer, Sequences(1, kLength));
  // The kernel inverts by blocks, which takes more than row by row.
  const double inverting = priced - flops;
  EXPECT_NEAR(inverting, 0.5 * kChunk * kChunk * kLength, 1e-6);
  EXPECT_GT(inverting, solving);
  EXPECT_LT(inverting, 2 * solving);
}

TEST(Mixers, WorkIsLinearInTheLengthAndPackingChangesNothing) {
  for (const LayerSpec& layer : {StateSpaceLayer(), DeltaNetBlock()}) {
    const double once = ScanFlops(layer, Sequences(1, 4096));
    EXPECT_GT(once, 0);
    EXPECT_NEAR(ScanFlops(layer, Sequences(1, 16384)), 4 * once, 1e-6 * once);
    EXPECT_NEAR(ScanFlops(layer, Sequences(8, 512)), once, 1e-6 * once);
  }
  // The last chunk of each sequence of a delta net is computed in full.
  EXPECT_NEAR(ScanFlops(DeltaNetBlock(), Sequences(64, 96)),
              ScanFlops(DeltaNetBlock(), Sequences(64, 128)), 1);
}

TEST(Mixers, ParametersAreThoseOfNemotronAndQwen) {
  // z, x, B, C and a step a head; the output; a convolution with a bias; the
  // norm; decay, skip and bias of the step; the norm ahead.
  EXPECT_EQ(Parameters(StateSpaceLayer()),
            2688 * (4096 + 4096 + 2 * 8 * 128 + 64) + 4096 * 2688 +
                (4096 + 2 * 8 * 128) * 5 + 4096 + 3 * 64 + 2688);
  LayerSpec delta = DeltaNetBlock();
  delta.ffn = {};
  EXPECT_EQ(Parameters(delta) - delta.vector_parameters,
            5120 * (2 * 2048 + 2 * 6144 + 2 * 48) + 6144 * 5120 +
                (2 * 2048 + 6144) * 4 + 128 + 2 * 48);
  LayerSpec gated = GatedAttentionBlock();
  gated.ffn = {};
  EXPECT_EQ(MatrixParameters(gated),
            5120 * (2 * 24 * 256 + 2 * 4 * 256) + 24 * 256 * 5120);
  EXPECT_EQ(MatrixParameters(LatentExpertsLayer()),
            int64_t{512} * 2 * 1024 * 2688 + 2 * 4096 * 1024 +
                2 * 2 * 4096 * 2688 + 4096 * 512);
  EXPECT_EQ(ActiveMatrixParameters(LatentExpertsLayer()),
            int64_t{22} * 2 * 1024 * 2688 + 2 * 4096 * 1024 +
                2 * 2 * 4096 * 2688 + 4096 * 512);
}

TEST(Mixers, TensorParallelGpusShareHeadsAndParameters) {
  for (const LayerSpec& layer : {StateSpaceLayer(), DeltaNetBlock()}) {
    EXPECT_EQ(ParametersOnGpu(layer, {.tp = 4}).dense,
              (Parameters(layer) - layer.vector_parameters) / 4 +
                  layer.vector_parameters);
    const auto work = [&](int32_t tp) {
      double flops = 0;
      double bytes = 0;
      for (const OpStep& step :
           BuildLayerOps(layer, Sequences(1, 4096), {.tp = tp}, {}, {}).fused) {
        for (const Op& op : step.compute) {
          if (const auto* f = std::get_if<FixedOp>(&op)) {
            flops += f->flops;
            bytes += f->bytes;
          }
        }
      }
      return std::pair(flops, bytes);
    };
    EXPECT_NEAR(work(4).first, work(1).first / 4, 1);
    EXPECT_NEAR(work(4).second, work(1).second / 4, 1);
  }
  // Products around the experts are not divided.
  const LayerSpec experts = LatentExpertsLayer();
  const int64_t whole = 4096 * (512 + 2 * 1024) + 4096;
  EXPECT_EQ(ParametersOnGpu(experts, {.tp = 2, .ep = 8, .expert_tp = 1}).dense,
            whole + int64_t{2} * 2 * 4096 * 2688 / 2);
  EXPECT_EQ(
      ParametersOnGpu(experts, {.tp = 2, .ep = 8, .expert_tp = 1}).experts,
      int64_t{512} * 2 * 1024 * 2688 / 8);
}

TEST(Mixers, ContextParallelGpusExchangeHeadsWhateverAttentionDoes) {
  const auto sent = [](const LayerSpec& layer, int32_t cp, int32_t tp = 1) {
    double bytes = 0;
    for (const OpStep& step :
         BuildLayerOps(layer, Sequences(1, 4096), {.tp = tp, .cp = cp}, {}, {})
             .forward) {
      for (const Op& op : step.communication) {
        const auto& c = std::get<CollectiveOp>(op);
        if (c.group != GroupKind::kContext) continue;
        EXPECT_EQ(c.kind, Collective::kAllToAll);
        EXPECT_EQ(c.size, cp);
        bytes += c.bytes;
      }
    }
    return bytes;
  };
  EXPECT_EQ(sent(StateSpaceLayer(), 1), 0);
  // All that the product made, and the result.
  EXPECT_EQ(sent(StateSpaceLayer(), 4), 1024 * 2.0 * (10304 + 4096));
  // Each of 16 GPUs has heads of one of the 8 groups, which is sent to two.
  EXPECT_EQ(sent(StateSpaceLayer(), 16),
            256 * 2.0 * (2 * 4096 + 2 * 16 * 128 + 64 + 4096));
  EXPECT_EQ(sent(DeltaNetBlock(), 4), 1024 * 2.0 * (16480 + 6144));
  EXPECT_EQ(sent(DeltaNetBlock(), 4, 2), 1024 * 2.0 * (16480 + 6144) / 2);
}

TEST(Mixers, GradientsOfAStateSpaceHaveARateOfTheirOwn) {
  const LayerSpec layer = StateSpaceLayer();
  const StateSpaceSpec& s = layer.state_space;
  constexpr int64_t kTokens = 1024;
  double gradients = 0;
  double again = 0;
  for (const OpStep& step :
       BuildLayerOps(layer, Sequences(1, kTokens), {}, {}, {}).backward) {
    for (const Op& op : step.compute) {
      const auto* fixed = std::get_if<FixedOp>(&op);
      if (fixed == nullptr) continue;
      if (fixed->flops_per_cycle == 110) gradients += fixed->flops;
      if (fixed->flops_per_cycle == 260) again += fixed->flops;
    }
  }
  const auto states = static_cast<double>(2 * s.inner() * s.state_dim);
  const auto chunks = static_cast<double>(s.inner() * s.chunk);
  const auto scores = static_cast<double>(2 * s.groups * s.state_dim * s.chunk);
  // States, the input, B and C; the products inside of chunks.
  EXPECT_NEAR(gradients, kTokens * (4 * states + 3 * chunks + 2 * scores), 1);
  EXPECT_NEAR(again, kTokens * (states + scores), 1);
}

TEST(Mixers, KeepWhatTheirKernelsReadAgain) {
  constexpr int64_t kTokens = 4096;
  const WorkShape shape = Sequences(1, kTokens);
  // Input and output of the norm; what the product made; the result with and
  // without the gate; its norm, which the last product takes.
  const LayerActivations kept = ActivationsOf(StateSpaceLayer(), shape, {});
  EXPECT_EQ(kept.trained,
            Bytes(kTokens * 2 * (2 * 2688 + 10304 + 2 * 4096 + 4096)));
  const auto part = [&](OperatorGroup g) {
    return kept.groups[static_cast<size_t>(g)].trained;
  };
  EXPECT_EQ(part(OperatorGroup::kProjections), Bytes(kTokens * 2 * 10304));
  EXPECT_EQ(part(OperatorGroup::kCoreAttention), Bytes(kTokens * 4 * 4096));
  EXPECT_EQ(part(OperatorGroup::kNorms), Bytes(kTokens * 2 * (2688 + 4096)));
  EXPECT_EQ(ActivationsOf(StateSpaceLayer(), shape, {.tp = 2, .cp = 2}).trained,
            Bytes(kept.trained.count() / 4));
  // Projections that are made again come from the norm, the rest from them.
  JobSpec job = JobOf({{StateSpaceLayer()}}, {});
  const StageCost cost =
      StageCostModel(job).Cost(StageOf(1), shape, /*needs_input_grad=*/true);
  for (const OperatorGroup g :
       {OperatorGroup::kProjections, OperatorGroup::kCoreAttention,
        OperatorGroup::kNorms}) {
    EXPECT_GT(cost.groups[static_cast<size_t>(g)].again, kZero);
  }
  EXPECT_LT(
      cost.groups[static_cast<size_t>(OperatorGroup::kCoreAttention)].again,
      cost.forward);

  // The gate and the gated output, in addition to plain attention.
  LayerSpec plain = GatedAttentionBlock();
  plain.attention.output_gate = false;
  EXPECT_EQ(ActivationsOf(GatedAttentionBlock(), shape, {}).trained -
                ActivationsOf(plain, shape, {}).trained,
            Bytes(kTokens * 4 * 24 * 256));
}

TEST(Mixers, AdaptersAreAtTheirProjections) {
  constexpr int64_t kRank = 16;
  EXPECT_TRUE(HasAdapters(StateSpaceLayer()));
  EXPECT_EQ(TrainedOnGpu(StateSpaceLayer(), {}, kRank).dense,
            kRank * (2688 + 10304 + 4096 + 2688));
  EXPECT_EQ(TrainedOnGpu(DeltaNetBlock(), {}, kRank).dense,
            kRank * (5120 + 16480 + 6144 + 5120));
  const LayerOps ops = BuildLayerOps(DeltaNetBlock(), Sequences(1, 4096), {},
                                     {}, {.adapter_rank = kRank});
  for (const OpStep& step : ops.weight_grad) {
    for (const Op& op : step.compute) {
      EXPECT_EQ(std::get_if<GemmOp>(&op), nullptr);
    }
  }
}

// A scan has one tile for each state, which does not fill a device.
TEST(Mixers, AScanOfFewHeadsDoesNotFillTheDevice) {
  const ClusterSpec cluster = H800Cluster();
  const RooflineCost costs(cluster, {});
  const FixedOp whole{.flops = 1e12, .flops_per_cycle = 500};
  // 500 operations a cycle of a multiprocessor.
  EXPECT_NEAR(ToSeconds(costs.Cost(whole)),
              1e12 / (500 * CyclesPerSecond(cluster.device)), 1e-6);
  FixedOp scan = whole;
  scan.tiles = 48;
  const double slower =
      ToSeconds(costs.Cost(scan)) / ToSeconds(costs.Cost(whole));
  EXPECT_NEAR(slower, 1 / (1 - std::exp(-48.0 / 70)), 1e-6);
  // Convolutions are products of large blocks.
  EXPECT_LT(costs.Cost(FixedOp{.flops = 1e12}), costs.Cost(whole));
}

}  // namespace
}  // namespace pipeloom::emulator
