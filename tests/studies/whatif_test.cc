// Tests of what-if studies: sweeps, journals, the Pareto front.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "studies/whatif/whatif_case.h"
#include "studies/whatif/whatif_run.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::pipeloom::testing::FailsWith;
using ::testing::HasSubstr;

TEST(SweepCasesTest, AreAllCombinationsTheLastSweepFastest) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<WhatIfCase> cases,
      SweepCases({"a.x=1"}, {"b.y=1,2", "c.z=[1,2],\"p,q\",*0.5"}));
  ASSERT_EQ(cases.size(), 6u);
  EXPECT_EQ(cases[0].label, "y 1, z [1,2]");
  EXPECT_EQ(cases[1].changes.back().value, "\"p,q\"");
  EXPECT_EQ(cases[5].label, "y 2, z *0.5");
  for (const WhatIfCase& c : cases) {
    EXPECT_EQ(c.changes[0], (formats::JobOverride{"a.x", "1"}));
  }
}

TEST(SweepCasesTest, RefusesWhatIsNoSweep) {
  EXPECT_THAT(SweepCases({"a"}, {}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("no change of a field")));
  EXPECT_THAT(
      SweepCases({}, {"a=1", "a=2"}),
      FailsWith(absl::StatusCode::kInvalidArgument, HasSubstr("stands twice")));
  EXPECT_THAT(SweepCases({}, {"a=1,,2"}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("an empty value")));
}

TEST(JournalTest, ALineComesBackAndATornOneDoesNot) {
  WhatIfOutcome outcome;
  outcome.step_time = Milliseconds(123.456789);
  outcome.bubble_ratio = 0.1234567890123;
  outcome.epilogue_ratio = 0.0234567890123;
  outcome.peak = kGibibyte * 70;
  outcome.gpus = 32;
  outcome.samples = 555;
  WhatIfOutcome failed;
  failed.error = "a\ttab, a\nline and a \\ in\\n it";
  for (const WhatIfOutcome& o : {outcome, failed}) {
    const Fingerprint key{1, 0xfedcba9876543210u};
    std::string line = JournalLine(key, o);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    Fingerprint got_key;
    WhatIfOutcome got;
    ASSERT_TRUE(ParseJournalLine(line, &got_key, &got));
    EXPECT_EQ(got_key, key);
    EXPECT_EQ(got.step_time, o.step_time);
    EXPECT_EQ(got.bubble_ratio, o.bubble_ratio);
    EXPECT_EQ(got.epilogue_ratio, o.epilogue_ratio);
    if (o.ok()) {
      EXPECT_EQ(got, o);
    }
    for (size_t cut = 0; cut < line.size(); ++cut) {
      EXPECT_FALSE(ParseJournalLine(line.substr(0, cut), &got_key, &got));
    }
  }
}

TEST(ParetoFrontTest, KeepsWhatNothingBeats) {
  std::vector<WhatIfOutcome> outcomes(5);
  const auto set = [&](size_t i, int64_t gpus, double ms, int64_t peak) {
    outcomes[i].gpus = gpus;
    outcomes[i].step_time = Milliseconds(ms);
    outcomes[i].peak = Bytes(peak);
  };
  set(0, 8, 10, 5);
  set(1, 16, 6, 5);
  set(2, 16, 7, 5);  // Beaten by 1.
  set(3, 8, 12, 3);
  set(4, 4, 1, 1);
  outcomes[4].error = "does not run";
  EXPECT_EQ(ParetoFront(outcomes),
            (std::vector<bool>{true, true, false, true, false}));
}

}  // namespace
}  // namespace pipeloom::studies
