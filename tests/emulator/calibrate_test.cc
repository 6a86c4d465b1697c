#include "emulator/calibration/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

DeviceLimits H100() {
  DeviceLimits limits;
  limits.name = "h100-sxm";
  limits.bf16_flops_per_second = 989e12;
  limits.fp8_flops_per_second = 1978e12;
  limits.memory_bytes_per_second = 3350e9;
  limits.link_bytes_per_second = 450e9;
  return limits;
}

// A device of 75 % of the peak and 80 % of the bandwidth, 3 us a launch.
double TrueUs(const OpQuery& query, double speed = 1) {
  const double compute = FlopsOf(query) / (0.75 * 989e12 * speed);
  const double memory = MemoryBytesOf(query) / (0.8 * 3350e9 * speed);
  return 3 + 1e6 * std::max(compute, memory);
}

OpQuery Gemm(int64_t m, int64_t n, int64_t k) {
  OpQuery query;
  query.m = m;
  query.n = n;
  query.k = k;
  return query;
}

// Products of 36 widths and 8 counts of tokens in a random order, with noise
// of 4 % either way.
MeasurementFile Products(uint64_t seed, double speed = 1) {
  Random random(seed);
  MeasurementFile file;
  file.name = "gemm.csv";
  file.content.low = seed;
  const int64_t widths[] = {1024, 2048, 3072, 4096, 8192, 14336};
  for (const int64_t n : widths) {
    for (const int64_t k : widths) {
      for (int64_t m = 128; m <= 16384; m *= 2) {
        const OpQuery query = Gemm(m, n, k);
        const double noise = 0.96 + 0.08 * random.Unit();
        file.points.push_back({query, TrueUs(query, speed) * noise, 0});
      }
    }
  }
  random.Shuffle(absl::MakeSpan(file.points));
  for (size_t i = 0; i < file.points.size(); ++i) {
    file.points[i].line = static_cast<int32_t>(i) + 2;
  }
  return file;
}

std::vector<RefusalKind> Kinds(const std::vector<Refusal>& refusals) {
  std::vector<RefusalKind> kinds;
  for (const Refusal& refusal : refusals) {
    if (kinds.empty() || kinds.back() != refusal.kind) {
      kinds.push_back(refusal.kind);
    }
  }
  return kinds;
}

std::vector<Refusal> Check(const std::vector<MeasurementFile>& files) {
  return CheckMeasurements(files, H100());
}

// ---- What is fine ----------------------------------------------------------

TEST(MeasurementChecks, FindNothingInSoundData) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_THAT(Check({Products(seed)}), IsEmpty()) << "seed " << seed;
  }
}

TEST(MeasurementChecks, TakeTheNoiseOfUnlockedClocks) {
  MeasurementFile file = Products(1);
  Random random(2);
  for (OpMeasurement& point : file.points) {
    point.time_us *= 0.8 + 0.4 * random.Unit();
  }
  EXPECT_THAT(Check({file}), IsEmpty());
}

TEST(MeasurementChecks, DoNotTakeAnOrderBySizeForADrift) {
  MeasurementFile file = Products(3);
  std::sort(file.points.begin(), file.points.end(),
            [](const OpMeasurement& a, const OpMeasurement& b) {
              return a.time_us < b.time_us;
            });
  EXPECT_THAT(Check({file}), IsEmpty());
}

TEST(MeasurementChecks, KnowADevicesNames) {
  EXPECT_TRUE(SameDevice("NVIDIA H100 80GB HBM3", "h100-sxm"));
  EXPECT_TRUE(SameDevice("h100_sxm", "h100-sxm"));
  EXPECT_TRUE(SameDevice("A100-SXM4-80GB", "a100-sxm"));
  EXPECT_TRUE(SameDevice("L40S", "l40s"));
  EXPECT_TRUE(SameDevice("my-card", "my-card"));
  EXPECT_FALSE(SameDevice("NVIDIA H100 PCIe", "h100-sxm"));
  EXPECT_FALSE(SameDevice("NVIDIA H200", "h100-sxm"));
  EXPECT_FALSE(SameDevice("GB200", "b200-sxm"));
  EXPECT_FALSE(SameDevice("h20", "h200-sxm"));
  EXPECT_FALSE(SameDevice("cpu", "h100-sxm"));
}

// ---- Each refusal ----------------------------------------------------------

TEST(MeasurementChecks, RefuseAFileOfAnotherDevice) {
  MeasurementFile file = Products(1);
  file.devices = {{"NVIDIA H100 80GB HBM3", 2}, {"NVIDIA A100-SXM4-80GB", 9}};
  const std::vector<Refusal> found = Check({file});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, RefusalKind::kMislabelled);
  EXPECT_THAT(found[0].why,
              AllOf(HasSubstr("gemm.csv:9"), HasSubstr("A100-SXM4"),
                    HasSubstr("h100-sxm")));
}

TEST(MeasurementChecks, RefuseASlowerDeviceUnderThisOnesName) {
  // An A100 has 0.32 of an H100's rate.
  EXPECT_THAT(Kinds(Check({Products(1, 0.32)})),
              ::testing::ElementsAre(RefusalKind::kMislabelled));
}

TEST(MeasurementChecks, RefuseFp8OfADeviceWithout) {
  MeasurementFile file = Products(1);
  for (OpMeasurement& point : file.points) {
    point.query.dtype = QueryDtype::kFp8;
  }
  DeviceLimits limits = H100();
  limits.fp8_flops_per_second = 0;
  const std::vector<Refusal> found = CheckMeasurements({file}, limits);
  EXPECT_THAT(Kinds(found), ::testing::ElementsAre(RefusalKind::kMislabelled));
  EXPECT_THAT(found[0].why, HasSubstr("fp8"));
}

TEST(MeasurementChecks, RefuseTheSameFileTwice) {
  MeasurementFile copy = Products(1);
  copy.name = "h200.csv";
  const std::vector<Refusal> found = Check({Products(1), copy});
  EXPECT_THAT(Kinds(found),
              ::testing::ElementsAre(RefusalKind::kDuplicateFile));
  EXPECT_THAT(found[0].why,
              AllOf(HasSubstr("h200.csv"), HasSubstr("gemm.csv")));
}

TEST(MeasurementChecks, RefuseRowsThatDisagree) {
  MeasurementFile file = Products(1);
  OpMeasurement again = file.points[40];
  again.time_us *= 2.5;
  again.line = 999;
  file.points.push_back(again);
  const std::vector<Refusal> found = Check({file});
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].kind, RefusalKind::kDisagreeing);
  EXPECT_THAT(found[0].why,
              AllOf(HasSubstr("gemm.csv:999"), HasSubstr("gemm.csv:42")));
}

TEST(MeasurementChecks, RefuseMoreThanThePeak) {
  // Faster than the device: fp8 times under the name of bf16.
  const std::vector<Refusal> found = Check({Products(1, 1.9)});
  ASSERT_THAT(found, SizeIs(3)) << "a few of a kind are enough";
  EXPECT_THAT(found, Each(Field(&Refusal::kind, RefusalKind::kNonPhysical)));
  EXPECT_THAT(found[0].why,
              AllOf(HasSubstr("TFLOP/s"), HasSubstr("989 in bf16")));
}

TEST(MeasurementChecks, RefuseATimeInAnotherUnit) {
  const std::pair<double, const char*> cases[] = {
      {1e3, "Is the unit right? It is about 1e3"},
      {1e6, "Is the unit right? It is about 1e6"},
      {60, "Was the GPU interrupted?"}};
  for (const auto& [factor, says] : cases) {
    SCOPED_TRACE(factor);
    MeasurementFile file = Products(1);
    // The largest product has no larger one that would take less time.
    const auto largest =
        std::max_element(file.points.begin(), file.points.end(),
                         [](const OpMeasurement& a, const OpMeasurement& b) {
                           return FlopsOf(a.query) < FlopsOf(b.query);
                         });
    largest->time_us *= factor;
    const std::vector<Refusal> found = Check({file});
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].kind, RefusalKind::kNonPhysical);
    EXPECT_THAT(found[0].why,
                AllOf(HasSubstr(absl::StrCat("gemm.csv:", largest->line, ":")),
                      HasSubstr(says)));
  }
}

TEST(MeasurementChecks, RefuseMoreThanTheMemorysBandwidth) {
  MeasurementFile file;
  file.name = "norms.csv";
  for (int64_t tokens = 1024; tokens <= 262144; tokens *= 2) {
    OpQuery query;
    query.op = OpType::kRmsNorm;
    query.tokens = tokens;
    query.width = 8192;
    file.points.push_back({query, TrueUs(query, 2), 2});
  }
  const std::vector<Refusal> found = Check({file});
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].kind, RefusalKind::kNonPhysical);
  EXPECT_THAT(found[0].why, HasSubstr("3350 of memory"));
}

MeasurementFile AllReduces(double bytes_per_second) {
  MeasurementFile file;
  file.name = "nccl.csv";
  for (int64_t bytes = 1024; bytes <= int64_t{1} << 30; bytes *= 4) {
    OpQuery query;
    query.op = OpType::kAllReduce;
    query.ranks = 8;
    query.bytes = bytes;
    const double wire = static_cast<double>(bytes) * 7 / 4;
    file.points.push_back({query, 10 + wire / bytes_per_second * 1e6, 2});
  }
  return file;
}

TEST(MeasurementChecks, RefuseMoreThanTheLinks) {
  // Switches that add may double a link's rate, no more.
  EXPECT_THAT(Check({AllReduces(480e9)}), IsEmpty());
  const std::vector<Refusal> found = Check({AllReduces(1200e9)});
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].kind, RefusalKind::kNonPhysical);
  EXPECT_THAT(found[0].why, HasSubstr("on the wire"));
}

TEST(MeasurementChecks, RefuseMoreWorkInMuchLessTime) {
  MeasurementFile file = Products(1);
  // Times of other rows: physical, mostly, but without order.
  std::vector<double> times;
  for (const OpMeasurement& p : file.points) times.push_back(p.time_us);
  for (size_t i = 0; i + 1 < times.size(); i += 2) {
    const double longer = std::max(times[i], times[i + 1]);
    file.points[i].time_us = longer;
    file.points[i + 1].time_us = longer;
  }
  const std::vector<Refusal> found = Check({file});
  EXPECT_THAT(Kinds(found), ::testing::Contains(RefusalKind::kNonMonotone));
}

TEST(MeasurementChecks, RefuseOneWildPointAmongFew) {
  MeasurementFile file;
  file.name = "few.csv";
  for (int64_t m = 128; m <= 32768; m *= 2) {
    const OpQuery query = Gemm(m, 4096, 4096);
    file.points.push_back({query, TrueUs(query), 2});
  }
  EXPECT_THAT(Check({file}), IsEmpty());
  file.points[5].time_us *= 10;
  EXPECT_THAT(Kinds(Check({file})),
              ::testing::Contains(RefusalKind::kNonMonotone));
}

TEST(MeasurementChecks, RefuseAColdStart) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    MeasurementFile file = Products(seed);
    for (size_t i = 0; i < 8; ++i) file.points[i].time_us *= 1.9;
    const std::vector<Refusal> found = Check({file});
    EXPECT_THAT(Kinds(found), ::testing::ElementsAre(RefusalKind::kColdStart))
        << "seed " << seed;
    EXPECT_THAT(found[0].why, HasSubstr("warm-up")) << "seed " << seed;
  }
}

TEST(MeasurementChecks, RefuseClocksThatDrift) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    MeasurementFile file = Products(seed);
    const auto n = static_cast<double>(file.points.size());
    for (size_t i = 0; i < file.points.size(); ++i) {
      file.points[i].time_us *= 1.8 - 0.8 * static_cast<double>(i) / n;
    }
    const std::vector<Refusal> found = Check({file});
    EXPECT_THAT(Kinds(found), ::testing::ElementsAre(RefusalKind::kColdStart))
        << "seed " << seed;
    EXPECT_THAT(found[0].why, HasSubstr("not steady")) << "seed " << seed;
  }
}

TEST(MeasurementChecks, RefuseTooFewPoints) {
  MeasurementFile file = Products(1);
  file.points.resize(5);
  const std::vector<Refusal> found = Check({file});
  EXPECT_THAT(Kinds(found), ::testing::ElementsAre(RefusalKind::kTooFew));
  EXPECT_THAT(found[0].why, HasSubstr("5 shapes"));
  EXPECT_THAT(Kinds(Check({})), ::testing::ElementsAre(RefusalKind::kTooFew));
}

// ---- Cross-validation ------------------------------------------------------

TEST(CrossValidation, PredictsASiteFromOthersOnly) {
  const MeasurementFile file = Products(1);
  int folds = 0;
  const auto errors =
      CrossValidate(file.points, 4, [&](absl::Span<const OpMeasurement> seen) {
        ++folds;
        EXPECT_LT(seen.size(), file.points.size());
        std::vector<OpMeasurement> known(seen.begin(), seen.end());
        return Predictor([known](const OpQuery& query) {
          for (const OpMeasurement& point : known) {
            EXPECT_FALSE(point.query.n == query.n && point.query.k == query.k)
                << ToString(query) << " was seen";
          }
          return TrueUs(query);
        });
      });
  ASSERT_THAT(errors, IsOk());
  EXPECT_EQ(folds, 4);
  ASSERT_THAT(*errors, SizeIs(1));
  const PredictionError& error = errors->front();
  EXPECT_EQ(error.points, static_cast<int64_t>(file.points.size()));
  EXPECT_EQ(error.sites, 36);
  // Noise is uniform in 4 % either way.
  EXPECT_NEAR(error.mean, 0.02, 0.003);
  EXPECT_NEAR(error.median, 0.02, 0.003);
  EXPECT_LE(error.worst, 0.0417);
}

TEST(CrossValidation, LeavesOutWhatHasOneSiteOnly) {
  MeasurementFile file;
  for (int64_t m = 128; m <= 32768; m *= 2) {
    file.points.push_back({Gemm(m, 64, 64), 1, 2});
  }
  const auto errors =
      CrossValidate(file.points, 2, [](absl::Span<const OpMeasurement>) {
        return Predictor([](const OpQuery&) { return 1.0; });
      });
  ASSERT_THAT(errors, IsOk());
  EXPECT_THAT(*errors, IsEmpty());
}

// ---- The whole -------------------------------------------------------------

absl::StatusOr<Predictor> TruePredictor(const DeviceProfile&,
                                        const DeviceLimits&) {
  return Predictor([](const OpQuery& query) { return TrueUs(query); });
}

TEST(Calibrate, MakesAProfileOfTheMedians) {
  MeasurementFile file = Products(1);
  MeasurementFile again = Products(2);
  again.name = "again.csv";
  MeasurementFile third = Products(3);
  third.name = "third.csv";
  CalibrationOptions options;
  options.limits = H100();
  const auto result =
      Calibrate({file, again, third, AllReduces(400e9)}, options,
                [](const DeviceProfile& profile,
                   const DeviceLimits&) -> absl::StatusOr<Predictor> {
                  EXPECT_FALSE(profile.gemm.empty());
                  return Predictor([](const OpQuery& query) {
                    return IsCollective(query.op) ? 10.0 : TrueUs(query);
                  });
                });
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->profile.device, "h100-sxm");
  ASSERT_THAT(result->profile.gemm, SizeIs(1));
  EXPECT_EQ(result->profile.gemm[0].size(), file.points.size());
  ASSERT_THAT(result->profile.collectives.curves, SizeIs(1));
  EXPECT_EQ(result->profile.collectives.curves[0].ranks, 8);
  ASSERT_THAT(result->errors, SizeIs(2));
  EXPECT_LT(result->errors[0].mean, 0.03);
  EXPECT_EQ(result->errors[1].op, OpType::kAllReduce);
}

TEST(Calibrate, SaysAllReasonsAndNamesThem) {
  MeasurementFile file = Products(1, 1.9);
  file.devices = {{"B200", 2}};
  CalibrationOptions options;
  options.limits = H100();
  const auto result = Calibrate({file}, options, TruePredictor);
  EXPECT_THAT(result, FailsWith(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("mislabelled: gemm.csv:2"),
                                      HasSubstr("non-physical: gemm.csv"))));
}

TEST(Calibrate, TakesWhatIsAcceptedAndReportsIt) {
  MeasurementFile file = Products(1);
  file.devices = {{"Tesla X9000", 2}};
  CalibrationOptions options;
  options.limits = H100();
  options.accept = {RefusalKind::kMislabelled};
  const auto result = Calibrate({file}, options, TruePredictor);
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(result->accepted, SizeIs(1));
}

TEST(Calibrate, KeepsOfTheBaseWhatWasNotMeasured) {
  CalibrationOptions options;
  options.limits = H100();
  options.base.device = "h100-sxm";
  options.base.launch_us = 4;
  GemmTable old;
  old.m = old.n = old.k = {16};
  old.us = {1};
  options.base.gemm.push_back(old);
  old.pass = QueryPass::kWeightGrad;
  options.base.gemm.push_back(old);
  const auto result = Calibrate({Products(1)}, options, TruePredictor);
  ASSERT_THAT(result, IsOk());
  ASSERT_THAT(result->profile.gemm, SizeIs(2));
  EXPECT_GT(result->profile.gemm[0].size(), 100u);
  EXPECT_EQ(result->profile.gemm[1].size(), 1u);
  EXPECT_EQ(result->profile.launch_us, 4);
}

// Rows of operators that no price is made from.
MeasurementFile UnusedRows() {
  MeasurementFile file = Products(1);
  file.name = "unused.csv";
  file.content.low = 99;
  for (OpMeasurement& point : file.points) {
    point.query.dtype = QueryDtype::kFp32;
    point.time_us *= 8;
  }
  for (int64_t tokens = 512; tokens <= 16384; tokens *= 2) {
    OpQuery moe{.op = OpType::kMoe};
    moe.tokens = tokens;
    moe.width = moe.ffn = 2048;
    moe.experts = 64;
    moe.top_k = 6;
    file.points.push_back({moe, TrueUs(moe), 2});
    OpQuery across{.op = OpType::kAllGather};
    across.bytes = tokens << 12;
    across.ranks = 16;
    across.ranks_per_node = 8;
    across.span = QuerySpan::kInterNode;
    file.points.push_back(
        {across, 20 + 1e-3 * static_cast<double>(across.bytes), 2});
  }
  return file;
}

TEST(Calibrate, SaysWhichRowsItLeavesOut) {
  CalibrationOptions options;
  options.limits = H100();
  const auto result =
      Calibrate({Products(1), UnusedRows()}, options, TruePredictor);
  ASSERT_THAT(result, IsOk());
  EXPECT_THAT(
      result->left_out,
      ::testing::UnorderedElementsAre(
          HasSubstr("288 rows of gemm fp32: "), HasSubstr("6 rows of moe: "),
          AllOf(HasSubstr("6 rows of all_gather between nodes"),
                HasSubstr("ring model"))));
  // Neither in the table of errors nor in the profile.
  ASSERT_THAT(result->errors, SizeIs(1));
  EXPECT_EQ(result->errors[0].dtype, QueryDtype::kBf16);
  EXPECT_THAT(result->profile.gemm, SizeIs(1));
  EXPECT_THAT(result->profile.moe, IsEmpty());
}

TEST(Calibrate, FailsIfEveryRowIsLeftOut) {
  CalibrationOptions options;
  options.limits = H100();
  EXPECT_THAT(Calibrate({UnusedRows()}, options, TruePredictor),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        AllOf(HasSubstr("no measurement is left"),
                              HasSubstr("fp32"), HasSubstr("moe"))));
  // Gradients need forward products, measured or in the base.
  MeasurementFile gradients = Products(1);
  for (OpMeasurement& point : gradients.points) {
    point.query.pass = QueryPass::kInputGrad;
  }
  EXPECT_THAT(Calibrate({gradients}, options, TruePredictor),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("gemm input_grad bf16: ")));
  options.base = ProfileOfMeasurements(Products(1).points, H100());
  EXPECT_THAT(Calibrate({gradients}, options, TruePredictor), IsOk());
}

TEST(Calibrate, TakesTheLaunchFromTheTightestSmallLayer) {
  std::vector<OpMeasurement> points;
  for (const double us : {120.0, 100.0, 180.0}) {
    OpMeasurement point;
    point.query.op = OpType::kSmallLayer;
    point.query.tokens = point.query.width = 64;
    point.query.kernels = 20;
    point.time_us = us;
    points.push_back(point);
  }
  EXPECT_DOUBLE_EQ(ProfileOfMeasurements(points, H100()).launch_us, 5);
}

TEST(CurvesOfPoints, AreMediansThatDoNotDescend) {
  std::vector<OpMeasurement> points;
  const auto add = [&](int64_t bytes, double us) {
    OpMeasurement point;
    point.query.op = OpType::kAllToAll;
    point.query.ranks = 4;
    point.query.bytes = bytes;
    point.time_us = us;
    points.push_back(point);
  };
  add(1024, 16);
  add(2048, 4);
  add(4096, 10);
  add(4096, 100);
  add(4096, 11);
  add(8192, 20);
  const std::vector<CollectiveCurve> curves = CurvesOfPoints(points);
  ASSERT_THAT(curves, SizeIs(1));
  CollectiveProfile profile;
  profile.curves = curves;
  EXPECT_THAT(ValidateCollectiveProfile(profile), IsOk());
  // The two that descend meet at their geometric mean.
  EXPECT_NEAR(curves[0].us[0], 8, 1e-9);
  EXPECT_NEAR(curves[0].us[1], 8, 1e-9);
  EXPECT_NEAR(curves[0].us[2], 11, 1e-9);
}

}  // namespace
}  // namespace pipeloom::emulator
