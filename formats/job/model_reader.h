// Readers of the JSON of pipeloom.v1.ModelSpec and ClusterSpec. They check
// ranges; ir/ checks the meaning.
#ifndef PIPELOOM_FORMATS_JOB_MODEL_READER_H_
#define PIPELOOM_FORMATS_JOB_MODEL_READER_H_

#include "formats/text/object_reader.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/model_spec.h"

namespace pipeloom::formats {

// Read a value. Errors stay in the reader; the caller calls its Finish().
void ReadModel(ObjectReader& reader, ModelSpec* model);
void ReadCluster(ObjectReader& reader, ClusterSpec* cluster);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_MODEL_READER_H_
