#include "planner/step/carried_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/job/job_planner.h"
#include "planner/memory/stage_choices.h"
#include "tests/planner/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::planner {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomJobCase;
using ::pipeloom::testing::SmallVlmJob;

using Carried = std::vector<std::shared_ptr<const CarriedStep>>;

SearchBudget Evaluations(int64_t number, int32_t threads = 1) {
  SearchBudget budget;
  budget.max_evaluations = number;
  budget.threads = threads;
  return budget;
}

// A step as the search sees it.
struct Problem {
  partition::BuiltGraph built{};
  partition::StepMemory memory{};
};

absl::StatusOr<Problem> ProblemOf(const JobPlanner& planner,
                                  const BatchMetadata& batch) {
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(planner.job(), batch, 0));
  PIPELOOM_ASSIGN_OR_RETURN(const Microbatches microbatches,
                            partition::SplitMicrobatches(
                                planner.job(), packed, 0, planner.partition()));
  Problem problem;
  PIPELOOM_ASSIGN_OR_RETURN(
      problem.built,
      partition::BuildStageGraph(planner.costs(), planner.partition(),
                                 microbatches, {.split_backward = true}));
  problem.memory = partition::MakeStepMemory(
      planner.costs(), planner.partition(), microbatches, problem.built.pairs,
      StageChoices(planner.costs(), planner.partition(), microbatches));
  return problem;
}

// Returns the job with so many tenths of the memory that a plan of it takes.
absl::StatusOr<JobSpec> ShortOfMemory(JobSpec job, const BatchMetadata& batch,
                                      int64_t tenths = 9) {
  PIPELOOM_ASSIGN_OR_RETURN(const auto roomy, JobPlanner::Create(job, batch));
  PIPELOOM_ASSIGN_OR_RETURN(
      const PlanResult free,
      roomy->PlanStep(batch, {.budget = Evaluations(50)}));
  Bytes peak;
  for (const Bytes bytes : free.peak_bytes()) peak = std::max(peak, bytes);
  job.training.memory_limit = Bytes(peak.count() * tenths / 10);
  return job;
}

TEST(CarriedStepTest, AStepTeachesItself) {
  const BatchMetadata batch = RandomBatch(1, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const JobSpec job,
                       ShortOfMemory(SmallVlmJob(), batch, 7));
  ASSERT_OK_AND_ASSIGN(const auto planner, JobPlanner::Create(job, batch));
  ASSERT_OK_AND_ASSIGN(const PlanResult planned,
                       planner->PlanStep(batch, {.budget = Evaluations(2000)}));
  ASSERT_NE(planned.carried, nullptr);
  ASSERT_OK_AND_ASSIGN(const Problem problem, ProblemOf(*planner, batch));
  EXPECT_EQ(MostSimilar({planned.carried}, problem.built.graph),
            planned.carried);
  // Forwards have the starts of the plan, and pairs its memory choices.
  const std::vector<LentStep> lent =
      LentSteps({planned.carried}, problem.built.graph, problem.memory, 2);
  ASSERT_EQ(lent.size(), 1);
  EXPECT_EQ(lent[0].times,
            CarriedStarts(*planned.carried, problem.built.graph));
  using Key = std::tuple<int32_t, int32_t, int32_t>;
  const auto key = [](const Task& task) {
    return Key(task.microbatch.value(), task.stage.value(),
               task.sub_microbatch);
  };
  std::map<Key, double> starts;
  const double whole = ToSeconds(planned.predicted.step_time());
  for (const Span& span : planned.predicted.spans) {
    if (span.task.is_none()) continue;
    const Task& task = planned.plan.graph.task(span.task);
    if (task.pass != Pass::kForward) continue;
    starts[key(task)] = ToSeconds(span.start - kStepStart) / whole;
  }
  ASSERT_FALSE(starts.empty());
  for (const TaskId t : problem.built.graph.task_ids()) {
    const Task& task = problem.built.graph.task(t);
    if (task.pass != Pass::kForward) continue;
    EXPECT_NEAR(lent[0].times[static_cast<size_t>(t.value())],
                starts.at(key(task)), 0.02);
  }
  ASSERT_FALSE(planned.memory.empty());
  int recomputed = 0;
  for (const StagePairId id : problem.memory.pairs.ids()) {
    if (problem.memory.pairs[id].backward.is_none()) continue;
    const partition::MemoryCandidate& chosen = problem.memory.candidates(
        id)[static_cast<size_t>(lent[0].selection[id])];
    EXPECT_EQ(chosen.choice.keeps_everything(),
              planned.memory.of(id).keeps_everything());
    if (chosen.choice.keeps_everything()) continue;
    ++recomputed;
    EXPECT_EQ(chosen.choice, planned.memory.of(id));
  }
  EXPECT_GT(recomputed, 0);
}

TEST(CarriedStepTest, GivesTimesToAnyOtherStep) {
  int applied = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const RandomJobCase one = RandomJob(seed);
    const auto planner =
        JobPlanner::Create(one.job, one.batch, {.strategy = "dip-interleave"});
    if (!planner.ok()) continue;
    const auto planned =
        (*planner)->PlanStep(one.batch, {.budget = Evaluations(20)});
    if (!planned.ok()) continue;
    ASSERT_NE(planned->carried, nullptr);
    // Other samples, and another number of microbatches.
    RandomJobCase other = RandomJob(seed);
    for (const int32_t more : {0, 1}) {
      other.job.training.microbatches = one.job.training.microbatches + more;
      const auto again = JobPlanner::Create(
          other.job, other.batch,
          {.strategy = "pipeloom", .partition = (*planner)->partition()});
      ASSERT_THAT(again.status(), IsOk());
      BatchMetadata rest = other.batch;
      if (more == 1 && rest.samples.size() > 1) {
        std::reverse(rest.samples.begin(), rest.samples.end());
      }
      const absl::StatusOr<Problem> problem = ProblemOf(**again, rest);
      if (!problem.ok()) continue;
      const StageGraph& graph = problem->built.graph;
      const std::vector<double> starts =
          CarriedStarts(*planned->carried, graph);
      ASSERT_EQ(starts.size(), static_cast<size_t>(graph.num_tasks()));
      for (const double start : starts) {
        EXPECT_GE(start, 0);
        EXPECT_LE(start, 1);
      }
      const IdVector<RankId, RankSpec> limits =
          CarriedLimits(*planned->carried, graph);
      for (const RankId r : graph.rank_ids()) {
        EXPECT_LE(limits[r].memory.limit, graph.rank(r).memory.limit);
      }
      ++applied;
    }
  }
  EXPECT_GE(applied, 20);
}

TEST(CarriedStepTest, TheMostSimilarStepIsTaken) {
  const BatchMetadata texts = RandomBatch(1, 4000, 0);
  const BatchMetadata images = RandomBatch(2, 4000, 6);
  const BatchMetadata more_images = RandomBatch(3, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner,
                       JobPlanner::Create(SmallVlmJob(), images));
  Carried carried = {nullptr};
  for (const BatchMetadata* batch : {&texts, &images}) {
    ASSERT_OK_AND_ASSIGN(
        const PlanResult planned,
        planner->PlanStep(*batch, {.budget = Evaluations(50)}));
    carried.push_back(planned.carried);
  }
  ASSERT_OK_AND_ASSIGN(const Problem problem, ProblemOf(*planner, more_images));
  const StageGraph& graph = problem.built.graph;
  EXPECT_EQ(MostSimilar(carried, graph), carried[2]);
  EXPECT_EQ(MostSimilar({}, graph), nullptr);
  // A step whose work is all in one microbatch has nothing to learn from one
  // with even microbatches.
  CarriedStep uneven = *carried[2];
  for (size_t i = 1; i < uneven.work.size(); ++i) uneven.work[i] = kZero;
  uneven.work[0] = uneven.work[0] * 20;
  EXPECT_EQ(MostSimilar({std::make_shared<const CarriedStep>(uneven)}, graph),
            nullptr);
}

// A quick plan is made again for a step unless it lost in all steps before, as
// far as they had one.
TEST(CarriedStepTest, QuickPlansThatLoseAreLeftOut) {
  const BatchMetadata batch = RandomBatch(4, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner,
                       JobPlanner::Create(SmallVlmJob(), batch));
  const auto plan = [&](Carried carried) {
    SearchBudget budget = Evaluations(40, 2);
    budget.spent = [] { return 0.01; };
    return planner->PlanStep(batch,
                             {.budget = budget, .carried = std::move(carried)});
  };
  ASSERT_OK_AND_ASSIGN(const PlanResult first, plan({}));
  ASSERT_GT(first.carried->quick_ratio, 0);
  const auto with_ratio = [&](double ratio) {
    CarriedStep carried = *first.carried;
    carried.quick_ratio = ratio;
    return std::make_shared<const CarriedStep>(carried);
  };
  const auto has_quick_plan = [&](Carried carried) {
    const auto planned = plan(std::move(carried));
    EXPECT_THAT(planned.status(), IsOk());
    return planned.ok() && planned->carried->quick_ratio > 0;
  };
  EXPECT_FALSE(has_quick_plan({with_ratio(1.2)}));
  EXPECT_FALSE(has_quick_plan({with_ratio(0), with_ratio(1.2), nullptr}));
  EXPECT_TRUE(has_quick_plan({with_ratio(1.2), with_ratio(1.01)}));
  EXPECT_TRUE(has_quick_plan({with_ratio(0)}));
}

// Where gaps have no room for weight gradients, the search of the next step
// sees whole backwards, and tells the one after it so.
TEST(CarriedStepTest, SearchesSeeWholeBackwardsWhereAllStepsLostByGaps) {
  JobSpec job = SmallVlmJob();
  job.parallel.tp = 4;
  job.cluster.num_nodes = 2;
  job.cluster.intra_node.bandwidth.bytes_per_second = 5e10;
  const BatchMetadata batch = RandomBatch(4, 4000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner, JobPlanner::Create(job, batch));
  const auto plan = [&](Carried carried) {
    return planner->PlanStep(
        batch, {.budget = Evaluations(40), .carried = std::move(carried)});
  };
  ASSERT_OK_AND_ASSIGN(const PlanResult first, plan({}));
  const double own = first.carried->refined_ratio;
  EXPECT_GT(own, 0.9);
  EXPECT_LT(own, 1.08);
  const auto ratio_after = [&](const std::vector<double>& ratios) {
    Carried carried = {nullptr};
    for (const double ratio : ratios) {
      CarriedStep step = *first.carried;
      step.refined_ratio = ratio;
      carried.push_back(std::make_shared<const CarriedStep>(step));
    }
    const auto planned = plan(std::move(carried));
    EXPECT_THAT(planned.status(), IsOk());
    return planned.ok() ? planned->carried->refined_ratio : -1;
  };
  EXPECT_EQ(ratio_after({1.25}), 1.25);
  EXPECT_EQ(ratio_after({1.5, 0, 1.25}), 1.25);
  EXPECT_LT(ratio_after({1.5, 1.07}), 1.08);
  EXPECT_LT(ratio_after({0}), 1.08);
  // A job without such gaps has no ratio.
  ASSERT_OK_AND_ASSIGN(const auto gapless,
                       JobPlanner::Create(SmallVlmJob(), batch));
  ASSERT_OK_AND_ASSIGN(const PlanResult other,
                       gapless->PlanStep(batch, {.budget = Evaluations(40)}));
  EXPECT_EQ(other.carried->refined_ratio, 0);
}

TEST(CarriedStepTest, PlansDependOnWhatIsCarriedButNotOnThreads) {
  const BatchMetadata batch = RandomBatch(4, 8000, 6);
  ASSERT_OK_AND_ASSIGN(const auto planner,
                       JobPlanner::Create(SmallVlmJob(), batch));
  ASSERT_OK_AND_ASSIGN(const PlanResult first,
                       planner->PlanStep(batch, {.budget = Evaluations(500)}));
  const auto plan = [&](int32_t threads) {
    return planner->PlanStep(batch, {.first_sample = 100,
                                     .step = 1,
                                     .budget = Evaluations(60, threads),
                                     .carried = {first.carried}});
  };
  ASSERT_OK_AND_ASSIGN(const PlanResult alone, plan(1));
  for (const int32_t threads : {2, 4}) {
    ASSERT_OK_AND_ASSIGN(const PlanResult more, plan(threads));
    EXPECT_EQ(more.plan, alone.plan);
  }
}

// Jobs whose memory is short, as there the levels of memory are what a step
// finds again and again. What is carried costs some of the evaluations: with
// 20, 40, 80 and 200 of them steps were 0.0, +0.1, -0.1 and 0.0 % longer.
TEST(CarriedStepTest, WithFewEvaluationsStepsAreNoLonger) {
  double cold = 0;
  double warm = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const BatchMetadata batch = RandomBatch(seed, 8000, 6);
    ASSERT_OK_AND_ASSIGN(const JobSpec job,
                         ShortOfMemory(SmallVlmJob(), batch));
    ASSERT_OK_AND_ASSIGN(const auto planner, JobPlanner::Create(job, batch));
    Carried carried;
    for (int64_t step = 0; step < 6; ++step) {
      StepRequest request{
          .first_sample = 60 * step, .step = step, .budget = Evaluations(40)};
      ASSERT_OK_AND_ASSIGN(const PlanResult anew,
                           planner->PlanStep(batch, request));
      request.carried = carried;
      ASSERT_OK_AND_ASSIGN(const PlanResult on,
                           planner->PlanStep(batch, request));
      EXPECT_THAT(ValidateExecutionPlan(on.plan), IsOk());
      carried.push_back(on.carried);
      if (step == 0) continue;
      cold += ToSeconds(anew.predicted.step_time());
      warm += ToSeconds(on.predicted.step_time());
    }
  }
  EXPECT_LE(warm, 1.002 * cold);
}

}  // namespace
}  // namespace pipeloom::planner
