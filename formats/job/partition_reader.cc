#include "formats/job/partition_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "formats/job/module_parallelism_reader.h"
#include "formats/text/json_reader.h"
#include "formats/text/object_reader.h"

namespace pipeloom::formats {
namespace {

constexpr char kFormat[] = "pipeloom.partition";

// Reads a module's name; an error of `reader` if the model has no such module.
// Without a model (null) any name is module 0.
ModuleId ReadModule(const ModelSpec* model, ObjectReader& reader) {
  std::string name;
  reader.Require("module");
  reader.Read("module", &name);
  if (model == nullptr) return ModuleId(0);
  std::string names;
  for (const ModuleId m : model->modules.ids()) {
    if (model->modules[m].name == name) return m;
    absl::StrAppend(&names, names.empty() ? "" : ", ", model->modules[m].name);
  }
  if (reader.Has("module")) {
    reader.Refuse("module", "a module of the model: " + names);
  }
  return ModuleId(0);
}

void ReadLayout(ObjectReader& r, PartitionLayout* layout) {
  constexpr int32_t kMax = 65536;
  r.Read("tp", 1, kMax, &layout->parallel.tp);
  r.Read("cp", 1, kMax, &layout->parallel.cp);
  r.Read("ep", 1, kMax, &layout->parallel.ep);
  r.Read("pp", 1, kMax, &layout->parallel.pp);
  r.Read("dp", 1, kMax, &layout->parallel.dp);
  ReadModuleParallelism(r, &layout->modules);
  r.Read("microbatches", 0, 1'000'000, &layout->microbatches);
}

// Reads all fields, with the modules of `model` (may be null), and the job's
// name.
absl::StatusOr<Partition> ReadPartition(absl::string_view text,
                                        const std::string& file_name,
                                        const ModelSpec* model,
                                        std::string* job) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  Partition partition;
  partition.sub_microbatch_instances.assign(
      model == nullptr ? 1 : model->modules.size(), 0);
  std::string format;
  std::string comment;
  if (reader.ok()) {
    reader.Require("format");
    reader.Read("format", &format);
    if (reader.ok() && reader.Has("format") && format != kFormat) {
      reader.Refuse("format", absl::StrCat("\"", kFormat, "\""));
    }
    reader.Read("job", job);
    reader.Read("comment", &comment);
    // Checked here only; ParsePartitionLayout returns it.
    PartitionLayout layout;
    reader.ReadObject("layout",
                      [&](ObjectReader& r) { ReadLayout(r, &layout); });
    reader.Require("num_ranks");
    reader.Read("num_ranks", 1, 4096, &partition.num_ranks);
    reader.ReadObjects("modules", [&](ObjectReader& r) {
      const ModuleId m = ReadModule(model, r);
      r.Read("sub_microbatch", int64_t{0}, int64_t{1'000'000},
             &partition.sub_microbatch_instances[m]);
    });
    reader.Require("stages");
    reader.ReadObjects("stages", [&](ObjectReader& r) {
      constexpr int32_t kMax = 1'000'000;
      Stage stage;
      int32_t first_layer = 0;
      int32_t rank = 0;
      int32_t segment = 0;
      stage.module = ReadModule(model, r);
      r.Require("layers");
      r.Read("first_layer", 0, kMax, &first_layer);
      r.Read("layers", 1, kMax, &stage.num_layers);
      r.Read("rank", 0, 4095, &rank);
      r.Read("segment", 0, kMax, &segment);
      stage.first_layer = LayerId(first_layer);
      stage.rank = RankId(rank);
      stage.segment = SegmentId(segment);
      partition.num_segments = std::max(partition.num_segments, segment + 1);
      partition.stages.push_back(stage);
    });
  }
  PIPELOOM_RETURN_IF_ERROR(reader.Finish());
  return partition;
}

}  // namespace

absl::StatusOr<std::optional<PartitionLayout>> ParsePartitionLayout(
    absl::string_view text, const std::string& file_name) {
  PIPELOOM_ASSIGN_OR_RETURN(const JsonValue json, ParseJson(text, file_name));
  ObjectReader reader(file_name, json, "");
  std::optional<PartitionLayout> layout;
  reader.ReadObject("layout",
                    [&](ObjectReader& r) { ReadLayout(r, &layout.emplace()); });
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  return layout;
}

absl::StatusOr<PartitionHead> ParsePartitionHead(absl::string_view text,
                                                 const std::string& file_name) {
  PartitionHead head;
  PIPELOOM_ASSIGN_OR_RETURN(
      const Partition partition,
      ReadPartition(text, file_name, /*model=*/nullptr, &head.job));
  head.num_ranks = partition.num_ranks;
  head.num_stages = static_cast<int64_t>(partition.stages.size());
  return head;
}

absl::StatusOr<Partition> ParsePartition(absl::string_view text,
                                         const std::string& file_name,
                                         const JobSpec& job) {
  std::string name;
  PIPELOOM_ASSIGN_OR_RETURN(Partition partition,
                            ReadPartition(text, file_name, &job.model, &name));
  if (partition.num_ranks != job.parallel.pp) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: field \"num_ranks\" is %d; it must be %d, parallel.pp of job %s",
        file_name, partition.num_ranks, job.parallel.pp, job.name));
  }
  const absl::Status valid = ValidatePartition(partition, job.model);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": ", valid.message()));
  }
  return partition;
}

}  // namespace pipeloom::formats
