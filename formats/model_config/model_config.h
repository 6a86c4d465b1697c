// Model files from the configurations of other programs: config.json of
// transformers and diffusers, arguments of Megatron-LM, names of torchtitan.
//
//   ASSIGN_OR_RETURN(const ConfigModel read, ParseModelConfig({...}));
//   if (read.missing.empty()) WriteFile("model.json", PrintModel(read.model));
//
// Parameter counts are those of the classes that transformers and diffusers
// make of the same configuration; tests/model_config compares them.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_MODEL_CONFIG_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_MODEL_CONFIG_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/job/model_spec.h"

namespace pipeloom::formats {

// The texts that describe one model.
struct ConfigTexts {
  std::string config_name{};  // For errors: "config.json".
  std::string config{};
  std::string processor_name{};
  std::string processor{};  // preprocessor_config.json; "": there is none.
};

struct ConfigModel {
  ModelSpec model{};
  std::string architecture{};  // As the configuration calls it: "qwen2_5_vl".
  // Values that the configuration leaves to its class, and simplifications of
  // the model file, in words.
  std::vector<std::string> assumed{};
  // Fields or parts that are not known. Unless empty, the model is incomplete:
  // its known parts are right, but it cannot be planned.
  std::vector<std::string> missing{};
  // Arguments of Megatron-LM that say nothing about the model.
  std::vector<std::string> ignored{};
};

// Reads a configuration, or the arguments of Megatron-LM in any of the forms of
// megatron_arguments.h. `name` is the model's. InvalidArgument names file,
// line and field: not JSON, a value of the wrong type or out of range, or
// widths that do not divide. An unknown architecture is no error: see
// ConfigModel::missing. Cost is linear in the texts; throws nothing.
absl::StatusOr<ConfigModel> ParseModelConfig(const ConfigTexts& texts,
                                             absl::string_view name);

// Reads "MODEL/FLAVOR" of torchtitan, such as "llama3/8B". NotFound lists what
// is known.
absl::StatusOr<ConfigModel> ReadTorchtitanModel(absl::string_view flavor,
                                                absl::string_view name);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_MODEL_CONFIG_H_
