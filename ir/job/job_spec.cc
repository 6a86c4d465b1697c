#include "ir/job/job_spec.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom {
namespace {

// Returns the given share of the device's memory.
Bytes ReserveOf(const DeviceSpec& device, double share) {
  return Bytes(static_cast<int64_t>(
      std::ceil(static_cast<double>(device.memory.count()) * share)));
}

constexpr size_t kMostShapeBuckets = 1024;
constexpr int64_t kMostBucketTokens = int64_t{1} << 40;

bool HasModule(const ModelSpec& model, const std::string& name) {
  return std::any_of(
      model.modules.begin(), model.modules.end(),
      [&](const ModuleSpec& module) { return module.name == name; });
}

const ModuleSpec* FindModule(const ModelSpec& model, const std::string& name) {
  for (const ModuleSpec& module : model.modules) {
    if (module.name == name) return &module;
  }
  return nullptr;
}

std::string ModuleNames(const ModelSpec& model) {
  std::string names;
  for (const ModuleSpec& module : model.modules) {
    if (!names.empty()) names += ", ";
    names += module.name;
  }
  return names;
}

absl::Status ValidatePartitionRules(const JobSpec& job) {
  const auto fail = [](const std::string& field, const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("partition.%s %s", field, what));
  };
  const auto unknown = [&](const std::string& field, const std::string& name) {
    return fail(field, absl::StrFormat("names module \"%s\"; the model has %s",
                                       name, ModuleNames(job.model)));
  };
  const int32_t pp = job.parallel.pp;
  for (size_t i = 0; i < job.partition.together.size(); ++i) {
    const PartitionRules::Together& rule = job.partition.together[i];
    const std::string field = absl::StrFormat("together[%d]", i);
    if (rule.layers.empty()) return fail(field, "has no layers");
    for (const PartitionRules::Layers& layers : rule.layers) {
      const ModuleSpec* module = FindModule(job.model, layers.module);
      if (module == nullptr) return unknown(field, layers.module);
      const int32_t n = module->layers.size();
      const int32_t first = layers.first < 0 ? n + layers.first : layers.first;
      if (first < 0 || layers.count < 1 || layers.count > n - first) {
        return fail(field, absl::StrFormat(
                               "has %d layers of \"%s\" from layer %d; that "
                               "module has %d layers",
                               layers.count, layers.module, layers.first, n));
      }
    }
    if (rule.rank.has_value() && (*rule.rank >= pp || *rule.rank < -pp)) {
      return fail(field, absl::StrFormat("has rank %d; it must be in [%d, %d]: "
                                         "parallel.pp is %d",
                                         *rule.rank, -pp, pp - 1, pp));
    }
  }
  std::set<std::string> placed;
  for (size_t i = 0; i < job.partition.own_ranks.size(); ++i) {
    const PartitionRules::OwnRanks& rule = job.partition.own_ranks[i];
    const std::string field = absl::StrFormat("own_ranks[%d]", i);
    if (FindModule(job.model, rule.module) == nullptr) {
      return unknown(field, rule.module);
    }
    if (!placed.insert(rule.module).second) {
      return fail(field, absl::StrFormat("gives \"%s\" ranks a second time",
                                         rule.module));
    }
    if (rule.first_rank < 0 || rule.num_ranks < 1 ||
        rule.num_ranks > pp - rule.first_rank) {
      return fail(field,
                  absl::StrFormat("has %d ranks from rank %d; the job has %d",
                                  rule.num_ranks, rule.first_rank, pp));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateModuleParallelism(const JobSpec& job) {
  std::set<std::string> named;
  for (size_t i = 0; i < job.module_parallelism.size(); ++i) {
    const ModuleParallelism& own = job.module_parallelism[i];
    const std::string field = absl::StrFormat("parallel.modules[%d]", i);
    const ModuleSpec* module = FindModule(job.model, own.module);
    if (module == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s names module \"%s\"; the model has %s", field,
                          own.module, ModuleNames(job.model)));
    }
    if (!named.insert(own.module).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s names module \"%s\" a second time", field, own.module));
    }
    const struct {
      const char* name;
      int32_t own;
      int32_t whole;
    } sizes[] = {{"tp", own.tp, job.parallel.tp},
                 {"cp", own.cp, job.parallel.cp}};
    for (const auto& size : sizes) {
      if (size.own >= 0 && (size.own == 0 || size.whole % size.own == 0)) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s.%s of \"%s\" is %d; it must divide parallel.%s, which is %d: a "
          "module's copies fill the GPUs of a rank",
          field, size.name, own.module, size.own, size.name, size.whole));
    }
  }
  return absl::OkStatus();
}

}  // namespace

OptimizerSharding ShardingOf(Framework framework) {
  switch (framework) {
    case Framework::kMegatronCore:
    case Framework::kMegatronBridge:
      return OptimizerSharding::kZero1;
    case Framework::kTorchTitan:
      return OptimizerSharding::kZero3;
    case Framework::kPyTorch:
      return OptimizerSharding::kNone;
  }
  return OptimizerSharding::kZero1;
}

bool JobSpec::IsFrozen(ModuleId module) const {
  const std::string& module_name = model.modules[module].name;
  return std::find(training.frozen_modules.begin(),
                   training.frozen_modules.end(),
                   module_name) != training.frozen_modules.end();
}

ParallelLayout JobSpec::LayoutOf(ModuleId module) const {
  ParallelLayout layout = parallel;
  const std::string& module_name = model.modules[module].name;
  for (const ModuleParallelism& own : module_parallelism) {
    if (own.module != module_name) continue;
    if (own.tp > 0) layout.tp = own.tp;
    if (own.cp > 0) layout.cp = own.cp;
    if (own.repeats) return layout;
  }
  layout.dp *= parallel.gpus_per_rank() / layout.gpus_per_rank();
  return layout;
}

int32_t JobSpec::CopiesOf(ModuleId module) const {
  return LayoutOf(module).dp / parallel.dp;
}

bool JobSpec::Allows(MemoryStrategy strategy) const {
  return strategy == MemoryStrategy::kKeep ||
         std::find(training.memory_strategies.begin(),
                   training.memory_strategies.end(),
                   strategy) != training.memory_strategies.end();
}

Bytes JobSpec::MemoryLimit() const { return MemoryLimit(cluster.device); }

Bytes JobSpec::MemoryLimit(const DeviceSpec& device) const {
  if (training.memory_limit > Bytes(0)) return training.memory_limit;
  return device.memory - ReserveOf(device, training.memory_reserve);
}

Bytes JobSpec::MemoryReserve() const {
  if (training.memory_limit > Bytes(0)) return Bytes(0);
  return ReserveOf(cluster.device, training.memory_reserve);
}

namespace {

// Checks that the GPUs of each pipeline rank, which work in step, are of one
// node group.
absl::Status ValidateRanksAreUniform(const JobSpec& job) {
  const ClusterSpec& cluster = job.cluster;
  if (cluster.node_groups.empty()) return absl::OkStatus();
  const int32_t gpus = job.parallel.gpus_per_rank();
  for (int32_t d = 0; d < job.parallel.dp; ++d) {
    for (int32_t r = 0; r < job.parallel.pp; ++r) {
      const int32_t gpu = job.parallel.FirstGpu(d, RankId(r));
      const int32_t first = gpu / cluster.gpus_per_node;
      const int32_t last = (gpu + gpus - 1) / cluster.gpus_per_node;
      for (int32_t node = first + 1; node <= last; ++node) {
        if (cluster.GroupOfNode(node) == cluster.GroupOfNode(first)) continue;
        return absl::InvalidArgumentError(absl::StrFormat(
            "cluster \"%s\": node_groups: rank %d of replica %d is on nodes %d "
            "to %d, which are of different groups; the GPUs of a rank must be "
            "alike",
            cluster.name, r, d, first, last));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSlowRankLinks(const JobSpec& job) {
  for (const SlowRankLink& slow : job.slow_rank_links) {
    const auto refuse = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the slow link %d-%d: %s", slow.from.value(), slow.to.value(), what));
    };
    for (const RankId rank : {slow.from, slow.to}) {
      if (rank.value() < 0 || rank.value() >= job.parallel.pp) {
        return refuse(absl::StrFormat("there is no rank %d; ranks are 0 to %d",
                                      rank.value(), job.parallel.pp - 1));
      }
    }
    if (slow.from == slow.to) return refuse("it must join two ranks");
    if (!(slow.factor >= 1 && slow.factor <= 1e6)) {
      return refuse(absl::StrFormat("its factor is %g; it must be in [1, 1e6]",
                                    slow.factor));
    }
    if (slow.added < kZero || slow.added > Seconds(3600)) {
      return refuse(absl::StrFormat("%s are added; it must be 0 to 1 h",
                                    FormatDuration(slow.added)));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateShapeBuckets(const JobSpec& job) {
  std::set<std::string> named;
  for (const TrainingSpec::ShapeBuckets& b : job.training.shape_buckets) {
    const auto refuse = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "training.shape_buckets of \"%s\": %s", b.module, what));
    };
    if (!HasModule(job.model, b.module)) {
      return refuse(absl::StrCat("the model has ", ModuleNames(job.model)));
    }
    if (!named.insert(b.module).second) return refuse("given twice");
    // Padding every sequence to the longest would pass the bucket.
    if (job.training.batching == SequenceBatching::kPadded) {
      return refuse(
          "training.batching is SEQUENCE_BATCHING_PADDED; buckets need "
          "SEQUENCE_BATCHING_PACKED");
    }
    if (b.tokens.empty() || b.tokens.size() > kMostShapeBuckets) {
      return refuse(absl::StrFormat("%d token counts; there must be 1 to %d",
                                    b.tokens.size(), kMostShapeBuckets));
    }
    for (size_t i = 0; i < b.tokens.size(); ++i) {
      if (b.tokens[i] >= 1 && b.tokens[i] <= kMostBucketTokens &&
          (i == 0 || b.tokens[i] > b.tokens[i - 1])) {
        continue;
      }
      return refuse(absl::StrFormat(
          "tokens[%d] is %d; tokens must be in [1, %d] and ascending", i,
          b.tokens[i], kMostBucketTokens));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const int64_t> JobSpec::BucketsOf(ModuleId module) const {
  for (const TrainingSpec::ShapeBuckets& buckets : training.shape_buckets) {
    if (buckets.module == model.modules[module].name) return buckets.tokens;
  }
  return {};
}

absl::Status ValidateJobSpec(const JobSpec& job) {
  PIPELOOM_RETURN_IF_ERROR(ValidateModelSpec(job.model));
  PIPELOOM_RETURN_IF_ERROR(ValidateClusterSpec(job.cluster));
  PIPELOOM_RETURN_IF_ERROR(ValidateParallelLayout(job.parallel, job.cluster));
  PIPELOOM_RETURN_IF_ERROR(ValidateModuleParallelism(job));
  PIPELOOM_RETURN_IF_ERROR(ValidateRanksAreUniform(job));
  PIPELOOM_RETURN_IF_ERROR(ValidateTrainingSetup(job.setup));
  const TrainingSpec& t = job.training;
  const auto fail = [](const char* field, double value, const char* allowed) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "training.%s is %g; it must be %s", field, value, allowed));
  };
  if (t.microbatches < 1 || t.microbatches > 1'000'000) {
    return fail("microbatches", t.microbatches, "in [1, 1000000]");
  }
  if (t.microbatch_tokens < 1) {
    return fail("microbatch_tokens", static_cast<double>(t.microbatch_tokens),
                ">= 1");
  }
  if (t.microbatch_samples < 0) {
    return fail("microbatch_samples", static_cast<double>(t.microbatch_samples),
                ">= 0");
  }
  if (t.microbatch_images < 0) {
    return fail("microbatch_images", static_cast<double>(t.microbatch_images),
                ">= 0");
  }
  if (!(t.microbatch_seconds >= 0)) {
    return fail("microbatch_seconds", t.microbatch_seconds, ">= 0");
  }
  if (t.memory_limit < Bytes(0)) {
    return fail("memory_limit", static_cast<double>(t.memory_limit.count()),
                ">= 0");
  }
  if (!(t.memory_reserve >= 0 && t.memory_reserve < 1)) {
    return fail("memory_reserve", t.memory_reserve, "in [0, 1)");
  }
  for (const std::string& name : t.frozen_modules) {
    if (!HasModule(job.model, name)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "training.frozen_modules names \"%s\"; the model has %s", name,
          ModuleNames(job.model)));
    }
  }
  std::set<std::string> sized;
  for (const TrainingSpec::SubMicrobatchSize& size : t.sub_microbatch_sizes) {
    if (!HasModule(job.model, size.module)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "training.sub_microbatch_sizes names \"%s\"; the model has %s",
          size.module, ModuleNames(job.model)));
    }
    if (size.instances < 1 || !sized.insert(size.module).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "training.sub_microbatch_sizes: \"%s\" is %d; it must be >= 1 and "
          "given once",
          size.module, size.instances));
    }
  }
  PIPELOOM_RETURN_IF_ERROR(ValidateShapeBuckets(job));
  PIPELOOM_RETURN_IF_ERROR(ValidatePartitionRules(job));
  if (job.search.deadline < kZero) {
    return absl::InvalidArgumentError(
        absl::StrFormat("search.deadline is %s; it must be >= 0",
                        FormatDuration(job.search.deadline)));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckSlowRankLinks(job));
  if (job.search.workers < 0 || job.search.workers > kMostSearchWorkers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "search.workers is %d; it must be in [0, %d] (0: as many as usual)",
        job.search.workers, kMostSearchWorkers));
  }
  if (job.search.evaluations < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "search.evaluations is %d; it must be >= 0", job.search.evaluations));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom
