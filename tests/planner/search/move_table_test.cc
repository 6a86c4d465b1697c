#include "planner/search/move_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/planner/moves/move_problem.h"

namespace pipeloom::planner {
namespace {

TEST(MoveTableTest, EveryTurnHasAMoveAndNoMoveIsLeftWithoutATurn) {
  std::set<size_t> rows;
  for (const bool places_matter : {false, true}) {
    for (const WorkerRole role : {WorkerRole::kConstruct, WorkerRole::kSolve}) {
      for (int64_t turn = 0; turn < 64 * 63; ++turn) {
        const size_t row = RowOfTurn(turn, places_matter, role);
        ASSERT_LT(row, MoveTable().size());
        ASSERT_EQ(MoveTable()[row].stage, MoveStage::kTurn);
        ASSERT_TRUE(role == WorkerRole::kSolve ||
                    MoveTable()[row].turns_to_solve.mask == 0);
        rows.insert(row);
      }
    }
  }
  for (size_t row = 0; row < MoveTable().size(); ++row) {
    EXPECT_EQ(rows.count(row) > 0, MoveTable()[row].stage == MoveStage::kTurn)
        << MoveTable()[row].name;
  }
}

// While the portfolio has work, modulo schedules have a quarter of the turns;
// exchanges of ends come when it is done.
TEST(MoveTableTest, MovesOfTheBeginningShareItsTurns) {
  const auto rows = [](const std::set<std::string>& with_work) {
    std::vector<std::string> names;
    for (int64_t turn = 0; turn < 8; ++turn) {
      const size_t row = RowOfStart(turn, [&](size_t r) {
        return with_work.contains(std::string(MoveTable()[r].name));
      });
      names.emplace_back(row < MoveTable().size() ? MoveTable()[row].name
                                                  : "none");
    }
    return names;
  };
  const std::string modulo = "try modulo schedules";
  const std::string portfolio = "try portfolio";
  const std::string ends = "exchange ends";
  EXPECT_THAT(rows({modulo, portfolio, ends}),
              ::testing::ElementsAre(portfolio, portfolio, portfolio, modulo,
                                     portfolio, portfolio, portfolio, modulo));
  EXPECT_THAT(rows({modulo}), ::testing::Each(modulo));
  EXPECT_THAT(rows({portfolio, ends}), ::testing::Each(portfolio));
  EXPECT_THAT(rows({ends}), ::testing::Each(ends));
  EXPECT_THAT(rows({"improve first", "anneal sequence"}),
              ::testing::Each(std::string("none")));
}

TEST(MoveTableTest, MovesThatGainLittleComeSeldom) {
  for (const bool places_matter : {false, true}) {
    std::map<std::string, int> turns;
    constexpr int kTurns = 64 * 48;
    for (int64_t turn = 0; turn < kTurns; ++turn) {
      const size_t row = RowOfTurn(turn, places_matter, WorkerRole::kConstruct);
      ++turns[std::string(MoveTable()[row].name)];
    }
    for (const auto& [name, count] : turns) {
      SCOPED_TRACE(name);
      if (name == "perturb choices" || name == "anneal sequence") {
        EXPECT_LT(count, kTurns / 30);
      } else {
        EXPECT_GT(count, kTurns / 12);
      }
    }
  }
}

TEST(MoveTableTest, MovesOfPlacesHaveNoTurnWherePlacesDoNotMatter) {
  MoveProblem equal(ScaledPipeline({2, 2, 2}));
  ASSERT_FALSE(equal.state->places_matter());
  for (const MoveRow& row : MoveTable()) {
    if (row.stage != MoveStage::kTurn || row.turns.mask == 0) continue;
    equal.state->choices().bases = {{.choice = equal.portfolio.front()}};
    EXPECT_TRUE(row.make(*equal.state)->has_work()) << row.name;
  }
}

TEST(MoveTableTest, NamesAreDistinctAndEveryMoveRunsAlone) {
  std::set<std::string> names;
  for (const MoveRow& row : MoveTable()) {
    SCOPED_TRACE(std::string(row.name));
    EXPECT_TRUE(names.insert(std::string(row.name)).second);
    MoveProblem problem(UnequalPipeline(1));
    const auto move = row.make(*problem.state);
    if (move->has_work()) problem.Run(move.get(), 100);
    ExpectLegalBest(problem);
  }
}

TEST(MoveTableTest, TurnsRepeatWithTheirPeriod) {
  const Turns turns(5, {0, 2});
  for (int64_t turn = 0; turn < 20; ++turn) {
    EXPECT_EQ(turns.Contains(turn), turn % 5 == 0 || turn % 5 == 2);
    EXPECT_FALSE(Turns().Contains(turn));
  }
}

}  // namespace
}  // namespace pipeloom::planner
