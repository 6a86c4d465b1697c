#include "cli/report/timeline_text.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/random_problem.h"
#include "tests/support/sample_step.h"

namespace pipeloom::cli {
namespace {

using ::pipeloom::testing::MakeSampleStep;
using ::pipeloom::testing::SampleStep;
using ::pipeloom::testing::TwoModuleGraph;
using ::pipeloom::testing::UniformGraph;
using ::testing::HasSubstr;

TEST(TimelineTextTest, DrawsARowOfTheAskedWidthForEachRank) {
  const SampleStep step = MakeSampleStep(TwoModuleGraph(3, 4));
  const std::string text = TimelineText(step.plan.graph, step.trace, 60);
  for (const char* rank : {"rank 0  ", "rank 1  ", "rank 2  "}) {
    const size_t at = text.find(rank);
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(text.find('\n', at) - at, 8u + 60u);
  }
  EXPECT_THAT(text, HasSubstr("of backbone"));
  EXPECT_THAT(text, HasSubstr("small letters the same of encoder"));
}

TEST(TimelineTextTest, OneRankOfOneMicrobatchIsForwardThenBackward) {
  // F takes 1 ms, B and W together 2 ms.
  const SampleStep step =
      MakeSampleStep(UniformGraph({.ranks = 1, .microbatches = 1}));
  EXPECT_THAT(TimelineText(step.plan.graph, step.trace, 30),
              HasSubstr("rank 0  FFFFFFFFFFBBBBBBBBBBBBBBBBBBBB\n"));
}

}  // namespace
}  // namespace pipeloom::cli
