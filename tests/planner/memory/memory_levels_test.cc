#include "planner/memory/memory_levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/planner/small_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;

TEST(MemoryLevelsTest, LevelsDifferAndSpanWhatPairsCanHold) {
  const auto [graph, memory, partition] = testing::MakeSmallStep(1, 6, false);
  const auto held = [&](const MemorySelection& selection) {
    int64_t sum = 0;
    for (const StagePairId id : selection.ids()) {
      if (memory.pairs[id].backward.is_none()) continue;
      sum += memory.effect(id, selection[id]).held().count();
    }
    return sum;
  };
  const std::vector<MemorySelection> levels =
      MemoryLevels(memory, partition, {0.5, 1, 0, 0.25});
  ASSERT_GE(levels.size(), 6u);
  EXPECT_EQ(levels[0], memory.Level(0.5));
  EXPECT_EQ(levels[2], memory.KeepEverything());
  int64_t least = held(levels[0]);
  int64_t most = least;
  for (size_t i = 0; i < levels.size(); ++i) {
    for (size_t j = i + 1; j < levels.size(); ++j) {
      EXPECT_NE(levels[i], levels[j]);
    }
    for (const StagePairId id : levels[i].ids()) {
      EXPECT_EQ(memory.effect(id, levels[i][id]).offloaded, Bytes(0));
    }
    least = std::min(least, held(levels[i]));
    most = std::max(most, held(levels[i]));
  }
  EXPECT_EQ(least, held(memory.MinMemory()));
  EXPECT_EQ(most, held(memory.KeepEverything()));
  // One module at a time, too.
  MemorySelection one = memory.KeepEverything();
  const MemorySelection min_memory = memory.MinMemory();
  for (const StagePairId id : one.ids()) {
    if (partition.stages[memory.pairs[id].stage].module == ModuleId(0)) {
      one[id] = min_memory[id];
    }
  }
  EXPECT_NE(std::find(levels.begin(), levels.end(), one), levels.end());
}

TEST(MemoryLevelsTest, MemoryIsTightIfTwoMicrobatchesDoNotFit) {
  const auto [graph, memory, partition] = testing::MakeSmallStep(1, 6, false);
  ASSERT_OK_AND_ASSIGN(const StageGraph least,
                       partition::ApplyMemory(graph, memory, memory.Level(1)));
  // Bytes that the largest microbatch takes of each rank if it runs alone.
  std::vector<TaskId> order;
  for (const TaskId t : least.task_ids()) order.push_back(t);
  std::stable_sort(order.begin(), order.end(), [&](TaskId a, TaskId b) {
    return least.task(a).microbatch < least.task(b).microbatch;
  });
  IdVector<RankId, int64_t> held(least.num_ranks(), 0);
  IdVector<RankId, int64_t> most(least.num_ranks(), 0);
  for (const TaskId t : order) {
    int64_t& on_rank = held[least.task(t).rank];
    on_rank += least.task(t).alloc.count();
    most[least.task(t).rank] = std::max(most[least.task(t).rank], on_rank);
    on_rank -= least.task(t).free.count();
  }
  const auto is_tight = [&](double microbatches, RankId one) {
    IdVector<RankId, RankSpec> ranks = graph.ranks();
    for (const RankId r : ranks.ids()) {
      const double fitting = r == one ? microbatches : 2.1;
      ranks[r].memory.limit =
          ranks[r].memory.static_bytes() +
          Bytes(static_cast<int64_t>(fitting * static_cast<double>(most[r])));
    }
    return MemoryIsTight(graph.WithRanks(ranks), memory);
  };
  for (const RankId r : graph.rank_ids()) {
    EXPECT_TRUE(is_tight(1.9, r)) << r.value();
    EXPECT_FALSE(is_tight(2.1, r)) << r.value();
    EXPECT_FALSE(is_tight(100, r)) << r.value();
  }
  IdVector<RankId, RankSpec> unlimited = graph.ranks();
  for (RankSpec& rank : unlimited) rank.memory.limit = Bytes(0);
  EXPECT_FALSE(MemoryIsTight(graph.WithRanks(unlimited), memory));
}

TEST(MemoryLevelsTest, AsIfPairedTakesTheLeastOfBothFormsAndHoldsTheSame) {
  partition::StepMemory memory =
      testing::MakeSmallStep(2, 4, true, /*waits=*/true).memory;
  const partition::MemoryEffect first = memory.effect(StagePairId(0), 0);
  // No gap leaves more than half of a weight gradient.
  for (partition::CandidateLists::List& list : memory.lists.Change()) {
    for (partition::MemoryCandidate& c : list) {
      c.effect.gap = std::max(c.effect.gap, c.effect.weight_grad * 2 / 3);
    }
  }
  const partition::StepMemory paired = AsIfPaired(memory);
  partition::StepMemory fused = memory;
  fused.SetForms(partition::FormSelection(memory.pairs.size(),
                                          partition::PassForm::kFused));
  int shorter = 0;
  for (const StagePairId id : memory.pairs.ids()) {
    if (memory.pairs[id].backward.is_none()) continue;
    EXPECT_FALSE(paired.has_other_form(id));
    ASSERT_EQ(paired.candidates(id).size(), fused.candidates(id).size());
    for (int32_t i = 0; i < static_cast<int32_t>(paired.candidates(id).size());
         ++i) {
      const partition::MemoryEffect& split = memory.effect(id, i);
      partition::MemoryEffect expected = fused.effect(id, i);
      const Duration hidden = std::min(split.gap, split.weight_grad);
      const Duration apart = split.backward + split.weight_grad - hidden;
      if (memory.has_other_form(id) && apart < expected.backward) {
        expected.backward = apart;
        ++shorter;
      }
      EXPECT_EQ(paired.effect(id, i), expected);
    }
  }
  EXPECT_GT(shorter, 0);
  // The choices that it was made from are as they were.
  EXPECT_EQ(memory.effect(StagePairId(0), 0).backward, first.backward);
  EXPECT_EQ(memory.effect(StagePairId(0), 0).weight_grad, first.weight_grad);
}

// Where a gap leaves most of a weight gradient, that is a task of its own; but
// not if all such rests are a small part of the step.
TEST(MemoryLevelsTest, AsIfPairedHasLongRestsApart) {
  for (const int64_t share : {1, 50}) {
    SCOPED_TRACE(share);
    partition::StepMemory memory =
        testing::MakeSmallStep(2, 4, true, /*waits=*/true).memory;
    std::vector<partition::CandidateLists::List>& lists = memory.lists.Change();
    int split_lists = 0;
    for (size_t list = 0; list < lists.size(); ++list) {
      if (memory.form_of_list[list] != partition::PassForm::kSplit) continue;
      const bool is_long = ++split_lists % 2 == 0;
      // Every other one has a rest of three quarters.
      for (partition::MemoryCandidate& c : lists[list]) {
        c.effect.weight_grad = c.effect.backward / share;
        c.effect.gap = c.effect.weight_grad / (is_long ? 4 : 1);
      }
    }
    const partition::StepMemory paired = AsIfPaired(memory);
    const partition::StepMemory fused = AsIfPairedAndFused(memory);
    int apart = 0;
    for (const StagePairId id : memory.pairs.ids()) {
      if (!memory.has_other_form(id)) continue;
      EXPECT_EQ(fused.form(id), partition::PassForm::kFused);
      const bool is_apart = paired.form(id) == partition::PassForm::kSplit;
      apart += is_apart;
      for (int32_t i = 0;
           i < static_cast<int32_t>(memory.candidates(id).size()); ++i) {
        const partition::MemoryEffect& split = memory.effect(id, i);
        const Duration rest = split.weight_grad - split.gap;
        EXPECT_LE(fused.effect(id, i).backward, split.backward + rest);
        if (!is_apart) {
          EXPECT_EQ(paired.effect(id, i), fused.effect(id, i));
          continue;
        }
        EXPECT_GT(rest, kZero);
        partition::MemoryEffect expected = split;
        expected.weight_grad = rest;
        EXPECT_EQ(paired.effect(id, i), expected);
        EXPECT_GE(fused.effect(id, i).backward_peak(), split.backward_peak());
        EXPECT_EQ(fused.effect(id, i).backward_free,
                  fused.effect(id, i).backward_peak());
      }
    }
    if (share == 1) {
      EXPECT_GT(apart, 0);
    } else {
      EXPECT_EQ(apart, 0);
    }
  }
}

// Returns the graph with room for so many of its four mean microbatches on
// every rank when everything is kept.
StageGraph WithRoomFor(double microbatches, const StageGraph& graph,
                       const partition::StepMemory& memory) {
  const partition::MemorySelection all = memory.KeepEverything();
  IdVector<RankId, Bytes> held(graph.num_ranks());
  for (const StagePairId id : memory.pairs.ids()) {
    held[graph.task(memory.pairs[id].forward).rank] +=
        memory.effect(id, all[id]).held();
  }
  IdVector<RankId, RankSpec> ranks = graph.ranks();
  for (const RankId r : ranks.ids()) {
    const double room = static_cast<double>(held[r].count()) * microbatches / 4;
    ranks[r].memory.limit =
        ranks[r].memory.static_bytes() + Bytes(static_cast<int64_t>(room));
  }
  return graph.WithRanks(ranks);
}

TEST(MemoryLevelsTest, CountsTheMicrobatchesThatFitOnTheFullestRank) {
  const auto step = testing::MakeSmallStep(2, 4, true);
  const partition::StepMemory& memory = step.memory;
  const partition::MemorySelection all = memory.KeepEverything();
  StageGraph limited = WithRoomFor(3, step.graph, memory);
  // The microbatches are nearly equal.
  EXPECT_NEAR(MicrobatchesThatFit(limited, memory, all), 3, 0.05);
  EXPECT_GT(MicrobatchesThatFit(limited, memory, memory.MinMemory()), 3.1);
  IdVector<RankId, RankSpec> ranks = limited.ranks();
  for (const RankId r : ranks.ids()) {
    EXPECT_NEAR(MicrobatchesThatFit(limited.WithRanks(ranks), memory, all), 3,
                0.05);
    ranks[r].memory.limit = Bytes(0);
  }
  EXPECT_TRUE(
      std::isinf(MicrobatchesThatFit(limited.WithRanks(ranks), memory, all)));
}

TEST(MemoryLevelsTest, LevelsWithoutRoomComeLast) {
  const auto step = testing::MakeSmallStep(2, 4, true);
  const partition::StepMemory& memory = step.memory;
  const partition::MemorySelection all = memory.KeepEverything();
  const partition::MemorySelection least = memory.MinMemory();
  std::vector<partition::MemorySelection> levels = {all, least};
  const double half = 0.5 * step.graph.num_ranks();
  PutRoomyLevelsFirst(WithRoomFor(1.1 * half, step.graph, memory), memory,
                      &levels);
  EXPECT_EQ(levels, (std::vector{all, least}));
  PutRoomyLevelsFirst(WithRoomFor(0.9 * half, step.graph, memory), memory,
                      &levels);
  EXPECT_EQ(levels, (std::vector{least, all}));
}

TEST(MemoryLevelsTest, LargeMicrobatchesCountAsLargeAsTheyAre) {
  // The first microbatch keeps everything, the others hold least.
  const auto step = testing::MakeSmallStep(2, 4, true);
  const partition::StepMemory& memory = step.memory;
  const partition::MemorySelection all = memory.KeepEverything();
  partition::MemorySelection lean = memory.MinMemory();
  for (const StagePairId id : memory.pairs.ids()) {
    const Task& forward = step.graph.task(memory.pairs[id].forward);
    if (forward.microbatch == MicrobatchId(0)) lean[id] = all[id];
  }
  const StageGraph limited = WithRoomFor(1, step.graph, memory);
  // Indexed by rank and microbatch.
  IdVector<RankId, std::vector<double>> held(limited.num_ranks(),
                                             std::vector<double>(4, 0));
  for (const StagePairId id : memory.pairs.ids()) {
    const Task& forward = limited.task(memory.pairs[id].forward);
    held[forward.rank][static_cast<size_t>(forward.microbatch.value())] +=
        static_cast<double>(memory.effect(id, lean[id]).held().count());
  }
  double fewest = std::numeric_limits<double>::infinity();
  for (const RankId r : limited.rank_ids()) {
    const double sum = std::accumulate(held[r].begin(), held[r].end(), 0.0);
    double weighted = 0;
    for (const double bytes : held[r]) weighted += bytes * (bytes / sum);
    const RankMemory& rank = limited.rank(r).memory;
    const Bytes room = rank.limit - rank.static_bytes();
    fewest = std::min(fewest, static_cast<double>(room.count()) / weighted);
  }
  EXPECT_NEAR(MicrobatchesThatFit(limited, memory, lean), fewest,
              1e-9 * fewest);
}

TEST(MemoryLevelsTest, TheShortestLevelRecomputesOnlyForAFullPipeline) {
  const auto step = testing::MakeSmallStep(2, 4, true);
  const partition::StepMemory& memory = step.memory;
  const partition::MemorySelection all = memory.KeepEverything();
  const partition::MemorySelection least = memory.MinMemory();
  const double ranks = step.graph.num_ranks();
  EXPECT_EQ(ShortestLevels(WithRoomFor(0.95 * ranks, step.graph, memory),
                           memory, {least, all}),
            (std::vector{all, least}));
  EXPECT_EQ(ShortestLevels(WithRoomFor(0.1 * ranks, step.graph, memory), memory,
                           {all, least, all}),
            (std::vector{least, all}));
}

TEST(MemoryLevelsTest, TheSecondShortestLevelHasRoomForMoreThanAFullPipeline) {
  const auto step = testing::MakeSmallStep(2, 4, true);
  const partition::StepMemory& memory = step.memory;
  const std::vector<partition::MemorySelection> levels =
      MemoryLevels(memory, step.partition, {0, 0.2, 0.4, 0.6, 0.8, 1});
  // The level with the shortest estimate that is not `taken`.
  const auto shortest = [&](const StageGraph& graph, double share,
                            const partition::MemorySelection& taken) {
    double least = std::numeric_limits<double>::infinity();
    partition::MemorySelection best;
    for (const partition::MemorySelection& level : levels) {
      Duration work = kZero;
      for (const Task& task : graph.tasks()) work += task.duration;
      for (const StagePairId id : memory.pairs.ids()) {
        work += memory.effect(id, level[id]).extra;
      }
      const double lacking =
          share * graph.num_ranks() / MicrobatchesThatFit(graph, memory, level);
      const double estimate = ToSeconds(work) * std::max(1.0, lacking);
      if (level == taken || estimate >= least) continue;
      least = estimate;
      best = level;
    }
    return best;
  };
  int differ = 0;
  for (double room = 0.5; room < 4; room += 0.1) {
    const StageGraph limited =
        WithRoomFor(room * step.graph.num_ranks(), step.graph, memory);
    const partition::MemorySelection first = shortest(limited, 0.9, {});
    const partition::MemorySelection second = shortest(limited, 2, first);
    EXPECT_EQ(ShortestLevels(limited, memory, levels),
              (std::vector{first, second}))
        << room;
    differ += second == shortest(limited, 0.9, first) ? 0 : 1;
  }
  EXPECT_GT(differ, 0);
}

TEST(MemoryLevelsTest, StartLevelsDifferAndBeginWithTheShortest) {
  const auto step = testing::MakeSmallStep(2, 4, true);
  const partition::StepMemory& memory = step.memory;
  const StageGraph tight = WithRoomFor(0.3, step.graph, memory);
  const std::vector<partition::MemorySelection> levels =
      StartLevels(tight, memory, step.partition);
  for (size_t i = 0; i < levels.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(levels[i], levels[j]);
  }
  ASSERT_GT(levels.size(), 2);
  EXPECT_EQ(ShortestLevels(tight, memory, levels),
            (std::vector{levels[0], levels[1]}));
}

TEST(MemoryLevelsTest, OnlyGapsHideWeightGrads) {
  EXPECT_TRUE(
      GapsHideWeightGrads(testing::MakeSmallStep(2, 4, true, true).memory));
  auto step = testing::MakeSmallStep(2, 4, true, true);
  for (auto& list : step.memory.lists.Change()) {
    for (partition::MemoryCandidate& c : list) c.effect.gap = kZero;
  }
  EXPECT_FALSE(GapsHideWeightGrads(step.memory));
}

}  // namespace
}  // namespace pipeloom::planner
