#include "ir/plan/partition.h"

#include "absl/strings/str_format.h"

namespace pipeloom {

std::vector<StageId> Partition::StagesOf(ModuleId module) const {
  std::vector<StageId> result;
  for (const StageId id : stages.ids()) {
    if (stages[id].module == module) result.push_back(id);
  }
  return result;
}

absl::Status ValidatePartition(const Partition& partition,
                               const ModelSpec& model) {
  const auto fail = [](const std::string& what) {
    return absl::InvalidArgumentError("partition: " + what);
  };
  if (partition.num_ranks < 1) return fail("num_ranks must be >= 1");
  if (partition.sub_microbatch_instances.size() != model.modules.size()) {
    return fail(absl::StrFormat(
        "sub_microbatch_instances has %d entries; the model has %d modules",
        partition.sub_microbatch_instances.size(), model.modules.size()));
  }
  IdVector<ModuleId, int32_t> next_layer(model.modules.size(), 0);
  SegmentId last_segment(0);
  for (const StageId id : partition.stages.ids()) {
    const Stage& stage = partition.stages[id];
    if (!model.modules.Contains(stage.module)) {
      return fail(absl::StrFormat("stage %d: there is no module %d", id.value(),
                                  stage.module.value()));
    }
    if (stage.rank.value() < 0 || stage.rank.value() >= partition.num_ranks) {
      return fail(absl::StrFormat("stage %d: rank %d is not in [0, %d)",
                                  id.value(), stage.rank.value(),
                                  partition.num_ranks));
    }
    if (stage.segment.value() < last_segment.value() ||
        stage.segment.value() >= partition.num_segments) {
      return fail(absl::StrFormat(
          "stage %d: segment %d is out of order or not in [0, %d)", id.value(),
          stage.segment.value(), partition.num_segments));
    }
    last_segment = stage.segment;
    if (stage.num_layers < 1 ||
        stage.first_layer.value() != next_layer[stage.module]) {
      return fail(absl::StrFormat(
          "stage %d: module \"%s\" goes on at layer %d, but the stage holds %d "
          "layers from layer %d",
          id.value(), model.modules[stage.module].name,
          next_layer[stage.module], stage.num_layers,
          stage.first_layer.value()));
    }
    next_layer[stage.module] += stage.num_layers;
  }
  for (const ModuleId module : model.modules.ids()) {
    if (next_layer[module] != model.modules[module].layers.size()) {
      return fail(
          absl::StrFormat("module \"%s\": %d of its %d layers are on a stage",
                          model.modules[module].name, next_layer[module],
                          model.modules[module].layers.size()));
    }
  }
  return absl::OkStatus();
}

Fingerprint FingerprintOf(const Partition& partition) {
  FingerprintBuilder print;
  print.Add(partition.num_ranks).Add(partition.num_segments);
  for (const Stage& s : partition.stages) {
    print.Add(s.module.value())
        .Add(s.first_layer.value())
        .Add(s.num_layers)
        .Add(s.rank.value())
        .Add(s.segment.value());
  }
  for (const int64_t n : partition.sub_microbatch_instances) print.Add(n);
  return print.Build();
}

}  // namespace pipeloom
