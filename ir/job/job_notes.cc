#include "ir/job/job_notes.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ir/job/device_generation.h"

namespace pipeloom {
namespace {

// Adds a note if some layers of a module have a number that `parts` does not
// divide. `number` returns it, 0 for layers without one.
template <typename Number>
void AddDivision(const ModuleSpec& module, const char* what,
                 const std::string& field, int64_t parts,
                 const std::string& where, Number number,
                 std::vector<std::string>* notes) {
  if (parts <= 1) return;
  for (const LayerSpec& layer : module.layers) {
    const int64_t n = number(layer);
    if (n % parts == 0) continue;
    notes->push_back(absl::StrFormat(
        "module \"%s\" has layers of %d %s, which %s = %d does not divide; "
        "trainers refuse that, and times are those of an even share: use %s = "
        "%d %s",
        module.name, n, what, field, parts, field, std::gcd(n, parts), where));
    return;
  }
}

int64_t Heads(const LayerSpec& layer) {
  if (layer.kind != LayerKind::kTransformer ||
      layer.attention.kind == AttentionKind::kNone) {
    return 0;
  }
  return layer.attention.heads;
}

// Heads of the other token mixers, which context parallelism divides, too, and
// groups of heads that tensor parallelism divides.
int64_t MixerHeads(const LayerSpec& layer) {
  return std::max(layer.state_space.heads, layer.delta_net.key_heads);
}
int64_t MixerGroups(const LayerSpec& layer) {
  return layer.state_space.heads > 0 ? layer.state_space.groups : 0;
}

// Heads of keys and values; 0 with low ranks, which trainers divide in another
// way.
int64_t KeyValueHeads(const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  return Heads(layer) > 0 && a.query_rank == 0 && a.kv_rank == 0 ? a.kv_heads
                                                                 : 0;
}

// Adds a note if tp does not divide the key and value heads of a module whose
// query heads it divides.
void AddKeyValueHeads(const ModuleSpec& module, const ParallelLayout& layout,
                      std::vector<std::string>* notes) {
  for (const LayerSpec& layer : module.layers) {
    const int64_t n = KeyValueHeads(layer);
    if (n % layout.tp == 0 || Heads(layer) % layout.tp != 0) continue;
    notes->push_back(absl::StrFormat(
        "module \"%s\" has layers of %d key-value heads, which tp = %d does "
        "not divide; many versions of Megatron-Core refuse that, and times are "
        "those of %s: use tp = %d for it in parallel.modules",
        module.name, n, layout.tp,
        n < layout.tp ? "heads repeated on several GPUs" : "an even share",
        std::gcd(n, int64_t{layout.tp})));
    return;
  }
}

int64_t Experts(const LayerSpec& layer) {
  return layer.kind == LayerKind::kTransformer ? layer.ffn.experts : 0;
}

// Adds what a device cannot run in the precision that the job asks for.
// `precision`: of all modules on it; absent: each module's own.
void AddLowPrecision(const JobSpec& job, const DeviceSpec& device,
                     std::optional<Precision> precision,
                     std::vector<std::string>* notes) {
  const TrainingSetup& setup = job.setup;
  if (device.fp8.flops_per_second <= 0) {
    const std::string instead = absl::StrFormat(
        "but device \"%s\" has no fp8_flops_per_second: products take the time "
        "of bf16",
        device.name);
    for (const ModuleSpec& module : job.model.modules) {
      if (precision.value_or(module.precision) != Precision::kFp8) continue;
      notes->push_back(absl::StrCat("the precision of module \"", module.name,
                                    "\" is PRECISION_FP8, ", instead));
    }
    if (setup.fp8_products) {
      notes->push_back(absl::StrCat("setup.fp8_products is true, ", instead));
    }
    return;
  }
  if (setup.fp8_products && !IsBlackwell(device) &&
      setup.fp8_recipe == Fp8Recipe::kBlocks) {
    notes->push_back(absl::StrFormat(
        "setup.fp8_recipe is FP8_RECIPE_BLOCKS, but device \"%s\" counts as "
        "one without MXFP8 products, as its bf16_flops_per_second is below "
        "2e15: its products take the time of FP8_RECIPE_TENSOR",
        device.name));
  }
  if (setup.fp8_products && !IsBlackwell(device) &&
      (setup.fp8_recipe == Fp8Recipe::kFp4 ||
       setup.fp8_recipe == Fp8Recipe::kFp4Plain)) {
    notes->push_back(absl::StrFormat(
        "setup.fp8_recipe is %s, but device \"%s\" counts as one without FP4 "
        "products, as its bf16_flops_per_second is below 2e15: times are those "
        "of fp8",
        setup.fp8_recipe == Fp8Recipe::kFp4 ? "FP8_RECIPE_FP4"
                                            : "FP8_RECIPE_FP4_PLAIN",
        device.name));
  }
}

// Adds the settings of fp8 products where there are none.
void AddSettingsOfNoProducts(const TrainingSetup& setup,
                             std::vector<std::string>* notes) {
  if (setup.fp8_products) return;
  const struct {
    const char* field;
    bool given;
  } settings[] = {{"fp8_recipe", setup.fp8_recipe != Fp8Recipe::kTensor},
                  {"fp8_attention", setup.fp8_attention},
                  {"fp8_gathers", setup.fp8_gathers}};
  for (const auto& s : settings) {
    if (!s.given) continue;
    notes->push_back(absl::StrFormat(
        "setup.%s is given, but setup.fp8_products is false, so it changes "
        "nothing: set fp8_products, or leave it out",
        s.field));
  }
}

// Adds a note on a memory limit that a device cannot hold.
void AddMemoryLimit(const JobSpec& job, const DeviceSpec& device,
                    std::vector<std::string>* notes) {
  const Bytes limit = job.training.memory_limit;
  if (limit <= device.memory) return;
  constexpr double kGiB = 1 << 30;
  notes->push_back(absl::StrFormat(
      "training.memory_limit_bytes is %.4g GiB, but device \"%s\" has %.4g "
      "GiB, so plans may not fit into it: use %d or less, or leave it out",
      static_cast<double>(limit.count()) / kGiB, device.name,
      static_cast<double>(device.memory.count()) / kGiB,
      device.memory.count()));
}

// Notes a tensor- or context-parallel group that fits into a node, or into a
// domain of several, but lies over two: collectives are priced as inside one.
void AddSplitGroups(const JobSpec& job, std::vector<std::string>& notes) {
  const ClusterSpec& cluster = job.cluster;
  const bool domains = cluster.domain.kind == DomainKind::kSwitch ||
                       cluster.domain.kind == DomainKind::kCube;
  const int32_t joined = domains ? cluster.domain.gpus : cluster.gpus_per_node;
  const bool whole_rank = job.parallel.gpus_per_rank() <= joined;
  const int32_t group =
      whole_rank ? job.parallel.gpus_per_rank() : job.parallel.tp;
  if (group > joined || joined % group == 0) return;
  const int32_t first = joined / group * group;  // GPU of the split group.
  if (first + group > job.parallel.num_gpus()) return;
  notes.push_back(absl::StrFormat(
      "%s is %d, which does not divide the %d GPUs of a %s: GPUs %d to %d are "
      "on two, but their collectives are priced as inside one: use another "
      "size, or set %s to %d and leave the other GPUs idle",
      whole_rank && job.parallel.cp > 1 ? "parallel.tp x parallel.cp"
                                        : "parallel.tp",
      group, joined, domains ? "domain" : "node", first, first + group - 1,
      domains ? "cluster.domain.gpus" : "cluster.gpus_per_node", first));
}

}  // namespace

std::vector<std::string> ClusterNotes(const ClusterSpec& cluster) {
  std::vector<std::string> notes;
  // `least`: what every accelerator of the last ten years has; `most`: ten
  // times and more what any of 2026 has, and less than a thousand times the
  // slowest.
  const auto check = [&](const char* field, double value, double least,
                         double most, const char* unit, const char* example) {
    if (value <= 0 || (value >= least && value <= most)) return;
    notes.push_back(absl::StrFormat(
        "%s is %g, in %s, far %s than any device has; such as %s is meant?",
        field, value, unit, value < least ? "less" : "more", example));
  };
  const DeviceSpec& device = cluster.device;
  const double flops = device.bf16.flops_per_second;
  const double bandwidth = device.memory_bandwidth.bytes_per_second;
  check("device.bf16_flops_per_second", flops, 1e12, 1e17, "FLOP/s", "989e12");
  check("device.fp8_flops_per_second", device.fp8.flops_per_second, 1e12, 2e17,
        "FLOP/s", "1978e12");
  check("device.memory_bytes", static_cast<double>(device.memory.count()), 1e9,
        2e13, "bytes", "85899345920 (80 GiB)");
  check("device.memory_bandwidth_bytes_per_second", bandwidth, 1e10, 4e14,
        "bytes/s", "3.35e12");
  // The least of shipped devices has 37.
  if (notes.empty() && flops < bandwidth) {
    notes.push_back(absl::StrFormat(
        "device.bf16_flops_per_second is %g, in FLOP/s, less than one for each "
        "of the %g bytes/s of device.memory_bandwidth_bytes_per_second; such "
        "as 989e12 is meant?",
        flops, bandwidth));
  }
  check("device.host_bandwidth_bytes_per_second",
        device.host_bandwidth.bytes_per_second, 1e8, 1e13, "bytes/s", "5e10");
  check("intra_node.bandwidth_bytes_per_second",
        cluster.intra_node.bandwidth.bytes_per_second, 1e8, 2e13, "bytes/s",
        "3e11");
  check("inter_node.bandwidth_bytes_per_second",
        cluster.inter_node.bandwidth.bytes_per_second, 1e8, 1e13, "bytes/s",
        "4.5e10");
  return notes;
}

std::vector<std::string> JobNotes(const JobSpec& job) {
  std::vector<std::string> notes = ModelNotes(job.model);
  for (std::string& note : ClusterNotes(job.cluster)) {
    notes.push_back(std::move(note));
  }
  AddLowPrecision(job, job.cluster.device, std::nullopt, &notes);
  AddMemoryLimit(job, job.cluster.device, &notes);
  for (const NodeGroup& group : job.cluster.node_groups) {
    AddLowPrecision(job, group.device, group.precision, &notes);
    AddMemoryLimit(job, group.device, &notes);
  }
  AddSettingsOfNoProducts(job.setup, &notes);
  bool trains = false;
  bool has_experts = false;
  for (const ModuleId m : job.model.modules.ids()) {
    const ModuleSpec& module = job.model.modules[m];
    const ParallelLayout layout = job.LayoutOf(m);
    const bool scatters_heads =
        layout.context == ContextParallelism::kAllToAll && layout.cp > 1;
    AddDivision(module, "heads", scatters_heads ? "tp x cp" : "tp",
                int64_t{layout.tp} * (scatters_heads ? layout.cp : 1),
                "for it in parallel.modules", Heads, &notes);
    AddKeyValueHeads(module, layout, &notes);
    AddDivision(module, "heads of a mixer", layout.cp > 1 ? "tp x cp" : "tp",
                int64_t{layout.tp} * layout.cp, "for it in parallel.modules",
                MixerHeads, &notes);
    AddDivision(module, "groups of a state space", "tp", layout.tp,
                "for it in parallel.modules", MixerGroups, &notes);
    AddDivision(module, "experts", "ep", layout.ep, "in parallel", Experts,
                &notes);
    for (const LayerSpec& layer : module.layers) {
      has_experts = has_experts || Experts(layer) > 0;
    }
    trains = trains || !job.IsFrozen(m);
  }
  if (job.parallel.ep > 1 && !has_experts) {
    notes.push_back(absl::StrFormat(
        "parallel.ep is %d, but no module has experts, so it changes nothing: "
        "leave it out",
        job.parallel.ep));
  }
  int64_t layers = 0;
  for (const ModuleSpec& module : job.model.modules) {
    layers += module.layers.size();
  }
  if (job.parallel.pp > layers) {
    notes.push_back(absl::StrFormat(
        "parallel.pp is %d, but the model has %d layers, so %d ranks or more "
        "have none: use pp = %d or less",
        job.parallel.pp, layers, job.parallel.pp - layers, layers));
  }
  const int64_t shares = 2 * int64_t{job.parallel.cp};
  if (job.parallel.cp > 1 && job.training.microbatch_tokens % shares != 0) {
    notes.push_back(absl::StrFormat(
        "training.microbatch_tokens is %d, which 2 x cp = %d does not divide: "
        "sequences are cut into that many pieces; %d is the next that fits",
        job.training.microbatch_tokens, shares,
        (job.training.microbatch_tokens / shares + 1) * shares));
  }
  AddSplitGroups(job, notes);
  // The least that a GPU holds: its share of the weights in 16 bits, even if
  // all GPUs of the job shared them.
  const double weights = 2.0 * static_cast<double>(Parameters(job.model)) /
                         static_cast<double>(job.parallel.num_gpus());
  if (weights > static_cast<double>(job.MemoryLimit().count())) {
    notes.push_back(absl::StrFormat(
        "no plan can fit: the weights are %.3g GiB a GPU if all %d GPUs share "
        "them, and the memory limit is %.3g GiB: use more GPUs, or raise "
        "training.memory_limit_bytes",
        weights / (1 << 30), job.parallel.num_gpus(),
        static_cast<double>(job.MemoryLimit().count()) / (1 << 30)));
  }
  if (!trains) {
    notes.push_back(
        "every module is in training.frozen_modules, so the step trains "
        "nothing: leave out at least one");
  }
  return notes;
}

}  // namespace pipeloom
