#include "cli/report/partition_file.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

std::string Quoted(const std::string& text) {
  formats::JsonWriter json(false);
  json.String(text);
  return json.text();
}

}  // namespace

std::string PartitionJson(const JobSpec& job, const Partition& partition,
                          const std::string& comment, bool with_layout) {
  std::string layout;
  if (with_layout) {
    const ParallelLayout& p = job.parallel;
    std::string modules;
    for (const ModuleParallelism& own : job.module_parallelism) {
      absl::StrAppendFormat(
          &modules, "%s{\"module\": %s, \"tp\": %d, \"cp\": %d}",
          modules.empty() ? "" : ", ", Quoted(own.module), own.tp, own.cp);
    }
    if (!modules.empty()) {
      modules = absl::StrCat(",\n    \"modules\": [", modules, "]");
    }
    layout = absl::StrFormat(
        "  \"layout\": {\"tp\": %d, \"cp\": %d, \"ep\": %d, \"pp\": %d, "
        "\"dp\": %d, \"microbatches\": %d%s},\n",
        p.tp, p.cp, p.ep, p.pp, p.dp, job.training.microbatches, modules);
  }
  std::string text = absl::StrFormat(
      "{\n  \"format\": \"pipeloom.partition\",\n  \"job\": %s,\n"
      "  \"comment\": %s,\n%s  \"num_ranks\": %d,\n  \"modules\": [",
      Quoted(job.name), Quoted(comment), layout, partition.num_ranks);
  const char* before = "\n";
  for (const ModuleId m : job.model.modules.ids()) {
    absl::StrAppendFormat(&text,
                          "%s    {\"module\": %s, \"sub_microbatch\": %d}",
                          before, Quoted(job.model.modules[m].name),
                          partition.sub_microbatch_instances[m]);
    before = ",\n";
  }
  absl::StrAppend(&text, "\n  ],\n  \"stages\": [");
  before = "\n";
  for (const Stage& stage : partition.stages) {
    absl::StrAppendFormat(
        &text,
        "%s    {\"module\": %s, \"first_layer\": %d, \"layers\": %d, "
        "\"rank\": %d, \"segment\": %d}",
        before, Quoted(job.model.modules[stage.module].name),
        stage.first_layer.value(), stage.num_layers, stage.rank.value(),
        stage.segment.value());
    before = ",\n";
  }
  return absl::StrCat(text, "\n  ]\n}\n");
}

void WriteLayout(const ParallelLayout& layout,
                 const std::vector<ModuleParallelism>& modules,
                 int32_t microbatches, formats::JsonWriter* json) {
  json->Key("tp").Int(layout.tp).Key("cp").Int(layout.cp);
  json->Key("ep").Int(layout.ep).Key("pp").Int(layout.pp);
  json->Key("dp").Int(layout.dp).Key("microbatches").Int(microbatches);
  if (modules.empty()) return;
  json->Key("modules").BeginArray();
  for (const ModuleParallelism& own : modules) {
    json->BeginObject().Key("module").String(own.module);
    json->Key("tp").Int(own.tp).Key("cp").Int(own.cp).EndObject();
  }
  json->EndArray();
}

void WritePartition(const JobSpec& job, const Partition& partition,
                    formats::JsonWriter* json) {
  json->Key("layout").BeginObject();
  WriteLayout(job.parallel, job.module_parallelism, job.training.microbatches,
              json);
  json->EndObject().Key("modules").BeginArray();
  for (const ModuleId m : job.model.modules.ids()) {
    json->BeginObject().Key("module").String(job.model.modules[m].name);
    json->Key("sub_microbatch")
        .Int(partition.sub_microbatch_instances[m])
        .EndObject();
  }
  json->EndArray().Key("stages").BeginArray();
  for (const Stage& stage : partition.stages) {
    json->BeginObject().Key("module").String(
        job.model.modules[stage.module].name);
    json->Key("first_layer").Int(stage.first_layer.value());
    json->Key("layers").Int(stage.num_layers);
    json->Key("rank").Int(stage.rank.value());
    json->Key("segment").Int(stage.segment.value()).EndObject();
  }
  json->EndArray();
}

Table PartitionTable(const JobSpec& job, const Partition& partition) {
  Table table({"module", "sub-microbatch", "segments", "layers @ rank"});
  for (const ModuleId m : job.model.modules.ids()) {
    std::string layers;
    std::set<SegmentId> segments;
    for (const StageId s : partition.StagesOf(m)) {
      const Stage& stage = partition.stages[s];
      const bool opens = segments.insert(stage.segment).second;
      absl::StrAppend(&layers,
                      layers.empty() ? ""
                      : opens        ? " | "
                                     : " ",
                      stage.num_layers, "@", stage.rank.value());
    }
    const int64_t size = partition.sub_microbatch_instances[m];
    table.AddRow({job.model.modules[m].name,
                  size > 0 ? absl::StrCat(size) : "whole",
                  absl::StrCat(segments.size()), layers});
  }
  return table;
}

}  // namespace pipeloom::cli
