// pipeloom against every other strategy on random jobs: same partition, limit
// and number of evaluations. PIPELOOM_FAIR_JOBS=500 for more jobs,
// PIPELOOM_FAIR_FIRST for others. It is never without a plan where any has one,
// and never slower.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "partition/batching/batch_split.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "tests/planner/random_job.h"
#include "tests/support/plan_first_step.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomJobCase;

int64_t NumJobs() {
  const char* text = std::getenv("PIPELOOM_FAIR_JOBS");
  return text == nullptr ? 30 : std::atoll(text);
}

int64_t FirstJob() {
  const char* text = std::getenv("PIPELOOM_FAIR_FIRST");
  return text == nullptr ? 0 : std::atoll(text);
}

// One random step, ready to be planned with any strategy.
struct Contest {
  JobSpec job{};
  partition::PackedStep packed{};
  Partition partition{};
  int64_t evaluations = 0;
};

absl::StatusOr<PlanResult> PlanWith(const Contest& contest,
                                    absl::string_view name) {
  const emulator::StageCostModel costs(contest.job);
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy, MakeStrategy(name));
  const PreparedJob prepared{.strategy = strategy.get(),
                             .costs = &costs,
                             .partition = contest.partition};
  PlanInput input{.packed = &contest.packed};
  input.budget.max_evaluations = contest.evaluations;
  return PlanStep(prepared, input);
}

// The seed's step: on pipeloom's own partition or another's, under a limit from
// impossible to generous.
absl::StatusOr<Contest> MakeContest(uint64_t seed) {
  Random random(seed);
  RandomJobCase made = RandomJob(seed);
  Contest contest{.job = std::move(made.job)};
  const emulator::StageCostModel costs(contest.job);
  constexpr const char* kPartitions[] = {"pipeloom", "pipeloom", "megatron",
                                         "zb-v", "optimus"};
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto owner,
      MakeStrategy(kPartitions[random.Below(std::size(kPartitions))]));
  PIPELOOM_ASSIGN_OR_RETURN(const PreparedJob prepared,
                            testing::PrepareByRule(*owner, costs, made.batch));
  contest.partition = prepared.partition;
  PIPELOOM_ASSIGN_OR_RETURN(
      contest.packed,
      partition::PackStep(contest.job, made.batch, /*first_sample=*/0));
  constexpr int64_t kEvaluations[] = {20, 100, 300};
  contest.evaluations = 1;
  PIPELOOM_ASSIGN_OR_RETURN(const PlanResult roomy, PlanWith(contest, "gpipe"));
  contest.evaluations = kEvaluations[random.Below(3)];
  Bytes peak;
  Bytes least;
  for (const Bytes bytes : roomy.peak_bytes()) peak = std::max(peak, bytes);
  for (const RankSpec& rank : roomy.plan.graph.ranks()) {
    least = std::max(least, rank.memory.static_bytes());
  }
  // Squared, as what is tight is more telling.
  const double share =
      static_cast<double>(random.Between(0, 1000)) / 1000 * 1.05;
  contest.job.training.memory_limit =
      least + Bytes(static_cast<int64_t>(
                  share * share * static_cast<double>((peak - least).count())));
  return contest;
}

TEST(NeverWorseTest, AlwaysAPlanAndNoneSlowerThanOthersOnAPartition) {
  int planned = 0;
  int impossible = 0;
  std::map<std::string, int> applied;
  // The largest of all jobs, indexed by strategy.
  std::map<std::string, double> most_faster;
  const int64_t first = FirstJob();
  for (int64_t seed = first; seed < first + NumJobs(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "job " << seed);
    ASSERT_OK_AND_ASSIGN(const Contest contest, MakeContest(seed));
    const absl::StatusOr<PlanResult> ours = PlanWith(contest, "pipeloom");
    if (ours.ok()) {
      ++planned;
    } else {
      ASSERT_EQ(ours.status().code(), absl::StatusCode::kResourceExhausted)
          << ours.status();
      ++impossible;
    }
    for (const absl::string_view name : StrategyNames()) {
      if (name == "pipeloom") continue;
      const absl::StatusOr<PlanResult> theirs = PlanWith(contest, name);
      if (!theirs.ok()) continue;
      ++applied[std::string(name)];
      if (!ours.ok()) {
        ADD_FAILURE() << name << " has a plan of "
                      << ToSeconds(theirs->predicted.step_time())
                      << " s, pipeloom none: " << ours.status();
        continue;
      }
      const Duration time = theirs->predicted.step_time();
      const Duration mine = ours->predicted.step_time();
      if (mine > time) {
        double& most = most_faster[std::string(name)];
        most = std::max(most, ToSeconds(mine) / ToSeconds(time) - 1);
      }
      EXPECT_LE(ToSeconds(mine), ToSeconds(time))
          << name << " is "
          << 100 * (ToSeconds(ours->predicted.step_time()) /
                        ToSeconds(theirs->predicted.step_time()) -
                    1)
          << " % faster at " << contest.evaluations << " evaluations, limit "
          << contest.job.training.memory_limit.count() << " B, "
          << contest.partition.num_ranks << " ranks, "
          << ours->microbatches.num_microbatches << " microbatches, "
          << ours->plan.graph.num_tasks() << " tasks";
    }
  }
  EXPECT_GT(planned, impossible);
  std::printf("%d jobs planned, %d not\n", planned, impossible);
  for (const auto& [name, count] : applied) {
    std::printf("%-15s %d plans, at most %.2f %% faster\n", name.c_str(), count,
                100 * most_faster[name]);
  }
  EXPECT_GT(applied["dip"], 0);
  EXPECT_GT(applied["megatron"], 0);
}

// Thousands of priorities meet what few do not: a microbatch that a rank means
// to begin with is begun on another rank behind a third.
TEST(NeverWorseTest, ManyRolloutsOfDipNeverGetStuckInMemory) {
  int planned = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(::testing::Message() << "job " << seed);
    ASSERT_OK_AND_ASSIGN(Contest contest, MakeContest(seed));
    contest.evaluations = 4000;
    planned += PlanWith(contest, "dip-order").ok();
  }
  EXPECT_GT(planned, 3);
}

}  // namespace
}  // namespace pipeloom::planner
