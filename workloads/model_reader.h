// Reads the JSON of pipeloom.v1.ModelSpec and ClusterSpec into values. Ranges
// are checked here, meaning by ir/.
#ifndef PIPELOOM_WORKLOADS_MODEL_READER_H_
#define PIPELOOM_WORKLOADS_MODEL_READER_H_

#include "ir/cluster_spec.h"
#include "ir/model_spec.h"
#include "workloads/object_reader.h"

namespace pipeloom::workloads {

// Errors stay in the reader; the caller calls its Finish().
void ReadModel(ObjectReader& reader, ModelSpec* model);
void ReadCluster(ObjectReader& reader, ClusterSpec* cluster);

}  // namespace pipeloom::workloads

#endif  // PIPELOOM_WORKLOADS_MODEL_READER_H_
