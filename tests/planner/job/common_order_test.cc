#include "planner/job/common_order.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "emulator/cluster/meeting_replicas.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallExpertJob;

constexpr int32_t kReplicas = 2;

// Two replicas that hold half of the backbone's experts each.
struct Case {
  JobSpec job{};
  BatchMetadata batch{};
  std::unique_ptr<Strategy> strategy{};
  std::unique_ptr<emulator::StageCostModel> costs{};
  partition::PackedStep packed{};
  PreparedJob prepared{};

  Case(const char* name, uint64_t seed, int32_t max_images,
       const JobSpec& given = SmallExpertJob())
      : job(given),
        batch(RandomBatch(seed, 400, max_images)),
        strategy(*MakeStrategy(name)) {
    EXPECT_THAT(ValidateJobSpec(job), IsOk());
    costs = std::make_unique<emulator::StageCostModel>(job);
    packed = *partition::PackStep(job, batch, 0);
    prepared = *PrepareJob(*strategy, *costs, batch);
  }
  PlanInput Input(int32_t replica) const {
    PlanInput input;
    input.packed = &packed;
    input.replica = replica;
    input.budget.max_evaluations = 60;
    return input;
  }
  emulator::MeetingStep Meet(const std::vector<PlanResult>& results) const {
    std::vector<const ExecutionPlan*> replicas;
    for (const PlanResult& r : results) replicas.push_back(&r.plan);
    const auto step = emulator::EmulateMeeting(job, replicas);
    EXPECT_THAT(step, IsOk());
    return *step;
  }
};

bool HasWeightGrads(const StageGraph& graph) {
  return std::any_of(
      graph.tasks().begin(), graph.tasks().end(),
      [](const Task& task) { return task.pass == Pass::kWeightGrad; });
}

// Plans both replicas, as one or each by itself.
std::vector<PlanResult> Plans(const Case& c, bool in_common) {
  std::vector<PlanResult> results;
  std::optional<CommonOrder> order;
  if (in_common) {
    auto found = CommonOrder::Search(c.prepared, c.Input(0));
    EXPECT_THAT(found, IsOk());
    order = *std::move(found);
  }
  for (int32_t r = 0; r < kReplicas; ++r) {
    auto plan =
        in_common ? order->Plan(c.Input(r)) : PlanStep(c.prepared, c.Input(r));
    EXPECT_THAT(plan, IsOk());
    EXPECT_EQ(plan->plan.replica, r);
    EXPECT_EQ(plan->plan.schedule, c.prepared.strategy->name());
    results.push_back(*std::move(plan));
  }
  return results;
}

TEST(CommonOrderTest, ReplicasRunTogetherThatCouldNotAlone) {
  int alone = 0;
  for (const char* name : {"pipeloom", "dip"}) {
    for (const int32_t images : {0, 2}) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        SCOPED_TRACE(::testing::Message() << name << images << " " << seed);
        const Case c(name, seed, images);
        ASSERT_TRUE(NeedsCommonOrder(c.prepared));
        alone += c.Meet(Plans(c, false)).different.has_value() ? 1 : 0;
        const std::vector<PlanResult> together = Plans(c, true);
        const emulator::MeetingStep step = c.Meet(together);
        EXPECT_FALSE(step.different.has_value()) << step.different->value();
        for (const PlanResult& r : together) {
          EXPECT_GE(step.step_time, r.predicted.step_time());
          // Waits cost something, not a multiple.
          EXPECT_LE(ToSeconds(step.step_time),
                    1.5 * ToSeconds(r.predicted.step_time()));
        }
      }
    }
  }
  EXPECT_GE(alone, 6) << "of 12 need one";
}

TEST(CommonOrderTest, ItIsFoundAgain) {
  const Case c("pipeloom", 3, 2);
  ASSERT_OK_AND_ASSIGN(const CommonOrder first,
                       CommonOrder::Search(c.prepared, c.Input(0)));
  ASSERT_OK_AND_ASSIGN(const CommonOrder again,
                       CommonOrder::Search(c.prepared, c.Input(0)));
  ASSERT_OK_AND_ASSIGN(const PlanResult a, first.Plan(c.Input(1)));
  ASSERT_OK_AND_ASSIGN(const PlanResult b, again.Plan(c.Input(1)));
  EXPECT_EQ(a.plan.programs, b.plan.programs);
}

TEST(CommonOrderTest, ReplicasThatShareWeightsOrGradientsRunTogether) {
  bool any_whole = false;
  bool any_apart = false;
  for (const char* name : {"pipeloom", "dip", "1f1b", "zb-v"}) {
    for (const auto sharding :
         {OptimizerSharding::kZero2, OptimizerSharding::kZero3}) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        SCOPED_TRACE(::testing::Message() << name << " " << seed);
        JobSpec job = ::pipeloom::testing::SmallVlmJob();
        job.parallel.dp = kReplicas;
        job.parallel.tp = 2;  // Without, weight gradients apart cost nothing.
        job.cluster.num_nodes = 2;
        job.training.optimizer_sharding = sharding;
        const Case c(name, seed, 0, job);
        ASSERT_TRUE(NeedsCommonOrder(c.prepared));
        const std::vector<PlanResult> plans = Plans(c, true);
        EXPECT_FALSE(c.Meet(plans).different.has_value());
        // All weight gradients run apart, or none.
        const bool apart = HasWeightGrads(plans[0].plan.graph);
        EXPECT_EQ(HasWeightGrads(plans[1].plan.graph), apart);
        any_whole = any_whole || !apart;
        any_apart = any_apart || apart;
      }
    }
  }
  EXPECT_TRUE(any_whole);
  EXPECT_TRUE(any_apart);
}

TEST(CommonOrderTest, OnlyReplicasThatMeetNeedOne) {
  EXPECT_TRUE(NeedsCommonOrder(Case("1f1b", 1, 0).prepared));
  JobSpec job = SmallExpertJob();
  job.parallel.ep = 1;
  EXPECT_FALSE(NeedsCommonOrder(Case("pipeloom", 1, 0, job).prepared));
}

}  // namespace
}  // namespace pipeloom::planner
