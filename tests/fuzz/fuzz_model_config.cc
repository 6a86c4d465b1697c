// Any bytes as a configuration of another program: an error, a list of what is
// missing, or a model that passes the checks of model files.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "formats/job/model_writer.h"
#include "formats/job/spec_loader.h"
#include "formats/model_config/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = pipeloom::formats::ParseModelConfig(
      {.config_name = "config.json",
       .config = std::string(reinterpret_cast<const char*>(data), size)},
      "fuzz");
  if (read.ok()) {
    PIPELOOM_CHECK(pipeloom::Parameters(read->model) >= 0);
    PIPELOOM_CHECK(!read->missing.empty() ||
                   pipeloom::formats::ParseModel(
                       pipeloom::formats::PrintModel(read->model), "fuzz.json")
                       .ok());
  }
  return 0;
}
