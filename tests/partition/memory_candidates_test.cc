#include "partition/memory_candidates.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/schedule.h"
#include "partition/batch_split.h"
#include "partition/build_stage_graph.h"
#include "partition/placement.h"
#include "tests/partition/random_job.h"
#include "tests/support/random_problem.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::partition {
namespace {

using ::pipeloom::testing::IsOk;

// A job's step, cut and split.
struct Step {
  Step(const JobSpec& job, const BatchMetadata& batch) : costs(job) {
    const auto packed = PackStep(job, batch, 0);
    const auto separated = SeparatedPartition(job, costs, batch);
    if (!packed.ok() || !separated.ok()) return;
    partition = *separated;
    const auto split = SplitMicrobatches(job, *packed, 0, partition);
    if (!split.ok()) return;
    microbatches = *split;
    ok = true;
  }
  emulator::StageCostModel costs;
  Partition partition{};
  Microbatches microbatches{};
  bool ok = false;
};

MemoryChoice RandomChoice(Random& random, int32_t num_layers, bool offload) {
  MemoryChoice choice;
  for (int32_t i = 0; i < num_layers; ++i) {
    choice.layers.push_back(
        static_cast<MemoryStrategy>(random.Below(offload ? 3 : 2)));
  }
  choice.grouped = random.Below(2) == 0;
  return choice;
}

// Some choices for each stage.
IdVector<StageId, std::vector<MemoryChoice>> RandomChoices(
    Random& random, const Partition& partition, bool offload) {
  IdVector<StageId, std::vector<MemoryChoice>> choices;
  for (const Stage& stage : partition.stages) {
    std::vector<MemoryChoice> own;
    for (int i = 0; i < 4; ++i) {
      own.push_back(RandomChoice(random, stage.num_layers, offload));
    }
    choices.push_back(std::move(own));
  }
  return choices;
}

MemorySelection RandomSelection(Random& random, const StepMemory& memory) {
  MemorySelection selection = memory.KeepEverything();
  for (const StagePairId pair : selection.ids()) {
    selection[pair] = static_cast<int32_t>(
        random.Below(static_cast<int64_t>(memory.candidates(pair).size())));
  }
  return selection;
}

TEST(MemoryCandidates, AStageRecomputedAsAWholeIsWhatRecomputeMeans) {
  int built = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Step step(testing::RandomJob(seed),
                    testing::RandomMixedBatch(seed, 12));
    if (!step.ok) continue;
    MemoryPolicy policy;
    for (const SubMicrobatch& sub : step.microbatches.sub_microbatches) {
      for (const Stage& stage : step.partition.stages) {
        if (stage.module != sub.module) continue;
        policy.choice_of.push_back(static_cast<int32_t>(policy.choices.size()));
        policy.choices.push_back(RecomputeWhole(stage.num_layers));
      }
    }
    for (const bool split : {false, true}) {
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph expected,
          BuildStageGraph(step.costs, step.partition, step.microbatches,
                          {.split_backward = split,
                           .recompute = IdVector<StageId, bool>(
                               step.partition.stages.size(), true)}));
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph found,
          BuildStageGraph(step.costs, step.partition, step.microbatches,
                          {.split_backward = split, .memory = policy}));
      ASSERT_EQ(found.graph.num_tasks(), expected.graph.num_tasks());
      for (const TaskId t : found.graph.task_ids()) {
        Task task = found.graph.task(t);
        // Where the forward takes no time.
        task.recomputes = expected.graph.task(t).recomputes;
        ASSERT_EQ(task, expected.graph.task(t)) << "task " << t.value();
      }
      ASSERT_EQ(found.graph.edges(), expected.graph.edges());
      ++built;
    }
  }
  EXPECT_GT(built, 40);
}

TEST(MemoryCandidates, AppliedAndBuiltGraphsAreEqualAndGiveAllBack) {
  int built = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Step step(testing::RandomJob(seed),
                    testing::RandomMixedBatch(seed, 12));
    if (!step.ok) continue;
    for (const bool split : {false, true}) {
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph kept,
          BuildStageGraph(step.costs, step.partition, step.microbatches,
                          {.split_backward = split}));
      ASSERT_EQ(kept.pairs.size(),
                NumStagePairs(step.partition, step.microbatches));
      const StepMemory memory = MakeStepMemory(
          step.costs, step.partition, step.microbatches, kept.pairs,
          RandomChoices(random, step.partition, /*offload=*/true));
      ASSERT_OK_AND_ASSIGN(
          const StageGraph same,
          ApplyMemory(kept.graph, memory, memory.KeepEverything()));
      EXPECT_EQ(same, kept.graph);
      const MemorySelection selection = RandomSelection(random, memory);
      ASSERT_OK_AND_ASSIGN(const StageGraph applied,
                           ApplyMemory(kept.graph, memory, selection));
      ASSERT_OK_AND_ASSIGN(
          const BuiltGraph again,
          BuildStageGraph(step.costs, step.partition, step.microbatches,
                          {.split_backward = split,
                           .memory = PolicyOf(memory, selection)}));
      EXPECT_EQ(applied, again.graph);
      IdVector<RankId, Bytes> held(applied.num_ranks());
      for (const Task& task : applied.tasks()) {
        held[task.rank] += task.alloc - task.free;
        EXPECT_GE(task.alloc, Bytes(0));
        EXPECT_GE(task.free, Bytes(0));
      }
      for (const Bytes rest : held) EXPECT_EQ(rest, Bytes(0));
      ++built;
    }
  }
  EXPECT_GT(built, 40);
}

TEST(MemoryCandidates, RecomputingMoreHoldsLessAndTakesTheLayersForwards) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const Step step(testing::SmallVlmJob(), testing::RandomBatch(seed, 40, 3));
    ASSERT_TRUE(step.ok);
    const auto& subs = step.microbatches.sub_microbatches;
    const SubMicrobatch& sub =
        subs[SubMicrobatchId(static_cast<int32_t>(random.Below(subs.size())))];
    const Stage& stage =
        step.partition.stages[step.partition.StagesOf(sub.module)[0]];
    const LayerCosts layers(step.costs, stage, sub.shape, true);
    const emulator::StageCost whole = step.costs.Cost(stage, sub.shape, true);
    for (const PassForm form : {PassForm::kFused, PassForm::kSplit}) {
      const bool split = form == PassForm::kSplit;
      const MemoryEffect kept = layers.Effect({}, form);
      EXPECT_EQ(kept.held(), whole.activations);
      EXPECT_EQ(kept.backward, split ? whole.backward : whole.fused);
      EXPECT_EQ(kept.weight_grad, split ? whole.weight_grad : kZero);
      EXPECT_EQ(kept.gap, split ? whole.backward_gap : whole.fused_gap);
      EXPECT_EQ(kept.backward_alloc, Bytes(0));
      MemoryChoice choice{
          .layers = std::vector<MemoryStrategy>(
              static_cast<size_t>(stage.num_layers), MemoryStrategy::kKeep)};
      MemoryEffect last = kept;
      Duration extra{};
      for (size_t i = 0; i < choice.layers.size(); ++i) {
        choice.layers[i] = MemoryStrategy::kRecompute;
        extra += layers.layers()[i].forward;
        const MemoryEffect now = layers.Effect(choice, form);
        EXPECT_EQ(now.extra, extra);
        EXPECT_EQ(now.backward, kept.backward + extra);
        EXPECT_LE(now.held(), last.held());
        EXPECT_LE(now.backward_peak(), kept.backward_peak());
        // In one group: less is held, more is needed in the backward.
        MemoryChoice grouped = choice;
        grouped.grouped = true;
        const MemoryEffect one = layers.Effect(grouped, form);
        EXPECT_LE(one.held(), now.held());
        EXPECT_GE(one.backward_alloc, now.backward_alloc);
        EXPECT_EQ(one.extra, now.extra);
        last = now;
      }
    }
  }
}

// Copies as two first-in first-out streams, out as soon and back as late as
// they can be.
TEST(MemoryCandidates, CopiesAreDoneInTheTimeAndMemorySetAsideForThem) {
  int copies = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    JobSpec job = testing::SmallVlmJob();
    job.cluster.device.host_bandwidth.bytes_per_second = 1e11;
    const Step step(job, testing::RandomBatch(seed, 40, 3));
    ASSERT_TRUE(step.ok);
    ASSERT_OK_AND_ASSIGN(
        const BuiltGraph kept,
        BuildStageGraph(step.costs, step.partition, step.microbatches,
                        {.split_backward = seed % 2 == 0}));
    const StepMemory memory = MakeStepMemory(
        step.costs, step.partition, step.microbatches, kept.pairs,
        RandomChoices(random, step.partition, /*offload=*/true));
    const MemorySelection selection = RandomSelection(random, memory);
    ASSERT_OK_AND_ASSIGN(const StageGraph graph,
                         ApplyMemory(kept.graph, memory, selection));
    ASSERT_OK_AND_ASSIGN(
        const Schedule schedule,
        TimeSchedule(graph, testing::RandomOrders(graph, random)));
    for (const RankId r : graph.rank_ids()) {
      struct Copy {
        SimTime ready{};  // The forward's end.
        SimTime due{};    // The backward's start.
        Duration time{};
        Bytes bytes{};
        SimTime out{};
        SimTime back{};
      };
      std::vector<Copy> list;
      for (const StagePairId id : memory.pairs.ids()) {
        const StagePair& pair = memory.pairs[id];
        if (pair.backward.is_none() || graph.task(pair.forward).rank != r) {
          continue;
        }
        const MemoryEffect& effect = memory.effect(id, selection[id]);
        if (effect.forward_free == Bytes(0)) continue;
        list.push_back({.ready = schedule.start[pair.forward] +
                                 graph.task(pair.forward).duration,
                        .due = schedule.start[pair.backward],
                        .time = effect.copy,
                        .bytes = effect.forward_free});
      }
      copies += static_cast<int>(list.size());
      Duration longest{};
      Bytes largest{};
      for (const Copy& c : list) {
        longest = std::max(longest, c.time);
        largest = std::max(largest, c.bytes);
      }
      EXPECT_EQ(graph.rank(r).memory.overhead,
                kept.graph.rank(r).memory.overhead + 2 * largest);
      std::sort(list.begin(), list.end(),
                [](const Copy& a, const Copy& b) { return a.ready < b.ready; });
      SimTime free_at{};
      for (Copy& c : list) {
        free_at = std::max(free_at, c.ready) + c.time;
        c.out = free_at;
        // What is left of all copies is at most the time of the longest.
        EXPECT_LE(c.out, c.ready + longest);
      }
      std::sort(list.begin(), list.end(),
                [](const Copy& a, const Copy& b) { return a.due > b.due; });
      SimTime next = SimTime::max();
      for (Copy& c : list) {
        next = std::min(next, c.due) - c.time;
        c.back = next;
        EXPECT_GE(c.back, c.due - longest);
        EXPECT_GE(c.back, c.out);
      }
    }
  }
  EXPECT_GT(copies, 500);
}

TEST(MemoryCandidates, ACopyLongerThanItsPassIsRefused) {
  JobSpec job = testing::SmallVlmJob();
  job.cluster.device.host_bandwidth.bytes_per_second = 1e6;
  const Step step(job, testing::RandomBatch(1, 40, 3));
  ASSERT_TRUE(step.ok);
  MemoryPolicy policy;
  for (const SubMicrobatch& sub : step.microbatches.sub_microbatches) {
    for (const Stage& stage : step.partition.stages) {
      if (stage.module != sub.module) continue;
      policy.choice_of.push_back(static_cast<int32_t>(policy.choices.size()));
      MemoryChoice choice = RecomputeWhole(stage.num_layers);
      choice.layers.back() = MemoryStrategy::kOffload;
      policy.choices.push_back(choice);
    }
  }
  const auto refused = BuildStageGraph(step.costs, step.partition,
                                       step.microbatches, {.memory = policy});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(),
              ::testing::HasSubstr("longer than its forward"));
  policy.choice_of.resize(policy.choice_of.size() - 1);
  const auto short_of_one = BuildStageGraph(
      step.costs, step.partition, step.microbatches, {.memory = policy});
  EXPECT_THAT(short_of_one.status().message(),
              ::testing::HasSubstr("stage pairs"));
}

}  // namespace
}  // namespace pipeloom::partition
