// `backtest` as programs see it.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(BacktestCommandTest, FitsNothingUnlessAskedAndIsWhatEmulateAgainstPrints) {
  const std::string table =
      PIPELOOM_SOURCE_DIR "/workloads/validation/simumax_b200.csv";
  const Outcome plain = Pipeloom({"backtest", table, "--format", "json"});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("\"fitted_rows\": 0"));
  EXPECT_THAT(plain.out, HasSubstr("\"peak_memory\""));
  const Outcome alias =
      Pipeloom({"emulate", "--against", table, "--format", "json"});
  EXPECT_EQ(alias.out, plain.out);
  const Outcome fitted =
      Pipeloom({"backtest", table, "--fit", "--format", "json"});
  EXPECT_THAT(fitted.out, Not(HasSubstr("\"fitted_rows\": 0")));
}

}  // namespace
}  // namespace pipeloom::cli
