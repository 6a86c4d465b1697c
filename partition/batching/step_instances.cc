#include "partition/batching/step_instances.h"

#include <cstdint>
#include <vector>

#include "partition/batching/token_count.h"

namespace pipeloom::partition {

StepInstances InstancesOf(const ModelSpec& model, const PackedStep& packed,
                          size_t replica) {
  StepInstances all;
  for (const std::vector<SampleId>& samples : packed.packed.at(replica)) {
    auto& instances = all[all.push_back({})];
    instances.resize(model.modules.size());
    for (size_t owner = 0; owner < samples.size(); ++owner) {
      IdVector<ModuleId, std::vector<WorkShape>> of(model.modules.size());
      AppendInstances(model, packed.samples.samples[samples[owner]], &of);
      for (const ModuleId m : of.ids()) {
        for (const WorkShape& shape : of[m]) {
          instances[m].push_back(
              {.owner = static_cast<int32_t>(owner), .shape = shape});
        }
      }
    }
  }
  return all;
}

}  // namespace pipeloom::partition
