// The search for order, memory choices and forms of passes against trying all
// of them, on steps of up to twelve tasks: what it calls impossible is, what it
// calls optimal is, and its bound is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/placement/placement.h"
#include "planner/memory/smallest_limit.h"
#include "planner/memory/stage_choices.h"
#include "planner/passes/pass_forms.h"
#include "planner/strategies/memory_search.h"
#include "tests/oracles/brute_force_schedule.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using partition::MemorySelection;
using partition::PassForm;
using partition::StepMemory;

struct Problem {
  StageGraph graph{};  // Everything kept.
  StepMemory memory{};
  Partition partition{};
};

// One microbatch through both modules, on tensor-parallel ranks with links slow
// enough for forms to matter. Each stage keeps everything or makes its choice
// that holds least; more choices would be too many to try.
Problem MakeProblem(uint64_t seed) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.tp = 4;
  job.parallel.pp = 2;
  job.cluster.intra_node.bandwidth.bytes_per_second = 5e10;
  job.training.microbatches = 1;
  const BatchMetadata batch = testing::RandomBatch(seed, 8, 3);
  const emulator::StageCostModel costs(job);
  Problem problem;
  problem.partition = *partition::SeparatedPartition(job, costs, batch);
  const Microbatches cut = *partition::SplitMicrobatches(
      job, *partition::PackStep(job, batch, 0), 0, problem.partition);
  partition::BuiltGraph built = *partition::BuildStageGraph(
      costs, problem.partition, cut, {.split_backward = true});
  problem.memory =
      partition::MakeStepMemory(costs, problem.partition, cut, built.pairs,
                                StageChoices(costs, problem.partition, cut));
  for (auto& list : problem.memory.lists.Change()) {
    if (list.size() > 2) list = {list.front(), list.back()};
  }
  problem.graph = std::move(built.graph);
  return problem;
}

// Calls `visit` with every selection and every assignment of forms.
template <typename Visit>
void ForAllChoices(const StepMemory& memory, const Visit& visit) {
  std::vector<StagePairId> pairs;
  for (const StagePairId id : memory.pairs.ids()) {
    if (!memory.pairs[id].backward.is_none()) pairs.push_back(id);
  }
  for (uint32_t bits = 0; bits < 1u << (2 * pairs.size()); ++bits) {
    StepMemory with_forms = memory;
    MemorySelection selection = memory.KeepEverything();
    bool twice = false;
    for (size_t i = 0; i < pairs.size(); ++i) {
      const bool choose = (bits >> (2 * i) & 1) != 0;
      const bool other = (bits >> (2 * i + 1) & 1) != 0;
      if (choose) {
        if (memory.candidates(pairs[i]).size() < 2) twice = true;
        selection[pairs[i]] = 1;
      }
      if (other) {
        if (!memory.has_other_form(pairs[i]))
          twice = true;
        else
          with_forms.SwitchForm(pairs[i]);
      }
    }
    if (!twice) visit(with_forms, selection);
  }
}

TEST(ExhaustiveStepTest, SearchFindsWhatThereIsAndProvesOnlyWhatIsSo) {
  int solved = 0;
  int optimal = 0;
  int impossible = 0;
  for (uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const Problem problem = MakeProblem(seed);
    // Samples that make two sub-microbatches are too many choices.
    if (problem.graph.num_tasks() > 12) continue;
    Random random(seed);
    IdVector<RankId, RankSpec> ranks = problem.graph.ranks();
    IdVector<RankId, int64_t> held(ranks.size(), 0);
    for (const Task& task : problem.graph.tasks()) {
      held[task.rank] += task.alloc.count();
    }
    for (const RankId r : ranks.ids()) {
      RankMemory& memory = ranks[r].memory;
      memory.limit = memory.static_bytes() +
                     Bytes(held[r] * random.Between(30, 110) / 100);
    }
    const StageGraph graph = problem.graph.WithRanks(ranks);
    std::optional<Duration> optimum;
    int64_t tried = 0;
    ForAllChoices(problem.memory, [&](const StepMemory& memory,
                                      const MemorySelection& selection) {
      const StageGraph chosen =
          *partition::ApplyMemory(graph, memory, selection);
      const std::optional<Duration> time = testing::BruteForceStepTime(chosen);
      ++tried;
      if (time.has_value() && (!optimum.has_value() || *time < *optimum)) {
        optimum = time;
      }
    });
    ASSERT_GT(tried, 15);
    SearchBudget budget;
    budget.max_evaluations = 2000;
    const auto found = SearchWithMemory(graph, problem.memory,
                                        problem.partition, seed, budget);
    // No limit below a proven one is enough.
    const SmallestLimit limit = SmallestLimitOfStep(graph, problem.memory);
    int64_t largest = 0;
    for (const RankSpec& rank : ranks) {
      largest = std::max(largest, rank.memory.limit.count());
    }
    if (!optimum.has_value()) {
      EXPECT_EQ(found.status().code(), absl::StatusCode::kResourceExhausted);
      ++impossible;
      continue;
    }
    EXPECT_GE(largest, limit.at_least);
    ASSERT_THAT(found, testing::IsOk());
    const Duration time = found->found.schedule.step_time();
    EXPECT_GE(time, *optimum);
    EXPECT_LE(found->found.lower_bound, *optimum);
    EXPECT_LE(ToSeconds(time), 1.05 * ToSeconds(*optimum));
    if (found->found.proven_optimal) {
      EXPECT_EQ(time, *optimum);
    }
    ++solved;
    optimal += time == *optimum;
  }
  EXPECT_GT(solved, 10);
  EXPECT_GT(impossible, 3);
  EXPECT_GT(optimal, solved * 3 / 4);
}

}  // namespace
}  // namespace pipeloom::planner
