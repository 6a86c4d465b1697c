// The writer of model files: the JSON that ParseModel reads.
#ifndef PIPELOOM_FORMATS_JOB_MODEL_WRITER_H_
#define PIPELOOM_FORMATS_JOB_MODEL_WRITER_H_

#include <string>

#include "ir/job/model_spec.h"

namespace pipeloom::formats {

// Prints a model. Equal layers in a row become one with a count, and fields
// that have their default are left out. Parsing the text gives an equal model.
std::string PrintModel(const ModelSpec& model);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_MODEL_WRITER_H_
