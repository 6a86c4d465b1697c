#include "runtime/torch/fused_ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

namespace pipeloom::runtime {
namespace {

using at::Tensor;
namespace autograd = torch::autograd;
using Context = autograd::AutogradContext;
using Tensors = autograd::variable_list;

constexpr double kEpsilon = 1e-6;

Tensor Wide(const Tensor& t) { return t.to(WideOf(t.scalar_type())); }

Tensor NormScale(const Tensor& wide) {
  return at::rsqrt(wide.square().mean(-1, true) + kEpsilon);
}

struct Norm : autograd::Function<Norm> {
  static Tensor forward(Context* context, const Tensor& x,
                        const Tensor& weight) {
    const KernelScope scope;
    context->save_for_backward({x});
    // Saved outside of save_for_backward, whose hooks would replace the tensor.
    context->saved_data["weight"] = weight;
    const Tensor wide = Wide(x);
    return (wide * NormScale(wide) * weight).to(x.scalar_type());
  }
  static Tensors backward(Context* context, Tensors gradients) {
    const KernelScope scope;
    const Tensor x = context->get_saved_variables()[0];
    const Tensor weight = context->saved_data["weight"].toTensor().detach();
    const Tensor wide = Wide(x.detach());
    const Tensor scale = NormScale(wide);
    const Tensor normed = wide * scale;
    const Tensor gradient = Wide(gradients[0]);
    const Tensor inner = gradient * weight;
    Tensor into_x;
    if (context->needs_input_grad(0)) {
      into_x = (scale * (inner - normed * (inner * normed).mean(-1, true)))
                   .to(x.scalar_type());
    }
    Tensor into_weight;
    if (context->needs_input_grad(1)) into_weight = (gradient * normed).sum(0);
    return {into_x, into_weight};
  }
};

// Rotates each row by `sign` times the angle of its position.
Tensor Rotated(const Tensor& x, const std::vector<int64_t>& lengths,
               double sign) {
  const int64_t half = x.size(2) / 2;
  if (half == 0) return x.clone();
  const auto wide = x.options().dtype(WideOf(x.scalar_type()));
  std::vector<Tensor> positions;
  for (const int64_t length : lengths) {
    positions.push_back(at::arange(length, wide));
  }
  const Tensor angle = at::outer(
      at::cat(positions) * sign,
      at::pow(10000.0, at::arange(half, wide) / -static_cast<double>(half)));
  const Tensor c = angle.cos().to(x.scalar_type()).unsqueeze(1);
  const Tensor s = angle.sin().to(x.scalar_type()).unsqueeze(1);
  const Tensor a = x.narrow(2, 0, half);
  const Tensor b = x.narrow(2, half, half);
  std::vector<Tensor> parts{a * c - b * s, a * s + b * c};
  if (2 * half < x.size(2)) parts.push_back(x.narrow(2, 2 * half, 1));
  return at::cat(parts, 2);
}

struct Rotate : autograd::Function<Rotate> {
  static Tensor forward(Context* context, const Tensor& x,
                        const std::vector<int64_t>& lengths) {
    const KernelScope scope;
    context->saved_data["lengths"] = lengths;
    return Rotated(x, lengths, 1);
  }
  static Tensors backward(Context* context, Tensors gradients) {
    const KernelScope scope;
    return {
        Rotated(gradients[0], context->saved_data["lengths"].toIntVector(), -1),
        Tensor()};
  }
};

// Returns the scores of one block, [heads, queries, keys], in the wide type.
Tensor Scores(const Tensor& q, const Tensor& k, bool causal) {
  Tensor scores = Wide(at::matmul(q.transpose(0, 1), k.permute({1, 2, 0}))) /
                  std::sqrt(static_cast<double>(q.size(2)));
  if (causal) {
    const Tensor later =
        at::ones({q.size(0), k.size(0)}, q.options().dtype(at::kBool)).triu(1);
    scores.masked_fill_(later, -INFINITY);
  }
  return scores;
}

// Repeats the keys or values of each group for all its heads.
Tensor Spread(const Tensor& t, int64_t heads) {
  const int64_t group = heads / t.size(1);
  return group > 1 ? t.repeat_interleave(group, 1) : t;
}
// Returns the gradient of `t` from the gradient of Spread(t).
Tensor Gathered(const Tensor& gradient, int64_t kv_heads) {
  const int64_t group = gradient.size(1) / kv_heads;
  if (group == 1) return gradient;
  return gradient.reshape({gradient.size(0), kv_heads, group, gradient.size(2)})
      .sum(2);
}

struct Attention : autograd::Function<Attention> {
  static Tensor forward(Context* context, const Tensor& q, const Tensor& k,
                        const Tensor& v, const std::vector<int64_t>& blocks,
                        bool causal) {
    const KernelScope scope;
    const int64_t heads = q.size(1);
    Tensor out = at::zeros({q.size(0), heads, v.size(2)}, q.options());
    Tensor sums = at::zeros({q.size(0), heads},
                            q.options().dtype(WideOf(q.scalar_type())));
    for (size_t b = 0; b < blocks.size(); b += 4) {
      if (blocks[b + 3] == 0) continue;
      const auto queries = [&](const Tensor& t) {
        return t.narrow(0, blocks[b], blocks[b + 1]);
      };
      const auto keys = [&](const Tensor& t) {
        return Spread(t.narrow(0, blocks[b + 2], blocks[b + 3]), heads);
      };
      const Tensor scores = Scores(queries(q), keys(k), causal);
      const Tensor sum = at::logsumexp(scores, -1, true);
      const Tensor weights = (scores - sum).exp().to(v.scalar_type());
      queries(out).copy_(
          at::matmul(weights, keys(v).transpose(0, 1)).transpose(0, 1));
      queries(sums).copy_(sum.squeeze(-1).t());
    }
    out = out.view({q.size(0), -1});
    context->save_for_backward({q, k, v, out, sums});
    context->saved_data["blocks"] = blocks;
    context->saved_data["causal"] = causal;
    return out;
  }
  static Tensors backward(Context* context, Tensors gradients) {
    const KernelScope scope;
    const Tensors saved = context->get_saved_variables();
    const Tensor q = saved[0].detach();
    const Tensor k = saved[1].detach();
    const Tensor v = saved[2].detach();
    const int64_t heads = q.size(1);
    const Tensor out = saved[3].detach().view({q.size(0), heads, v.size(2)});
    const Tensor sums = saved[4].detach();
    const Tensor gradient = gradients[0].reshape(out.sizes());
    const auto blocks = context->saved_data["blocks"].toIntVector();
    const bool causal = context->saved_data["causal"].toBool();
    Tensor into_q = at::zeros_like(q);
    Tensor into_k = at::zeros_like(k);
    Tensor into_v = at::zeros_like(v);
    const double root = std::sqrt(static_cast<double>(q.size(2)));
    for (size_t b = 0; b < blocks.size(); b += 4) {
      if (blocks[b + 3] == 0) continue;
      const auto queries = [&](const Tensor& t) {
        return t.narrow(0, blocks[b], blocks[b + 1]);
      };
      const auto keys = [&](const Tensor& t) {
        return t.narrow(0, blocks[b + 2], blocks[b + 3]);
      };
      const Tensor all_k = Spread(keys(k), heads).transpose(0, 1);
      const Tensor all_v = Spread(keys(v), heads).transpose(0, 1);
      const Tensor down = queries(gradient).transpose(0, 1);
      const Tensor weights =
          (Scores(queries(q), Spread(keys(k), heads), causal) -
           queries(sums).t().unsqueeze(-1))
              .exp();
      const Tensor of_v =
          at::matmul(weights.to(v.scalar_type()).transpose(1, 2), down);
      const Tensor of_weights = Wide(at::matmul(down, all_v.transpose(1, 2)));
      const Tensor delta =
          Wide(queries(gradient) * queries(out)).sum(-1).t().unsqueeze(-1);
      const Tensor of_scores =
          (weights * (of_weights - delta) / root).to(q.scalar_type());
      queries(into_q).copy_(at::matmul(of_scores, all_k).transpose(0, 1));
      keys(into_k).add_(Gathered(
          at::matmul(of_scores.transpose(1, 2), queries(q).transpose(0, 1))
              .transpose(0, 1),
          k.size(1)));
      keys(into_v).add_(Gathered(of_v.transpose(0, 1), v.size(1)));
    }
    return {into_q, into_k, into_v, Tensor(), Tensor()};
  }
};

struct SiluProduct : autograd::Function<SiluProduct> {
  static Tensor forward(Context* context, const Tensor& gate,
                        const Tensor& up) {
    const KernelScope scope;
    context->save_for_backward({gate, up});
    return at::silu(gate) * up;
  }
  static Tensors backward(Context* context, Tensors gradients) {
    const KernelScope scope;
    const Tensors saved = context->get_saved_variables();
    const Tensor gate = saved[0].detach();
    const Tensor up = saved[1].detach();
    const Tensor sigmoid = at::sigmoid(gate);
    return {gradients[0] * up * sigmoid * (gate * (1 - sigmoid) + 1),
            gradients[0] * gate * sigmoid};
  }
};

struct CrossEntropy : autograd::Function<CrossEntropy> {
  static Tensor forward(Context* context, const Tensor& logits,
                        const Tensor& labels) {
    const KernelScope scope;
    const Tensor wide = Wide(logits.detach());
    const Tensor column = labels.unsqueeze(1);
    const Tensor sums = at::logsumexp(wide, -1, true);
    const Tensor loss = (sums - wide.gather(1, column)).sum();
    Tensor gradient = (wide - sums).exp();
    gradient.scatter_add_(
        1, column, at::full({labels.size(0), 1}, -1.0, gradient.options()));
    logits.detach().copy_(gradient);
    context->save_for_backward({logits});
    return loss;
  }
  static Tensors backward(Context* context, Tensors gradients) {
    const KernelScope scope;
    const Tensor gradient = context->get_saved_variables()[0].detach();
    gradient.mul_(gradients[0]);
    return {gradient, Tensor()};
  }
};

}  // namespace

at::ScalarType WideOf(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor FusedNorm(const Tensor& x, const Tensor& weight) {
  return Norm::apply(x, weight);
}

Tensor FusedRotate(const Tensor& x, const std::vector<int64_t>& lengths) {
  return Rotate::apply(x, lengths);
}

Tensor FusedAttention(const Tensor& q, const Tensor& k, const Tensor& v,
                      const std::vector<AttentionBlock>& blocks, bool causal) {
  std::vector<int64_t> numbers;
  for (const AttentionBlock& b : blocks) {
    numbers.insert(numbers.end(), {b.query, b.queries, b.key, b.keys});
  }
  return Attention::apply(q, k, v, numbers, causal);
}

Tensor FusedSiluProduct(const Tensor& gate, const Tensor& up) {
  return SiluProduct::apply(gate, up);
}

Tensor FusedCrossEntropy(const Tensor& logits, const Tensor& labels) {
  return CrossEntropy::apply(logits, labels);
}

}  // namespace pipeloom::runtime
