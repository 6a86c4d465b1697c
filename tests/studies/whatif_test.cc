// Tests of what-if studies: sweeps, journals, the Pareto front.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "studies/whatif/whatif_case.h"
#include "studies/whatif/whatif_run.h"
#include "tests/support/small_job.h"
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

TEST(CasesOfTest, LayoutsHaveNoMoreExpertParallelismThanGpusForIt) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel = {.ep = 8, .pp = 4, .dp = 8};
  job.training.microbatches = 8;
  for (const int32_t expert_tp : {0, 1}) {
    job.parallel.expert_tp = expert_tp;
    for (const char* question : {"layout", "scale", "fits"}) {
      std::set<int64_t> found;
      for (const WhatIfCase& c : CasesOf(question, job)) {
        ParallelLayout layout = job.parallel;
        for (const formats::JobOverride& change : c.changes) {
          for (const auto& [path, size] : {std::pair{"parallel.tp", &layout.tp},
                                           {"parallel.cp", &layout.cp},
                                           {"parallel.ep", &layout.ep},
                                           {"parallel.dp", &layout.dp}}) {
            if (change.path != path) continue;
            ASSERT_TRUE(absl::SimpleAtoi(change.value, size)) << c.label;
          }
        }
        EXPECT_EQ(layout.most_ep() % layout.ep, 0) << c.label;
        EXPECT_EQ(absl::StrContains(c.label, "EP "), layout.ep != 8);
        found.insert(layout.ep);
      }
      EXPECT_LT(*found.begin(), 8) << question;
    }
  }
}

TEST(JournalTest, ALineComesBackAndATornOneDoesNot) {
  WhatIfOutcome outcome;
  outcome.step_time = Milliseconds(123.456789);
  outcome.bubble_ratio = 0.1234567890123;
  outcome.epilogue_ratio = 0.0234567890123;
  outcome.peak = kGibibyte * 70;
  outcome.gpus = 32;
  outcome.samples = 555;
  outcome.cuts_more = true;
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
    outcomes[i].limit = Bytes(5);
  };
  set(0, 8, 10, 5);
  set(1, 16, 6, 5);
  set(2, 16, 7, 5);  // Beaten by 1.
  set(3, 8, 12, 3);
  set(4, 4, 1, 1);
  outcomes[4].error = "does not run";
  EXPECT_EQ(ParetoFront(std::vector<WhatIfCase>(5), outcomes),
            (std::vector<bool>{true, true, false, true, false}));
}

TEST(ParetoFrontTest, WhatNobodyChoosesOrHasRoomForNeitherBeatsNorIsBest) {
  std::vector<WhatIfOutcome> outcomes(4);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    // Each is better than those before.
    outcomes[i].gpus = 8;
    outcomes[i].step_time = Milliseconds(10 - static_cast<double>(i));
    outcomes[i].peak = outcomes[i].limit = Bytes(5);
  }
  std::vector<WhatIfCase> cases(4);
  cases[1].slow_rank = 0;
  cases[1].slow_factor = 1.2;
  cases[2].video_factor = 2;
  outcomes[3].peak = Bytes(6);
  EXPECT_EQ(ParetoFront(cases, outcomes),
            (std::vector<bool>{true, false, false, false}));
}

TEST(ParetoFrontTest, AShorterStepOfFewerSamplesIsNoGain) {
  std::vector<WhatIfOutcome> outcomes(3);
  const auto set = [&](size_t i, double ms, int64_t samples) {
    outcomes[i].gpus = 8;
    outcomes[i].step_time = Milliseconds(ms);
    outcomes[i].samples = samples;
    outcomes[i].limit = Bytes(1);
  };
  set(0, 8, 8);
  set(1, 5, 4);
  set(2, 15, 16);
  std::vector<WhatIfCase> cases(3);
  EXPECT_EQ(ParetoFront(cases, outcomes),
            (std::vector<bool>{false, false, true}));
  for (WhatIfCase& c : cases) c.scales = true;
  EXPECT_EQ(BestByGpus(cases, outcomes).at(8), &outcomes[2]);
}

// A job of a step of `microbatches` in all.
JobSpec JobOf(int32_t microbatches, int32_t dp) {
  JobSpec job = ::pipeloom::testing::SmallVlmJob();
  job.parallel.dp = dp;
  job.training.microbatches = microbatches / dp;
  return job;
}

int64_t ValueOf(const WhatIfCase& c, absl::string_view path, int64_t usual) {
  for (const formats::JobOverride& change : c.changes) {
    if (change.path == path) return std::stoll(change.value);
  }
  return usual;
}

TEST(CasesOfTest, OtherLayoutsHaveAsManyMicrobatchesAStep) {
  const struct {
    const char* question;
    int32_t microbatches;
    int32_t dp;
    int64_t gpus;
  } asked[] = {{"layout", 8, 2, 0}, {"layout", 8, 1, 24}, {"layout", 12, 3, 24},
               {"scale", 6, 1, 0},  {"scale", 16, 2, 0},  {"fits", 6, 3, 0}};
  for (const auto& a : asked) {
    SCOPED_TRACE(absl::StrCat(a.question, " of ", a.microbatches));
    const JobSpec job = JobOf(a.microbatches, a.dp);
    const std::vector<WhatIfCase> cases =
        CasesOf(a.question, job, {.gpus = a.gpus});
    EXPECT_FALSE(cases.empty());
    for (const WhatIfCase& c : cases) {
      EXPECT_EQ(ValueOf(c, "parallel.dp", job.parallel.dp) *
                    ValueOf(c, "training.microbatches", -1),
                a.microbatches)
          << c.label;
    }
  }
}

TEST(CasesOfTest, PipelinesHaveALayerForEachRank) {
  JobSpec job = JobOf(8, 1);
  int64_t layers = 0;
  for (const ModuleSpec& module : job.model.modules) {
    layers += module.layers.size();
  }
  ASSERT_LT(layers, 64);
  for (const int64_t pp : {int64_t{1}, layers / 2 + 1, layers}) {
    job.parallel.pp = static_cast<int32_t>(pp);
    for (const char* question : {"layout", "fits", "scale"}) {
      for (const WhatIfCase& c :
           CasesOf(question, job, {.gpus = 64 * layers})) {
        EXPECT_LE(ValueOf(c, "parallel.pp", pp), layers) << c.label;
      }
    }
  }
}

// With casts and a loss head in 16 bits, as runs were measured.
TEST(CasesOfTest, Fp8IsThatOfTrainingFrameworks) {
  JobSpec job = testing::SmallVlmJob();
  job.cluster.device.fp8 = {2e15};
  const std::vector<WhatIfCase> cases = CasesOf("fp8", job);
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(
      cases[0].changes,
      (std::vector<formats::JobOverride>{{"setup.fp8_products", "true"}}));
  job.cluster.device.fp8 = {0};
  EXPECT_TRUE(CasesOf("fp8", job).empty());
}

TEST(CasesOfTest, MoreNodesThanTheClusterHasAreSaid) {
  const JobSpec job = JobOf(8, 1);
  const int64_t per_node = job.cluster.gpus_per_node;
  int more = 0;
  for (const char* question : {"layout", "fits", "scale"}) {
    for (const WhatIfCase& c :
         CasesOf(question, job, {.gpus = 8 * job.cluster.num_gpus()})) {
      SCOPED_TRACE(c.label);
      const int64_t gpus = ValueOf(c, "parallel.tp", job.parallel.tp) *
                           ValueOf(c, "parallel.cp", job.parallel.cp) *
                           ValueOf(c, "parallel.pp", job.parallel.pp) *
                           ValueOf(c, "parallel.dp", job.parallel.dp);
      const int64_t nodes = (gpus + per_node - 1) / per_node;
      const bool beyond = nodes > job.cluster.num_nodes;
      more += beyond ? 1 : 0;
      EXPECT_EQ(ValueOf(c, "cluster.num_nodes", 0), beyond ? nodes : 0);
      const std::string says = absl::StrCat(
          ", on ", nodes, " nodes instead of ", job.cluster.num_nodes);
      EXPECT_EQ(absl::EndsWith(c.label, says), beyond);
    }
  }
  EXPECT_GE(more, 3);
}

TEST(ParetoFrontTest, AnotherTrainingNeitherBeatsNorIsBest) {
  std::vector<WhatIfOutcome> outcomes(2);
  outcomes[0].step_time = Milliseconds(10);
  outcomes[1].step_time = Milliseconds(5);
  outcomes[1].cuts_more = true;
  EXPECT_EQ(ParetoFront(std::vector<WhatIfCase>(2), outcomes),
            (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace pipeloom::studies
