// Fused operators give what their parts give, forward and backward, in fp64.
#include "runtime/torch/fused_ops.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <vector>

namespace pipeloom::runtime {
namespace {

using at::Tensor;
using Inputs = std::vector<Tensor>;
using Operator = std::function<Tensor(const Inputs&)>;

Tensor Random(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

// The result, then the gradients of a random function of it.
std::vector<Tensor> Run(const Operator& op, const Inputs& values) {
  Inputs inputs;
  for (const Tensor& v : values) {
    inputs.push_back(v.clone().requires_grad_(true));
  }
  // Not a leaf: some operators overwrite what they are given.
  Inputs given;
  for (const Tensor& t : inputs) given.push_back(t * 1.0);
  const Tensor result = op(given);
  at::manual_seed(11);
  torch::autograd::backward({result}, {at::randn_like(result)});
  std::vector<Tensor> all{result.detach()};
  for (const Tensor& t : inputs) all.push_back(t.grad());
  return all;
}

void ExpectSame(const Operator& fused, const Operator& parts,
                const Inputs& inputs) {
  const std::vector<Tensor> a = Run(fused, inputs);
  const std::vector<Tensor> b = Run(parts, inputs);
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].sizes(), b[i].sizes());
    EXPECT_LE((a[i] - b[i]).norm().item<double>(),
              1e-11 * b[i].norm().item<double>())
        << (i == 0 ? "result" : "gradient of input ") << i;
  }
}

TEST(FusedOps, Norm) {
  at::manual_seed(1);
  ExpectSame([](const Inputs& in) { return FusedNorm(in[0], in[1]); },
             [](const Inputs& in) {
               return in[0] * at::rsqrt(in[0].square().mean(-1, true) + 1e-6) *
                      in[1];
             },
             {Random({7, 12}), Random({12})});
}

TEST(FusedOps, RotationTurnsPairsByTheirPosition) {
  at::manual_seed(2);
  for (const int64_t dim : {6, 7}) {
    ExpectSame(
        [](const Inputs& in) {
          return FusedRotate(in[0], {3, 2});
        },
        [dim](const Inputs& in) {
          std::vector<Tensor> rows;
          for (const int64_t position : {0, 1, 2, 0, 1}) {
            const Tensor x = in[0][static_cast<int64_t>(rows.size())];
            std::vector<Tensor> first;
            std::vector<Tensor> second;
            for (int64_t i = 0; i < dim / 2; ++i) {
              const double angle =
                  static_cast<double>(position) *
                  std::pow(10000.0, -static_cast<double>(i) /
                                        static_cast<double>(dim / 2));
              const Tensor a = x.select(1, i);
              const Tensor b = x.select(1, dim / 2 + i);
              first.push_back(a * std::cos(angle) - b * std::sin(angle));
              second.push_back(a * std::sin(angle) + b * std::cos(angle));
            }
            first.insert(first.end(), second.begin(), second.end());
            if (dim % 2 == 1) first.push_back(x.select(1, dim - 1));
            rows.push_back(at::stack(first, 1));
          }
          return at::stack(rows);
        },
        {Random({5, 2, dim})});
  }
}

TEST(FusedOps, AttentionOfSharedKeysInBlocks) {
  at::manual_seed(3);
  // The last two rows see nothing.
  const std::vector<AttentionBlock> blocks{
      {0, 3, 0, 3}, {3, 4, 3, 4}, {7, 2, 0, 0}};
  for (const bool causal : {false, true}) {
    ExpectSame(
        [&](const Inputs& in) {
          return FusedAttention(in[0], in[1], in[2], blocks, causal);
        },
        [&](const Inputs& in) {
          std::vector<Tensor> rows;
          for (int64_t r = 0; r < 9; ++r) {
            std::vector<Tensor> heads;
            const int64_t begin = r < 3 ? 0 : 3;
            const int64_t end = causal ? r + 1 : r < 3 ? 3 : 7;
            for (int64_t h = 0; h < 4; ++h) {
              if (r >= 7) {
                heads.push_back(at::zeros({5}, at::kDouble));
                continue;
              }
              const Tensor k = in[1].select(1, h / 2).slice(0, begin, end);
              const Tensor v = in[2].select(1, h / 2).slice(0, begin, end);
              const Tensor scores = at::matmul(k, in[0][r][h]) / std::sqrt(6.0);
              heads.push_back(at::matmul(at::softmax(scores, 0), v));
            }
            rows.push_back(at::cat(heads));
          }
          return at::stack(rows);
        },
        {Random({9, 4, 6}), Random({7, 2, 6}), Random({7, 2, 5})});
  }
}

TEST(FusedOps, SiluProduct) {
  at::manual_seed(4);
  ExpectSame(
      [](const Inputs& in) { return FusedSiluProduct(in[0], in[1]); },
      [](const Inputs& in) { return in[0] * at::sigmoid(in[0]) * in[1]; },
      {Random({5, 8}), Random({5, 8})});
}

TEST(FusedOps, CrossEntropyLeavesItsGradientInTheLogits) {
  at::manual_seed(5);
  const Tensor labels = at::randint(10, {6}, at::kLong);
  ExpectSame([&](const Inputs& in) { return FusedCrossEntropy(in[0], labels); },
             [&](const Inputs& in) {
               return at::cross_entropy_loss(in[0], labels, {},
                                             at::Reduction::Sum);
             },
             {Random({6, 10})});
  const Tensor logits = Random({6, 10});
  const Tensor before = logits.clone();
  FusedCrossEntropy(logits, labels);
  EXPECT_NEAR(logits.sum().item<double>(), 0, 1e-12);
  EXPECT_FALSE(at::equal(logits, before));
}

}  // namespace
}  // namespace pipeloom::runtime
