#include "service/plans/plan_cache.h"

#include <memory>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/batching/batch_split.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::service {
namespace {

using planner::MakeStrategy;
using planner::PlanInput;
using planner::PlanResult;
using planner::PlanStep;
using planner::PreparedJob;
using planner::PrepareJob;
using planner::Strategy;

// A plan of the small job for a batch, by so many evaluations.
class PlanCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spec_ = testing::SmallVlmJob();
    strategy_ = *MakeStrategy("pipeloom");
    costs_.emplace(spec_);
    job_ = *PrepareJob(*strategy_, *costs_, testing::RandomBatch(1, 32, 2));
  }
  absl::StatusOr<std::shared_ptr<const PlanResult>> Plan(
      const BatchMetadata& batch, int64_t evaluations) {
    absl::StatusOr<partition::PackedStep> packed =
        partition::PackStep(spec_, batch, 0);
    if (!packed.ok()) return packed.status();
    PlanInput input;
    input.packed = &*packed;
    input.budget.max_evaluations = evaluations;
    absl::StatusOr<PlanResult> result = PlanStep(job_, input);
    if (!result.ok()) return result.status();
    return std::make_shared<const PlanResult>(*std::move(result));
  }
  PlanCacheKey KeyOf(const PlanResult& plan) const {
    return MakePlanCacheKey({1, 2}, {3, 4}, plan.microbatches);
  }
  // The same structure: every image a little larger.
  static BatchMetadata Grown(BatchMetadata batch) {
    for (SampleMetadata& s : batch.samples) s.text_tokens += 1;
    return batch;
  }

  JobSpec spec_{};
  std::unique_ptr<Strategy> strategy_{};
  std::optional<emulator::StageCostModel> costs_{};
  PreparedJob job_{};
};

TEST_F(PlanCacheTest, EqualStepsGetTheirPlanSimilarOnesTheNearest) {
  PlanCache cache(Bytes(int64_t{1} << 30));
  const BatchMetadata batch = testing::RandomBatch(3, 12, 2);
  ASSERT_OK_AND_ASSIGN(const auto plan, Plan(batch, 1));
  EXPECT_EQ(cache.Find(KeyOf(*plan), plan->microbatches).similar, nullptr);
  cache.Insert(KeyOf(*plan), plan);
  EXPECT_EQ(cache.Find(KeyOf(*plan), plan->microbatches).equal, plan);
  ASSERT_OK_AND_ASSIGN(const auto grown, Plan(Grown(batch), 1));
  const PlanCache::Found found = cache.Find(KeyOf(*grown), grown->microbatches);
  EXPECT_EQ(found.equal, nullptr);
  EXPECT_EQ(found.similar, plan);
  // Everything else that a plan depends on tells equal shapes apart, but not
  // similar ones.
  const PlanCacheKey other =
      MakePlanCacheKey({1, 2}, {5, 6}, plan->microbatches);
  EXPECT_EQ(cache.Find(other, plan->microbatches).similar, plan);
  const PlanCacheCounters counters = cache.counters();
  EXPECT_EQ(counters.hits, 1);
  EXPECT_EQ(counters.similar_hits, 2);
  EXPECT_EQ(counters.misses, 1);
  EXPECT_EQ(counters.plans, 1);
}

TEST_F(PlanCacheTest, StepsOfAJobGoOnFromItsLatestPlans) {
  PlanCache cache(Bytes(int64_t{1} << 30));
  ASSERT_OK_AND_ASSIGN(const auto plan,
                       Plan(testing::RandomBatch(3, 12, 2), 2));
  ASSERT_NE(plan->carried, nullptr);
  const auto key = [&](uint64_t job, uint64_t batch) {
    return MakePlanCacheKey({job, job}, {batch, batch}, plan->microbatches);
  };
  for (uint64_t batch = 0; batch < 12; ++batch) {
    cache.Insert(key(1, batch), plan);
  }
  cache.Insert(key(2, 0), plan);
  const PlanCache::Found found = cache.Find(key(1, 99), plan->microbatches);
  EXPECT_EQ(found.carried.size(), 8);
  for (const auto& carried : found.carried) {
    EXPECT_EQ(carried, plan->carried);
  }
  EXPECT_EQ(cache.Find(key(2, 1), plan->microbatches).carried.size(), 1);
  EXPECT_TRUE(cache.Find(key(3, 0), plan->microbatches).carried.empty());
}

TEST_F(PlanCacheTest, TheSizeIsKeptAndThePlanUsedLastStays) {
  const BatchMetadata batch = testing::RandomBatch(3, 12, 2);
  ASSERT_OK_AND_ASSIGN(const auto plan, Plan(batch, 1));
  const Bytes room = SizeOf(*plan) * 2;
  PlanCache cache(room);
  const auto key = [&](uint64_t n) {
    return MakePlanCacheKey({1, n}, {}, plan->microbatches);
  };
  for (uint64_t n = 0; n < 5; ++n) {
    cache.Insert(key(n), plan);
    EXPECT_NE(cache.Find(key(0), plan->microbatches).equal, nullptr) << n;
    EXPECT_LE(cache.counters().size, room);
  }
  EXPECT_EQ(cache.counters().plans, 2);
  EXPECT_EQ(cache.counters().evictions, 3);
  EXPECT_EQ(cache.Find(key(3), plan->microbatches).equal, nullptr);
  PlanCache small(Bytes(1));
  small.Insert(key(0), plan);
  EXPECT_EQ(small.counters().plans, 0);
}

TEST_F(PlanCacheTest, OfTwoPlansTheFullSearchsStaysThenTheFaster) {
  ASSERT_OK_AND_ASSIGN(const auto fast,
                       Plan(testing::RandomBatch(3, 12, 2), 1));
  auto changed = std::make_shared<PlanResult>(*fast);
  changed->predicted.finish += Microseconds(1);
  const std::shared_ptr<const PlanResult> slow = changed;
  const PlanCacheKey key = KeyOf(*fast);
  PlanCache cache(Bytes(int64_t{1} << 30));
  const auto find = [&] { return cache.Find(key, fast->microbatches); };
  cache.Insert(key, slow, SearchEnd::kCutShort);
  cache.Insert(key, fast, SearchEnd::kCutShort);
  cache.Insert(key, slow, SearchEnd::kCutShort);
  EXPECT_EQ(find().cut_short, fast);
  // Neither an answer to whoever has time, nor one to learn from.
  EXPECT_EQ(find().equal, nullptr);
  EXPECT_EQ(find().similar, nullptr);
  EXPECT_TRUE(find().carried.empty());
  cache.Insert(key, slow);
  EXPECT_EQ(find().equal, slow);
  cache.Insert(key, fast, SearchEnd::kCutShort);
  EXPECT_EQ(find().equal, slow);
  cache.Insert(key, fast);
  cache.Insert(key, slow);
  EXPECT_EQ(find().equal, fast);
  EXPECT_EQ(cache.counters().plans, 1);
}

TEST_F(PlanCacheTest, AnOrderIsTakenOverOnlyWhereItIsLegalAndBetter) {
  int improved = 0;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const BatchMetadata batch = testing::RandomBatch(seed, 16, 2);
    ASSERT_OK_AND_ASSIGN(const auto good, Plan(batch, 2000));
    ASSERT_OK_AND_ASSIGN(const auto rough, Plan(Grown(batch), 1));
    PlanResult plan = *rough;
    const bool better = ImproveFromSimilar(*good, &plan);
    EXPECT_THAT(ValidateExecutionPlan(plan.plan), testing::IsOk()) << seed;
    EXPECT_EQ(better, plan.predicted.finish < rough->predicted.finish) << seed;
    EXPECT_GE(plan.predicted.step_time(), plan.lower_bound) << seed;
    EXPECT_EQ(plan.plan.graph, rough->plan.graph) << seed;
    improved += better;
    // Its own order is no improvement.
    EXPECT_FALSE(ImproveFromSimilar(plan, &plan)) << seed;
  }
  EXPECT_GT(improved, 0);
}

TEST_F(PlanCacheTest, AnotherStructureIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto a, Plan(testing::RandomBatch(1, 16, 2), 1));
  ASSERT_OK_AND_ASSIGN(const auto b, Plan(testing::RandomBatch(2, 48, 0), 1));
  PlanResult plan = *a;
  EXPECT_FALSE(ImproveFromSimilar(*b, &plan));
  EXPECT_EQ(plan.plan, a->plan);
}

}  // namespace
}  // namespace pipeloom::service
