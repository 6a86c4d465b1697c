#include "cli/console/table.h"

#include "gtest/gtest.h"

namespace pipeloom::cli {
namespace {

TEST(TableTest, PadsNumbersLeftNamesRightAndLetsReasonsRunOn) {
  Table table({"schedule", "step", "bubble"});
  table.AddRow({"1f1b", "12.5 ms", "7 %"});
  table.AddRow({"interleaved", "9 ms", "12 %"});
  table.AddRow({"gpipe", "does not fit at all, by very much"});
  EXPECT_EQ(table.ToString(),
            "schedule        step  bubble\n"
            "----------------------------\n"
            "1f1b         12.5 ms     7 %\n"
            "interleaved     9 ms    12 %\n"
            "gpipe        does not fit at all, by very much\n");
}

TEST(TableTest, APercentageThatRoundsToZeroHasNoSign) {
  EXPECT_EQ(FormatPercent(-1e-9), "0.0 %");
  EXPECT_EQ(FormatPercent(-0.0), "0.0 %");
  EXPECT_EQ(FormatPercent(0.0004), "0.0 %");
  EXPECT_EQ(FormatPercent(-0.0006), "-0.1 %");
  EXPECT_EQ(FormatPercent(-0.004, 0), "0 %");
  EXPECT_EQ(FormatPercent(0.123), "12.3 %");
}

}  // namespace
}  // namespace pipeloom::cli
