// Remarks on a model that can be planned, but whose layers probably are not
// those that are meant.
#ifndef PIPELOOM_IR_JOB_MODEL_NOTES_H_
#define PIPELOOM_IR_JOB_MODEL_NOTES_H_

#include <string>
#include <vector>

#include "ir/job/model_spec.h"

namespace pipeloom {

// Returns remarks on a model, each with its remedy: parts that are missing;
// layers and modules of widths that do not fit, in elements; tied heads without
// an embedding of their vocabulary and width; cross-attention without a
// context; feed-forward parts of width 0; fields that a layer of its kind does
// not use; encoders that feed nobody; and parameters that differ from the
// published ones by more than 5 %. Cost is linear in the layers.
// REQUIRES: ValidateModelSpec(model) is OK.
std::vector<std::string> ModelNotes(const ModelSpec& model);

}  // namespace pipeloom

#endif  // PIPELOOM_IR_JOB_MODEL_NOTES_H_
