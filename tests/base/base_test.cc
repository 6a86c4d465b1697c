#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/fingerprint.h"
#include "base/overloaded.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/strong_id.h"
#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace pipeloom {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::ElementsAre;

using AId = Id<struct ATag>;
using BId = Id<struct BTag>;
static_assert(!std::is_convertible_v<int32_t, AId>);
static_assert(!std::is_convertible_v<AId, BId>);
static_assert(!std::is_constructible_v<AId, BId>);

TEST(StrongIdTest, DefaultIdsIndexNothing) {
  const IdVector<AId, int> items{10, 20};
  EXPECT_TRUE(AId().is_none());
  EXPECT_EQ(AId(), AId::None());
  EXPECT_FALSE(items.Contains(AId()));
  EXPECT_TRUE(items.Contains(AId(1)));
  EXPECT_FALSE(items.Contains(AId(2)));
}

TEST(StrongIdTest, VectorsIterateAndAppendById) {
  IdVector<AId, std::string> names;
  EXPECT_EQ(names.push_back("a"), AId(0));
  EXPECT_EQ(names.push_back("b"), AId(1));
  std::vector<int32_t> ids;
  for (const AId id : names.ids()) ids.push_back(id.value());
  EXPECT_THAT(ids, ElementsAre(0, 1));
  EXPECT_EQ(names[AId(1)], "b");
  std::vector<int32_t> range;
  for (const AId id : IdRange<AId>(3, 5)) range.push_back(id.value());
  EXPECT_THAT(range, ElementsAre(3, 4));
  for (const AId id : IdRange<AId>(0)) FAIL() << id.value();
}

TEST(UnitsTest, ConversionsRoundToTheNearestNanosecond) {
  EXPECT_EQ(Microseconds(1.0006), Nanoseconds(1001));
  EXPECT_EQ(Microseconds(-1.0006), Nanoseconds(-1001));
  EXPECT_EQ(Milliseconds(2.5), Microseconds(2500));
  EXPECT_EQ(Seconds(1e-9), Nanoseconds(1));
  EXPECT_DOUBLE_EQ(ToMicroseconds(Nanoseconds(1500)), 1.5);
  EXPECT_DOUBLE_EQ(ToSeconds(Milliseconds(250)), 0.25);
  EXPECT_DOUBLE_EQ(ToMicroseconds(kStepStart + Microseconds(3)), 3);
}

TEST(UnitsTest, TimesAreRoundedUpAndNoLimitMeansNoTime) {
  EXPECT_EQ(ComputeTime(Flops{1}, FlopRate{3e9}), Nanoseconds(1));
  EXPECT_EQ(ComputeTime(Flops{6e9}, FlopRate{3e9}), Seconds(2));
  EXPECT_EQ(ComputeTime(Flops{1e30}, FlopRate{0}), kZero);
  EXPECT_EQ(TransferTime(Bytes(1), Bandwidth{2e9}), Nanoseconds(1));
  EXPECT_EQ(TransferTime(Bytes(1000), Bandwidth{1e9}), Microseconds(1));
  EXPECT_EQ(TransferTime(Bytes(1000), Bandwidth{0}), kZero);
}

TEST(UnitsTest, TextForPeopleChoosesTheUnit) {
  const struct {
    Duration duration;
    const char* text;
  } durations[] = {{Nanoseconds(999), "999 ns"},
                   {Nanoseconds(1000), "1.000 us"},
                   {Nanoseconds(-1500), "-1.500 us"},
                   {Nanoseconds(1234567), "1.235 ms"},
                   {Seconds(17.3), "17.300 s"}};
  for (const auto& c : durations) EXPECT_EQ(FormatDuration(c.duration), c.text);
  const struct {
    Bytes bytes;
    const char* text;
  } sizes[] = {{Bytes(0), "0 B"},
               {Bytes(1023), "1023 B"},
               {Bytes(1536), "1.50 KiB"},
               {Bytes(-1536), "-1.50 KiB"},
               {Bytes(5 << 20), "5.00 MiB"},
               {3 * kGibibyte, "3.00 GiB"}};
  for (const auto& c : sizes) {
    EXPECT_EQ(FormatBytes(c.bytes), c.text);
    EXPECT_EQ(RoundUpAsFormatted(c.bytes), c.bytes);
    EXPECT_EQ(RoundDownAsFormatted(c.bytes), c.bytes);
  }
}

TEST(UnitsTest, RoundsToWhatIsFormatted) {
  const Bytes above = RoundUpAsFormatted(3 * kGibibyte + Bytes(1));
  EXPECT_EQ(above, Bytes(std::llround(3.01 * 1024 * 1024 * 1024)));
  EXPECT_EQ(FormatBytes(above), "3.01 GiB");
  const Bytes below = RoundDownAsFormatted(3 * kGibibyte - Bytes(1));
  EXPECT_EQ(FormatBytes(below), "2.99 GiB");
  EXPECT_EQ(RoundDownAsFormatted(3 * kGibibyte + Bytes(1)), 3 * kGibibyte);
  EXPECT_EQ(RoundUpAsFormatted(3 * kGibibyte - Bytes(1)), 3 * kGibibyte);
}

TEST(UnitsTest, QuantitiesAddAndScale) {
  Bytes b = Bytes(3) + Bytes(4) - Bytes(1);
  b += Bytes(4);
  b -= Bytes(2);
  EXPECT_EQ(b, Bytes(8));
  EXPECT_EQ(3 * b, b * 3);
  EXPECT_EQ(-b, Bytes(-8));
  EXPECT_LT(Bytes(1), Bytes(2));
}

// The sequence of SplitMix64 from seed 1234567, as published with it
// (https://prng.di.unimi.it/splitmix64.c and the tests of many ports).
TEST(RandomTest, GivesThePublishedSequence) {
  Random random(1234567);
  const uint64_t expected[] = {6457827717110365317u, 3203168211198807973u,
                               9817491932198370423u, 4593380528125082431u,
                               16408922859458223821u};
  for (const uint64_t e : expected) EXPECT_EQ(random.Next(), e);
}

TEST(RandomTest, StaysInRangeAndReachesItsEnds) {
  Random random(3);
  std::set<int64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const int64_t draw = random.Between(-2, 2);
    ASSERT_GE(draw, -2);
    ASSERT_LE(draw, 2);
    seen.insert(draw);
    const double unit = random.Unit();
    ASSERT_GE(unit, 0);
    ASSERT_LT(unit, 1);
    ASSERT_EQ(random.Below(1), 0);
  }
  EXPECT_EQ(seen.size(), 5u);
}

TEST(RandomTest, ShufflesArePermutationsAndForksDiffer) {
  Random random(5);
  std::vector<int> items(50);
  std::iota(items.begin(), items.end(), 0);
  std::vector<int> shuffled = items;
  random.Shuffle(absl::MakeSpan(shuffled));
  EXPECT_NE(shuffled, items);
  EXPECT_THAT(shuffled, ::testing::UnorderedElementsAreArray(items));
  Random fork = random.Fork();
  EXPECT_NE(fork.Next(), random.Next());
}

TEST(FingerprintTest, OrderCountAndValuesMatter) {
  const auto of = [](auto... values) {
    FingerprintBuilder builder;
    (builder.Add(values), ...);
    return builder.Build();
  };
  const Fingerprint prints[] = {
      of(),
      of(0),
      of(0, 0),
      of(1, 2),
      of(2, 1),
      of(1.0),
      of(1),
      of(absl::string_view("ab")),
      of(absl::string_view("a"), absl::string_view("b")),

      of(0.5),
      of(of(1))};
  for (size_t i = 0; i < std::size(prints); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(prints[i], prints[j]) << i << j;
  }
  EXPECT_EQ(of(1, 2), of(1, 2));
  EXPECT_EQ(of(0.0), of(-0.0));
}

// Stored in files: a change breaks every plan written before.
TEST(FingerprintTest, IsTheSameOnEveryPlatformAndInEveryVersion) {
  const Fingerprint print = FingerprintBuilder()
                                .Add(int64_t{-7})
                                .Add(2.5)
                                .Add(absl::string_view("pipeloom"))
                                .Build();
  EXPECT_EQ(print.high, 0x386771d86f5bbbe9u);
  EXPECT_EQ(print.low, 0x5fbef8dd6faabc1au);
}

TEST(FingerprintTest, SmallIntegersDoNotCollide) {
  std::set<Fingerprint> seen;
  for (int a = 0; a < 200; ++a) {
    for (int b = 0; b < 200; ++b) {
      seen.insert(FingerprintBuilder().Add(a).Add(b).Build());
    }
  }
  EXPECT_EQ(seen.size(), 40000u);
}

absl::StatusOr<int> Positive(int value) {
  if (value > 0) return value;
  return absl::OutOfRangeError("not positive");
}

absl::StatusOr<int> Sum(int a, int b) {
  PIPELOOM_RETURN_IF_ERROR(Positive(a).status());
  PIPELOOM_ASSIGN_OR_RETURN(const int x, Positive(a));
  PIPELOOM_ASSIGN_OR_RETURN(const int y, Positive(b));
  return x + y;
}

TEST(StatusMacrosTest, TheFirstErrorReturnsAndValuesPass) {
  ASSERT_OK_AND_ASSIGN(const int sum, Sum(1, 2));
  EXPECT_EQ(sum, 3);
  for (const auto& [a, b] : {std::pair(0, 2), std::pair(1, 0)}) {
    EXPECT_THAT(Sum(a, b),
                FailsWith(absl::StatusCode::kOutOfRange, "not positive"));
  }
}

TEST(OverloadedTest, PicksTheLambdaOfTheAlternative) {
  std::variant<int, std::string> value = 3;
  const auto name = [&] {
    return std::visit(Overloaded{[](int) { return "int"; },
                                 [](const std::string&) { return "string"; }},
                      value);
  };
  EXPECT_STREQ(name(), "int");
  value = "x";
  EXPECT_STREQ(name(), "string");
}

TEST(CheckDeathTest, AFailedCheckNamesItselfAndAborts) {
  EXPECT_DEATH(PIPELOOM_CHECK(1 + 1 == 3),
               "base_test.cc:[0-9]+: check failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace pipeloom
