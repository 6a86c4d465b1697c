#include "planner/job/plan_deferred.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "partition/batching/defer_surplus.h"
#include "partition/batching/load_meter.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;

std::multiset<SampleId> SamplesOf(
    const std::vector<std::vector<SampleId>>& replica) {
  std::multiset<SampleId> all;
  for (const auto& microbatch : replica) {
    all.insert(microbatch.begin(), microbatch.end());
  }
  return all;
}

// Returns the tokens and instances of a plan's losses, indexed by module.
std::vector<std::pair<int64_t, int64_t>> SharesOf(const ExecutionPlan& plan,
                                                  const ModelSpec& model) {
  std::vector<std::pair<int64_t, int64_t>> sums(
      static_cast<size_t>(model.modules.size()));
  for (const LossShare& share : plan.loss_shares) {
    auto& [tokens, instances] = sums[static_cast<size_t>(share.module.value())];
    tokens += share.tokens;
    instances += share.instances;
  }
  return sums;
}

struct Case {
  JobSpec job = SmallVlmJob();
  BatchMetadata batch{};
  std::unique_ptr<emulator::StageCostModel> costs{};
  partition::PackedStep packed{};

  explicit Case(uint64_t seed) : batch(RandomBatch(seed, 400, 8)) {
    job.cluster.num_nodes = 2;
    job.parallel.dp = 1 + static_cast<int32_t>(seed % 3);
    job.training.microbatch_images = 24;
    costs = std::make_unique<emulator::StageCostModel>(job);
    packed = *partition::PackStep(job, batch, 0);
  }
};

TEST(DeferSurplusTest, KeepsEachReplicasSamplesAndTheLimits) {
  int moved = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const Case c(seed);
    ASSERT_OK_AND_ASSIGN(const auto costs, partition::SampleCosts::Create(
                                               c.job, *c.costs, c.batch));
    const partition::PackedStep deferred =
        partition::DeferSurplus(c.job, costs, c.packed);
    ASSERT_EQ(deferred.packed.size(), c.packed.packed.size());
    if (deferred.packed != c.packed.packed) ++moved;
    const partition::LoadMeter meter(c.job);
    for (size_t r = 0; r < deferred.packed.size(); ++r) {
      EXPECT_EQ(SamplesOf(deferred.packed[r]), SamplesOf(c.packed.packed[r]));
      ASSERT_EQ(deferred.packed[r].size(), c.packed.packed[r].size());
      for (const auto& microbatch : deferred.packed[r]) {
        EXPECT_FALSE(microbatch.empty());
        partition::Load load;
        for (const SampleId id : microbatch) {
          load += meter.Of(deferred.samples.samples[id]);
        }
        EXPECT_TRUE(meter.Fits(load) || microbatch.size() == 1);
      }
    }
  }
  EXPECT_GT(moved, 20);
}

// Microbatches that were packed to their limits leave little room; where the
// limits do not bind (the second half of the cases) there is something to gain.
TEST(DeferSurplusTest, MakesTheCostliestMicrobatchCheaper) {
  double before = 0;
  double after = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Case c(seed);
    const bool roomy = seed >= 10;
    if (roomy) {
      c.job.training.microbatch_tokens *= 2;
      c.job.training.microbatch_images = 0;
    }
    ASSERT_OK_AND_ASSIGN(const auto costs, partition::SampleCosts::Create(
                                               c.job, *c.costs, c.batch));
    const auto most = [&](const partition::PackedStep& step) {
      int64_t worst = 0;
      for (const auto& microbatch : step.packed[0]) {
        int64_t sum = 0;
        for (const SampleId id : microbatch) {
          for (const int64_t cost :
               costs.Of(c.job.model, step.samples.samples[id])) {
            sum += cost;
          }
        }
        worst = std::max(worst, sum);
      }
      return static_cast<double>(worst);
    };
    const double was = most(c.packed);
    const double is = most(partition::DeferSurplus(c.job, costs, c.packed));
    EXPECT_LE(is, was) << seed;
    if (!roomy) continue;
    before += was;
    after += is;
  }
  EXPECT_LT(after, 0.95 * before);
}

// Also with 1F1B, whose order cannot make up for uneven microbatches.
TEST(PlanDeferredTest, IsNeverSlowerAndKeepsTheGradient) {
  int better = 0;
  for (const char* name : {"pipeloom", "1f1b"}) {
    ASSERT_OK_AND_ASSIGN(const auto strategy, MakeStrategy(name));
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(::testing::Message() << name << ", seed " << seed);
      const Case c(seed);
      ASSERT_OK_AND_ASSIGN(const auto costs, partition::SampleCosts::Create(
                                                 c.job, *c.costs, c.batch));
      ASSERT_OK_AND_ASSIGN(const PreparedJob job,
                           PrepareJob(*strategy, *c.costs, c.batch));
      PlanInput input;
      input.packed = &c.packed;
      input.budget.max_evaluations = 20;
      ASSERT_OK_AND_ASSIGN(const PlanResult plain, PlanStep(job, input));
      ASSERT_OK_AND_ASSIGN(const DeferredPlan deferred,
                           PlanDeferred(job, input, costs));
      EXPECT_LE(deferred.plan.predicted.finish, plain.predicted.finish);
      better += deferred.plan.predicted.finish < plain.predicted.finish;
      EXPECT_EQ(deferred.deferred,
                deferred.plan.predicted.finish < plain.predicted.finish);
      // Each share is a part of the same totals, and nothing is left out.
      EXPECT_EQ(SharesOf(deferred.plan.plan, c.job.model),
                SharesOf(plain.plan, c.job.model));
      ASSERT_EQ(deferred.plan.plan.loss_totals.size(),
                plain.plan.loss_totals.size());
      for (size_t m = 0; m < plain.plan.loss_totals.size(); ++m) {
        EXPECT_EQ(deferred.plan.plan.loss_totals[m].tokens,
                  plain.plan.loss_totals[m].tokens);
        EXPECT_EQ(deferred.plan.plan.loss_totals[m].instances,
                  plain.plan.loss_totals[m].instances);
      }
      if (c.job.parallel.dp == 1) {
        const auto shares = SharesOf(deferred.plan.plan, c.job.model);
        for (const LossTotal& total : deferred.plan.plan.loss_totals) {
          const auto& share = shares[static_cast<size_t>(total.module.value())];
          EXPECT_EQ(share.first, total.tokens);
          EXPECT_EQ(share.second, total.instances);
        }
      }
    }
  }
  EXPECT_GT(better, 4);
}

}  // namespace
}  // namespace pipeloom::planner
