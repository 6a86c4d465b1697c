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

}  // namespace
}  // namespace pipeloom::cli
