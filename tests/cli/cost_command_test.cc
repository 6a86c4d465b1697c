// `pipeloom cost` and `pipeloom calibrate` as programs see them.
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

std::vector<Json> Lines(const std::string& text) {
  std::vector<Json> lines;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(Json::parse(line, nullptr, false));
    EXPECT_FALSE(lines.back().is_discarded()) << line;
  }
  return lines;
}

class CostTest : public ::testing::Test {
 protected:
  CostTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-cost-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~CostTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  std::string Write(const std::string& name, const std::string& contents) {
    EXPECT_TRUE(WriteFileAtomically(Path(name), contents).ok());
    return Path(name);
  }
  Outcome Cost(const std::string& device, const std::string& queries) {
    return Pipeloom({"cost", "--device", device, "--queries",
                     Write("q.jsonl", queries), "--data-dir",
                     PIPELOOM_SOURCE_DIR "/workloads"});
  }

  std::string folder_;
};

constexpr char kEveryOp[] =
    R"({"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bf16"}
{"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "pass": "input_grad"}
{"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "pass": "weight_grad"}
{"op": "gemm", "m": 4000, "n": 4096, "k": 4096, "dtype": "fp8"}
{"op": "grouped_gemm", "groups": 8, "m": 512, "n": 4096, "k": 1024}
{"op": "attention", "batch": 2, "seq": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "mask": "causal", "dtype": "bf16", "pass": "forward"}
{"op": "attention", "batch": 2, "seq": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "mask": "full", "pass": "backward"}
{"op": "rmsnorm", "tokens": 8192, "width": 4096}
{"op": "layernorm", "tokens": 8192, "width": 4096, "pass": "backward"}
{"op": "softmax", "tokens": 8192, "width": 4096}
{"op": "add", "tokens": 8192, "width": 4096}
{"op": "rope", "tokens": 8192, "width": 4096}
{"op": "embedding", "tokens": 8192, "width": 4096}
{"op": "gelu", "tokens": 8192, "width": 4096}
{"op": "swiglu", "tokens": 8192, "width": 14336}
{"op": "optimizer", "parameters": 100000000, "dtype": "fp32"}
{"op": "moe", "tokens": 4096, "width": 7168, "ffn": 2048, "experts": 32, "top_k": 8}
{"op": "moe", "tokens": 4096, "width": 7168, "ffn": 2048, "experts": 32, "top_k": 8, "pass": "backward"}
{"op": "small_layer", "tokens": 16, "width": 64, "kernels": 25}
{"op": "all_reduce", "bytes": 1048576, "ranks": 8, "span": "node"}
{"op": "all_gather", "bytes": 1048576, "ranks": 8, "span": "node"}
{"op": "reduce_scatter", "bytes": 1048576, "ranks": 4}
{"op": "all_to_all", "bytes": 1048576, "ranks": 8}
{"op": "all_to_all", "bytes": 1048576, "ranks": 64, "span": "inter_node"}
{"op": "all_reduce", "bytes": 1048576, "ranks": 16, "span": "inter_node"}
{"op": "all_gather", "bytes": 1048576, "ranks": 4, "span": "inter_node", "ranks_per_node": 2}
{"op": "send_recv", "bytes": 1048576, "ranks": 2, "span": "node"}
{"op": "send_recv", "bytes": 1048576, "ranks": 2, "span": "inter_node"}
)";

TEST_F(CostTest, PricesEveryOperatorOnEveryDevice) {
  for (const char* device : {"a100-sxm", "h100-sxm", "h200-sxm", "h800-sxm",
                             "h20", "b200-sxm", "l40s"}) {
    SCOPED_TRACE(device);
    std::string queries = kEveryOp;
    if (std::string(device) == "a100-sxm") {
      queries.replace(queries.find("fp8"), 3, "fp16");
    }
    const Outcome outcome = Cost(device, queries);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    const std::vector<Json> asked = Lines(queries);
    const std::vector<Json> answers = Lines(outcome.out);
    ASSERT_EQ(answers.size(), asked.size());
    for (size_t i = 0; i < asked.size(); ++i) {
      Json rest = answers[i];
      EXPECT_GT(rest["time_us"].get<double>(), 0.5) << rest;
      EXPECT_LT(rest["time_us"].get<double>(), 1e5) << rest;
      EXPECT_THAT(rest["source"].get<std::string>(),
                  AnyOf("measured", "interpolated", "roofline"));
      rest.erase("time_us");
      rest.erase("source");
      EXPECT_EQ(rest, asked[i]);
    }
  }
}

// An A100 multiplies fp8 as bf16, and no point of it was measured as fp8.
TEST_F(CostTest, Fp8OfADeviceWithoutItIsNotMeasured) {
  const std::string sizes = R"({"op": "gemm", "m": 4096, "n": 4096, "k": 4096)";
  const Outcome outcome =
      Cost("a100-sxm", sizes + R"(, "dtype": "bf16"})" + "\n" + sizes +
                           R"(, "dtype": "fp8"})" + "\n");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = Lines(outcome.out);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_EQ(lines[0]["source"], "measured");
  EXPECT_EQ(lines[1]["source"], "interpolated");
  EXPECT_EQ(lines[0]["time_us"], lines[1]["time_us"]);
}

TEST_F(CostTest, NamesTheLineTheFieldAndTheValueAndKeepsWhatCameBefore) {
  const Outcome outcome =
      Cost("h100-sxm",
           "{\"op\": \"add\", \"tokens\": 64, \"width\": 64}\n\n"
           "{\"op\": \"add\", \"tokens\": -64, \"width\": 64}\n"
           "{\"op\": \"add\", \"tokens\": 64, \"width\": 64}\n");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("q.jsonl:3"),
                                 HasSubstr("field \"tokens\" is -64")));
  EXPECT_THAT(Lines(outcome.out), SizeIs(1));
}

TEST_F(CostTest, WarnsOnceOfFieldsThatAreNotUsed) {
  const Outcome outcome =
      Cost("h100-sxm",
           "{\"op\": \"add\", \"tokens\": 64, \"width\": 64, \"id\": 1}\n"
           "{\"op\": \"add\", \"tokens\": 64, \"width\": 64, \"id\": 2}\n");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err, HasSubstr("q.jsonl:1: field \"id\""));
  EXPECT_EQ(outcome.err.find("\"id\""), outcome.err.rfind("\"id\""));
  EXPECT_EQ(Lines(outcome.out)[1]["id"], 2);
}

TEST_F(CostTest, ReadsTheStandardInputWithoutALastLineEnd) {
  std::istringstream in("{\"op\": \"optimizer\", \"parameters\": 1000}");
  std::streambuf* const before = std::cin.rdbuf(in.rdbuf());
  const Outcome outcome =
      Pipeloom({"cost", "--device", "h100-sxm", "--queries", "-", "--data-dir",
                PIPELOOM_SOURCE_DIR "/workloads"});
  std::cin.rdbuf(before);
  std::cin.clear();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(Lines(outcome.out), SizeIs(1));
}

TEST_F(CostTest, RefusesALineWithoutEnd) {
  const Outcome outcome = Cost("h100-sxm", std::string(3 << 20, 'x'));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("q.jsonl:1: the line is longer than"));
}

TEST_F(CostTest, ReadsLinesOfAnyLength) {
  for (const int length : {4090, 4094, 4095, 4096, 4097, 8190, 8191, 8192}) {
    std::string line =
        "{\"op\": \"add\", \"tokens\": 64, \"width\": 64, \"note\": \"";
    line += std::string(static_cast<size_t>(length) - line.size() - 2, 'x');
    line += "\"}";
    ASSERT_EQ(line.size(), static_cast<size_t>(length));
    const Outcome outcome = Cost("h100-sxm", absl::StrCat(line, "\n", line));
    EXPECT_EQ(outcome.code, 0) << length << ": " << outcome.err;
    EXPECT_THAT(Lines(outcome.out), SizeIs(2)) << length;
  }
}

TEST_F(CostTest, SaysWhichDevicesThereAre) {
  const Outcome outcome = Cost("h100", "{}\n");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("\"h100\""), HasSubstr("h100-sxm")));
  EXPECT_EQ(Pipeloom({"cost", "--queries", "q"}).code, 2);
  EXPECT_EQ(Pipeloom({"cost", "--device", "h100-sxm"}).code, 2);
  EXPECT_EQ(Pipeloom({"cost", "--device", "h20", "--queries", "/none"}).code,
            1);
}

// Another collection than the one that the curves come from: AIConfigurator
// @095f58a5 (Apache-2.0), NCCL 2.27.3 on H100 and 2.26.2 on H200, half, us at
// 16 KiB times powers of four. The curves are NCCL 2.29.2.
struct OlderCurve {
  const char* device;
  const char* op;
  int ranks;
  double us[8];
};
constexpr OlderCurve kOlder[] = {
    {"h100-sxm", "all_reduce", 2, {7.3, 7.5, 9, 14.6, 33, 81.4, 253, 881.2}},
    {"h100-sxm",
     "all_reduce",
     4,
     {11, 11.5, 11.8, 18.3, 41.8, 99.4, 324, 1189.4}},
    {"h100-sxm",
     "all_reduce",
     8,
     {16.7, 18.7, 19.4, 25.4, 50.5, 122.5, 324, 1092.7}},
    {"h100-sxm",
     "all_gather",
     2,
     {6.3, 6.3, 7.6, 11.4, 27, 56.3, 160.1, 549.3}},
    {"h100-sxm",
     "all_gather",
     4,
     {8.7, 9.3, 9.2, 13.6, 36.9, 65.8, 190.1, 662}},
    {"h100-sxm",
     "all_gather",
     8,
     {11.2, 13.2, 13.6, 17.1, 33.4, 67.8, 209.3, 731.4}},
    {"h100-sxm",
     "reduce_scatter",
     2,
     {6.5, 6.7, 7.3, 10.6, 23.7, 52.8, 169.2, 586.4}},
    {"h100-sxm",
     "reduce_scatter",
     4,
     {8, 8.4, 8.7, 11.8, 33.1, 59.4, 190.8, 677.9}},
    {"h100-sxm",
     "reduce_scatter",
     8,
     {11.1, 11.8, 12.1, 14.7, 29.7, 71.1, 200.8, 721.7}},
    {"h100-sxm",
     "all_to_all",
     2,
     {8, 11.8, 14.4, 14.8, 21.4, 56, 140.3, 500.7}},
    {"h100-sxm",
     "all_to_all",
     4,
     {7.6, 9.7, 14.3, 16.9, 24.5, 70.4, 184, 631.4}},
    {"h100-sxm",
     "all_to_all",
     8,
     {7.3, 11.5, 13.1, 16.2, 26.4, 72.6, 218.4, 764.9}},
    {"h200-sxm",
     "all_reduce",
     2,
     {7.2, 7.3, 8.7, 14.3, 32.5, 76.3, 245, 885.5}},
    {"h200-sxm",
     "all_reduce",
     4,
     {10.9, 11.3, 11.6, 18.1, 40.1, 97.9, 324.1, 1181.3}},
    {"h200-sxm",
     "all_reduce",
     8,
     {17.8, 19.3, 20.5, 27.7, 52.8, 121.4, 321.1, 1055.8}},
    {"h200-sxm", "all_gather", 2, {6, 6.3, 7.2, 11.3, 26.5, 54, 157.3, 546.5}},
    {"h200-sxm",
     "all_gather",
     4,
     {8.6, 8.9, 9, 13.5, 35.8, 64.4, 191.2, 660.8}},
    {"h200-sxm",
     "all_gather",
     8,
     {13.3, 14.8, 17.7, 18.8, 35.8, 66.5, 207.6, 722.1}},
    {"h200-sxm",
     "reduce_scatter",
     2,
     {6.6, 6, 7.2, 10.4, 23.5, 50.4, 164.9, 584.8}},
    {"h200-sxm",
     "reduce_scatter",
     4,
     {7.9, 8.2, 8.5, 11.7, 32.8, 57.7, 190.9, 670.6}},
    {"h200-sxm",
     "reduce_scatter",
     8,
     {11.2, 13.7, 14.4, 17, 31.4, 69, 203.2, 716.2}},
    {"h200-sxm",
     "all_to_all",
     2,
     {8, 11.2, 13.4, 13.8, 19.6, 50.8, 136.9, 470.5}},
    {"h200-sxm",
     "all_to_all",
     4,
     {7.5, 9.7, 13.5, 14.8, 22.9, 62.2, 181.3, 626.3}},
    {"h200-sxm",
     "all_to_all",
     8,
     {9.3, 10.5, 14.4, 16.2, 27.5, 71.6, 214.5, 756.4}},
};

TEST_F(CostTest, PredictsCollectivesOfAnotherCollection) {
  for (const std::string device : {"h100-sxm", "h200-sxm"}) {
    std::string queries;
    std::vector<double> measured;
    std::vector<bool> large;
    for (const OlderCurve& curve : kOlder) {
      if (curve.device != device) continue;
      int64_t bytes = 16384;
      for (const double us : curve.us) {
        absl::StrAppendFormat(
            &queries, "{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %d}\n",
            curve.op, curve.ranks, bytes);
        measured.push_back(us);
        large.push_back(bytes >= 1 << 20);
        bytes *= 4;
      }
    }
    const Outcome outcome = Cost(device, queries);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::vector<Json> answers = Lines(outcome.out);
    ASSERT_EQ(answers.size(), measured.size());
    double sum[2] = {0, 0};
    int count[2] = {0, 0};
    for (size_t i = 0; i < answers.size(); ++i) {
      const double us = answers[i]["time_us"].get<double>();
      sum[large[i] ? 1 : 0] += std::abs(us / measured[i] - 1);
      ++count[large[i] ? 1 : 0];
      EXPECT_THAT(answers[i]["source"].get<std::string>(),
                  AnyOf("measured", "interpolated"));
    }
    const double small_error = sum[0] / count[0];
    const double large_error = sum[1] / count[1];
    std::printf("%s: %.1f %% at 1 MiB and more, %.1f %% below\n",
                device.c_str(), 100 * large_error, 100 * small_error);
    EXPECT_LE(large_error, 0.05);
    EXPECT_LE(small_error, 0.1);
  }
}

// ---- calibrate -------------------------------------------------------------

// Products of a device of 80 % of an H100's peak, 3 us a launch.
std::string Products(double slowness) {
  std::string csv = "op,device,dtype,pass,m,n,k,time_us\n";
  for (const int64_t n : {1024, 2048, 4096, 8192}) {
    for (const int64_t k : {1024, 4096, 16384}) {
      for (int64_t m = 128; m <= 16384; m *= 2) {
        const double flops = 2.0 * static_cast<double>(m * n * k);
        absl::StrAppendFormat(&csv,
                              "gemm,h100-sxm,bf16,forward,%d,%d,%d,%.3f\n", m,
                              n, k, 3 + slowness * flops / (0.8 * 989e6));
      }
    }
  }
  return csv;
}

TEST_F(CostTest, AProfileThatWasCalibratedGivesItsMeasurementsBack) {
  const Outcome made = Pipeloom(
      {"calibrate", "--device", "h100-sxm", "--measurements",
       Write("g.csv", Products(1)), "--out", Path("p.json"), "--data-dir",
       PIPELOOM_SOURCE_DIR "/workloads", "--format", "json"});
  ASSERT_EQ(made.code, 0) << made.err;
  const Json report = Json::parse(made.out, nullptr, false);
  ASSERT_EQ(report["errors"].size(), 1u) << made.out;
  EXPECT_EQ(report["errors"][0]["op"], "gemm");
  EXPECT_EQ(report["errors"][0]["sites"], 12);
  EXPECT_LT(report["errors"][0]["median_error_ratio"].get<double>(), 0.1);
  const Outcome cost = Pipeloom(
      {"cost", "--device", "h100-sxm", "--profile", Path("p.json"), "--queries",
       Write("q",
             "{\"op\": \"gemm\", \"m\": 1024, \"n\": 4096, \"k\": 4096}\n"
             "{\"op\": \"gemm\", \"m\": 1500, \"n\": 3072, \"k\": 4096}"),
       "--data-dir", PIPELOOM_SOURCE_DIR "/workloads"});
  ASSERT_EQ(cost.code, 0) << cost.err;
  const std::vector<Json> answers = Lines(cost.out);
  ASSERT_THAT(answers, SizeIs(2));
  const double expected = 3 + 2.0 * 1024 * 4096 * 4096 / (0.8 * 989e6);
  EXPECT_NEAR(answers[0]["time_us"].get<double>(), expected, 2e-3);
  EXPECT_EQ(answers[0]["source"], "measured");
  EXPECT_EQ(answers[1]["source"], "interpolated");
  const double between = 3 + 2.0 * 1500 * 3072 * 4096 / (0.8 * 989e6);
  EXPECT_NEAR(answers[1]["time_us"].get<double>(), between, 0.15 * between);
}

TEST_F(CostTest, CalibrateSaysWhyItRefusesAndWritesNothing) {
  const Outcome outcome =
      Pipeloom({"calibrate", "--device", "h100-sxm", "--measurements",
                Write("g.csv", Products(0.5)), "--out", Path("p.json"),
                "--data-dir", PIPELOOM_SOURCE_DIR "/workloads"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("non-physical"), HasSubstr("g.csv:"),
                                 HasSubstr("TFLOP/s")));
  EXPECT_FALSE(FileExists(Path("p.json")));
}

TEST_F(CostTest, CalibrateNeedsTheRatesOfADeviceThatDoesNotShip) {
  const std::string csv = Write("g.csv", "m,n,k,us\n1,2,3,4\n");
  const Outcome outcome = Pipeloom(
      {"calibrate", "--device", "x1", "--measurements", csv, "--out",
       Path("p.json"), "--data-dir", PIPELOOM_SOURCE_DIR "/workloads"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--peak-tflops"));
  EXPECT_EQ(Pipeloom({"calibrate", "--device", "x1"}).code, 2);
}

}  // namespace
}  // namespace pipeloom::cli
