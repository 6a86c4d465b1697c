// Damaged configurations: an error, a list of what is missing, or a model that
// passes its checks; never a crash.
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "formats/job/model_writer.h"
#include "formats/job/spec_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model_config/fixtures.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::nlohmann::json;

// Returns pointers to all values below `value`.
void Gather(json& value, std::vector<json*>* all) {
  if (!value.is_structured()) return;
  for (json& item : value) {
    all->push_back(&item);
    Gather(item, all);
  }
}

const json& OddValue(uint64_t draw) {
  static const auto* const kValues = new std::vector<json>{nullptr,
                                                           true,
                                                           "text",
                                                           "",
                                                           -1,
                                                           0,
                                                           1,
                                                           3,
                                                           1 << 20,
                                                           1 << 24,
                                                           INT64_MAX,
                                                           INT64_MIN,
                                                           1e300,
                                                           -1e-300,
                                                           0.3,
                                                           json::array(),
                                                           json::object(),
                                                           {1, 2, 3},
                                                           {4096, -1},
                                                           16384};
  return (*kValues)[draw % kValues->size()];
}

void Check(const std::string& text) {
  const absl::StatusOr<ConfigModel> read =
      ParseModelConfig({.config_name = "config.json", .config = text}, "model");
  if (!read.ok()) {
    EXPECT_FALSE(read.status().message().empty());
    return;
  }
  EXPECT_GE(Parameters(read->model), 0) << text;
  if (read->missing.empty()) {
    EXPECT_THAT(ParseModel(PrintModel(read->model), "model.json").status(),
                ::pipeloom::testing::IsOk())
        << text;
  }
}

TEST(ModelConfigMutantsTest, DamagedValuesNeverCrash) {
  Random random(7);
  const json configs = ReadFixture("configs.json");
  for (const auto& [name, config] : configs.items()) {
    SCOPED_TRACE(name);
    for (int i = 0; i < 60; ++i) {
      json mutant = config;
      const int64_t changes = 1 + random.Below(3);
      for (int64_t c = 0; c < changes; ++c) {
        std::vector<json*> values;
        Gather(mutant, &values);
        if (values.empty()) break;
        json& at = *values[static_cast<size_t>(
            random.Below(static_cast<int64_t>(values.size())))];
        at = OddValue(static_cast<uint64_t>(random.Below(1000)));
      }
      Check(mutant.dump());
    }
  }
}

TEST(ModelConfigMutantsTest, DamagedTextsNeverCrash) {
  Random random(8);
  const json configs = ReadFixture("configs.json");
  for (const auto& [name, config] : configs.items()) {
    SCOPED_TRACE(name);
    const std::string text = config.dump();
    for (int i = 0; i < 20; ++i) {
      std::string mutant = text;
      const auto at =
          static_cast<size_t>(random.Below(static_cast<int64_t>(text.size())));
      if (i % 2 == 0) {
        mutant.resize(at);
      } else {
        mutant[at] = static_cast<char>(random.Below(256));
      }
      Check(mutant);
    }
  }
}

}  // namespace
}  // namespace pipeloom::formats
