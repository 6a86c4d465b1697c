// MissingLookups() of profile_cost.h.
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/overloaded.h"
#include "emulator/cost/profile_cost.h"
#include "emulator/ops/op_graph.h"

namespace pipeloom::emulator {
namespace {

absl::string_view Name(Collective kind) {
  switch (kind) {
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kRing:
      return "ring of sends";
  }
  return "";
}

absl::string_view Name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kNorm:
      return "norm";
    case MemoryKind::kActivation:
      return "activation";
    case MemoryKind::kGatedActivation:
      return "gated activation";
    case MemoryKind::kRotary:
      return "rope";
    case MemoryKind::kEmbedding:
      return "embedding";
    case MemoryKind::kLoss:
      return "softmax of the loss";
    case MemoryKind::kOptimizer:
      return "optimizer";
    case MemoryKind::kPermutation:
      return "permutation";
    case MemoryKind::kModulation:
      return "modulation";
    case MemoryKind::kOther:
      return "sum";
  }
  return "";
}

absl::string_view Name(Precision precision) {
  return precision == Precision::kBf16  ? "bf16"
         : precision == Precision::kFp8 ? "fp8"
                                        : "fp32";
}

// Describes a look-up, and what answers it if nothing is measured.
std::string LookupText(const Op& op) {
  constexpr absl::string_view kRates =
      ": peak rates and efficiency of the shape";
  constexpr absl::string_view kBytes = ": bytes over the memory's bandwidth";
  return std::visit(
      Overloaded{[&](const GemmOp& gemm) {
                   return absl::StrCat(
                       gemm.groups > 1 ? "grouped gemm " : "gemm ",
                       Name(gemm.pass), " ", Name(gemm.precision), kRates);
                 },
                 [&](const AttentionOp& attention) {
                   return absl::StrCat(
                       "attention ", attention.causal ? "causal" : "full",
                       attention.backward ? " backward" : " forward",
                       " head_dim ", attention.head_dim, kRates);
                 },
                 [&](const MemoryOp& memory) {
                   return absl::StrCat(Name(memory.kind), kBytes);
                 },
                 [&](const FixedOp&) {
                   return absl::StrCat("fixed work, convolutions, token mixers",
                                       kRates);
                 },
                 [&](const CollectiveOp& collective) {
                   return absl::StrCat(
                       Name(collective.kind), " over ", collective.size,
                       " GPUs: ring model on the cluster's links");
                 }},
      op);
}

}  // namespace

std::vector<std::string> MissingLookups(const JobSpec& job,
                                        const OpCostModel& costs) {
  // A size at which every operator has work.
  constexpr int64_t kTokens = 4096;
  const WorkShape shape{.instances = 4,
                        .tokens = kTokens,
                        .output_tokens = kTokens,
                        .squared_tokens = 4.0 * (kTokens / 4) * (kTokens / 4),
                        .context_tokens = kTokens,
                        .context_pairs = 4.0 * (kTokens / 4) * (kTokens / 4),
                        .sequences = 4,
                        .longest = kTokens / 4};
  std::set<std::string> lines;
  const auto look = [&](const Op& op, const OpCostModel& model,
                        const std::string& where) {
    const OpPrice price = model.Price(op);
    if (price.time > kZero && price.source == CostSource::kRoofline) {
      lines.insert(where + LookupText(op));
    }
  };
  const auto groups = static_cast<int32_t>(job.cluster.node_groups.size());
  for (int32_t group = -1; group < groups; ++group) {
    const OpCostModel& model = costs.OnGroup(group);
    const std::string where =
        groups == 0 ? "" : job.cluster.DeviceOf(group).name + " ";
    const auto look_all = [&](const std::vector<OpStep>& steps) {
      for (const OpStep& step : steps) {
        for (const Op& op : step.compute) look(op, model, where);
        for (const Op& op : step.communication) look(op, model, where);
      }
    };
    for (const ModuleId m : job.model.modules.ids()) {
      const ModuleSpec& module = job.model.modules[m];
      for (const LayerSpec& layer : module.layers) {
        const LayerOps ops =
            BuildLayerOps(layer, shape, job.parallel,
                          {.weights = !job.IsFrozen(m), .input = true},
                          {.precision = module.precision});
        look_all(ops.forward);
        look_all(ops.backward);
        look_all(ops.weight_grad);
        look_all(ops.fused);
      }
    }
    for (const Collective kind :
         {Collective::kReduceScatter, Collective::kAllGather}) {
      look(CollectiveOp{.kind = kind,
                        .group = GroupKind::kData,
                        .size = int64_t{job.parallel.dp} * job.parallel.cp,
                        .bytes = 1 << 28},
           model, where);
    }
    look(MemoryOp{.bytes = 1 << 28,
                  .kind = MemoryKind::kOptimizer,
                  .rows = 1 << 23,
                  .width = 1},
         model, where);
  }
  return {lines.begin(), lines.end()};
}

}  // namespace pipeloom::emulator
