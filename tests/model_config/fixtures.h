// The configurations of tests/model_config and what the real classes make of
// them.
#ifndef PIPELOOM_TESTS_MODEL_CONFIG_FIXTURES_H_
#define PIPELOOM_TESTS_MODEL_CONFIG_FIXTURES_H_

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "formats/model_config/model_config.h"
#include "nlohmann/json.hpp"

namespace pipeloom::formats {

// Returns a JSON file of this folder.
inline nlohmann::json ReadFixture(const std::string& name) {
  std::ifstream in(
      absl::StrCat(PIPELOOM_SOURCE_DIR "/tests/model_config/", name));
  return nlohmann::json::parse(in);
}

// Reads a configuration without that of a processor.
inline absl::StatusOr<ConfigModel> Read(const nlohmann::json& config) {
  return ParseModelConfig(
      {.config_name = "config.json", .config = config.dump()}, "model");
}

}  // namespace pipeloom::formats

#endif  // PIPELOOM_TESTS_MODEL_CONFIG_FIXTURES_H_
