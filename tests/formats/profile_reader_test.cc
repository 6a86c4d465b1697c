#include "formats/profile/profile_reader.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/formats/data_dir.h"

namespace pipeloom::formats {
namespace {

constexpr const char* kDevices[] = {"a100-sxm", "a800-sxm", "h100-sxm",
                                    "h200-sxm", "h800-sxm", "h20",
                                    "b200-sxm", "l40s"};

TEST(ProfileReader, EveryShippedProfileReadsBackFromItsOwnText) {
  for (const std::string device : kDevices) {
    const auto text =
        ReadFile(absl::StrCat(kDataDir, "/profiles/", device, ".json"));
    ASSERT_TRUE(text.ok()) << text.status();
    const auto profile = ParseDeviceProfile(*text, device);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_EQ(profile->device, device);
    const auto again =
        ParseDeviceProfile(PrintDeviceProfile(*profile), "again");
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(*again == *profile) << device;
  }
}

TEST(ProfileReader, EveryShippedProfileIsSmallAndNamesItsSources) {
  for (const std::string device : kDevices) {
    const auto text =
        ReadFile(absl::StrCat(kDataDir, "/profiles/", device, ".json"));
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_LE(text->size(), 300'000u) << device;
    const auto profile = ParseDeviceProfile(*text, device);
    ASSERT_TRUE(profile.ok()) << profile.status();
    EXPECT_FALSE(profile->sources.empty()) << device;
    for (const ProfileSource& source : profile->sources) {
      EXPECT_FALSE(source.repository.empty()) << device;
      EXPECT_FALSE(source.commit.empty()) << device;
      EXPECT_FALSE(source.licence.empty()) << device;
      EXPECT_FALSE(source.changes.empty()) << device;
    }
  }
}

// The A800 is the chip of the A100 with two thirds of its NVLink.
TEST(ProfileReader, TheA800HasTheTimesOfTheA100AndSlowerLinksInANode) {
  const auto load = [](const std::string& device) {
    return ParseDeviceProfile(
        *ReadFile(absl::StrCat(kDataDir, "/profiles/", device, ".json")),
        device);
  };
  const auto a100 = load("a100-sxm");
  const auto a800 = load("a800-sxm");
  ASSERT_TRUE(a100.ok() && a800.ok());
  EXPECT_EQ(a800->derived_from, "a100-sxm");
  EXPECT_TRUE(a800->rates == a100->rates);
  EXPECT_TRUE(a800->gemm == a100->gemm);
  EXPECT_TRUE(a800->attention == a100->attention);
  EXPECT_TRUE(a800->stream == a100->stream);
  ASSERT_EQ(a800->collectives.curves.size(), a100->collectives.curves.size());
  for (size_t i = 0; i < a800->collectives.curves.size(); ++i) {
    const CollectiveCurve& slow = a800->collectives.curves[i];
    const CollectiveCurve& fast = a100->collectives.curves[i];
    ASSERT_EQ(slow.bytes, fast.bytes);
    if (slow.span != QuerySpan::kNode) {
      EXPECT_EQ(slow.us, fast.us);
      continue;
    }
    EXPECT_EQ(slow.estimated, slow.bytes);
    EXPECT_NEAR(slow.us.back() / fast.us.back(), 200.0 / 133, 0.001);
    EXPECT_LT(slow.us.front() / fast.us.front(), 1.2);
  }
}

std::string WithGemm(const std::string& gemm) {
  return R"({"version": 1, "device": "x", "rates": {
  "bf16_flops_per_second": 1e15, "bytes_per_second": 1e12},
  "gemm": [{"pass": "forward", "dtype": "bf16", )" +
         gemm + "}]}";
}

TEST(ProfileReader, ReadsAGridAndLeavesHolesOut) {
  const auto profile = ParseDeviceProfile(
      WithGemm(R"("m": [64, 128], "sites": [[8, 16, 1, 2.5, 0],
                                            [4, 16, 1, 1, 3]])"),
      "x.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  ASSERT_EQ(profile->gemm.size(), 1u);
  const GemmTable& table = profile->gemm[0];
  EXPECT_EQ(table.n, (std::vector<int64_t>{4, 4, 8}));
  EXPECT_EQ(table.m, (std::vector<int64_t>{64, 128, 64}));
  EXPECT_EQ(table.us, (std::vector<double>{1, 3, 2.5}));
}

TEST(ProfileReader, NamesLineAndFieldOfWhatIsWrong) {
  const auto refuses = [](const std::string& text, const std::string& why) {
    const auto profile = ParseDeviceProfile(text, "x.json");
    ASSERT_FALSE(profile.ok()) << text;
    EXPECT_EQ(profile.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(profile.status().message()).find(why),
              std::string::npos)
        << profile.status();
  };
  refuses(WithGemm(R"("m": [64], "sites": [[8, 16, 1]])"), "sites");
  refuses(WithGemm(R"("m": [64], "sites": [[8, 16, 1, -2]])"), "sites");
  refuses(WithGemm(R"("m": [0], "sites": [])"), "m");
  refuses(WithGemm(R"("m": [64], "sites": [], "extra": 1)"), "extra");
  refuses(R"({"version": 2, "device": "x", "rates": {}})", "version");
  refuses(R"({"version": 1, "device": "x"})", "rates");
}

}  // namespace
}  // namespace pipeloom::formats
