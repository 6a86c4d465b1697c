#include "runtime/torch/layers.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>

#include "base/fingerprint.h"
#include "runtime/torch/fused_ops.h"

namespace pipeloom::runtime {
namespace {

using at::Tensor;
namespace autograd = torch::autograd;

// The product x W^T, whose weight gradient waits for WeightGradients::Run.
struct PutOffProduct : autograd::Function<PutOffProduct> {
  static Tensor forward(autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight, int64_t put_off) {
    context->save_for_backward({x});
    // Saved outside of save_for_backward, whose hooks would replace the tensor.
    context->saved_data["weight"] = weight;
    context->saved_data["put_off"] = put_off;
    return at::matmul(x, weight.to(x.scalar_type()).t());
  }
  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          autograd::variable_list gradients) {
    const autograd::variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor weight = context->saved_data["weight"].toTensor();
    const Tensor& gradient = gradients[0];
    // The store outlives the graph: the stage's run owns both.
    auto* put_off = reinterpret_cast<WeightGradients*>(
        static_cast<intptr_t>(context->saved_data["put_off"].toInt()));
    put_off->Add(weight, x.detach(), gradient);
    Tensor into_x;
    if (x.requires_grad()) {
      into_x = at::matmul(gradient, weight.detach().to(gradient.scalar_type()));
    }
    return {into_x, Tensor(), Tensor()};
  }
};

at::Generator GeneratorOf(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

uint64_t NameSeed(uint64_t seed, const std::string& name) {
  FingerprintBuilder builder;
  builder.Add(seed).Add(absl::string_view(name));
  return builder.Build().low;
}

at::ScalarType TypeOf(TorchPrecision precision) {
  switch (precision) {
    case TorchPrecision::kBf16:
      return at::kBFloat16;
    case TorchPrecision::kFp32:
      return at::kFloat;
    case TorchPrecision::kFp64:
      return at::kDouble;
  }
  return at::kFloat;
}

// Returns the fields that a part of the layer needs when it runs again, at any
// later time.
LayerRun ForAgain(const LayerRun& run) {
  return {.sequences = run.sequences,
          .loss_rows = run.loss_rows,
          .put_off = run.put_off};
}

// Returns the groups to make again, for a frozen layer with projections also
// the norms: its products keep no inputs, so its projections are made again
// from norm outputs that are made again, too.
OperatorGroups GroupsToMakeAgain(OperatorGroups groups, bool frozen) {
  if (!frozen || !groups.Has(OperatorGroup::kProjections)) return groups;
  return OperatorGroups::FromBits(groups.bits() |
                                  OperatorGroups{OperatorGroup::kNorms}.bits());
}

bool HasAttention(const LayerSpec& spec) {
  return spec.attention.kind != AttentionKind::kNone &&
         spec.attention.heads > 0;
}

}  // namespace

at::Device TorchPlace(const TorchOptions& options) {
  return options.cuda
             ? at::Device(at::kCUDA,
                          static_cast<at::DeviceIndex>(options.cuda_index))
             : at::Device(at::kCPU);
}

at::ScalarType TorchType(const TorchOptions& options) {
  return TypeOf(options.precision);
}

void WeightGradients::Add(Tensor weight, Tensor input, Tensor gradient) {
  products_.push_back(
      {std::move(weight), std::move(input), std::move(gradient)});
}

void WeightGradients::Run() {
  const at::NoGradGuard no_grad;
  for (Product& p : products_) {
    const Tensor sum =
        at::matmul(p.gradient.t(), p.input).to(p.weight.scalar_type());
    Tensor& into = p.weight.mutable_grad();
    if (into.defined()) {
      into.add_(sum);
    } else {
      into = sum;
    }
    p = {};
  }
  products_.clear();
}

TorchLayer::TorchLayer(const ModuleSpec& module, LayerId index, bool feeds,
                       bool frozen, const TorchOptions& options)
    : spec_(module.layers[index]),
      prefix_(module.name + "." + std::to_string(index.value()) + "."),
      seed_(options.seed),
      first_(index == LayerId(0)),
      frozen_(frozen),
      type_(TypeOf(options.precision)),
      device_(TorchPlace(options)) {
  const bool last = index.value() + 1 == module.layers.size();
  merged_before_ = !first_ && MergedAfter(module, LayerId(index.value() - 1));
  merges_ = spec_.on_output_tokens && !merged_before_;
  merges_at_end_ = last && !merged_before_ && !merges_;
  squared_error_ = last && !feeds && spec_.kind != LayerKind::kLossHead;
  width_in_ = first_ ? 0 : WidthAfter(module, LayerId(index.value() - 1));
  const int64_t h = spec_.hidden;
  const auto product = [&](const std::string& name, int64_t out, int64_t in) {
    return Add(name, {out, in}, 1 / std::sqrt(static_cast<double>(in)));
  };
  switch (spec_.kind) {
    case LayerKind::kEmbedding:
      query_ = Add("table", {spec_.vocab, h}, 0.5);
      break;
    case LayerKind::kLossHead:
      norm1_ = Add("norm", {h}, 0.1, 1);
      query_ = product("head", spec_.vocab, h);
      break;
    case LayerKind::kLinears:
      for (size_t i = 0; i < spec_.linears.size(); ++i) {
        product("linear" + std::to_string(i), spec_.linears[i].out,
                spec_.linears[i].in);
      }
      break;
    default: {
      const AttentionSpec& a = spec_.attention;
      if (HasAttention(spec_)) {
        norm1_ = Add("norm1", {h}, 0.1, 1);
        query_ = product("query", a.heads * a.head_dim, h);
        key_ = product("key", a.kv_heads * a.head_dim, h);
        value_ = product("value", a.kv_heads * a.value_width(), h);
        output_ = product("output", h, a.heads * a.value_width());
      }
      const CrossAttentionSpec& c = spec_.cross_attention;
      if (c.heads > 0) {
        const int64_t inner = c.heads * c.head_dim;
        cross_norm_ = Add("cross_norm", {h}, 0.1, 1);
        cross_query_ = product("cross_query", inner, h);
        cross_key_ = product("cross_key", inner, c.context_width);
        cross_value_ = product("cross_value", inner, c.context_width);
        cross_output_ = product("cross_output", h, inner);
      }
      if (spec_.ffn.hidden > 0) {
        norm2_ = Add("norm2", {h}, 0.1, 1);
        up_ = product("up", spec_.ffn.hidden, h);
        if (spec_.ffn.gated) gate_ = product("gate", spec_.ffn.hidden, h);
        down_ = product("down", h, spec_.ffn.hidden);
      }
      const ModulationSpec& m = spec_.modulation;
      if (m.vectors > 0) {
        modulation_ =
            m.condition_width > 0
                ? product("modulation", m.vectors * h, m.condition_width)
                : Add("modulation", {1, m.vectors * h}, 0.1);
      }
    }
  }
}

size_t TorchLayer::Add(const std::string& name, at::IntArrayRef shape,
                       double scale, double mean) {
  const std::string full = prefix_ + name;
  const Tensor value =
      (at::randn(shape, GeneratorOf(NameSeed(seed_, full)), at::kFloat) *
           scale +
       mean)
          .to(device_, WideOf(type_));
  value.requires_grad_(!frozen_);
  parameters_.push_back({full, value});
  return parameters_.size() - 1;
}

Tensor TorchLayer::Product(const Tensor& x, size_t weight,
                           LayerRun* run) const {
  const Tensor& w = P(weight);
  if (run->put_off != nullptr && w.requires_grad() &&
      at::GradMode::is_enabled()) {
    return PutOffProduct::apply(
        x, w, static_cast<int64_t>(reinterpret_cast<intptr_t>(run->put_off)));
  }
  return at::matmul(x, w.to(x.scalar_type()).t());
}

Tensor TorchLayer::Norm(const Tensor& x, size_t weight) const {
  return FusedNorm(x, P(weight));
}

// Returns normally distributed numbers for all rows: inputs, or targets if
// `output`.
Tensor TorchLayer::Seeded(const TorchSequences& sequences, int64_t width,
                          bool output) const {
  std::vector<Tensor> parts;
  for (const TorchSequence& s : sequences) {
    parts.push_back(at::randn({output ? s.output : s.own, width},
                              GeneratorOf(s.seed + (output ? 1 : 0)),
                              at::kFloat));
  }
  return at::cat(parts).to(device_, type_);
}

Tensor TorchLayer::Labels(const TorchSequences& sequences) const {
  std::vector<Tensor> parts;
  for (const TorchSequence& s : sequences) {
    parts.push_back(at::randint(
        spec_.vocab, {merged_before_ || merges_ ? s.output : s.tokens()},
        GeneratorOf(s.seed + 2), at::kLong));
  }
  return at::cat(parts).to(device_);
}

Tensor TorchLayer::Embed(const Tensor& fed, LayerRun* run) const {
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (const TorchSequence& s : *run->sequences) {
    if (s.fed > 0) parts.push_back(fed.narrow(0, at, s.fed));
    at += s.fed;
    if (s.own == 0) continue;
    const Tensor ids =
        at::randint(spec_.vocab, {s.own}, GeneratorOf(s.seed), at::kLong);
    parts.push_back(at::embedding(P(query_), ids.to(device_)).to(type_));
  }
  return at::cat(parts);
}

Tensor TorchLayer::Linears(Tensor x, LayerRun* run) const {
  const LayerRun again = ForAgain(*run);
  for (size_t i = 0; i < spec_.linears.size(); ++i) {
    if (i > 0) {
      x = Again(OperatorGroup::kActivations, {x}, [](const AgainTensors& in) {
        return AgainTensors{at::gelu(in[0])};
      })[0];
    }
    const auto product = [this, again, i](const AgainTensors& in) {
      LayerRun own = again;
      return AgainTensors{Product(in[0], i, &own)};
    };
    x = i + 1 < spec_.linears.size()
            ? Again(OperatorGroup::kProjections, {x}, product)[0]
            : product({x})[0];
  }
  return x;
}

Tensor TorchLayer::Merge(const Tensor& x, const TorchSequences& sequences,
                         int64_t wanted_width) const {
  const bool same = std::all_of(
      sequences.begin(), sequences.end(),
      [](const TorchSequence& s) { return s.tokens() == s.output; });
  const int64_t width = x.size(1);
  if (same && wanted_width == width) return x;
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (const TorchSequence& s : sequences) {
    const Tensor part = x.narrow(0, at, s.tokens());
    at += s.tokens();
    const int64_t each = s.tokens() / s.output;
    if (s.tokens() == each * s.output && each * width == wanted_width) {
      parts.push_back(part.reshape({s.output, wanted_width}));
      continue;
    }
    Tensor mean = part;
    if (s.tokens() != s.output) {
      mean = each * s.output == s.tokens()
                 ? part.reshape({s.output, each, width}).mean(1)
                 : at::adaptive_avg_pool1d(part.t().unsqueeze(0), s.output)
                       .squeeze(0)
                       .t();
    }
    // Tokens that cannot be concatenated to the wanted width are averaged.
    parts.push_back(
        wanted_width == width ? mean : mean.repeat({1, wanted_width / width}));
  }
  return at::cat(parts);
}

Tensor TorchLayer::CoreAttention(const AgainTensors& qkv,
                                 const LayerRun& run) const {
  const AttentionSpec& a = spec_.attention;
  std::vector<AttentionBlock> blocks;
  int64_t at = 0;
  for (const TorchSequence& s : *run.sequences) {
    const int64_t length = merged_before_ ? s.output : s.tokens();
    const int64_t block =
        a.kind == AttentionKind::kWindow && a.window > 0 ? a.window : length;
    for (int64_t b = 0; b < length; b += block) {
      const int64_t n = std::min(block, length - b);
      blocks.push_back({at + b, n, at + b, n});
    }
    at += length;
  }
  return FusedAttention(qkv[0], qkv[1], qkv[2], blocks,
                        a.kind == AttentionKind::kCausal);
}

Tensor TorchLayer::Attention(const Tensor& x, LayerRun* run) const {
  const LayerRun again = ForAgain(*run);
  const auto project = [this, again](const AgainTensors& in) {
    const AttentionSpec& a = spec_.attention;
    LayerRun own = again;
    // Positions count from each sequence's start.
    std::vector<int64_t> lengths;
    for (const TorchSequence& s : *own.sequences) {
      lengths.push_back(merged_before_ ? s.output : s.tokens());
    }
    const auto rotated = [&](size_t weight, int64_t heads) {
      return FusedRotate(
          Product(in[0], weight, &own).view({-1, heads, a.head_dim}), lengths);
    };
    return AgainTensors{
        rotated(query_, a.heads), rotated(key_, a.kv_heads),
        Product(in[0], value_, &own).view({-1, a.kv_heads, a.value_width()})};
  };
  const AgainTensors qkv = Again(OperatorGroup::kProjections, {x}, project);
  const auto core = [this, again](const AgainTensors& in) {
    return AgainTensors{CoreAttention(in, again)};
  };
  return Product(Again(OperatorGroup::kCoreAttention, qkv, core)[0], output_,
                 run);
}

Tensor TorchLayer::CoreCrossAttention(const AgainTensors& qkv,
                                      const LayerRun& run) const {
  std::vector<AttentionBlock> blocks;
  int64_t at = 0;
  int64_t context_at = 0;
  for (const TorchSequence& s : *run.sequences) {
    const int64_t length = merged_before_ ? s.output : s.tokens();
    blocks.push_back({at, length, context_at, s.context});
    at += length;
    context_at += s.context;
  }
  return FusedAttention(qkv[0], qkv[1], qkv[2], blocks, /*causal=*/false);
}

Tensor TorchLayer::CrossAttention(const Tensor& x, const Tensor& context,
                                  LayerRun* run) const {
  const LayerRun again = ForAgain(*run);
  const auto project = [this, again](const AgainTensors& in) {
    const CrossAttentionSpec& c = spec_.cross_attention;
    LayerRun own = again;
    return AgainTensors{
        Product(in[0], cross_query_, &own).view({-1, c.heads, c.head_dim}),
        Product(in[1], cross_key_, &own).view({-1, c.heads, c.head_dim}),
        Product(in[1], cross_value_, &own).view({-1, c.heads, c.head_dim})};
  };
  const auto core = [this, again](const AgainTensors& in) {
    return AgainTensors{CoreCrossAttention(in, again)};
  };
  // For a frozen layer all three are kept, as the inputs of its products are
  // not.
  const AgainTensors qkv =
      frozen_ ? project({x, context})
              : Again(OperatorGroup::kProjections, {x, context}, project);
  return Product(Again(OperatorGroup::kCoreAttention, qkv, core)[0],
                 cross_output_, run);
}

// Returns shift, scale and gate of attention, then of the feed-forward, for
// each row.
std::vector<Tensor> TorchLayer::Modulation(LayerRun* run) const {
  const ModulationSpec& m = spec_.modulation;
  std::vector<Tensor> result(6);
  if (m.vectors == 0) return result;
  std::vector<int64_t> lengths;
  std::vector<Tensor> conditions;
  for (const TorchSequence& s : *run->sequences) {
    lengths.push_back(merged_before_ ? s.output : s.tokens());
    if (m.condition_width > 0) {
      conditions.push_back(at::randn({1, m.condition_width},
                                     GeneratorOf(s.seed + 3), at::kFloat));
    }
  }
  Tensor all;
  if (m.condition_width > 0) {
    all = Product(at::silu(at::cat(conditions)).to(device_, type_), modulation_,
                  run);
  } else {
    all = P(modulation_)
              .to(type_)
              .expand({static_cast<int64_t>(lengths.size()), -1});
  }
  all = all.repeat_interleave(at::tensor(lengths, at::kLong).to(device_), 0);
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t which = static_cast<int64_t>(i) % m.vectors;
    result[i] = all.narrow(1, which * spec_.hidden, spec_.hidden);
  }
  return result;
}

// Computes the feed-forward from the norm's output to that of the down product.
Tensor TorchLayer::FeedForward(const Tensor& x, LayerRun* run) const {
  const LayerRun again = ForAgain(*run);
  const auto project = [this, again](const AgainTensors& in) {
    LayerRun own = again;
    AgainTensors out{Product(in[0], up_, &own)};
    if (spec_.ffn.gated) out.push_back(Product(in[0], gate_, &own));
    return out;
  };
  const auto activate = [this](const AgainTensors& in) {
    return AgainTensors{spec_.ffn.gated ? FusedSiluProduct(in[1], in[0])
                                        : at::gelu(in[0])};
  };
  return Product(
      Again(OperatorGroup::kActivations,
            Again(OperatorGroup::kProjections, {x}, project), activate)[0],
      down_, run);
}

Tensor TorchLayer::Transformer(Tensor x, const Tensor& context,
                               LayerRun* run) const {
  const std::vector<Tensor> m = Modulation(run);
  const auto modulated = [&](const Tensor& t, size_t norm, size_t first) {
    AgainTensors inputs = {t};
    if (m[first].defined()) {
      inputs.push_back(m[first]);
      inputs.push_back(m[first + 1]);
    }
    return Again(
        OperatorGroup::kNorms, inputs, [this, norm](const AgainTensors& in) {
          const Tensor y = Norm(in[0], norm);
          return AgainTensors{in.size() > 1 ? y * (in[2] + 1) + in[1] : y};
        })[0];
  };
  const auto gated = [&](const Tensor& t, size_t first) {
    return m[first].defined() ? t * (m[first + 2] + 1) : t;
  };
  if (HasAttention(spec_)) {
    x = x + gated(Attention(modulated(x, norm1_, 0), run), 0);
  }
  if (spec_.cross_attention.heads > 0 && context.defined()) {
    x = x + CrossAttention(Norm(x, cross_norm_), context, run);
  }
  if (spec_.ffn.hidden > 0) {
    x = x + gated(FeedForward(modulated(x, norm2_, 3), run), 3);
  }
  return x;
}

void TorchLayer::AddLoss(const Tensor& sum, LayerRun* run) const {
  const Tensor loss = sum / static_cast<double>(run->loss_rows);
  run->loss = run->loss.defined() ? run->loss + loss : loss;
}

TorchState TorchLayer::Forward(TorchState in, LayerRun* run) const {
  const TorchSequences& sequences = *run->sequences;
  const AgainScope scope(GroupsToMakeAgain(run->again, frozen_));
  Tensor x = std::move(in.rows);
  if (first_ && spec_.kind != LayerKind::kEmbedding) {
    x = Seeded(sequences,
               spec_.linears.empty() ? spec_.hidden : spec_.linears[0].in,
               false);
  }
  if (merges_) {
    x = Merge(x, sequences,
              spec_.linears.empty() ? x.size(1) : spec_.linears[0].in);
  }
  switch (spec_.kind) {
    case LayerKind::kEmbedding:
      x = Embed(x, run);
      break;
    case LayerKind::kLinears:
      x = Linears(x, run);
      break;
    case LayerKind::kLossHead:
      AddLoss(FusedCrossEntropy(Product(Again(OperatorGroup::kNorms, {x},
                                              [this](const AgainTensors& rows) {
                                                return AgainTensors{
                                                    Norm(rows[0], norm1_)};
                                              })[0],
                                        query_, run),
                                Labels(sequences)),
              run);
      break;
    default:
      x = Transformer(x, in.context, run);
  }
  if (merges_at_end_) x = Merge(x, sequences, x.size(1));
  if (squared_error_) {
    const Tensor target = Seeded(sequences, x.size(1), true);
    AddLoss((x - target).to(WideOf(type_)).square().mean(1).sum(), run);
  }
  return {x, in.context};
}

}  // namespace pipeloom::runtime
