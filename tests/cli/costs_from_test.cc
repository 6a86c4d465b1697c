// --costs-from: plans with the times of a trace.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class CostsFromTest : public ::testing::Test {
 protected:
  CostsFromTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-costs-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~CostsFromTest() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  static std::vector<std::string> Small(const char* command,
                                        std::vector<std::string> more) {
    std::vector<std::string> args = {
        command, "dip-vlm-s",     "--batch", "image_text",     "--strategy",
        "1f1b",  "--evaluations", "1",       "--microbatches", "4"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  // Time of all tasks by module and pass, in microseconds.
  std::map<std::string, double> TaskTimes(const std::string& trace) const {
    std::map<std::string, double> times;
    const Json read = Json::parse(*ReadFile(trace));
    for (const Json& event : read["traceEvents"]) {
      if (event.value("cat", "") != "task") continue;
      const Json& args = event["args"];
      times[absl::StrCat(args["module"].get<std::string>(), " ",
                         args["pass"].get<std::string>())] +=
          event["dur"].get<double>();
    }
    return times;
  }
  // Returns each task's module and pass, and its time in microseconds.
  std::map<std::string, std::pair<std::string, double>> SpansByTask(
      const std::string& trace) const {
    std::map<std::string, std::pair<std::string, double>> spans;
    const Json read = Json::parse(*ReadFile(trace));
    for (const Json& event : read["traceEvents"]) {
      if (event.value("cat", "") != "task") continue;
      const Json& args = event["args"];
      const std::string name =
          absl::StrCat(args["module"].get<std::string>(), " ",
                       args["pass"].get<std::string>());
      const std::string task = absl::StrCat(name, " ", args["stage"].dump(),
                                            " ", args["microbatch"].dump(), " ",
                                            args["sub_microbatch"].dump());
      spans[task] = {name, event["dur"].get<double>()};
    }
    return spans;
  }
  std::string folder_;
};

// With room for everything: of a backward that makes operator groups again a
// trace does not say which.
TEST_F(CostsFromTest, AStepMeasuredTwiceAsSlowIsPlannedTwiceAsSlow) {
  const Outcome plan = Pipeloom(
      Small("plan", {"--trace", Path("t.json"), "--memory-limit", "400GiB"}));
  ASSERT_EQ(plan.code, 0) << plan.err;
  Json trace = Json::parse(*ReadFile(Path("t.json")));
  for (Json& event : trace["traceEvents"]) {
    for (const char* field : {"ts", "dur"}) {
      if (event.contains(field)) event[field] = 2 * event[field].get<double>();
    }
  }
  // A folder will do as well.
  std::filesystem::create_directory(Path("slow"));
  ASSERT_THAT(WriteFileAtomically(Path("slow/all.json"), trace.dump()), IsOk());
  const Outcome slow =
      Pipeloom(Small("plan", {"--costs-from", Path("slow"), "--trace",
                              Path("slow.json"), "--memory-limit", "400GiB"}));
  ASSERT_EQ(slow.code, 0) << slow.err;
  EXPECT_THAT(slow.err, HasSubstr("strategy 1f1b's partition"));
  const auto before = TaskTimes(Path("t.json"));
  const auto after = TaskTimes(Path("slow.json"));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, time] : before) {
    EXPECT_NEAR(after.at(name) / time, 2, 1e-4) << name;
  }
  // Every schedule of `compare` gets these costs.
  const auto compare = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {
        "compare",        "dip-vlm-s",  "--batch",       "image_text",
        "--strategies",   "1f1b,gpipe", "--evaluations", "1",
        "--microbatches", "4",          "--format",      "json",
        "--memory-limit", "400GiB"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Pipeloom(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["rows"];
  };
  const Json fast_rows = compare({});
  const Json slow_rows = compare({"--costs-from", Path("slow/all.json")});
  for (size_t i = 0; i < 2; ++i) {
    // Transfers and epilogues are as they were.
    const double ratio = slow_rows[i]["mean_step_time_us"].get<double>() /
                         fast_rows[i]["mean_step_time_us"].get<double>();
    EXPECT_GT(ratio, 1.8);
    EXPECT_LE(ratio, 2 + 1e-4);
  }
}

// A trace that the runtime wrote, whatever the machine did meanwhile: no module
// and pass is planned by a factor that is not among those of its tasks.
TEST_F(CostsFromTest, ATraceOfTheRuntimeIsPlannedWithItsTimes) {
  ASSERT_EQ(
      Pipeloom(Small("plan", {"--out", Path("p.pb"), "--trace",
                              Path("priced.json"), "--memory-limit", "400GiB"}))
          .code,
      0);
  const Outcome ran = Pipeloom({"run", "--plan", Path("p.pb"), "--time-scale",
                                "0.02", "--trace", Path("run.json")});
  ASSERT_EQ(ran.code, 0) << ran.err;
  const Outcome plan =
      Pipeloom(Small("plan", {"--costs-from", Path("run.json"), "--trace",
                              Path("t.json"), "--memory-limit", "400GiB"}));
  ASSERT_EQ(plan.code, 0) << plan.err;
  const auto priced = TaskTimes(Path("priced.json"));
  const auto planned = TaskTimes(Path("t.json"));
  ASSERT_EQ(planned.size(), priced.size());
  const auto priced_tasks = SpansByTask(Path("priced.json"));
  const auto measured_tasks = SpansByTask(Path("run.json"));
  ASSERT_EQ(measured_tasks.size(), priced_tasks.size());
  std::map<std::string, std::pair<double, double>> range;
  for (const auto& [task, span] : measured_tasks) {
    const auto& [name, time] = span;
    const double ratio = time / priced_tasks.at(task).second;
    const auto [at, fresh] = range.try_emplace(name, ratio, ratio);
    at->second.first = std::min(at->second.first, ratio);
    at->second.second = std::max(at->second.second, ratio);
  }
  for (const auto& [name, time] : planned) {
    const double factor = time / priced.at(name);
    EXPECT_GE(factor, range.at(name).first * 0.9) << name;
    EXPECT_LE(factor, range.at(name).second * 1.1) << name;
    EXPECT_NE(factor, 1) << name;
  }
}

// Samples are in the microbatches of the step that was measured: of a later
// one, and as the job assigns them.
TEST_F(CostsFromTest, ATraceIsPricedWithTheSamplesOfItsStep) {
  const std::vector<std::vector<std::string>> cases = {
      {"--steps", "3"}, {"--shuffle", "7"}, {"--assignment", "balanced"}};
  for (const std::vector<std::string>& how : cases) {
    SCOPED_TRACE(how[0]);
    std::vector<std::string> more = {"--trace", Path("t.json"),
                                     "--memory-limit", "400GiB"};
    more.insert(more.end(), how.begin(), how.end());
    ASSERT_EQ(Pipeloom(Small("plan", more)).code, 0);
    more = {"--costs-from", Path("t.json"), "--memory-limit", "400GiB"};
    if (how[0] != "--steps") more.insert(more.end(), how.begin(), how.end());
    const Outcome plan = Pipeloom(Small("plan", more));
    ASSERT_EQ(plan.code, 0) << plan.err;
    EXPECT_THAT(plan.err, HasSubstr("encoder forward 1, backward 1; backbone "
                                    "forward 1, backward 1\n"));
  }
  // A trainer counts its steps; the batch has those of the measured one alone.
  Json trace = Json::parse(*ReadFile(Path("t.json")));
  for (Json& event : trace["traceEvents"]) {
    if (event["args"].contains("step")) event["args"]["step"] = 5000;
  }
  ASSERT_THAT(WriteFileAtomically(Path("t.json"), trace.dump()), IsOk());
  const Outcome plan =
      Pipeloom(Small("plan", {"--costs-from", Path("t.json"), "--memory-limit",
                              "400GiB", "--assignment", "balanced"}));
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("the trace is of step 5000"));
  EXPECT_THAT(plan.err, HasSubstr("backbone forward 1, backward 1\n"));
}

// Times of single modules on one GPU, for a job with tensor parallelism.
TEST_F(CostsFromTest, TimesOfPipeloomCaptureScaleTheirModules) {
  const auto outcome = [&](const Json& times, const std::string& trace) {
    EXPECT_THAT(WriteFileAtomically(Path("times.json"), times.dump(1)), IsOk());
    return Pipeloom(
        Small("plan", {"--costs-from", Path("times.json"), "--trace",
                       Path(trace), "--memory-limit", "400GiB"}));
  };
  Json backbone = {{"module", "backbone"},
                   {"layers", 34},
                   {"device", "NVIDIA H100"},
                   {"runs", Json::array()}};
  for (const int instances : {1, 4}) {
    backbone["runs"].push_back({{"tokens", 4096},
                                {"instances", instances},
                                {"output_tokens", 4096},
                                {"forward_us", 1e9},
                                {"backward_us", 1e9}});
  }
  const auto times = [&](double forward_us, double backward_us) {
    for (Json& run : backbone["runs"]) {
      run["forward_us"] = forward_us;
      run["backward_us"] = backward_us;
    }
    return Json{{"captured_times", {backbone}}};
  };
  // Those of another device are an error, which has the priced time.
  const Outcome refused = outcome(times(1e9, 1e9), "no.json");
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, HasSubstr("forwards of backbone take 2e+09 us on "
                                     "NVIDIA H100, and "));
  double forward = 0;
  ASSERT_EQ(
      std::sscanf(refused.err.c_str() + refused.err.find("H100, and ") + 10,
                  "%lf us as priced for", &forward),
      1);
  const Outcome fast = outcome(times(forward / 2, forward), "fast.json");
  ASSERT_EQ(fast.code, 0) << fast.err;
  EXPECT_THAT(fast.err, HasSubstr("backbone forward 1, backward "));
  EXPECT_THAT(fast.err, HasSubstr("no times of vision_encoder were measured"));
  const Outcome slow = outcome(times(forward, 3 * forward), "slow.json");
  ASSERT_EQ(slow.code, 0) << slow.err;
  ASSERT_EQ(Pipeloom(Small("plan", {"--trace", Path("plain.json"),
                                    "--memory-limit", "400GiB"}))
                .code,
            0);
  const auto plain = TaskTimes(Path("plain.json"));
  const auto before = TaskTimes(Path("fast.json"));
  const auto after = TaskTimes(Path("slow.json"));
  EXPECT_NEAR(before.at("backbone forward") / plain.at("backbone forward"), 1,
              1e-3);
  EXPECT_NEAR(after.at("backbone forward") / before.at("backbone forward"), 2,
              1e-4);
  EXPECT_NEAR(after.at("backbone backward") / before.at("backbone backward"), 3,
              1e-4);
  EXPECT_EQ(after.at("vision_encoder forward"),
            plain.at("vision_encoder forward"));

  backbone["layers"] = 33;
  EXPECT_THAT(outcome(times(forward, forward), "no.json").err,
              HasSubstr("it has times of 33 layers of backbone, of which "
                        "dip-vlm-s has 34"));
  backbone["module"] = "text";
  EXPECT_THAT(outcome(times(forward, forward), "no.json").err,
              HasSubstr("it has times of module \"text\"; the modules of "
                        "dip-vlm-s are vision_encoder, backbone"));
  EXPECT_THAT(outcome(times(-1, 1), "no.json").err,
              HasSubstr("captured_times[0].runs[0].forward_us\" is -1"));
  backbone["runs"] = Json::array();
  EXPECT_THAT(outcome(times(1, 1), "no.json").err,
              HasSubstr("field \"runs\" has no items"));
  EXPECT_THAT(outcome(Json{{"captured_times", Json::array()}}, "no.json").err,
              HasSubstr("field \"captured_times\" has no items"));
  backbone = times(1, 1)["captured_times"][0];
  backbone["runs"] = {{{"tokens", 8},
                       {"instances", 1},
                       {"output_tokens", 8},
                       {"forward_us", 1},
                       {"backward_us", 1}}};
  EXPECT_THAT(
      outcome(Json{{"captured_times", {backbone, backbone}}}, "no.json").err,
      HasSubstr("times of module \"text\" are there twice"));
  const Outcome two = Pipeloom(Small(
      "plan", {"--costs-from", Path("times.json") + "," + Path("fast.json")}));
  EXPECT_EQ(two.code, 1);
  EXPECT_THAT(two.err, HasSubstr("times.json has times of pipeloom.capture; it "
                                 "must be the only file"));
}

TEST_F(CostsFromTest, ErrorsSayWhatIsWrong) {
  const Outcome none = Pipeloom(Small("plan", {"--costs-from", Path("no")}));
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.err, HasSubstr("no: no such file"));
  std::filesystem::create_directory(Path("empty"));
  const Outcome empty =
      Pipeloom(Small("plan", {"--costs-from", Path("empty")}));
  EXPECT_EQ(empty.code, 1);
  EXPECT_THAT(empty.err, HasSubstr("no file in this folder ends in .json"));
  const Outcome both = Pipeloom(
      Small("plan", {"--costs-from", Path("no"), "--learned", Path("no")}));
  EXPECT_EQ(both.code, 2);
  ASSERT_EQ(Pipeloom(Small("plan", {"--trace", Path("t.json")})).code, 0);
  const Outcome other =
      Pipeloom({"plan", "dip-vlm-s", "--batch", "image_text", "--strategy",
                "1f1b", "--microbatches", "5", "--costs-from", Path("t.json")});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("only in the job's step; a trace must be of "
                                   "a step of the job"));
}

}  // namespace
}  // namespace pipeloom::cli
