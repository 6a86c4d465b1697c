#include "trace/captured_times.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "emulator/stage/stage_cost.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::trace {
namespace {

constexpr char kField[] = "captured_times";
constexpr size_t kLookAt = 64;  // Bytes in which the field's name begins.

void ReadRun(formats::ObjectReader& reader, CapturedRun* run) {
  constexpr int64_t kMost = int64_t{1} << 40;
  for (const char* name :
       {"tokens", "instances", "output_tokens", "forward_us", "backward_us"}) {
    reader.Require(name);
  }
  reader.Read("tokens", 1, kMost, &run->tokens);
  reader.Read("instances", 1, kMost, &run->instances);
  reader.Read("output_tokens", 1, kMost, &run->output_tokens);
  reader.ReadPositive("forward_us", 1e12, &run->forward_us);
  reader.ReadPositive("backward_us", 1e12, &run->backward_us);
}

void ReadModule(formats::ObjectReader& reader, CapturedModule* module) {
  reader.Require("module");
  reader.Require("layers");
  reader.Require("runs");
  reader.Read("module", &module->name);
  reader.Read("layers", int64_t{1}, int64_t{1} << 20, &module->layers);
  reader.Read("device", &module->device);
  reader.ReadObjects("runs", [&](formats::ObjectReader& run) {
    ReadRun(run, &module->runs.emplace_back());
  });
  if (reader.Has("runs") && module->runs.empty()) {
    reader.Fail(reader.LineOf("runs"), "field \"runs\" has no items");
  }
}

// Returns the job on one GPU, with all weights trained.
JobSpec OnOneGpu(const JobSpec& job) {
  JobSpec alone = job;
  alone.parallel = {};
  alone.module_parallelism = {};
  alone.partition = {};
  alone.slow_rank_links = {};
  alone.training.frozen_modules = {};
  alone.training.shape_buckets = {};
  return alone;
}

WorkShape ShapeOf(const CapturedRun& run) {
  WorkShape shape;
  shape.instances = run.instances;
  shape.tokens = run.tokens;
  shape.output_tokens = run.output_tokens;
  const auto tokens = static_cast<double>(run.tokens);
  shape.sequences = static_cast<double>(run.instances);
  shape.squared_tokens = tokens * tokens / shape.sequences;
  shape.longest = (run.tokens + run.instances - 1) / run.instances;
  return shape;
}

absl::Status Learn(const CapturedModule& module, absl::string_view pass_name,
                   Pass pass, double measured_us, Duration priced,
                   const JobSpec& job, emulator::CostLearner* learned) {
  constexpr double kMost = emulator::CostLearner::kMaxCorrection;
  const double priced_us = ToSeconds(priced) * 1e6;
  const double factor = priced_us > 0 ? measured_us / priced_us : 0;
  if (factor < 1 / kMost || factor > kMost) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%ss of %s take %.4g us%s, and %.4g us as priced for %s; measured over "
        "priced time must be in [%g, %g]: measure on the GPUs of the job's "
        "cluster, at sizes like those of the training",
        pass_name, module.name, measured_us,
        module.device.empty() ? "" : " on " + module.device, priced_us,
        job.cluster.name, 1 / kMost, kMost));
  }
  return learned->Assume(module.name, pass, factor,
                         static_cast<int64_t>(module.runs.size()));
}

}  // namespace

bool IsCapturedTimes(absl::string_view text) {
  return absl::StrContains(text.substr(0, kLookAt),
                           absl::StrFormat("\"%s\"", kField));
}

absl::StatusOr<std::vector<CapturedModule>> ParseCapturedTimes(
    absl::string_view text, absl::string_view file) {
  PIPELOOM_ASSIGN_OR_RETURN(const formats::JsonValue json,
                            formats::ParseJson(text, file));
  std::vector<CapturedModule> modules;
  formats::ObjectReader reader(file, json, "");
  reader.Require(kField);
  reader.ReadObjects(kField, [&](formats::ObjectReader& module) {
    CapturedModule& added = modules.emplace_back();
    ReadModule(module, &added);
    const auto same = [&](const CapturedModule& m) {
      return m.name == added.name;
    };
    if (std::count_if(modules.begin(), modules.end(), same) > 1) {
      module.Fail(module.LineOf("module"),
                  absl::StrFormat("times of module \"%s\" are there twice; "
                                  "measure all its sizes at once",
                                  added.name));
    }
  });
  if (reader.Has(kField) && modules.empty()) {
    reader.Fail(reader.LineOf(kField),
                absl::StrFormat("field \"%s\" has no items", kField));
  }
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  return modules;
}

absl::StatusOr<emulator::CostLearner> LearnFromCapture(
    const std::vector<CapturedModule>& captured, const JobSpec& job,
    std::unique_ptr<const emulator::OpCostModel> operators) {
  const JobSpec alone = OnOneGpu(job);
  PIPELOOM_RETURN_IF_ERROR(ValidateJobSpec(alone));
  const emulator::StageCostModel costs(alone, std::move(operators));
  emulator::CostLearner learned;
  for (const CapturedModule& one : captured) {
    std::vector<std::string> names;
    Stage stage;
    for (const ModuleId m : job.model.modules.ids()) {
      const ModuleSpec& module = job.model.modules[m];
      names.push_back(module.name);
      if (module.name != one.name) continue;
      stage.module = m;
      stage.num_layers = static_cast<int32_t>(module.layers.size());
    }
    if (stage.num_layers == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "it has times of module \"%s\"; the modules of %s are %s", one.name,
          job.model.name, absl::StrJoin(names, ", ")));
    }
    if (stage.num_layers != one.layers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "it has times of %d layers of %s, of which %s has %d: measure the "
          "module again",
          one.layers, one.name, job.model.name, stage.num_layers));
    }
    double forward_us = 0;
    double backward_us = 0;
    Duration forward{};
    Duration backward{};
    for (const CapturedRun& run : one.runs) {
      const emulator::StageCost cost =
          costs.Cost(stage, ShapeOf(run), /*needs_input_grad=*/false);
      forward_us += run.forward_us;
      backward_us += run.backward_us;
      forward += cost.forward;
      backward += cost.fused;
    }
    PIPELOOM_RETURN_IF_ERROR(Learn(one, "forward", Pass::kForward, forward_us,
                                   forward, job, &learned));
    PIPELOOM_RETURN_IF_ERROR(Learn(one, "backward", Pass::kBackward,
                                   backward_us, backward, job, &learned));
  }
  return learned;
}

}  // namespace pipeloom::trace
