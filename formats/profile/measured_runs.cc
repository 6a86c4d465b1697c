#include "formats/profile/measured_runs.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "formats/profile/run_setup.h"
#include "formats/profile/run_words.h"
#include "formats/text/csv_reader.h"

namespace pipeloom::formats {
namespace {

// Reads "WIDTHxHEIGHT" or "WIDTHxHEIGHTxFRAMES" into `sizes`. Returns whether
// it has that form.
bool ReadSizes(const std::string& text, std::initializer_list<int32_t*> sizes) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  if (parts.size() != sizes.size()) return false;
  auto part = parts.begin();
  for (int32_t* size : sizes) {
    if (!absl::SimpleAtoi(*part++, size) || *size < 1) return false;
  }
  return true;
}

// Reads the words of a shipped model, its frozen modules, and the images and
// clips of its samples.
absl::Status ReadNamedModel(const std::string& where, absl::string_view text,
                            MeasuredRun* run) {
  Words words(where, "shape", text);
  const auto count = [&](const char* name) {
    return static_cast<int32_t>(
        std::min<int64_t>(words.Int(name, 0, 0), 1 << 20));
  };
  run->model_name = words.Text("model");
  run->predicted_tokens =
      std::min<int64_t>(words.Int("predicted_tokens", 0, 0), 64);
  run->scaled_rotary = words.Int("scaled_rotary", 0, 0) != 0;
  run->images = count("images");
  const std::string image = words.Text("image");
  if ((run->images > 0) == image.empty() ||
      (!image.empty() &&
       !ReadSizes(image, {&run->image.width, &run->image.height}))) {
    words.Refuse("image", image, "WIDTHxHEIGHT, where images are");
  }
  run->videos = count("videos");
  const std::string video = words.Text("video");
  if ((run->videos > 0) == video.empty() ||
      (!video.empty() &&
       !ReadSizes(video, {&run->video.width, &run->video.height,
                          &run->video.frames}))) {
    words.Refuse("video", video, "WIDTHxHEIGHTxFRAMES, where videos are");
  }
  if (const std::string frozen = words.Text("frozen"); !frozen.empty()) {
    run->frozen_modules = absl::StrSplit(frozen, '+');
  }
  return words.status();
}

// Reads the transformer layers of each stage, such as "12+16".
void ReadStages(Words* words, MeasuredRun* run) {
  const std::string text = words->Text("stages");
  if (text.empty()) return;
  for (const absl::string_view part : absl::StrSplit(text, '+')) {
    int32_t layers = 0;
    if (!absl::SimpleAtoi(part, &layers) || layers < 0 || layers > 10000) {
      words->Refuse("stages", text, "whole numbers with + between");
      return;
    }
    run->stage_layers.push_back(layers);
  }
  if (static_cast<int64_t>(run->stage_layers.size()) !=
      int64_t{run->parallel.pp} * run->chunks) {
    words->Refuse("stages", text, "one number for each of pp x vp stages");
  }
}

absl::StatusOr<ModelSpec> ReadShape(const std::string& where,
                                    const std::string& name,
                                    absl::string_view text) {
  Words words(where, "shape", text);
  LayerSpec block;
  block.name = "block";
  const int64_t layers = words.Int("layers", 0, 1);
  const int64_t hidden = words.Int("hidden", 0, 1);
  block.hidden = hidden;
  AttentionSpec& a = block.attention;
  a.kind = AttentionKind::kCausal;
  a.heads = words.Int("heads", 0, 1);
  a.kv_heads = words.Int("kv_heads", a.heads, 1);
  a.head_dim = words.Int("head_dim", a.heads > 0 ? hidden / a.heads : 0, 1);
  a.value_dim = words.Int("value_dim", 0, 1);
  a.rope_dim = words.Int("rope_dim", 0, 1);
  a.query_rank = words.Int("query_rank", 0, 1);
  a.kv_rank = words.Int("kv_rank", 0, 1);
  a.query_key_norms = words.Int("query_key_norms", 0, 0) != 0;
  a.scaled_rotary = words.Int("scaled_rotary", 0, 0) != 0;
  FfnSpec& f = block.ffn;
  f.hidden = words.Int("ffn", 0, 1);
  f.gated = words.Int("gated", 0, 0) != 0;
  f.experts = words.Int("experts", 0, 1);
  f.experts_per_token = words.Int("top_k", 0, 1);
  f.shared_experts = words.Int("shared_experts", 0, 1);
  f.expert_hidden = words.Int("expert_ffn", 0, 1);
  f.expert_biases = words.Int("expert_biases", 0, 0) != 0;
  f.clamped = words.Int("clamped", 0, 0) != 0;
  // Leading layers with `ffn` in place of the experts.
  const int64_t dense = words.Int("dense_layers", 0, 0);
  // Every window_every-th layer attends to the last `window` tokens only.
  const int64_t window = words.Int("window", 0, 1);
  const int64_t window_every = words.Int("window_every", 1, 1);
  // Modules that predict one more token each: a projection, a layer and the
  // loss head once more.
  const int64_t predicted = words.Int("predicted_tokens", 0, 0);
  const int64_t adapter_rank = words.Int("adapter_rank", 0, 1);
  const int64_t vocab = words.Int("vocab", 0, 1);
  const bool tied = words.Int("tied", 0, 0) != 0;
  block.biases = words.Int("biases", 0, 0) != 0;
  block.dropout = words.Int("dropout", 0, 0) != 0;
  // Whether the look-up is a product of the table with one-hot rows.
  const bool one_hot = words.Int("one_hot", 0, 0) != 0;
  PIPELOOM_RETURN_IF_ERROR(words.status());
  if (layers < 1 || layers > 10000 || hidden < 1 || vocab < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(where,
                     "column \"shape\" lacks layers (at most 10000), hidden or "
                     "vocab"));
  }
  block.vector_parameters = 2 * hidden;
  if (block.biases) {
    block.vector_parameters += a.heads * a.head_dim +
                               a.kv_heads * (a.head_dim + a.value_width()) +
                               2 * hidden + (f.gated ? 2 : 1) * f.hidden;
  }

  ModuleSpec module;
  module.name = "backbone";
  module.role = ModuleRole::kBackbone;
  module.adapter_rank = adapter_rank;
  if (one_hot) {
    module.layers.push_back(
        {.kind = LayerKind::kFixedWork,
         .name = "one_hot_rows",
         .hidden = hidden,
         .fixed_flops_per_token = 2.0 * static_cast<double>(vocab * hidden),
         .fixed_activation_bytes_per_token = 2.0 * static_cast<double>(vocab)});
  }
  module.layers.push_back({.kind = LayerKind::kEmbedding,
                           .name = "text_embedding",
                           .hidden = hidden,
                           .vocab = vocab,
                           .dropout = block.dropout});
  for (int64_t i = 0; i < layers; ++i) {
    LayerSpec layer = block;
    if (i < dense) {
      layer.ffn = {.hidden = f.hidden, .gated = f.gated};
    } else if (f.experts > 0) {
      layer.ffn.hidden = 0;
    }
    if (window > 0 && i % window_every == 0) {
      layer.attention.window = window;
    }
    module.layers.push_back(std::move(layer));
  }
  const LayerSpec head{.kind = LayerKind::kLossHead,
                       .name = "loss_head",
                       .hidden = hidden,
                       .vocab = vocab,
                       .vector_parameters = hidden,
                       .tied = tied};
  for (int64_t i = 0; i < predicted; ++i) {
    LayerSpec input{.kind = LayerKind::kLinears,
                    .name = "prediction_input",
                    .hidden = hidden};
    input.linears = {{.in = 2 * hidden, .out = hidden}};
    input.vector_parameters = 2 * hidden;
    module.layers.push_back(std::move(input));
    LayerSpec layer = block;
    if (f.experts > 0) layer.ffn.hidden = 0;
    module.layers.push_back(std::move(layer));
    LayerSpec again = head;
    again.tied = true;
    module.layers.push_back(std::move(again));
  }
  module.layers.push_back(head);
  ModelSpec model;
  model.name = name;
  model.modules.push_back(std::move(module));
  const absl::Status valid = ValidateModelSpec(model);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "column \"shape\": ", valid.message()));
  }
  return model;
}

absl::Status ReadLayout(const std::string& where, absl::string_view text,
                        MeasuredRun* run) {
  Words words(where, "layout", text);
  const auto size = [&](const char* name) {
    return static_cast<int32_t>(std::min<int64_t>(
        words.Int(name, 1, 1), std::numeric_limits<int16_t>::max()));
  };
  run->parallel.tp = size("tp");
  run->parallel.cp = size("cp");
  run->parallel.ep = size("ep");
  run->parallel.pp = size("pp");
  run->parallel.dp = size("dp");
  run->chunks = size("vp");
  run->encoder_tp = static_cast<int32_t>(
      std::min<int64_t>(words.Int("encoder_tp", 0, 1), 1 << 20));
  run->encoder_apart =
      words.OneOf<bool>("encoder", false, {{"inside", false}, {"apart", true}});
  ReadStages(&words, run);
  run->parallel.order = GpuOrder::kReplicasInside;
  // Frameworks that send tokens to GPUs keep their experts whole.
  const bool whole =
      SetupOfFramework(run->framework).dispatch == ExpertDispatch::kEachGpu;
  run->parallel.expert_tp = static_cast<int32_t>(
      std::min<int64_t>(words.Int("etp", whole ? 1 : 0, 1), 1 << 20));
  return words.status();
}

// Returns the setup without `host_us`, a constant of the model that is fitted
// to another table: the choice of rows for fitting must not depend on it.
std::string WithoutHostTime(const std::string& setup) {
  std::string kept;
  for (const absl::string_view word :
       absl::StrSplit(setup, ' ', absl::SkipEmpty())) {
    if (absl::StartsWith(word, "host_us=")) continue;
    absl::StrAppend(&kept, kept.empty() ? "" : " ", word);
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::vector<MeasuredRun>> ParseMeasuredRuns(
    absl::string_view text, const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const CsvTable table, ParseCsv(text, file_name));
  static constexpr const char* kColumns[] = {
      "framework",  "run",          "cluster",  "shape",   "layout",   "setup",
      "microbatch", "global_batch", "sequence", "step_ms", "peak_gib", "split"};
  std::map<std::string, int> column;
  for (const char* name : kColumns) {
    column[name] = table.Column({name});
    if (column[name] < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: has no column \"%s\"; it must have %s",
                          file_name, name, absl::StrJoin(kColumns, ", ")));
    }
  }
  std::vector<MeasuredRun> runs;
  for (const CsvRow& row : table.rows) {
    const std::string where = absl::StrCat(file_name, ":", row.line, ": ");
    const auto cell = [&](const char* name) -> const std::string& {
      return row.cells[static_cast<size_t>(column[name])];
    };
    const auto fail = [&](const char* name, absl::string_view right) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%scolumn \"%s\" is \"%s\"; it must be %s", where,
                          name, cell(name), right));
    };
    MeasuredRun run;
    run.line = row.line;
    run.framework = cell("framework");
    run.name = cell("run");
    run.cluster = cell("cluster");
    if (run.framework.empty()) return fail("framework", "a name");
    if (run.cluster.empty()) return fail("cluster", "a name or a path");
    if (absl::StartsWith(cell("shape"), "model=")) {
      PIPELOOM_RETURN_IF_ERROR(ReadNamedModel(where, cell("shape"), &run));
    } else {
      PIPELOOM_ASSIGN_OR_RETURN(run.model,
                                ReadShape(where, run.framework, cell("shape")));
    }
    PIPELOOM_RETURN_IF_ERROR(ReadLayout(where, cell("layout"), &run));
    PIPELOOM_RETURN_IF_ERROR(ReadRunSetup(where, cell("setup"), &run));
    for (const auto& [name, value] :
         {std::pair<const char*, int64_t*>{"microbatch", &run.microbatch},
          {"global_batch", &run.global_batch},
          {"sequence", &run.sequence}}) {
      if (!absl::SimpleAtoi(cell(name), value) || *value < 1 ||
          *value > (int64_t{1} << 32)) {
        return fail(name, "a whole number in [1, 2^32]");
      }
    }
    const int64_t unit = run.microbatch * run.parallel.dp;
    if (run.global_batch % unit != 0 || run.global_batch / unit > 1'000'000) {
      return fail(
          "global_batch",
          absl::StrFormat("a multiple of microbatch x dp, which is %d", unit));
    }
    const int64_t stages = int64_t{run.parallel.pp} * run.chunks;
    if (run.model_name.empty() &&
        stages > run.model.modules[ModuleId(0)].layers.size()) {
      return fail("layout", "pp x vp at most the number of layers");
    }
    double number = 0;
    if (!absl::SimpleAtod(cell("step_ms"), &number) ||
        !(number > 0 && number < 1e9)) {
      return fail("step_ms", "in (0, 1e9)");
    }
    run.step_time = Milliseconds(number);
    if (!cell("peak_gib").empty()) {
      if (!absl::SimpleAtod(cell("peak_gib"), &number) ||
          !(number > 0 && number < 1e6)) {
        return fail("peak_gib", "empty or in (0, 1e6)");
      }
      run.peak_allocated =
          Bytes(static_cast<int64_t>(number * (int64_t{1} << 30)));
    }
    const std::string& split = cell("split");
    if (split == "fit") {
      run.split = RunSplit::kFit;
    } else if (split == "held-out") {
      run.split = RunSplit::kHeldOut;
    } else if (!split.empty()) {
      return fail("split", "empty, fit or held-out");
    }
    const ParallelLayout& p = run.parallel;
    run.configuration = FingerprintBuilder()
                            .Add(run.framework)
                            .Add(run.cluster)
                            .Add(cell("shape"))
                            .Add(WithoutHostTime(cell("setup")))
                            .Add(p.tp)
                            .Add(p.cp)
                            .Add(p.ep)
                            .Add(p.pp)
                            .Add(run.chunks)
                            .Add(run.microbatch)
                            .Add(run.sequence)
                            .Build();
    runs.push_back(std::move(run));
  }
  if (runs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": has no runs; it must have at least one"));
  }
  return runs;
}

void AddPredictedTokens(int64_t count, ModuleSpec* backbone) {
  if (count == 0 || backbone->layers.empty()) return;
  const LayerId last(backbone->layers.size() - 1);
  const LayerSpec head = backbone->layers[last];
  if (head.kind != LayerKind::kLossHead) return;
  // The last layers that attend and that have a feed-forward part.
  std::vector<LayerSpec> module;
  bool attends = false;
  bool feeds = false;
  for (int32_t l = last.value() - 1; l >= 0 && !(attends && feeds); --l) {
    const LayerSpec& layer = backbone->layers[LayerId(l)];
    if (layer.kind != LayerKind::kTransformer) continue;
    const bool has_attention = layer.attention.kind != AttentionKind::kNone;
    const bool has_ffn = layer.ffn.hidden > 0 || layer.ffn.experts > 0;
    if ((has_attention && !attends) || (has_ffn && !feeds)) {
      // Attention is first.
      module.insert(has_attention ? module.begin() : module.end(), layer);
      attends |= has_attention;
      feeds |= has_ffn;
    }
  }
  IdVector<LayerId, LayerSpec> layers;
  for (int32_t l = 0; l < last.value(); ++l) {
    layers.push_back(backbone->layers[LayerId(l)]);
  }
  for (int64_t i = 0; i < count; ++i) {
    LayerSpec input{.kind = LayerKind::kLinears,
                    .name = "prediction_input",
                    .hidden = head.hidden};
    input.linears = {{.in = 2 * head.hidden, .out = head.hidden}};
    input.vector_parameters = 2 * head.hidden;
    layers.push_back(std::move(input));
    for (const LayerSpec& layer : module) layers.push_back(layer);
    LayerSpec again = head;
    again.tied = true;
    layers.push_back(std::move(again));
  }
  layers.push_back(head);
  backbone->layers = std::move(layers);
}

JobSpec JobOf(const MeasuredRun& run, ClusterSpec cluster) {
  JobSpec job;
  job.name = run.name;
  job.model = run.model;
  job.cluster = std::move(cluster);
  job.parallel = run.parallel;
  // The encoders' GPU is a rank ahead of the others. Here each replica has one,
  // with as many GPUs as the others, which changes no time.
  if (run.encoder_apart) ++job.parallel.pp;
  job.cluster.num_nodes = static_cast<int32_t>(
      (job.parallel.num_gpus() + job.cluster.gpus_per_node - 1) /
      job.cluster.gpus_per_node);
  const int32_t encoder_tp =
      run.encoder_apart && run.parallel.tp > 1 ? 1 : run.encoder_tp;
  for (const ModuleSpec& module : run.model.modules) {
    if (encoder_tp == 0 || module.role != ModuleRole::kEncoder) continue;
    job.module_parallelism.push_back(
        {.module = module.name, .tp = encoder_tp, .repeats = true});
  }
  job.training.microbatches = static_cast<int32_t>(run.microbatches());
  job.training.microbatch_tokens = run.microbatch * run.sequence;
  if (const int64_t items = int64_t{run.images} + run.videos; items > 0) {
    // A microbatch is full when it has the images and clips of its samples.
    job.training.microbatch_images = run.microbatch * items;
    job.training.microbatch_tokens = 1'000'000'000;
  }
  job.setup = run.setup;
  job.training.optimizer_sharding = run.sharding;
  job.training.frozen_modules = run.frozen_modules;
  job.training.memory_strategies = {MemoryStrategy::kKeep};
  if (run.recompute || run.recompute_experts ||
      run.recompute_groups != OperatorGroups()) {
    job.training.memory_strategies.push_back(MemoryStrategy::kRecompute);
  }
  job.training.memory_limit = Bytes(int64_t{1} << 50);  // It ran, so it fits.
  return job;
}

BatchMetadata BatchOf(const MeasuredRun& run) {
  BatchMetadata batch;
  for (int64_t i = 0; i < run.global_batch; ++i) {
    batch.samples.push_back({.text_tokens = run.sequence,
                             .images = std::vector<ImageSize>(
                                 static_cast<size_t>(run.images), run.image),
                             .videos = std::vector<VideoClip>(
                                 static_cast<size_t>(run.videos), run.video)});
  }
  return batch;
}

}  // namespace pipeloom::formats
