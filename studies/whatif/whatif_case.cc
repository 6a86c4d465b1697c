#include "studies/whatif/whatif_case.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "formats/job/spec_loader.h"
#include "studies/job/launch_times.h"

namespace pipeloom::studies {
namespace {

constexpr int64_t kMaxCases = 1'000'000;
constexpr const char* kInter = "cluster.inter_node.bandwidth_bytes_per_second";
constexpr const char* kIntra = "cluster.intra_node.bandwidth_bytes_per_second";

// Splits at commas that are not inside brackets or quotes.
std::vector<std::string> SplitValues(absl::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      values.emplace_back();
    } else {
      values.back() += c;
    }
  }
  return values;
}

WhatIfCase Case(std::string label, std::vector<formats::JobOverride> changes) {
  WhatIfCase result;
  result.label = std::move(label);
  result.changes = std::move(changes);
  return result;
}

std::string Int(int64_t value) { return absl::StrCat(value); }

// Returns the microbatches of a step, of all replicas.
int64_t StepMicrobatches(const JobSpec& job) {
  return int64_t{job.training.microbatches} * job.parallel.dp;
}

// REQUIRES: dp divides the step's microbatches. It has as many as before.
std::vector<formats::JobOverride> LayoutChanges(const JobSpec& job, int tp,
                                                int cp, int pp, int dp) {
  std::vector<formats::JobOverride> changes = {
      {"parallel.tp", Int(tp)},
      {"parallel.pp", Int(pp)},
      {"parallel.dp", Int(dp)},
      {"training.microbatches", Int(StepMicrobatches(job) / dp)}};
  if (cp != job.parallel.cp) changes.push_back({"parallel.cp", Int(cp)});
  // Experts take no more GPUs than the new layout has for them.
  ParallelLayout next = job.parallel;
  next.tp = tp;
  next.cp = cp;
  next.dp = dp;
  const int64_t ep =
      std::gcd<int64_t>(next.ep, std::max<int64_t>(next.most_ep(), 1));
  if (ep != next.ep) changes.push_back({"parallel.ep", Int(ep)});
  return changes;
}

WhatIfCase LayoutCase(std::string label, const JobSpec& job, int tp, int cp,
                      int pp, int dp) {
  WhatIfCase c = Case(std::move(label), LayoutChanges(job, tp, cp, pp, dp));
  for (const formats::JobOverride& change : c.changes) {
    if (change.path == "parallel.ep") {
      absl::StrAppend(&c.label, ", EP ", change.value);
    }
  }
  return c;
}

// Returns the layers of the model. A pipeline of more ranks has some without
// any.
int64_t NumLayers(const JobSpec& job) {
  int64_t layers = 0;
  for (const ModuleSpec& module : job.model.modules) {
    layers += module.layers.size();
  }
  return layers;
}

// Gives the case as many nodes as `gpus` need, and says so if they are more
// than the cluster has.
void TakeNodes(const JobSpec& job, int64_t gpus, WhatIfCase* c) {
  const int64_t per_node = job.cluster.gpus_per_node;
  const int64_t nodes = (gpus + per_node - 1) / per_node;
  if (nodes <= job.cluster.num_nodes) return;
  c->changes.push_back({"cluster.num_nodes", Int(nodes)});
  absl::StrAppend(&c->label, ", on ", nodes, " nodes instead of ",
                  job.cluster.num_nodes);
}

void Append(const std::vector<formats::JobOverride>& more, WhatIfCase* c) {
  c->changes.insert(c->changes.end(), more.begin(), more.end());
}

std::vector<WhatIfCase> Layouts(const JobSpec& job, int64_t gpus) {
  std::vector<WhatIfCase> cases;
  const bool is_own = gpus == 0 || gpus == job.parallel.num_gpus();
  if (gpus == 0) gpus = job.parallel.num_gpus();
  for (const int cp : {1, 2, 4}) {
    for (int tp = 1; tp <= std::min(8, job.cluster.gpus_per_node); tp *= 2) {
      for (int pp = 1; pp <= std::min<int64_t>(NumLayers(job), 16); ++pp) {
        const int64_t part = int64_t{1} * tp * cp * pp;
        if (gpus % part != 0) continue;
        const int64_t dp = gpus / part;
        if (StepMicrobatches(job) % dp != 0) continue;
        const ParallelLayout& now = job.parallel;
        if (is_own && tp == now.tp && cp == now.cp && pp == now.pp) continue;
        // Only layouts near the job's: a factor of 8 away at most.
        const double far = std::abs(std::log2(double(tp) / now.tp)) +
                           std::abs(std::log2(double(pp) / now.pp)) +
                           std::abs(std::log2(double(cp) / now.cp));
        if (far > 3) continue;
        cases.push_back(LayoutCase(
            absl::StrFormat("TP %d, PP %d, CP %d, DP %d", tp, pp, cp, dp), job,
            tp, cp, pp, static_cast<int>(dp)));
        TakeNodes(job, gpus, &cases.back());
      }
    }
  }
  return cases;
}

std::vector<WhatIfCase> OtherGpus(const JobSpec& job) {
  std::vector<WhatIfCase> cases;
  std::set<std::string> seen = {job.cluster.name};
  const int64_t gpus = job.parallel.num_gpus();
  for (const std::string& name : formats::ShippedClusterNames()) {
    // Clusters named after a paper have a device of this list in other numbers.
    if (name.rfind("dip-", 0) == 0 || name.rfind("disttrain-", 0) == 0) {
      continue;
    }
    if (!seen.insert(name).second) continue;
    const int64_t per_node = name.find("nvl72") != std::string::npos ? 72 : 8;
    cases.push_back(Case(
        name, {{"cluster", name},
               {"cluster.num_nodes", Int((gpus + per_node - 1) / per_node)},
               {"training.memory_limit_bytes", "0"}}));
  }
  return cases;
}

// Returns cases of one replica on more and more GPUs, from one on.
std::vector<WhatIfCase> Fits(const JobSpec& job) {
  std::vector<WhatIfCase> cases;
  for (int gpus = 1; gpus <= 512; gpus *= 2) {
    for (int tp = 1; tp <= std::min(8, job.cluster.gpus_per_node); tp *= 2) {
      const int pp = gpus / (tp * job.parallel.cp);
      if (pp < 1 || pp > std::min<int64_t>(NumLayers(job), 64)) continue;
      if (tp * job.parallel.cp * pp != gpus) continue;
      cases.push_back(LayoutCase(
          absl::StrFormat("TP %d, PP %d, CP %d", tp, pp, job.parallel.cp), job,
          tp, job.parallel.cp, pp, 1));
      TakeNodes(job, gpus, &cases.back());
    }
  }
  return cases;
}

// Returns, for each cluster with a price, the job on as many of its GPUs as the
// budget pays for and replicas can use.
std::vector<WhatIfCase> Affordable(const JobSpec& job,
                                   const WhatIfGiven& given) {
  std::vector<WhatIfCase> cases;
  const int64_t total = StepMicrobatches(job);
  const int64_t replica = job.parallel.num_gpus() / job.parallel.dp;
  for (const auto& [name, price] : given.prices) {
    const auto paid = static_cast<int64_t>(
        std::min(1e6, std::floor(given.budget / price + 1e-9)));
    int64_t dp = std::min(total, paid / replica);
    while (dp > 1 && total % dp != 0) --dp;
    const int64_t gpus = std::max<int64_t>(dp, 1) * replica;
    const int64_t per_node = name.find("nvl72") != std::string::npos ? 72 : 8;
    cases.push_back(Case(
        dp < 1 ? absl::StrFormat("%s: %d GPUs, beyond the budget", name, gpus)
               : absl::StrFormat("%d x %s for %g", gpus, name,
                                 static_cast<double>(gpus) * price),
        {{"cluster", name},
         {"cluster.num_nodes", Int((gpus + per_node - 1) / per_node)},
         {"training.memory_limit_bytes", "0"}}));
    Append(LayoutChanges(job, job.parallel.tp, job.parallel.cp, job.parallel.pp,
                         static_cast<int>(std::max<int64_t>(dp, 1))),
           &cases.back());
  }
  return cases;
}

// Returns cases with other numbers of replicas, at the pipeline's depth and at
// half and twice this depth.
std::vector<WhatIfCase> Scales(const JobSpec& job) {
  std::vector<WhatIfCase> cases;
  const int64_t total = StepMicrobatches(job);
  for (const int pp :
       {job.parallel.pp / 2, job.parallel.pp, job.parallel.pp * 2}) {
    if (pp < 1 || pp > NumLayers(job)) continue;
    for (int dp = 1; dp <= std::min<int64_t>(total, 64); dp *= 2) {
      if (total % dp != 0) continue;
      if (dp == job.parallel.dp && pp == job.parallel.pp) continue;
      WhatIfCase c = LayoutCase(
          absl::StrFormat("%d GPUs: PP %d, DP %d",
                          job.parallel.gpus_per_rank() * pp * dp, pp, dp),
          job, job.parallel.tp, job.parallel.cp, pp, dp);
      TakeNodes(job, int64_t{1} * job.parallel.gpus_per_rank() * pp * dp, &c);
      c.scales = true;
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

// Returns cases of the host that launches all kernels, and of CUDA graphs that
// launch those of layers with few shapes.
std::vector<WhatIfCase> Graphs(const JobSpec& job,
                               const std::vector<BucketChoice>& buckets) {
  const bool known = job.setup.host_per_kernel > kZero;
  const std::string launch = absl::StrFormat(
      "%g", ToMicroseconds(known ? job.setup.host_per_kernel : kUsualLaunch));
  std::vector<WhatIfCase> cases;
  if (!known || job.setup.graphs != CudaGraphs::kNone ||
      !job.training.shape_buckets.empty()) {
    cases.push_back(
        Case(absl::StrCat("the host launches kernels, ", launch, " us each"),
             {{"setup.host_per_kernel_us", launch},
              {"setup.graphs", "CUDA_GRAPHS_NONE"},
              {"training.shape_buckets", "[]"}}));
  }
  for (const BucketChoice& choice : buckets) {
    cases.push_back(
        Case(absl::StrFormat("graphs of layers, %d shape%s a module",
                             choice.shapes, choice.shapes == 1 ? "" : "s"),
             {{"setup.host_per_kernel_us", launch},
              {"setup.graphs", "CUDA_GRAPHS_LAYERS"},
              {"training.shape_buckets", choice.value}}));
  }
  return cases;
}

}  // namespace

void WhatIfCase::AddTo(FingerprintBuilder* builder) const {
  for (const formats::JobOverride& change : changes) {
    builder->Add(change.path).Add(change.value);
  }
  builder->Add(video_factor).Add(slow_rank).Add(slow_factor);
  builder->Add(replan).Add(recompute_all);
}

absl::StatusOr<std::vector<WhatIfCase>> SweepCases(
    absl::Span<const std::string> sets, absl::Span<const std::string> sweeps) {
  WhatIfCase base;
  std::set<std::string> paths;
  for (const std::string& set : sets) {
    PIPELOOM_ASSIGN_OR_RETURN(formats::JobOverride change,
                              formats::ParseOverride(set));
    base.changes.push_back(std::move(change));
  }
  std::vector<WhatIfCase> cases = {base};
  for (const std::string& sweep : sweeps) {
    const absl::StatusOr<formats::JobOverride> parsed =
        formats::ParseOverride(sweep);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sweep: ", parsed.status().message()));
    }
    const formats::JobOverride& change = *parsed;
    if (!paths.insert(change.path).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sweep ", change.path, " stands twice"));
    }
    const std::vector<std::string> values = SplitValues(change.value);
    if (static_cast<int64_t>(cases.size() * values.size()) > kMaxCases) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the sweeps make more than ", kMaxCases, " configurations"));
    }
    std::vector<WhatIfCase> longer;
    for (const WhatIfCase& c : cases) {
      for (const std::string& value : values) {
        if (value.empty()) {
          return absl::InvalidArgumentError(absl::StrCat(
              "--sweep ", sweep,
              " has an empty value; give values divided by commas"));
        }
        longer.push_back(c);
        longer.back().changes.push_back({change.path, value});
        const size_t dot = change.path.rfind('.');
        absl::StrAppend(&longer.back().label,
                        longer.back().label.empty() ? "" : ", ",
                        dot == std::string::npos ? change.path
                                                 : change.path.substr(dot + 1),
                        " ", value);
      }
    }
    cases = std::move(longer);
  }
  if (cases.size() == 1 && cases[0].label.empty()) {
    cases[0].label = base.changes.empty() ? "as it is" : "as set";
  }
  return cases;
}

const std::vector<WhatIfQuestion>& WhatIfQuestions() {
  static const auto* const kQuestions = new std::vector<WhatIfQuestion>{
      {"gpu", "the same job on every other GPU that ships", "the cluster"},
      {"memory", "GPUs with more memory, and with less", "the cluster"},
      {"network", "links of half, a quarter and twice the bandwidth",
       "the cluster"},
      {"scale", "more and fewer GPUs for the same samples a step",
       "the cluster"},
      {"fits", "one replica on 1, 2, 4 and more GPUs: what its memory allows",
       "the cluster"},
      {"budget", "the GPUs that --budget pays for at --prices", "the cluster"},
      {"layout", "other TP, PP, CP and DP on as many GPUs, or on --gpus",
       "the layout"},
      {"microbatches", "more and fewer, smaller and larger microbatches",
       "the layout"},
      {"recompute", "nothing recomputed, everything, or offloading allowed",
       "the layout"},
      {"fp8", "matrix products in fp8", "the model"},
      {"frozen", "each module but the backbone frozen", "the model"},
      {"sparse", "attention on half, a quarter and an eighth of the pairs",
       "the model"},
      {"video", "clips twice as long", "the data"},
      {"padded", "sequences padded to the longest", "the data"},
      {"graphs", "CUDA graphs of layers, with shapes padded to a few",
       "the data"},
      {"slow-rank", "one rank 20 % slower, unknown to the plan and known",
       "faults"},
  };
  return *kQuestions;
}

std::vector<WhatIfCase> CasesOf(const std::string& question, const JobSpec& job,
                                const WhatIfGiven& given) {
  std::vector<WhatIfCase> cases;
  const TrainingSpec& training = job.training;
  if (question == "gpu") return OtherGpus(job);
  if (question == "layout") return Layouts(job, given.gpus);
  if (question == "fits") return Fits(job);
  if (question == "budget") return Affordable(job, given);
  if (question == "scale") return Scales(job);
  if (question == "graphs") return Graphs(job, given.buckets);
  if (question == "microbatches") {
    for (const int k : {2, 4}) {
      cases.push_back(
          Case(absl::StrFormat("%d times as many, 1/%d as large", k, k),
               {{"training.microbatches", Int(training.microbatches * k)},
                {"training.microbatch_tokens",
                 Int(std::max<int64_t>(1, training.microbatch_tokens / k))}}));
      if (training.microbatches % k != 0) continue;
      cases.push_back(
          Case(absl::StrFormat("1/%d as many, %d times as large", k, k),
               {{"training.microbatches", Int(training.microbatches / k)},
                {"training.microbatch_tokens",
                 Int(training.microbatch_tokens * k)}}));
      if (training.microbatch_images == 0) continue;
      cases[cases.size() - 2].changes.push_back(
          {"training.microbatch_images",
           Int(std::max<int64_t>(1, training.microbatch_images / k))});
      cases.back().changes.push_back(
          {"training.microbatch_images", Int(training.microbatch_images * k)});
    }
  } else if (question == "video") {
    WhatIfCase c = Case("clips twice as long", {});
    c.video_factor = 2;
    cases.push_back(c);
  } else if (question == "frozen") {
    for (const ModuleSpec& module : job.model.modules) {
      if (module.role == ModuleRole::kBackbone) continue;
      cases.push_back(Case(absl::StrCat(module.name, " frozen"),
                           {{"training.frozen_modules",
                             absl::StrCat("[\"", module.name, "\"]")}}));
    }
  } else if (question == "fp8") {
    if (job.cluster.device.fp8.flops_per_second > 0) {
      cases.push_back(Case("fp8 products", {{"setup.fp8_products", "true"}}));
    }
  } else if (question == "network") {
    for (const double factor : {0.25, 0.5, 2.0, 4.0}) {
      const std::string value = absl::StrFormat("*%g", factor);
      cases.push_back(
          Case(absl::StrFormat("%g x the network's bandwidth", factor),
               {{kInter, value}}));
    }
    cases.push_back(
        Case("half the bandwidth inside nodes", {{kIntra, "*0.5"}}));
  } else if (question == "slow-rank") {
    for (int r = 0; r < std::min(job.parallel.pp, 8); ++r) {
      for (const bool replan : {false, true}) {
        WhatIfCase c =
            Case(absl::StrFormat("rank %d 20 %% slower, %s", r,
                                 replan ? "planned for it" : "the same plan"),
                 {});
        c.slow_rank = r;
        c.slow_factor = 1.2;
        c.replan = replan;
        cases.push_back(c);
      }
    }
  } else if (question == "memory") {
    for (const double factor : {0.75, 1.25, 1.5, 2.0}) {
      cases.push_back(Case(
          absl::StrFormat("%g x the memory", factor),
          {{"training.memory_limit_bytes",
            Int(static_cast<int64_t>(
                factor * static_cast<double>(job.MemoryLimit().count())))}}));
    }
  } else if (question == "recompute") {
    cases.push_back(
        Case("nothing recomputed",
             {{"training.memory_strategies", "[\"MEMORY_STRATEGY_KEEP\"]"}}));
    WhatIfCase all = Case("everything recomputed", {});
    all.recompute_all = true;
    cases.push_back(all);
    cases.push_back(
        Case("offloading allowed",
             {{"training.memory_strategies",
               "[\"MEMORY_STRATEGY_KEEP\",\"MEMORY_STRATEGY_RECOMPUTE\","
               "\"MEMORY_STRATEGY_OFFLOAD\"]"}}));
  } else if (question == "padded") {
    cases.push_back(Case("padded to the longest",
                         {{"training.batching", "SEQUENCE_BATCHING_PADDED"}}));
  } else if (question == "sparse") {
    for (const double density : {0.5, 0.25, 0.125}) {
      cases.push_back(
          Case(absl::StrFormat("attention on %g of the pairs", density),
               {{"model.modules[*].layers[*].layer.attention.density",
                 absl::StrCat(density)}}));
    }
  }
  return cases;
}

BatchMetadata WithLongerVideos(const BatchMetadata& batch, double factor) {
  BatchMetadata longer = batch;
  for (SampleMetadata& sample : longer.samples) {
    for (VideoClip& clip : sample.videos) {
      clip.seconds *= factor;
      clip.frames =
          static_cast<int32_t>(std::min(2e9, std::round(clip.frames * factor)));
    }
  }
  return longer;
}

}  // namespace pipeloom::studies
