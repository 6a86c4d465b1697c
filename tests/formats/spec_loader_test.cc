#include "formats/job/spec_loader.h"

#include <map>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "formats/job/device_swap.h"
#include "formats/job/job_overrides.h"
#include "formats/job/model_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kModel[] = R"({
  "name": "tiny",
  "modules": [
    {"name": "eye", "role": "MODULE_ROLE_ENCODER",
     "layers": [
       {"layer": {"kind": "LAYER_KIND_TRANSFORMER", "hidden": 64,
                  "attention": {"kind": "ATTENTION_KIND_FULL", "heads": 4,
                                "kv_heads": 4, "head_dim": 16},
                  "ffn": {"hidden": 256}},
        "count": 3}],
     "token_rules": [{"kind": "TOKEN_RULE_KIND_FIXED_SQUARE",
                      "modality": "MODALITY_IMAGE",
                      "side_px": 224, "patch_px": 14, "merge": 2}]},
    {"name": "tongue", "role": "MODULE_ROLE_BACKBONE",
     "layers": [{"layer": {"kind": "LAYER_KIND_LOSS_HEAD", "hidden": 64,
                           "vocab": 100}}]}],
  "edges": [{"from": "eye", "to": "tongue"}],
  "published_parameters": "500000"
})";

constexpr char kCluster[] = R"({
  "device": {"name": "toy", "bf16_flops_per_second": 1e14,
    "memory_bytes": 8589934592, "memory_bandwidth_bytes_per_second": 1e12,
    "gemm_efficiency": 0.75, "attention_efficiency": 0.5,
    "memory_efficiency": 0.8, "kernel_overhead_us": 4.5,
    "host_bandwidth_bytes_per_second": 25000000000},
  "num_nodes": 1, "gpus_per_node": 8,
  "intra_node": {"latency_us": 5, "bandwidth_bytes_per_second": 160e9},
  "inter_node": {"latency_us": 10, "bandwidth_bytes_per_second": 22e9}
})";

constexpr char kJob[] = R"({
  "name": "mine",
  "model_spec": MODEL,
  "cluster_spec": CLUSTER,
  "parallel": {"tp": 2, "pp": 4},
  "training": {
    "microbatches": 8,
    "microbatch_tokens": "2048",
    "optimizer_sharding": "OPTIMIZER_SHARDING_NONE",
    "memory_strategies": ["MEMORY_STRATEGY_OFFLOAD"],
    "frozen_modules": ["eye"],
    "memory_limit_bytes": "4000000000",
    "memory_reserve": 0.125,
    "sub_microbatch_sizes": [{"module": "eye", "instances": 12}],
    "shape_buckets": [{"module": "eye", "tokens": [512, "1024"]}]
  },
  "search": {"schedule": "dip", "deadline_us": 2500.5, "evaluations": 7,
             "seed": "18446744073709551615"}
})";

std::string JobText() {
  return absl::StrReplaceAll(kJob, {{"MODEL", kModel}, {"CLUSTER", kCluster}});
}

FileReader NoFiles() {
  return [](const std::string& path) -> absl::StatusOr<std::string> {
    return absl::NotFoundError(path + ": no such file");
  };
}

FileReader Files(std::map<std::string, std::string> files) {
  return [files = std::move(files)](
             const std::string& path) -> absl::StatusOr<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return absl::NotFoundError("no such file");
    return found->second;
  };
}

TEST(ParseJobTest, ReadsEveryField) {
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ParseJob(JobText(), "my/job.json", "data", NoFiles()));
  EXPECT_EQ(job.name, "mine");
  EXPECT_EQ(job.model.name, "tiny");
  EXPECT_EQ(job.model.published_parameters, 500'000);
  ASSERT_EQ(job.model.modules.size(), 2);
  const ModuleSpec& eye = job.model.modules[ModuleId(0)];
  EXPECT_EQ(eye.layers.size(), 3);
  EXPECT_EQ(eye.layers[LayerId(2)].attention.heads, 4);
  EXPECT_EQ(eye.token_rules[0].side, 224);
  EXPECT_EQ(eye.token_rules[0].frame_group, 1);
  EXPECT_EQ(job.model.edges[0],
            (ModuleEdge{.from = ModuleId(0), .to = ModuleId(1)}));
  EXPECT_EQ(job.cluster.device.kernel_overhead, Nanoseconds(4500));
  EXPECT_EQ(job.cluster.intra_node.latency, Microseconds(5));
  EXPECT_EQ(job.parallel, (ParallelLayout{.tp = 2, .pp = 4}));
  EXPECT_EQ(job.training.microbatch_tokens, 2048);
  EXPECT_EQ(job.training.optimizer_sharding, OptimizerSharding::kNone);
  EXPECT_TRUE(job.Allows(MemoryStrategy::kOffload));
  EXPECT_FALSE(job.Allows(MemoryStrategy::kRecompute));
  EXPECT_TRUE(job.IsFrozen(ModuleId(0)));
  EXPECT_EQ(job.MemoryLimit(), Bytes(4'000'000'000));
  EXPECT_EQ(job.training.memory_reserve, 0.125);
  EXPECT_EQ(job.training.sub_microbatch_sizes[0].instances, 12);
  EXPECT_THAT(job.BucketsOf(ModuleId(0)), ::testing::ElementsAre(512, 1024));
  EXPECT_THAT(job.BucketsOf(ModuleId(1)), ::testing::IsEmpty());
  EXPECT_EQ(job.search.schedule, "dip");
  EXPECT_EQ(job.search.deadline, Nanoseconds(2'500'500));
  EXPECT_EQ(job.search.evaluations, 7);
  EXPECT_EQ(job.search.seed, 18446744073709551615u);
}

TEST(ParseJobTest, ReadsChoicesOfLayersModulesAndParallelism) {
  const std::string text = absl::StrReplaceAll(
      JobText(), {{"\"tp\": 2,",
                   "\"tp\": 2, \"context_parallelism\": "
                   "\"CONTEXT_PARALLELISM_ALL_GATHER\", "
                   "\"modules\": [{\"module\": \"eye\", \"tp\": 1}],"},
                  {"OPTIMIZER_SHARDING_NONE\",",
                   "OPTIMIZER_SHARDING_ZERO3\", \"batching\": "
                   "\"SEQUENCE_BATCHING_PADDED\","},
                  {"}],\n    \"shape_buckets\": [{\"module\": \"eye\", "
                   "\"tokens\": [512, \"1024\"]}]",
                   "}]"},
                  {"\"role\": \"MODULE_ROLE_BACKBONE\",",
                   "\"role\": \"MODULE_ROLE_BACKBONE\", \"precision\": "
                   "\"PRECISION_FP8\","},
                  {"\"kv_heads\": 4, \"head_dim\": 16}",
                   "\"kv_heads\": 4, \"head_dim\": 16, \"kv_rank\": 8, "
                   "\"rope_dim\": 4, \"value_dim\": 12, \"density\": 0.25, "
                   "\"query_key_norms\": true, \"output_gate\": false, "
                   "\"scaled_rotary\": true}, "
                   "\"modulation\": {\"vectors\": 6, \"condition_width\": 32}, "
                   "\"convolutions\": [{\"in\": 3, \"out\": 8, \"kernel\": 5, "
                   "\"depth\": 2, \"scale\": 0.5}], \"downsample\": 2, "
                   "\"biases\": true, \"dropout\": true"}});
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ParseJob(text, "job.json", "", NoFiles()));
  EXPECT_EQ(job.parallel.context, ContextParallelism::kAllGather);
  EXPECT_EQ(
      job.module_parallelism,
      (std::vector<ModuleParallelism>{{.module = "eye", .tp = 1, .cp = 0}}));
  EXPECT_EQ(job.CopiesOf(ModuleId(0)), 2);
  EXPECT_EQ(job.CopiesOf(ModuleId(1)), 1);
  EXPECT_EQ(job.training.optimizer_sharding, OptimizerSharding::kZero3);
  EXPECT_EQ(job.training.batching, SequenceBatching::kPadded);
  EXPECT_EQ(job.model.modules[ModuleId(0)].precision, Precision::kBf16);
  EXPECT_EQ(job.model.modules[ModuleId(1)].precision, Precision::kFp8);
  const LayerSpec& layer = job.model.modules[ModuleId(0)].layers[LayerId(0)];
  EXPECT_EQ(layer.attention.kv_rank, 8);
  EXPECT_EQ(layer.attention.rope_dim, 4);
  EXPECT_EQ(layer.attention.value_dim, 12);
  EXPECT_EQ(layer.attention.density, 0.25);
  EXPECT_TRUE(layer.attention.query_key_norms);
  EXPECT_TRUE(layer.attention.scaled_rotary);
  EXPECT_TRUE(layer.biases);
  EXPECT_TRUE(layer.dropout);
  EXPECT_EQ(layer.modulation,
            (ModulationSpec{.vectors = 6, .condition_width = 32}));
  EXPECT_EQ(layer.convolutions,
            (std::vector<ConvolutionSpec>{
                {.in = 3, .out = 8, .kernel = 5, .depth = 2, .scale = 0.5}}));
  EXPECT_EQ(layer.downsample, 2);
}

TEST(ParseModelTest, ReadsTokenMixersOtherThanAttention) {
  const std::string text =
      R"({"modules": [{"name": "backbone", "role": "MODULE_ROLE_BACKBONE",
          "layers": [
            {"layer": {"kind": "LAYER_KIND_TRANSFORMER", "hidden": 64,
              "state_space": {"heads": 8, "head_dim": 16, "state_dim": 32,
                "groups": 2, "kernel": 3, "chunk": 256}}},
            {"layer": {"kind": "LAYER_KIND_TRANSFORMER", "hidden": 64,
              "delta_net": {"key_heads": 2, "value_heads": 4, "key_dim": 16,
                "value_dim": 32},
              "ffn": {"experts": 8, "experts_per_token": 2,
                "expert_hidden": 24, "latent": 48}}},
            {"layer": {"kind": "LAYER_KIND_TRANSFORMER", "hidden": 64,
              "attention": {"kind": "ATTENTION_KIND_CAUSAL", "heads": 4,
                "kv_heads": 2, "head_dim": 16, "output_gate": true}}}]}]})";
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, ParseModel(text, "model.json"));
  const auto& layers = model.modules[ModuleId(0)].layers;
  ASSERT_EQ(layers.size(), 3);
  EXPECT_EQ(layers[LayerId(0)].state_space, (StateSpaceSpec{.heads = 8,
                                                            .head_dim = 16,
                                                            .state_dim = 32,
                                                            .groups = 2,
                                                            .kernel = 3,
                                                            .chunk = 256}));
  EXPECT_EQ(layers[LayerId(1)].delta_net, (DeltaNetSpec{.key_heads = 2,
                                                        .value_heads = 4,
                                                        .key_dim = 16,
                                                        .value_dim = 32,
                                                        .kernel = 4,
                                                        .chunk = 64}));
  EXPECT_EQ(layers[LayerId(1)].ffn.latent, 48);
  EXPECT_TRUE(layers[LayerId(2)].attention.output_gate);
}

TEST(ParseJobTest, ReadsHowAFrameworkRunsExperts) {
  const std::string text = absl::StrReplaceAll(
      JobText(), {{"\"tp\": 2,", "\"tp\": 2, \"expert_tp\": 1,"},
                  {"\"training\":",
                   "\"setup\": {\"framework\": \"FRAMEWORK_MEGATRON_BRIDGE\", "
                   "\"fp8_recipe\": \"FP8_RECIPE_BLOCKS\", "
                   "\"dispatch\": \"EXPERT_DISPATCH_EACH_EXPERT\", "
                   "\"overlap_dispatch\": true, \"paired_forwards\": true, "
                   "\"expert_imbalance\": 1.25, "
                   "\"fp32_loss\": true, \"checkpoint_operators\": true, "
                   "\"gathered_in_pipeline\": true, \"fp32_shards\": true, "
                   "\"fp8_attention\": true, \"fp8_gathers\": true, "
                   "\"weight_bytes\": 1, \"straggle\": 0.5, "
                   "\"sum_gradients_apart\": true, "
                   "\"held_weight_bytes\": 1, "
                   "\"fp8_activation_inputs\": true, \"keeps_gathered\": true, "
                   "\"optimizer_bytes\": 10, \"scattered_sends\": true, "
                   "\"host_per_step_us\": 250, "
                   "\"optimizer_group\": 8, \"gathers_wait\": true, "
                   "\"broadcasts_weights\": true, "
                   "\"xla_pointwise\": true, "
                   "\"bucket_parameters\": 768000000, "
                   "\"update_contention\": 0.25, "
                   "\"graphs\": \"CUDA_GRAPHS_LAYERS\"}, \"training\":"}});
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ParseJob(text, "job.json", "", NoFiles()));
  EXPECT_EQ(job.parallel.expert_tp, 1);
  EXPECT_EQ(job.setup.framework, Framework::kMegatronBridge);
  EXPECT_EQ(job.setup.gradient_bytes, 2);
  EXPECT_EQ(job.setup.fp8_recipe, Fp8Recipe::kBlocks);
  EXPECT_EQ(job.setup.dispatch, ExpertDispatch::kEachExpert);
  EXPECT_TRUE(job.setup.overlap_dispatch);
  EXPECT_TRUE(job.setup.paired_forwards);
  EXPECT_EQ(job.setup.expert_imbalance, 1.25);
  EXPECT_EQ(job.setup.graphs, CudaGraphs::kLayers);
  EXPECT_TRUE(job.setup.fp32_loss);
  EXPECT_TRUE(job.setup.checkpoint_operators);
  EXPECT_TRUE(job.setup.gathered_in_pipeline);
  EXPECT_TRUE(job.setup.fp32_shards);
  EXPECT_TRUE(job.setup.fp8_attention);
  EXPECT_TRUE(job.setup.fp8_gathers);
  EXPECT_EQ(job.setup.weight_bytes, 1);
  EXPECT_TRUE(job.setup.sum_gradients_apart);
  EXPECT_EQ(job.setup.held_weight_bytes, 1);
  EXPECT_TRUE(job.setup.fp8_activation_inputs);
  EXPECT_TRUE(job.setup.keeps_gathered);
  EXPECT_EQ(job.setup.optimizer_bytes, 10);
  EXPECT_TRUE(job.setup.scattered_sends);
  EXPECT_TRUE(job.setup.xla_pointwise);
  EXPECT_EQ(job.setup.optimizer_group, 8);
  EXPECT_TRUE(job.setup.gathers_wait);
  EXPECT_TRUE(job.setup.broadcasts_weights);
  EXPECT_EQ(job.setup.bucket_parameters, 768000000);
  EXPECT_EQ(job.setup.straggle, 0.5);
  EXPECT_EQ(job.setup.update_contention, 0.25);
  EXPECT_EQ(job.setup.host_per_step, Microseconds(250));
}

TEST(ParseJobTest, ReadsAdaptersAndWritesThemAgain) {
  const std::string text = absl::StrReplaceAll(
      JobText(),
      {{"\"role\": \"MODULE_ROLE_ENCODER\",",
        "\"role\": \"MODULE_ROLE_ENCODER\", \"adapter_rank\": 16,"}});
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ParseJob(text, "job.json", "", NoFiles()));
  EXPECT_EQ(job.model.modules[ModuleId(1)].adapter_rank, 0);
  EXPECT_EQ(job.model.modules[ModuleId(0)].adapter_rank, 16);
  ASSERT_OK_AND_ASSIGN(const ModelSpec again,
                       ParseModel(PrintModel(job.model), "model.json"));
  EXPECT_EQ(again, job.model);
}

TEST(ParseJobTest, TakesCamelCaseAsProtoJsonDoes) {
  const std::string camel = absl::StrReplaceAll(
      JobText(), {{"microbatch_tokens", "microbatchTokens"},
                  {"model_spec", "modelSpec"},
                  {"kv_heads", "kvHeads"},
                  {"side_px", "sidePx"},
                  {"bf16_flops_per_second", "bf16FlopsPerSecond"}});
  ASSERT_OK_AND_ASSIGN(const JobSpec a,
                       ParseJob(JobText(), "j.json", "", NoFiles()));
  ASSERT_OK_AND_ASSIGN(const JobSpec b,
                       ParseJob(camel, "j.json", "", NoFiles()));
  EXPECT_EQ(a, b);
}

TEST(ParseJobTest, AbsentFieldsHaveTheirDefaults) {
  std::string text = absl::StrReplaceAll(
      R"({"model_spec": MODEL, "cluster_spec": CLUSTER,
          "training": {"microbatches": 1, "microbatch_tokens": 1}})",
      {{"MODEL", kModel}, {"CLUSTER", kCluster}});
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ParseJob(text, "some/where.json", "", NoFiles()));
  EXPECT_EQ(job.name, "where");
  EXPECT_EQ(job.parallel, ParallelLayout());
  EXPECT_EQ(job.search, SearchSpec());
  TrainingSpec expected;
  expected.microbatches = 1;
  expected.microbatch_tokens = 1;
  EXPECT_EQ(job.training, expected);
}

TEST(ParseJobTest, ReadsNamedPartsFromFilesInItsFolder) {
  const std::string text = R"({"model": "parts/tiny.json", "cluster": "h20",
      "training": {"microbatches": 1, "microbatch_tokens": 1}})";
  const FileReader files = Files({{"my/parts/tiny.json", kModel},
                                  {"data/clusters/h20.json", kCluster},
                                  {"my/job.json", text}});
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       LoadJob("my/job.json", "data", files));
  EXPECT_EQ(job.model.name, "tiny");
  EXPECT_EQ(job.cluster.name, "h20");
  EXPECT_THAT(ParseJob(text, "other/job.json", "data", files),
              FailsWith(absl::StatusCode::kNotFound,
                        HasSubstr("other/parts/tiny.json: no such file")));
}

TEST(LoadJobTest, AnUnknownNameListsThoseThereAre) {
  EXPECT_THAT(LoadJob("dip-vlm-q", kDataDir, ReadFile),
              FailsWith(absl::StatusCode::kNotFound,
                        AllOf(HasSubstr("there is no job \"dip-vlm-q\""),
                              HasSubstr("dip-vlm-s, dip-vlm-xl"))));
  EXPECT_THAT(LoadModel("gpt", kDataDir, ReadFile),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("llama3-8b")));
  EXPECT_THAT(LoadCluster("cray", kDataDir, ReadFile),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("l40s")));
  EXPECT_THAT(LoadJob("./none.json", kDataDir, ReadFile),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("./none.json")));
}

TEST(ParseJobTest, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string name;
    std::string from;  // A part of the good job.
    std::string to;
    std::string expected;
  };
  const Case cases[] = {
      {"negative count", "\"microbatches\": 8", "\"microbatches\": -3",
       "field \"training.microbatches\" is -3; it must be in [1, 1000000]"},
      {"wrong type", "\"microbatches\": 8", "\"microbatches\": [8]",
       "field \"training.microbatches\" is a list; it must be an integer in "
       "[1, 1000000]"},
      {"missing", "\"microbatches\": 8,", "",
       "field \"training.microbatches\" is missing; it must be given"},
      {"unknown field", "\"microbatches\": 8", "\"micro\": 8",
       "field \"training.micro\" is not known; it must be one of "},
      {"known fields are listed", "\"seed\":", "\"sead\":",
       "field \"search.sead\" is not known; it must be one of deadline_us, "
       "evaluations, schedule, seed"},
      {"both spellings", "\"microbatches\": 8",
       "\"microbatches\": 8, \"memoryStrategies\": []",
       "field \"training.memory_strategies\" is given twice"},
      {"enum", "MEMORY_STRATEGY_OFFLOAD", "OFFLOAD",
       "field \"training.memory_strategies[0]\" is \"OFFLOAD\"; it must be one "
       "of MEMORY_STRATEGY_KEEP, MEMORY_STRATEGY_RECOMPUTE, "
       "MEMORY_STRATEGY_OFFLOAD"},
      {"zero layout", "\"tp\": 2", "\"tp\": 0",
       "field \"parallel.tp\" is 0; it must be in [1, 1024]"},
      {"cluster too small", "\"tp\": 2", "\"tp\": 4",
       "parallel: tp 4 x cp 1 x pp 4 x dp 1 needs 16 GPUs; cluster \"mine\" "
       "has "
       "8"},
      {"unknown frozen module", "\"frozen_modules\": [\"eye\"]",
       "\"frozen_modules\": [\"ear\"]",
       "training.frozen_modules names \"ear\"; the model has eye, tongue"},
      {"unknown module of an edge", "\"from\": \"eye\"", "\"from\": \"ear\"",
       "field \"model_spec.edges[0].from\" is \"ear\"; it must be the name of "
       "a module, one of eye, tongue"},
      {"circle of modules", "[{\"from\": \"eye\", \"to\": \"tongue\"}]",
       "[{\"from\": \"eye\", \"to\": \"tongue\"},"
       " {\"from\": \"tongue\", \"to\": \"eye\"}]",
       "modules feed each other in a circle: eye -> tongue -> eye"},
      {"module feeds itself", "\"to\": \"tongue\"", "\"to\": \"eye\"",
       "modules feed each other in a circle: eye -> eye"},
      {"negative size", "\"hidden\": 256", "\"hidden\": -256",
       "field \"model_spec.modules[0].layers[0].layer.ffn.hidden\" is -256; it "
       "must be in [0, 1048576]"},
      {"absurd size", "\"heads\": 4", "\"heads\": 99999999999999999999",
       "is 1e+20; it must be an integer in [0, 16384]"},
      {"too many layers", "\"count\": 3", "\"count\": 5000",
       "layers[0].count\" is 5000; it must be in [1, 4096]"},
      {"heads that do not divide", "\"kv_heads\": 4", "\"kv_heads\": 3",
       "module \"eye\": layer 0 (): kv_heads is 3; it must divide heads, which "
       "is 4"},
      {"rule without patch", "\"patch_px\": 14,", "",
       "field \"model_spec.modules[0].token_rules[0].patch_px\" is missing"},
      {"rule with patch 0", "\"patch_px\": 14", "\"patch_px\": 0",
       "token_rules[0].patch_px\" is 0; it must be > 0"},
      {"efficiency above 1", "\"gemm_efficiency\": 0.75",
       "\"gemm_efficiency\": 1.75",
       "field \"cluster_spec.device.gemm_efficiency\" is 1.75; it must be in "
       "(0, 1]"},
      {"share above 1", "\"memory_efficiency\": 0.8,",
       "\"memory_efficiency\": 0.8, \"sustained_fp8\": 1.5,",
       "field \"cluster_spec.device.sustained_fp8\" is 1.5; it must be in (0, "
       "1]"},
      {"no bandwidth", "160e9", "0",
       "field \"cluster_spec.intra_node.bandwidth_bytes_per_second\" is 0; it "
       "must be in (0, 1e+18]"},
      {"no such sub-microbatch module", "\"module\": \"eye\"",
       "\"module\": \"ear\"", "training.sub_microbatch_sizes names \"ear\""},
      {"bucket of no tokens", "[512,", "[0,",
       "field \"training.shape_buckets[0].tokens[0]\" is 0; it must be in [1, "
       "1099511627776]"},
      {"buckets that descend", "[512,", "[2048,",
       "training.shape_buckets of \"eye\": tokens[1] is 1024; tokens must be "
       "in [1, 1099511627776] and ascending"},
      {"deadline as text", "2500.5", "\"soon\"",
       "field \"search.deadline_us\" is \"soon\"; it must be a number in [0, "
       "1e+12]"},
      {"negative seed", "\"18446744073709551615\"", "-1",
       "field \"search.seed\" is -1; it must be an integer in [0, "
       "18446744073709551615]"},
      {"model twice", "\"model_spec\":", "\"model\": \"x\", \"model_spec\":",
       "a job has \"model\" (a name) or \"model_spec\" (the thing itself); "
       "this one has both"},
      {"no cluster",
       "\"cluster_spec\":", "\"cluster_spek\":", "this one has neither"},
      {"unknown shipped model", "\"cluster_spec\":",
       "\"cluster_spec\": null, \"cluster\": \"cray\", \"source\":",
       "field \"source\" is an object; it must be a string"},
      {"truncated", "\"search\":", "\"search\"", "not valid JSON: "},
      {"not UTF-8", "\"dip\"", "\"d\xc3p\"", "not valid JSON: "},
      {"not an object", "\"parallel\": {\"tp\": 2, \"pp\": 4}",
       "\"parallel\": 3", "field \"parallel\" is 3; it must be an object"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string good = JobText();
    ASSERT_THAT(good, HasSubstr(c.from));
    const std::string bad = absl::StrReplaceAll(good, {{c.from, c.to}});
    EXPECT_THAT(
        ParseJob(bad, "my/job.json", "", NoFiles()),
        FailsWith(absl::StatusCode::kInvalidArgument,
                  AllOf(StartsWith("my/job.json:"), HasSubstr(c.expected))));
  }
}

// Returns the good job with another global batch and three replicas.
std::string WithBatch(const std::string& fields) {
  return absl::StrReplaceAll(JobText(), {{"\"microbatches\": 8,", fields},
                                         {"\"pp\": 4",
                                          "\"pp\": 1, "
                                          "\"dp\": 3"}});
}

TEST(ParseJobTest, MicrobatchesFollowFromTheGlobalBatch) {
  ASSERT_OK_AND_ASSIGN(const JobSpec samples,
                       ParseJob(WithBatch(R"("global_batch_samples": 480,
                            "microbatch_samples": 8,)"),
                                "job.json", "data", NoFiles()));
  EXPECT_EQ(samples.training.microbatches, 20);
  EXPECT_EQ(samples.training.microbatch_samples, 8);
  ASSERT_OK_AND_ASSIGN(const JobSpec tokens,
                       ParseJob(WithBatch(R"("global_batch_tokens": "30720",)"),
                                "job.json", "data", NoFiles()));
  EXPECT_EQ(tokens.training.microbatches, 5) << "of 2048 tokens";
}

TEST(ParseJobTest, AGlobalBatchThatDoesNotDivideOrIsGivenTwiceIsAnError) {
  const std::pair<const char*, const char*> bad[] = {
      {R"("global_batch_samples": 100, "microbatch_samples": 8,)",
       "field \"training.global_batch_samples\" is 100; it must be a multiple "
       "of parallel.dp x training.microbatch_samples, which is 3 x 8, at most "
       "1000000 times: 96 or 120"},
      {R"("global_batch_tokens": 100,)",
       "field \"training.global_batch_tokens\" is 100; it must be a multiple "
       "of "
       "parallel.dp x training.microbatch_tokens, which is 3 x 2048, at most "
       "1000000 times: 6144"},
      {R"("global_batch_samples": 96,)",
       "needs \"training.microbatch_samples\""},
      {R"("global_batch_samples": 96, "microbatch_samples": 8,
          "microbatches": 4,)",
       "this one has global_batch_samples and microbatches"},
      {R"("global_batch_samples": 96, "microbatch_samples": 8,
          "global_batch_tokens": 6144,)",
       "this one has global_batch_samples and global_batch_tokens"},
      {R"("global_batch_tokens": -1,)", "is -1; it must be in [0, "}};
  for (const auto& [fields, says] : bad) {
    EXPECT_THAT(ParseJob(WithBatch(fields), "job.json", "data", NoFiles()),
                FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr(says)))
        << fields;
  }
}

TEST(JobTemplateTest, AChangeOfTheBatchTakesThePlaceOfTheOtherWaysToSayIt) {
  const std::string path = "folder/job.json";
  ASSERT_OK_AND_ASSIGN(
      const JobTemplate job,
      JobTemplate::Load(path, "data",
                        Files({{path, WithBatch(R"("global_batch_samples": 480,
                                                   "microbatch_samples": 8,)")}})));
  const auto microbatches =
      [&](const std::vector<JobOverride>& changes) -> int32_t {
    const auto changed = job.With(changes);
    EXPECT_THAT(changed.status(), IsOk());
    return changed.ok() ? changed->training.microbatches : 0;
  };
  EXPECT_EQ(microbatches({}), 20);
  EXPECT_EQ(microbatches({{"training.microbatches", "7"}}), 7);
  EXPECT_EQ(microbatches({{"training.global_batch_samples", "48"}}), 2);
  EXPECT_EQ(microbatches({{"training.global_batch_tokens", "12288"}}), 2);
  EXPECT_EQ(microbatches({{"parallel.dp", "2"}}), 30)
      << "more microbatches make up for fewer replicas";
}

TEST(JobTemplateTest, AnotherGpuLeavesLinksAndNodesAndSaysHowTheyDiffer) {
  ASSERT_OK_AND_ASSIGN(const JobTemplate job,
                       JobTemplate::Load("dip-vlm-s", kDataDir, ReadFile));
  ASSERT_OK_AND_ASSIGN(const JobSpec before, job.With({}));
  const std::vector<JobOverride> change = {{"cluster.device", "b200-sxm"}};
  ASSERT_OK_AND_ASSIGN(const JobSpec after, job.With(change));
  ASSERT_OK_AND_ASSIGN(const ClusterSpec b200,
                       LoadCluster("b200-sxm", kDataDir, ReadFile));
  EXPECT_EQ(after.cluster.device, b200.device);
  EXPECT_EQ(after.cluster.intra_node, before.cluster.intra_node);
  EXPECT_EQ(after.cluster.inter_node, before.cluster.inter_node);
  EXPECT_EQ(after.cluster.num_nodes, before.cluster.num_nodes);
  EXPECT_NE(b200.intra_node, before.cluster.intra_node);
  const std::vector<std::string> notes =
      DeviceSwapNotes(after.cluster, change, kDataDir, ReadFile);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(
      notes[0],
      AllOf(HasSubstr("changes the GPU alone"),
            HasSubstr(absl::StrFormat(
                "%.4g GB/s inside nodes (here %.4g)",
                b200.intra_node.bandwidth.bytes_per_second / 1e9,
                before.cluster.intra_node.bandwidth.bytes_per_second / 1e9)),
            HasSubstr("--set cluster=b200-sxm takes all of it")));
  EXPECT_THAT(job.With({{"cluster.device", "b300"}}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("there is no such cluster; shipped are")));
}

TEST(ParseJobTest, NamesTheLineOfTheField) {
  const std::string bad = R"({
"model": "a.json",
"cluster": "b.json",
"training": {
  "microbatch_tokens": 5,
  "microbatches": -3
}})";
  EXPECT_THAT(ParseJob(bad, "job.json", "", NoFiles()),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "job.json:6: field \"training.microbatches\" is -3; it "
                        "must be in [1, 1000000]"));
}

TEST(ParseJobTest, NothingButAnObjectIsAJob) {
  for (const char* text : {"", "null", "3", "[]", "\"dip-vlm-s\"", "{}"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(ParseJob(text, "j.json", "", NoFiles()),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          StartsWith("j.json:1: ")));
  }
}

TEST(ParseModelTest, RefusesMoreParametersThanCanBeCounted) {
  const std::string huge =
      absl::StrReplaceAll(kModel, {{"\"count\": 3", "\"count\": 4096"},
                                   {"\"hidden\": 64", "\"hidden\": 1048576"},
                                   {"\"hidden\": 256", "\"hidden\": 1048576"}});
  EXPECT_THAT(ParseModel(huge, "m.json"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("it must have at most 1000000000000000")));
  EXPECT_THAT(ParseModel(kModel, "m.json"), IsOk());
}

}  // namespace
}  // namespace pipeloom::formats
