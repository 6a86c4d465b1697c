#include "formats/job/spec_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "formats/job/model_reader.h"
#include "formats/job/module_parallelism_reader.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

constexpr std::pair<absl::string_view, MemoryStrategy> kStrategies[] = {
    {"MEMORY_STRATEGY_KEEP", MemoryStrategy::kKeep},
    {"MEMORY_STRATEGY_RECOMPUTE", MemoryStrategy::kRecompute},
    {"MEMORY_STRATEGY_OFFLOAD", MemoryStrategy::kOffload},
};
constexpr std::pair<absl::string_view, ContextParallelism> kContexts[] = {
    {"CONTEXT_PARALLELISM_RING", ContextParallelism::kRing},
    {"CONTEXT_PARALLELISM_ALL_GATHER", ContextParallelism::kAllGather},
    {"CONTEXT_PARALLELISM_ALL_TO_ALL", ContextParallelism::kAllToAll},
};
constexpr std::pair<absl::string_view, GpuOrder> kOrders[] = {
    {"GPU_ORDER_PIPELINE_INSIDE", GpuOrder::kPipelineInside},
    {"GPU_ORDER_REPLICAS_INSIDE", GpuOrder::kReplicasInside},
};
constexpr std::pair<absl::string_view, Framework> kFrameworks[] = {
    {"FRAMEWORK_MEGATRON_CORE", Framework::kMegatronCore},
    {"FRAMEWORK_TORCHTITAN", Framework::kTorchTitan},
    {"FRAMEWORK_PYTORCH", Framework::kPyTorch},
    {"FRAMEWORK_MEGATRON_BRIDGE", Framework::kMegatronBridge},
};
constexpr std::pair<absl::string_view, Fp8Recipe> kRecipes[] = {
    {"FP8_RECIPE_TENSOR", Fp8Recipe::kTensor},
    {"FP8_RECIPE_BLOCKS", Fp8Recipe::kBlocks},
    {"FP8_RECIPE_FP4", Fp8Recipe::kFp4},
    {"FP8_RECIPE_FP4_PLAIN", Fp8Recipe::kFp4Plain},
};
constexpr std::pair<absl::string_view, ExpertDispatch> kDispatches[] = {
    {"EXPERT_DISPATCH_EACH_EXPERT", ExpertDispatch::kEachExpert},
    {"EXPERT_DISPATCH_EACH_GPU", ExpertDispatch::kEachGpu},
};
constexpr std::pair<absl::string_view, CudaGraphs> kGraphs[] = {
    {"CUDA_GRAPHS_NONE", CudaGraphs::kNone},
    {"CUDA_GRAPHS_LAYERS", CudaGraphs::kLayers},
    {"CUDA_GRAPHS_ITERATION", CudaGraphs::kIteration},
};
constexpr std::pair<absl::string_view, AttentionKernel> kKernels[] = {
    {"ATTENTION_KERNEL_FUSED", AttentionKernel::kFused},
    {"ATTENTION_KERNEL_FLASH2", AttentionKernel::kFlash2},
    {"ATTENTION_KERNEL_FLASH1", AttentionKernel::kFlash1},
    {"ATTENTION_KERNEL_EFFICIENT", AttentionKernel::kEfficient},
    {"ATTENTION_KERNEL_UNFUSED", AttentionKernel::kUnfused},
    {"ATTENTION_KERNEL_MASKED", AttentionKernel::kMasked},
};
constexpr std::pair<absl::string_view, CommunicationOverlap> kOverlaps[] = {
    {"COMMUNICATION_OVERLAP_NONE", CommunicationOverlap::kNone},
    {"COMMUNICATION_OVERLAP_DATA", CommunicationOverlap::kData},
    {"COMMUNICATION_OVERLAP_ALL", CommunicationOverlap::kAll},
};
constexpr std::pair<absl::string_view, SequenceBatching> kBatchings[] = {
    {"SEQUENCE_BATCHING_PACKED", SequenceBatching::kPacked},
    {"SEQUENCE_BATCHING_PADDED", SequenceBatching::kPadded},
};
constexpr std::pair<absl::string_view, SampleAssignment> kAssignments[] = {
    {"SAMPLE_ASSIGNMENT_IN_ORDER", SampleAssignment::kInOrder},
    {"SAMPLE_ASSIGNMENT_BALANCED", SampleAssignment::kBalanced},
};
constexpr std::pair<absl::string_view, OptimizerSharding> kShardings[] = {
    {"OPTIMIZER_SHARDING_NONE", OptimizerSharding::kNone},
    {"OPTIMIZER_SHARDING_ZERO1", OptimizerSharding::kZero1},
    {"OPTIMIZER_SHARDING_ZERO2", OptimizerSharding::kZero2},
    {"OPTIMIZER_SHARDING_ZERO3", OptimizerSharding::kZero3},
};

bool IsPath(absl::string_view name) {
  return absl::StrContains(name, '/') || absl::EndsWith(name, ".json");
}

// Returns "my-job" for "jobs/my-job.json".
std::string Stem(absl::string_view file_name) {
  if (const size_t slash = file_name.rfind('/');
      slash != absl::string_view::npos) {
    file_name.remove_prefix(slash + 1);
  }
  if (absl::EndsWith(file_name, ".json")) file_name.remove_suffix(5);
  return std::string(file_name);
}

// Returns `path` relative to the folder of `file`.
std::string SiblingPath(absl::string_view file, absl::string_view path) {
  const size_t slash = file.rfind('/');
  if (slash == absl::string_view::npos || absl::StartsWith(path, "/")) {
    return std::string(path);
  }
  return absl::StrCat(file.substr(0, slash + 1), path);
}

struct NamedText {
  std::string path;
  std::string text;
};

// Reads the file that `name` refers to: a path, or the shipped
// data_dir/folder/name.json.
absl::StatusOr<NamedText> ReadNamed(absl::string_view what,
                                    absl::string_view name,
                                    const std::vector<std::string>& shipped,
                                    const std::string& data_dir,
                                    absl::string_view folder,
                                    const FileReader& read) {
  std::string path(name);
  if (!IsPath(name)) {
    bool known = false;
    for (const std::string& s : shipped) known = known || s == name;
    if (!known) {
      // A file or folder of that name that lies here.
      if (!absl::IsNotFound(read(path).status())) {
        return absl::NotFoundError(absl::StrFormat(
            "there is no %s \"%s\", only a file or folder of that name; the "
            "path of a file has a slash or ends in .json: write ./%s",
            what, name, name));
      }
      return absl::NotFoundError(absl::StrFormat(
          "there is no %s \"%s\"; shipped are %s; the path of a file has a "
          "slash or ends in .json",
          what, name, absl::StrJoin(shipped, ", ")));
    }
    path = absl::StrCat(data_dir, "/", folder, "/", name, ".json");
  }
  absl::StatusOr<std::string> text = read(path);
  if (!text.ok()) {
    if (absl::StrContains(text.status().message(), path)) return text.status();
    return absl::Status(text.status().code(),
                        absl::StrCat(path, ": ", text.status().message()));
  }
  return NamedText{std::move(path), *std::move(text)};
}

// Adds the file's name to errors of ir/, which have none.
absl::Status InFile(const std::string& file_name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(file_name, ": ", status.message()));
}

void ReadParallel(ObjectReader& reader, JobSpec* job) {
  ParallelLayout* parallel = &job->parallel;
  reader.Read("tp", 1, 1024, &parallel->tp);
  reader.Read("cp", 1, 1024, &parallel->cp);
  reader.Read("ep", 1, 65536, &parallel->ep);
  reader.Read("pp", 1, 4096, &parallel->pp);
  reader.Read("dp", 1, 65536, &parallel->dp);
  reader.Read("expert_tp", 0, 1024, &parallel->expert_tp);
  reader.ReadEnum<ContextParallelism>("context_parallelism", kContexts,
                                      &parallel->context);
  reader.ReadEnum<GpuOrder>("gpu_order", kOrders, &parallel->order);
  ReadModuleParallelism(reader, &job->module_parallelism);
}

// Reads the microbatches of a step, or the global batch that they follow from.
void ReadMicrobatches(ObjectReader& reader, int32_t dp,
                      TrainingSpec* training) {
  int64_t samples = 0;
  int64_t tokens = 0;
  reader.Read("global_batch_samples", int64_t{0}, int64_t{1'000'000'000},
              &samples);
  reader.Read("global_batch_tokens", int64_t{0}, int64_t{1'000'000'000'000'000},
              &tokens);
  if (!reader.ok()) return;
  if (samples == 0 && tokens == 0) {
    reader.Require("microbatches");
    reader.Read("microbatches", 1, 1'000'000, &training->microbatches);
    return;
  }
  const absl::string_view field =
      samples > 0 ? "global_batch_samples" : "global_batch_tokens";
  if ((samples > 0 && tokens > 0) || reader.Has("microbatches")) {
    reader.Fail(reader.line(),
                absl::StrFormat(
                    "a job has one of \"training.microbatches\", "
                    "\"training.global_batch_samples\" and "
                    "\"training.global_batch_tokens\"; this one has %s and %s",
                    field,
                    reader.Has("microbatches") ? "microbatches"
                                               : "global_batch_tokens"));
    return;
  }
  if (samples > 0 && training->microbatch_samples == 0) {
    reader.Fail(reader.line(),
                "\"training.global_batch_samples\" needs "
                "\"training.microbatch_samples\", the samples of a microbatch");
    return;
  }
  const int64_t whole = std::max(samples, tokens);
  const int64_t part =
      int64_t{dp} * (samples > 0 ? training->microbatch_samples
                                 : training->microbatch_tokens);
  if (part < 1) return;  // The other field's error has been noted.
  if (whole % part != 0 || whole / part > 1'000'000) {
    const int64_t below = whole / part * part;
    reader.Refuse(
        field, absl::StrFormat(
                   "a multiple of parallel.dp x training.%s, which is %d x %d, "
                   "at most "
                   "1000000 times: %s%d",
                   samples > 0 ? "microbatch_samples" : "microbatch_tokens", dp,
                   part / dp, below > 0 ? absl::StrCat(below, " or ") : "",
                   below + part));
    return;
  }
  training->microbatches = static_cast<int32_t>(whole / part);
}

// REQUIRES: `parallel` has been read.
void ReadTraining(ObjectReader& reader, int32_t dp, TrainingSpec* training) {
  int64_t memory_limit_bytes = 0;
  reader.Require("microbatch_tokens");
  reader.Read("microbatch_tokens", int64_t{1}, int64_t{1'000'000'000},
              &training->microbatch_tokens);
  reader.Read("microbatch_samples", int64_t{0}, int64_t{1'000'000},
              &training->microbatch_samples);
  ReadMicrobatches(reader, dp, training);
  reader.Read("microbatch_images", int64_t{0}, int64_t{1'000'000},
              &training->microbatch_images);
  reader.Read("microbatch_seconds", 0.0, 1e6, &training->microbatch_seconds);
  reader.ReadEnum<OptimizerSharding>("optimizer_sharding", kShardings,
                                     &training->optimizer_sharding);
  reader.ReadEnum<SequenceBatching>("batching", kBatchings,
                                    &training->batching);
  reader.ReadEnum<SampleAssignment>("assignment", kAssignments,
                                    &training->assignment);
  std::vector<MemoryStrategy> strategies;
  reader.ReadEnums<MemoryStrategy>("memory_strategies", kStrategies,
                                   &strategies);
  if (!strategies.empty()) training->memory_strategies = strategies;
  reader.Read("frozen_modules", &training->frozen_modules);
  reader.Read("memory_limit_bytes", int64_t{0}, int64_t{1} << 50,
              &memory_limit_bytes);
  // ValidateJobSpec requires that it is below 1.
  reader.Read("memory_reserve", 0.0, 1.0, &training->memory_reserve);
  reader.ReadObjects("sub_microbatch_sizes", [&](ObjectReader& r) {
    TrainingSpec::SubMicrobatchSize& size =
        training->sub_microbatch_sizes.emplace_back();
    r.Require("module");
    r.Require("instances");
    r.Read("module", &size.module);
    r.Read("instances", int64_t{1}, int64_t{1'000'000}, &size.instances);
  });
  reader.ReadObjects("shape_buckets", [&](ObjectReader& r) {
    TrainingSpec::ShapeBuckets& buckets =
        training->shape_buckets.emplace_back();
    r.Require("module");
    r.Require("tokens");
    r.Read("module", &buckets.module);
    r.ForEach("tokens", [&](const JsonValue& item, const std::string& path) {
      r.ParseInteger(item, path, 1, int64_t{1} << 40,
                     &buckets.tokens.emplace_back());
    });
  });
  training->memory_limit = Bytes(memory_limit_bytes);
}

// Reads the set-up. To be called before `training` is read, as the framework
// decides the default of its sharding.
void ReadSetup(ObjectReader& reader, JobSpec* job) {
  Framework framework = Framework::kMegatronCore;
  reader.ReadEnum<Framework>("framework", kFrameworks, &framework);
  TrainingSetup& setup = job->setup;
  setup = SetupOf(framework);
  job->training.optimizer_sharding = ShardingOf(framework);
  reader.ReadEnum<AttentionKernel>("attention", kKernels, &setup.attention);
  reader.Read("eager_pointwise", &setup.eager_pointwise);
  reader.Read("xla_pointwise", &setup.xla_pointwise);
  reader.Read("sequence_parallel", &setup.sequence_parallel);
  reader.Read("fp8_products", &setup.fp8_products);
  reader.Read("recompute_attention", &setup.recompute_attention);
  reader.ReadEnum<CommunicationOverlap>("overlap", kOverlaps, &setup.overlap);
  reader.Read("gradient_bytes", 1, 8, &setup.gradient_bytes);
  double host_us = ToMicroseconds(setup.host_per_kernel);
  reader.Read("host_per_kernel_us", 0.0, 1e6, &host_us);
  setup.host_per_kernel = Microseconds(host_us);
  reader.Read("stretch", 0.01, 100.0, &setup.stretch);
  reader.ReadEnum<Fp8Recipe>("fp8_recipe", kRecipes, &setup.fp8_recipe);
  reader.ReadEnum<ExpertDispatch>("dispatch", kDispatches, &setup.dispatch);
  reader.Read("overlap_dispatch", &setup.overlap_dispatch);
  reader.Read("paired_forwards", &setup.paired_forwards);
  reader.Read("expert_imbalance", 1.0, 1000.0, &setup.expert_imbalance);
  reader.ReadEnum<CudaGraphs>("graphs", kGraphs, &setup.graphs);
  reader.Read("fp32_loss", &setup.fp32_loss);
  reader.Read("checkpoint_operators", &setup.checkpoint_operators);
  reader.Read("gathered_in_pipeline", &setup.gathered_in_pipeline);
  reader.Read("fp32_shards", &setup.fp32_shards);
  reader.Read("fused_experts", &setup.fused_experts);
  reader.Read("fp8_attention", &setup.fp8_attention);
  reader.Read("fp8_gathers", &setup.fp8_gathers);
  reader.Read("weight_bytes", 1, 8, &setup.weight_bytes);
  reader.Read("sum_gradients_apart", &setup.sum_gradients_apart);
  reader.Read("held_weight_bytes", 1, 2, &setup.held_weight_bytes);
  reader.Read("optimizer_bytes", 1, 16, &setup.optimizer_bytes);
  reader.Read("fp8_activation_inputs", &setup.fp8_activation_inputs);
  reader.Read("keeps_gathered", &setup.keeps_gathered);
  reader.Read("pads_vocabulary", &setup.pads_vocabulary);
  reader.Read("scattered_sends", &setup.scattered_sends);
  reader.Read("optimizer_group", 0, 1 << 20, &setup.optimizer_group);
  reader.Read("gathers_wait", &setup.gathers_wait);
  reader.Read("broadcasts_weights", &setup.broadcasts_weights);
  reader.Read("bucket_parameters", 0, int64_t{1} << 40,
              &setup.bucket_parameters);
  reader.Read("straggle", 0.0, 1.0, &setup.straggle);
  reader.Read("update_contention", 0.0, 1.0, &setup.update_contention);
  double step_us = ToMicroseconds(setup.host_per_step);
  reader.Read("host_per_step_us", 0.0, 1e6, &step_us);
  setup.host_per_step = Microseconds(step_us);
}

void ReadPartitionRules(ObjectReader& reader, PartitionRules* rules) {
  constexpr int32_t kMax = 1'000'000;
  reader.ReadObjects("together", [&](ObjectReader& together) {
    PartitionRules::Together& rule = rules->together.emplace_back();
    together.Require("layers");
    together.ReadObjects("layers", [&](ObjectReader& r) {
      PartitionRules::Layers& layers = rule.layers.emplace_back();
      r.Require("module");
      r.Read("module", &layers.module);
      r.Read("first", -kMax, kMax, &layers.first);
      r.Read("count", 1, kMax, &layers.count);
    });
    if (together.Has("rank")) {
      together.Read("rank", -4096, 4095, &rule.rank.emplace());
    }
  });
  reader.ReadObjects("own_ranks", [&](ObjectReader& r) {
    PartitionRules::OwnRanks& own = rules->own_ranks.emplace_back();
    r.Require("module");
    r.Read("module", &own.module);
    r.Read("first_rank", 0, 4095, &own.first_rank);
    r.Read("num_ranks", 1, 4096, &own.num_ranks);
  });
}

void ReadSearch(ObjectReader& reader, SearchSpec* search) {
  double deadline_us = ToMicroseconds(search->deadline);
  reader.Read("schedule", &search->schedule);
  reader.Read("deadline_us", 0.0, 1e12, &deadline_us);
  reader.Read("evaluations", int64_t{0}, int64_t{1'000'000'000'000},
              &search->evaluations);
  reader.Read("seed", &search->seed);
  reader.Read("workers", 0, kMostSearchWorkers, &search->workers);
  search->deadline = Microseconds(deadline_us);
  if (search->schedule.empty()) search->schedule = SearchSpec().schedule;
}

// Reads a model or cluster that is inline or named. `name` stays empty when
// inline.
template <typename T>
void ReadNameOrInline(ObjectReader& reader, absl::string_view name_field,
                      absl::string_view inline_field,
                      void (*read_inline)(ObjectReader&, T*), std::string* name,
                      T* value) {
  const bool has_name = reader.Has(name_field);
  const bool has_inline = reader.Has(inline_field);
  if (has_name == has_inline) {
    reader.Fail(reader.line(),
                absl::StrFormat("a job has \"%s\" (a name) or \"%s\" (the "
                                "thing itself); this one has %s",
                                name_field, inline_field,
                                has_name ? "both" : "neither"));
    return;
  }
  reader.Read(name_field, name);
  reader.ReadObject(inline_field,
                    [&](ObjectReader& r) { read_inline(r, value); });
  if (has_name && name->empty()) {
    reader.Refuse(name_field, "a name or the path of a file");
  }
}

}  // namespace

absl::StatusOr<ModelSpec> ParseModel(absl::string_view text,
                                     const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  ModelSpec model;
  if (reader.ok()) ReadModel(reader, &model);
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  if (model.name.empty()) model.name = Stem(file_name);
  PIPELOOM_RETURN_IF_ERROR(InFile(file_name, ValidateModelSpec(model)));
  return model;
}

absl::StatusOr<ClusterSpec> ParseCluster(absl::string_view text,
                                         const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  ClusterSpec cluster;
  if (reader.ok()) ReadCluster(reader, &cluster);
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  if (cluster.name.empty()) cluster.name = Stem(file_name);
  PIPELOOM_RETURN_IF_ERROR(InFile(file_name, ValidateClusterSpec(cluster)));
  return cluster;
}

absl::StatusOr<JobSpec> ParseJob(absl::string_view text,
                                 const std::string& file_name,
                                 const std::string& data_dir,
                                 const FileReader& read) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  JobSpec job;
  std::string model_name;
  std::string cluster_name;
  if (reader.ok()) {
    reader.Read("name", &job.name);
    ReadNameOrInline(reader, "model", "model_spec", ReadModel, &model_name,
                     &job.model);
    ReadNameOrInline(reader, "cluster", "cluster_spec", ReadCluster,
                     &cluster_name, &job.cluster);
    reader.ReadObject("parallel",
                      [&](ObjectReader& r) { ReadParallel(r, &job); });
    reader.ReadObject("setup", [&](ObjectReader& r) { ReadSetup(r, &job); });
    reader.Require("training");
    reader.ReadObject("training", [&](ObjectReader& r) {
      ReadTraining(r, job.parallel.dp, &job.training);
    });
    reader.ReadObject("partition", [&](ObjectReader& r) {
      ReadPartitionRules(r, &job.partition);
    });
    reader.ReadObject("search",
                      [&](ObjectReader& r) { ReadSearch(r, &job.search); });
    reader.Read("source", &job.source);
  }
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  const auto sibling = [&](const std::string& name) {
    return IsPath(name) ? SiblingPath(file_name, name) : name;
  };
  if (!model_name.empty()) {
    absl::StatusOr<ModelSpec> model =
        LoadModel(sibling(model_name), data_dir, read);
    if (!model.ok()) return InFile(file_name, model.status());
    job.model = *std::move(model);
  }
  if (!cluster_name.empty()) {
    absl::StatusOr<ClusterSpec> cluster =
        LoadCluster(sibling(cluster_name), data_dir, read);
    if (!cluster.ok()) return InFile(file_name, cluster.status());
    job.cluster = *std::move(cluster);
  }
  if (job.name.empty()) job.name = Stem(file_name);
  if (job.model.name.empty()) job.model.name = job.name;
  if (job.cluster.name.empty()) job.cluster.name = job.name;
  PIPELOOM_RETURN_IF_ERROR(InFile(file_name, ValidateJobSpec(job)));
  return job;
}

absl::StatusOr<ModelSpec> LoadModel(absl::string_view name_or_path,
                                    const std::string& data_dir,
                                    const FileReader& read) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const NamedText file,
      ReadNamed("model", name_or_path, ShippedModelNames(), data_dir, "models",
                read));
  return ParseModel(file.text, file.path);
}

absl::StatusOr<ClusterSpec> LoadCluster(absl::string_view name_or_path,
                                        const std::string& data_dir,
                                        const FileReader& read) {
  PIPELOOM_ASSIGN_OR_RETURN(
      const NamedText file,
      ReadNamed("cluster", name_or_path, ShippedClusterNames(), data_dir,
                "clusters", read));
  return ParseCluster(file.text, file.path);
}

absl::StatusOr<JobSpec> LoadJob(absl::string_view name_or_path,
                                const std::string& data_dir,
                                const FileReader& read) {
  PIPELOOM_ASSIGN_OR_RETURN(const NamedText file,
                            ReadNamed("job", name_or_path, ShippedJobNames(),
                                      data_dir, "jobs", read));
  return ParseJob(file.text, file.path, data_dir, read);
}

}  // namespace pipeloom::formats
