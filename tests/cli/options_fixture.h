// The fixture of tests of all commands: a folder of its own with small files.
#ifndef PIPELOOM_TESTS_CLI_OPTIONS_FIXTURE_H_
#define PIPELOOM_TESTS_CLI_OPTIONS_FIXTURE_H_

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;
using Args = std::vector<std::string>;

inline constexpr char kGraph[] = R"({"ranks": [{}, {}], "tasks": [
  {"id": 0, "rank": 0, "kind": "FORWARD", "duration_us": 2},
  {"id": 1, "rank": 1, "kind": "FORWARD", "duration_us": 1}],
  "edges": [{"from": 0, "to": 1}]})";

inline Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class OptionsTest : public ::testing::Test {
 protected:
  OptionsTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-options-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~OptionsTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  std::string Write(const std::string& name, const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(Path(name), contents).ok());
    return Path(name);
  }
  // A job that is planned at once.
  static Args Small(const std::string& command) {
    return {command,         "dip-vlm-s", "--batch",    "image_text",
            "--evaluations", "1",         "--replicas", "1"};
  }
  // Returns the same plan for all that need one.
  std::string Plan() {
    if (!FileExists(Path("plan.pb"))) {
      const Outcome made =
          Pipeloom(Small("plan") + Args{"--strategy", "1f1b", "--microbatches",
                                        "4", "--out", Path("plan.pb")});
      EXPECT_EQ(made.code, 0) << made.err;
    }
    return Path("plan.pb");
  }
  std::string Measurements() {
    std::string csv = "op,device,dtype,pass,m,n,k,time_us\n";
    for (const int64_t n : {1024, 2048, 4096, 8192}) {
      for (const int64_t k : {1024, 4096, 16384}) {
        for (int64_t m = 128; m <= 16384; m *= 2) {
          const double flops = 2.0 * static_cast<double>(m * n * k);
          absl::StrAppendFormat(&csv,
                                "gemm,h100-sxm,bf16,forward,%d,%d,%d,%.3f\n", m,
                                n, k, 3 + flops / (0.8 * 989e6));
        }
      }
    }
    return Write("gemm.csv", csv);
  }

  std::string folder_;
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_TESTS_CLI_OPTIONS_FIXTURE_H_
