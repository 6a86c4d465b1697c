// A model from the arguments of a Megatron-LM training: the GPT model that
// pretrain_gpt.py builds of them, dense or with experts, with plain, grouped or
// low-rank attention, sliding windows and multi-token prediction.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MEGATRON_MODEL_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MEGATRON_MODEL_H_

#include "formats/model_config/draft.h"
#include "formats/model_config/megatron_arguments.h"

namespace pipeloom::formats {

// Adds the backbone. Sizes that are missing, defaults that were taken and
// errors are in the draft's notes.
void ReadMegatron(const MegatronArguments& arguments, Draft* draft);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MEGATRON_MODEL_H_
