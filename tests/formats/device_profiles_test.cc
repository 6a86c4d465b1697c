// Which profile prices which device.
#include "formats/profile/device_profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "formats/profile/profile_reader.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::formats {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A profile of that device without any table.
std::string ProfileOf(const std::string& device) {
  DeviceProfile profile;
  profile.device = device;
  profile.rates = {.bf16_flops_per_second = 1e15, .bytes_per_second = 3e12};
  return PrintDeviceProfile(profile);
}

class DeviceProfilesTest : public ::testing::Test {
 protected:
  DeviceProfiles Make() {
    return {"data", [this](const std::string& path) {
              ++reads_;
              const auto it = files_.find(path);
              return it == files_.end()
                         ? absl::StatusOr<std::string>(
                               absl::NotFoundError("cannot open " + path))
                         : it->second;
            }};
  }
  // Returns the device whose profile prices `device`; "": none.
  static std::string Found(const DeviceProfiles& profiles,
                           const std::string& device) {
    const auto profile = profiles.Find(device);
    EXPECT_THAT(profile.status(), IsOk());
    return profile.ok() && *profile != nullptr ? (*profile)->device : "";
  }

  std::map<std::string, std::string> files_{};
  int reads_ = 0;
};

TEST_F(DeviceProfilesTest, ADeviceHasItsOwnProfileOrElseThatOfItsFamily) {
  for (const char* name : {"h100-sxm", "h20", "mygpu", "mygpu-80g"}) {
    files_[absl::StrCat("data/profiles/", name, ".json")] = ProfileOf(name);
  }
  const DeviceProfiles profiles = Make();
  for (const char* name : {"h100-sxm", "h100-96g", "h100", "h100-sxm5"}) {
    EXPECT_EQ(Found(profiles, name), "h100-sxm") << name;
  }
  EXPECT_EQ(Found(profiles, "h20"), "h20");
  EXPECT_EQ(Found(profiles, "h20-96g"), "h20");
  EXPECT_EQ(Found(profiles, "mygpu-80g"), "mygpu-80g");
  EXPECT_EQ(Found(profiles, "mygpu-40g"), "mygpu");
  for (const char* name : {"", "-", "h200-nvl", "h1000-sxm", "H100-SXM",
                           "mi300x", "./h20", "../profiles/h20", "h20.json"}) {
    EXPECT_EQ(Found(profiles, name), "") << name;
  }
  EXPECT_EQ(Found(profiles, std::string(100'000, 'x')), "");
  EXPECT_EQ(Found(DeviceProfiles(), "h20"), "");
}

TEST_F(DeviceProfilesTest, EqualProfilesAreEqualPointersAndReadOnce) {
  files_["data/profiles/h20.json"] = ProfileOf("h20");
  const DeviceProfiles profiles = Make();
  const DeviceProfiles copy = profiles;
  ASSERT_OK_AND_ASSIGN(const auto one, profiles.Find("h20"));
  const int reads = reads_;
  ASSERT_OK_AND_ASSIGN(const auto two, copy.Find("h20"));
  EXPECT_EQ(one, two);
  EXPECT_EQ(reads_, reads);
}

TEST_F(DeviceProfilesTest, AGivenProfilePrecedesTheShippedOneOfItsDevice) {
  files_["data/profiles/h20.json"] = ProfileOf("h20");
  files_["mine.json"] = ProfileOf("h20");
  files_["other.json"] = ProfileOf("h100-sxm");
  files_["again.json"] = ProfileOf("h20");
  DeviceProfiles profiles = Make();
  ASSERT_THAT(profiles.Add("mine.json"), IsOk());
  ASSERT_THAT(profiles.Add("other.json"), IsOk());
  ASSERT_OK_AND_ASSIGN(const auto found, profiles.Find("h20-96g"));
  EXPECT_EQ(found, profiles.given()[0].profile);
  EXPECT_EQ(Found(profiles, "h100-96g"), "h100-sxm");
  EXPECT_THAT(profiles.Add("again.json"),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "again.json: is of device h20, as is mine.json; give "
                        "one of them"));
  EXPECT_THAT(profiles.Add("none.json"),
              FailsWith(absl::StatusCode::kNotFound, HasSubstr("none.json")));
}

TEST_F(DeviceProfilesTest, AProfileUnderAnotherNameIsRefusedWithBothNames) {
  files_["data/profiles/mygpu.json"] = ProfileOf("h100-sxm");
  const DeviceProfiles profiles = Make();
  for (const char* device : {"mygpu", "mygpu-40g"}) {
    EXPECT_THAT(
        profiles.Find(device).status(),
        FailsWith(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr("data/profiles/mygpu.json: field \"device\" "
                                  "is \"h100-sxm\"; it must be \"mygpu\""),
                        HasSubstr("name the file h100-sxm.json"))));
  }
  files_["data/profiles/broken.json"] = "{\"version\": 1}";
  EXPECT_THAT(profiles.Find("broken").status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("data/profiles/broken.json")));
}

}  // namespace
}  // namespace pipeloom::formats
