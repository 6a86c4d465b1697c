#include "planner/memory/integer_program.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/oracles/brute_force_choice.h"

namespace pipeloom::planner {
namespace {

// Options that use runs of rows, as tensors that live for a while do.
IntegerProgram RandomProgram(Random& random, int64_t max_groups,
                             int64_t max_rows) {
  IntegerProgram program;
  const int64_t rows = random.Between(0, max_rows);
  const int64_t size = random.Below(2) == 0 ? 5 : 1'000'000'000;
  const int64_t groups = random.Between(1, max_groups);
  for (int64_t r = 0; r < rows; ++r) {
    program.limits.push_back(random.Between(0, size * groups / 2));
  }
  for (int64_t g = 0; g < groups; ++g) {
    IntegerProgram::Group& group = program.groups.emplace_back();
    for (int64_t j = random.Between(1, 3); j > 0; --j) {
      IntegerProgram::Option option{.cost = random.Between(0, size)};
      for (int64_t u = random.Between(0, 2); u > 0 && rows > 0; --u) {
        const int64_t first = random.Below(rows);
        const int64_t end = random.Between(first + 1, rows);
        option.uses.push_back({static_cast<int32_t>(first),
                               static_cast<int32_t>(end),
                               random.Between(0, size)});
      }
      group.push_back(std::move(option));
    }
  }
  return program;
}

std::vector<int32_t> RandomChoice(Random& random,
                                  const IntegerProgram& program) {
  std::vector<int32_t> choice;
  for (const IntegerProgram::Group& group : program.groups) {
    choice.push_back(
        static_cast<int32_t>(random.Below(static_cast<int64_t>(group.size()))));
  }
  return choice;
}

TEST(IntegerProgram, EqualsBruteForceOnRandomPrograms) {
  int infeasible = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 8, 6);
    const std::optional<int64_t> expected = testing::BruteForceCost(program);
    const IntegerSolution found = SolveIntegerProgram(program);
    ASSERT_EQ(found.feasible, expected.has_value());
    ASSERT_TRUE(found.optimal);
    if (!found.feasible) {
      ++infeasible;
      continue;
    }
    EXPECT_EQ(found.cost, *expected);
    EXPECT_EQ(found.bound, *expected);
    EXPECT_TRUE(testing::KeepsLimits(program, found.choice));
  }
  EXPECT_GT(infeasible, 20);
  EXPECT_LT(infeasible, 1000);
}

TEST(IntegerProgram, BoundsAndGapsHoldWhereverTheSearchIsCutShort) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 8, 6);
    const std::optional<int64_t> optimum = testing::BruteForceCost(program);
    for (const int64_t max_nodes : {0, 2, 1000}) {
      for (const double gap : {0.0, 0.05, 0.5}) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << " nodes "
                                          << max_nodes << " gap " << gap);
        const IntegerSolution found = SolveIntegerProgram(
            program, {},
            {.gap = gap, .max_nodes = max_nodes, .root_rounds = 20});
        if (!found.feasible) {
          EXPECT_TRUE(!found.optimal || !optimum.has_value());
          continue;
        }
        ASSERT_TRUE(optimum.has_value());
        EXPECT_TRUE(testing::KeepsLimits(program, found.choice));
        EXPECT_LE(found.bound, *optimum);
        EXPECT_GE(found.cost, *optimum);
        EXPECT_EQ(found.optimal, found.cost == found.bound);
        if (max_nodes == 1000) {
          EXPECT_LE(static_cast<double>(found.cost),
                    (1 + gap) * static_cast<double>(*optimum) + 1);
        }
      }
    }
  }
}

TEST(IntegerProgram, EndsWithItsFirstAnswerOnceTheTimeIsOver) {
  int64_t later = 0;  // Programs that ended before the optimum was found.
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 20, 10);
    const IntegerSolution best = SolveIntegerProgram(program);
    for (const int64_t calls : {0, 1, 5}) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << seed << ", over after " << calls << " calls");
      int64_t called = 0;
      const std::function<bool()> is_over = [&] { return ++called > calls; };
      const IntegerSolution found =
          SolveIntegerProgram(program, {}, {.is_over = &is_over});
      // An answer is found in any case, as if there were time.
      ASSERT_EQ(found.feasible, best.feasible);
      if (!found.feasible) continue;
      EXPECT_TRUE(testing::KeepsLimits(program, found.choice));
      EXPECT_LE(found.bound, best.cost);
      EXPECT_GE(found.cost, best.cost);
      EXPECT_EQ(found.optimal, found.cost == found.bound);
      if (found.cost > best.cost) ++later;
      // A start that fits is an answer; nothing else is looked at.
      called = calls;
      const IntegerSolution started =
          SolveIntegerProgram(program, found.choice, {.is_over = &is_over});
      EXPECT_LE(started.cost, found.cost);
      EXPECT_EQ(started.nodes, 0);
    }
  }
  EXPECT_GT(later, 10);
}

TEST(IntegerProgram, AGoodStartIsNeverLost) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 7, 5);
    const IntegerSolution best = SolveIntegerProgram(program);
    if (!best.feasible) continue;
    const IntegerSolution again = SolveIntegerProgram(
        program, best.choice, {.max_nodes = 0, .root_rounds = 0});
    EXPECT_EQ(again.cost, best.cost);
    // One that breaks a limit is not used.
    std::vector<int32_t> wrong(program.groups.size(), 0);
    const IntegerSolution from_wrong = SolveIntegerProgram(program, wrong);
    EXPECT_EQ(from_wrong.cost, best.cost);
  }
}

TEST(IntegerProgramSolver, IsRightForOneSetOfCostsAfterAnother) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    IntegerProgram program = RandomProgram(random, 7, 6);
    IntegerProgramSolver solver(program);
    for (int turn = 0; turn < 4; ++turn) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " turn " << turn);
      const std::optional<int64_t> optimum = testing::BruteForceCost(program);
      const IntegerSolution rough =
          solver.Solve({}, {.max_nodes = 0, .root_rounds = 5});
      if (rough.feasible) {
        ASSERT_TRUE(optimum.has_value());
        EXPECT_TRUE(testing::KeepsLimits(program, rough.choice));
        EXPECT_LE(rough.bound, *optimum);
        EXPECT_GE(rough.cost, *optimum);
      }
      const IntegerSolution exact = solver.Solve({}, {});
      ASSERT_EQ(exact.feasible, optimum.has_value());
      if (exact.feasible) {
        EXPECT_EQ(exact.cost, *optimum);
      }
      for (IntegerProgram::Group& group : program.groups) {
        for (IntegerProgram::Option& option : group) {
          option.cost = random.Between(0, 1000);
        }
      }
    }
  }
}

// Pairs of a pipeline: a tensor each, kept or computed again.
IntegerProgram PipelineProgram(int32_t pairs, int32_t in_flight,
                               double memory) {
  Random random(3);
  IntegerProgram program;
  int64_t largest = 0;
  for (int32_t i = 0; i < pairs; ++i) {
    const int64_t bytes = random.Between(500'000'000, 1'500'000'000);
    largest = std::max(largest, bytes);
    IntegerProgram::Group& group = program.groups.emplace_back();
    for (int64_t j = 0; j <= 8; ++j) {
      const int64_t held = bytes * (8 - j) / 8 + bytes * j / 8 / 17;
      const int32_t end = std::min(pairs, i + in_flight);
      group.push_back({.cost = bytes / 20 * j / 8, .uses = {{i, end, held}}});
    }
  }
  program.limits.assign(
      static_cast<size_t>(pairs),
      static_cast<int64_t>(memory * static_cast<double>(in_flight) *
                           static_cast<double>(largest)));
  return program;
}

// The bound may take fractions of the nine steps between keeping and computing
// again, an answer may not.
TEST(IntegerProgram, LargePipelinesAreSolvedNearTheBoundWithoutATree) {
  struct Case {
    double memory = 0;
    double gap = 0;
  };
  for (const Case& c : {Case{0.3, 0.06}, Case{0.5, 0.12}, Case{0.6, 0.2}}) {
    SCOPED_TRACE(::testing::Message() << "memory " << c.memory);
    const IntegerProgram program = PipelineProgram(400, 12, c.memory);
    const IntegerSolution found = SolveIntegerProgram(
        program, {}, {.gap = 0.01, .max_nodes = 0, .root_rounds = 100});
    ASSERT_TRUE(found.feasible);
    EXPECT_TRUE(testing::KeepsLimits(program, found.choice));
    EXPECT_LE(static_cast<double>(found.cost),
              (1 + c.gap) * static_cast<double>(found.bound));
  }
}

TEST(IntegerProgram, TheSameProgramGivesTheSameAnswer) {
  const IntegerProgram program = PipelineProgram(100, 7, 0.4);
  const IntegerSolution a = SolveIntegerProgram(program, {}, {.max_nodes = 20});
  const IntegerSolution b = SolveIntegerProgram(program, {}, {.max_nodes = 20});
  EXPECT_EQ(a.choice, b.choice);
  EXPECT_EQ(a.bound, b.bound);
}

TEST(IntegerProgram, KeepsAStartThatFitsAndReplacesOneThatDoesNot) {
  int kept = 0;
  int replaced = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 8, 6);
    const std::vector<int32_t> start = RandomChoice(random, program);
    const IntegerSolution found =
        SolveIntegerProgram(program, start, {.keeps_start = true});
    if (testing::KeepsLimits(program, start)) {
      ++kept;
      ASSERT_TRUE(found.feasible);
      EXPECT_EQ(found.choice, start);
      int64_t cost = 0;
      for (size_t g = 0; g < start.size(); ++g) {
        cost += program.groups[g][static_cast<size_t>(start[g])].cost;
      }
      EXPECT_EQ(found.cost, cost);
      EXPECT_LE(found.bound, cost);
    } else {
      const IntegerSolution anew = SolveIntegerProgram(program);
      ASSERT_EQ(found.feasible, anew.feasible);
      EXPECT_EQ(found.cost, anew.cost);
      replaced += anew.feasible ? 1 : 0;
    }
  }
  EXPECT_GT(kept, 100);
  EXPECT_GT(replaced, 100);
}

TEST(IntegerProgram, LooksLongerOnlyForAFirstAnswer) {
  int found_later = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 8, 6);
    const IntegerProgramOptions short_search = {.max_nodes = 0,
                                                .root_rounds = 2};
    IntegerProgramOptions longer = short_search;
    longer.rounds_to_fit = 160;
    const IntegerSolution at_once =
        SolveIntegerProgram(program, {}, short_search);
    const IntegerSolution later = SolveIntegerProgram(program, {}, longer);
    if (at_once.feasible) {
      EXPECT_EQ(later.choice, at_once.choice);
      EXPECT_EQ(later.bound, at_once.bound);
    } else if (later.feasible) {
      EXPECT_TRUE(testing::KeepsLimits(program, later.choice));
      ++found_later;
    }
  }
  EXPECT_GT(found_later, 3);
}

TEST(IntegerProgram, SearchesNothingWithoutTheStartThatItNeeds) {
  int fitting = 0;
  int broken = 0;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const IntegerProgram program = RandomProgram(random, 8, 6);
    const std::vector<int32_t> start = RandomChoice(random, program);
    const IntegerSolution found =
        SolveIntegerProgram(program, start, {.needs_start = true});
    if (testing::KeepsLimits(program, start)) {
      EXPECT_EQ(found.cost, SolveIntegerProgram(program, start).cost);
      ++fitting;
    } else {
      EXPECT_FALSE(found.feasible);
      EXPECT_EQ(found.nodes, 0);
      ++broken;
    }
  }
  EXPECT_GT(fitting, 100);
  EXPECT_GT(broken, 100);
}

}  // namespace
}  // namespace pipeloom::planner
