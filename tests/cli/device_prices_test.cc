// Which profile prices a job's operators, and what the commands say of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/console/files.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;
using Args = std::vector<std::string>;

constexpr char kWorkloads[] = PIPELOOM_SOURCE_DIR "/workloads";
constexpr char kNoProfile[] = "there is no measured profile of device \"";

Json ReadJson(const std::string& path) {
  const auto text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << path;
  return Json::parse(text.value_or("{}"));
}

int NumNotes(const std::string& err, const std::string& part) {
  std::istringstream lines(err);
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    count += absl::StartsWith(line, "note: ") && absl::StrContains(line, part);
  }
  return count;
}

class DevicePricesTest : public ::testing::Test {
 protected:
  DevicePricesTest() {
    std::string name = ::testing::TempDir() + "/pipeloom-prices-XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~DevicePricesTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const Json& json) {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(WriteFileAtomically(path, json.dump()).ok());
    return path;
  }
  // Writes the shipped H100 cluster with another device's name.
  std::string Cluster(const std::string& device) {
    Json cluster =
        ReadJson(absl::StrCat(kWorkloads, "/clusters/h100-sxm.json"));
    cluster["device"]["name"] = device;
    return Write("cluster-" + device + ".json", cluster);
  }
  // Writes the A100's profile as one of another device, of the H100's rates, so
  // that no prices but these are the same.
  std::string Profile(const std::string& device,
                      const std::string& name = "own.json") {
    Json profile =
        ReadJson(absl::StrCat(kWorkloads, "/profiles/a100-sxm.json"));
    profile["device"] = device;
    profile["rates"] =
        ReadJson(absl::StrCat(kWorkloads, "/profiles/h100-sxm.json"))["rates"];
    return Write(name, profile);
  }
  // Makes a data folder with one profile.
  std::string DataWith(const std::string& file, const std::string& device) {
    const std::string data = folder_ + "/data";
    std::filesystem::create_directories(data + "/profiles");
    for (const char* name : {"jobs", "models", "clusters", "batches"}) {
      std::filesystem::create_directory_symlink(
          absl::StrCat(kWorkloads, "/", name), absl::StrCat(data, "/", name));
    }
    Profile(device, "data/profiles/" + file);
    return data;
  }
  static Outcome On(const std::string& command, const std::string& cluster,
                    const Args& more = {}) {
    Args args = {command,      "dip-vlm-s", "--batch", "image_text",
                 "--replicas", "1",         "--set",   "cluster=" + cluster};
    if (command != "partition") {
      args.insert(args.end(), {"--evaluations", "1"});
    }
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  }
  static double StepTime(const Outcome& planned) {
    EXPECT_EQ(planned.code, 0) << planned.err;
    const Json json = Json::parse(planned.out, nullptr, false);
    return json.is_discarded() ? 0
                               : json["steps"][0]["step_time_us"].get<double>();
  }
  static double PlanTime(const std::string& cluster, Args more = {}) {
    more.insert(more.end(), {"--format", "json"});
    return StepTime(On("plan", cluster, more));
  }

  std::string folder_;
};

TEST_F(DevicePricesTest, EveryCommandThatPlansSaysOnceThatThereIsNoProfile) {
  const std::string cluster = Cluster("mygpu");
  const struct {
    const char* command;
    Args more;
  } cases[] = {{"plan", {}},
               {"compare", {"--strategies", "1f1b"}},
               {"partition", {"--tries", "1"}},
               {"emulate", {}},
               {"whatif", {"--sweep", "training.microbatches=8"}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.command);
    const Outcome outcome = On(c.command, cluster, c.more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(NumNotes(outcome.err, absl::StrCat(kNoProfile, "mygpu\"")), 1)
        << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("--profile FILE"));
  }
  const Outcome asked = On("plan", cluster, {"--costs", "roofline"});
  EXPECT_EQ(asked.code, 0);
  EXPECT_THAT(asked.err, Not(HasSubstr("profile")));
  EXPECT_THAT(On("plan", "h100-sxm").err, Not(HasSubstr("profile")));
}

TEST_F(DevicePricesTest, AGivenProfilePricesAsTheSameOneInTheDataFolder) {
  const std::string cluster = Cluster("mygpu");
  const std::string own = Profile("mygpu");
  const double given = PlanTime(cluster, {"--profile", own});
  EXPECT_EQ(given,
            PlanTime(cluster, {"--data-dir", DataWith("mygpu.json", "mygpu")}));
  EXPECT_NE(given, PlanTime(cluster));
  EXPECT_THAT(On("plan", cluster, {"--profile", own}).err,
              Not(HasSubstr("profile")));
  // If there are several, each is for its own device.
  const std::string other = Profile("h100-sxm", "other.json");
  EXPECT_EQ(PlanTime("h100-sxm", {"--profile", other}), given);
}

TEST_F(DevicePricesTest, AProfileOfNoDeviceOfTheJobIsRefusedWithBothNames) {
  const std::string own = Profile("mygpu");
  for (const char* command : {"plan", "compare", "partition", "emulate"}) {
    const Outcome outcome = On(command, "h100-sxm", {"--profile", own});
    EXPECT_EQ(outcome.code, 2) << command;
    EXPECT_THAT(
        outcome.err,
        AllOf(HasSubstr("--profile " + own + ": is of device mygpu"),
              HasSubstr("has h100-sxm"), HasSubstr("give a profile of that")));
  }
  const Outcome both =
      On("plan", Cluster("mygpu"), {"--profile", own, "--costs", "roofline"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--profile and --costs roofline"));
  // The name of a file in the data folder is a device, too.
  const Outcome named = On("plan", Cluster("mygpu"),
                           {"--data-dir", DataWith("mygpu.json", "h100-sxm")});
  EXPECT_EQ(named.code, 1);
  EXPECT_THAT(named.err,
              AllOf(HasSubstr("profiles/mygpu.json: field \"device\" is "
                              "\"h100-sxm\"; it must be \"mygpu\"")));
}

TEST_F(DevicePricesTest, ADeviceWithoutAProfileHasThatOfItsFamilyEverywhere) {
  const std::string cluster =
      absl::StrCat(kWorkloads, "/validation/h100-96g.json");
  const std::string note =
      absl::StrCat(kNoProfile, "h100-96g\": that of h100-sxm prices");
  for (const char* command : {"plan", "compare", "emulate"}) {
    SCOPED_TRACE(command);
    const Outcome outcome =
        On(command, cluster,
           std::string(command) == "compare" ? Args{"--strategies", "1f1b"}
                                             : Args{});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(NumNotes(outcome.err, note), 1) << outcome.err;
  }
  EXPECT_NE(PlanTime(cluster), PlanTime(cluster, {"--costs", "roofline"}));

  const Outcome cost = Pipeloom(
      {"cost",
       Write("q.jsonl", Json{{"op", "add"}, {"tokens", 8192}, {"width", 4096}}),
       "--device", cluster});
  EXPECT_EQ(cost.code, 0) << cost.err;
  EXPECT_EQ(NumNotes(cost.err, note), 1) << cost.err;

  // A measured run of that device is priced as it is planned.
  const Outcome backtest =
      Pipeloom({"backtest", "torchtitan", "--format", "json"});
  ASSERT_EQ(backtest.code, 0) << backtest.err;
  for (const Json& run : Json::parse(backtest.out)["runs"]) {
    EXPECT_EQ(run["prices"], "h100-sxm");
  }
  const Outcome rates = Pipeloom(
      {"backtest", "torchtitan", "--format", "json", "--costs", "roofline"});
  for (const Json& run : Json::parse(rates.out)["runs"]) {
    EXPECT_EQ(run["prices"], "roofline");
  }
}

TEST_F(DevicePricesTest, WhatIfSaysItOfTheDevicesOfItsChanges) {
  const std::string own = Profile("mygpu");
  const Args vary = {"--sweep", "cluster=gb200-nvl72," + Cluster("mygpu")};
  const Outcome none = On("whatif", "h100-sxm", vary);
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_EQ(NumNotes(none.err, absl::StrCat(kNoProfile, "gb200\"")), 1)
      << none.err;
  EXPECT_EQ(NumNotes(none.err, absl::StrCat(kNoProfile, "mygpu\"")), 1)
      << none.err;
  Args with = vary;
  with.insert(with.end(), {"--profile", own});
  const Outcome given = On("whatif", "h100-sxm", with);
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_THAT(given.err, Not(HasSubstr(absl::StrCat(kNoProfile, "mygpu\""))));
  EXPECT_EQ(NumNotes(given.err, "it prices only changes to that device"), 1)
      << given.err;
  EXPECT_NE(none.out, given.out);
}

TEST_F(DevicePricesTest, ABacktestTakesAGivenProfile) {
  const Outcome shipped = Pipeloom({"backtest", "torchtitan"});
  EXPECT_THAT(shipped.out, HasSubstr("prices"));
  const Outcome given =
      Pipeloom({"backtest", "torchtitan", "--profile", Profile("h100-sxm")});
  EXPECT_EQ(given.code, 0) << given.err;
  EXPECT_NE(given.out, shipped.out);
  const Outcome other =
      Pipeloom({"backtest", "torchtitan", "--profile", Profile("mygpu")});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("is of device mygpu"),
                               HasSubstr("have h100-96g")));
}

TEST_F(DevicePricesTest, CostTakesTheLinksAndTheProfileOfAClusterFile) {
  const std::string queries = Write(
      "q.jsonl", Json{{"op", "all_gather"}, {"bytes", 67108864}, {"ranks", 8}});
  const auto cost = [&](const Args& more) {
    Args args = {"cost", queries};
    args.insert(args.end(), more.begin(), more.end());
    return Pipeloom(args);
  };
  const std::string own = Profile("mygpu");
  const std::string cluster = Cluster("mygpu");
  const Outcome rates = cost({"--device", cluster});
  EXPECT_EQ(rates.code, 0) << rates.err;
  EXPECT_EQ(NumNotes(rates.err, absl::StrCat(kNoProfile, "mygpu\"")), 1);
  EXPECT_EQ(Json::parse(rates.out)["source"], "roofline");
  const Outcome measured = cost({"--device", cluster, "--profile", own});
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.err, IsEmpty());
  EXPECT_NE(measured.out, rates.out);
  // The profile of a shipped cluster's device.
  EXPECT_NE(Json::parse(cost({"--device", "dip-h800-64"}).out)["source"],
            "roofline");
  const Outcome other = cost({"--device", "h100-sxm", "--profile", own});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr(own + ": is of device mygpu, not of "
                                         "h100-sxm"));
  EXPECT_THAT(cost({"--device", "./no-file.json", "--profile", own}).err,
              HasSubstr("no-file.json"));
}

TEST_F(DevicePricesTest, AProfileIsValidated) {
  const Outcome good = Pipeloom({"validate", Profile("mygpu")});
  EXPECT_EQ(good.code, 0) << good.out;
  EXPECT_THAT(good.out, HasSubstr("OK, profile of mygpu: "));
  Json broken = ReadJson(Profile("mygpu"));
  broken["rates"].erase("bytes_per_second");
  const Outcome bad = Pipeloom({"validate", Write("bad.json", broken)});
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.out,
              AllOf(HasSubstr("bytes_per_second"), Not(HasSubstr("cluster"))));
}

}  // namespace
}  // namespace pipeloom::cli
