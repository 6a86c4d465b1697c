// Reads the JSON of pipeloom.v1.ModelSpec and ClusterSpec into values. Ranges
// are checked here, meaning by ir/.
#ifndef PIPELOOM_FORMATS_JOB_MODEL_READER_H_
#define PIPELOOM_FORMATS_JOB_MODEL_READER_H_

#include "formats/text/object_reader.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/model_spec.h"

namespace pipeloom::formats {

// Errors stay in the reader; the caller calls its Finish().
void ReadModel(ObjectReader& reader, ModelSpec* model);
void ReadCluster(ObjectReader& reader, ClusterSpec* cluster);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_MODEL_READER_H_
