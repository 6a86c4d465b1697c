#include "emulator/cluster/meeting_replicas.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "emulator/step/emulate_step.h"
#include "gtest/gtest.h"
#include "tests/emulator/helpers.h"
#include "tests/support/random_problem.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::emulator {
namespace {

using testing::UniformGraph;

JobSpec ExpertJob(const ParallelLayout& parallel) {
  return JobOf({{MoeBlock()}}, parallel);
}

TEST(ReplicasThatMeet, AreThoseOverWhichExpertsAreSpread) {
  EXPECT_EQ(ReplicasThatMeet(ExpertJob({.ep = 1, .dp = 8})), 1);
  EXPECT_EQ(ReplicasThatMeet(ExpertJob({.ep = 4, .dp = 8})), 4);
  EXPECT_EQ(ReplicasThatMeet(ExpertJob({.tp = 2, .ep = 4, .dp = 8})), 4);
  // The experts lie on the GPUs of a rank.
  EXPECT_EQ(
      ReplicasThatMeet(ExpertJob({.tp = 4, .ep = 4, .dp = 2, .expert_tp = 1})),
      1);
  EXPECT_EQ(
      ReplicasThatMeet(ExpertJob({.tp = 4, .ep = 8, .dp = 2, .expert_tp = 1})),
      2);
  EXPECT_EQ(ReplicasThatMeet(JobOf({{Llama3Block()}}, {.ep = 4, .dp = 8})), 1);
}

TEST(ReplicasThatMeet, AreAllThatGatherWeightsInEachPass) {
  const auto meet = [](int32_t pp, int32_t dp, bool gathered) {
    JobSpec job = JobOf({{Llama3Block(), Llama3Block()}}, {.pp = pp, .dp = dp});
    job.training.optimizer_sharding = OptimizerSharding::kZero3;
    job.setup.gathered_in_pipeline = gathered;
    return ReplicasThatMeet(job);
  };
  EXPECT_EQ(meet(2, 4, false), 4);
  EXPECT_EQ(meet(2, 1, false), 1);
  EXPECT_EQ(meet(1, 4, true), 4);
  EXPECT_EQ(meet(2, 4, true), 1);
}

TEST(ReplicasThatMeet, AreAllThatReduceGradientsInEachPass) {
  JobSpec job = JobOf({{Llama3Block()}, {MoeBlock()}}, {.dp = 4});
  job.training.optimizer_sharding = OptimizerSharding::kZero2;
  EXPECT_EQ(ReplicasThatMeet(job), 4);
  EXPECT_TRUE(MeetsInPasses(job, ModuleId(0)));
  // Frozen modules have no gradients, and experts of one rank send no tokens.
  job.training.frozen_modules = {"m0", "m1"};
  EXPECT_FALSE(MeetsInPasses(job, ModuleId(0)));
  EXPECT_FALSE(MeetsInPasses(job, ModuleId(1)));
  job.parallel.dp = 1;
  EXPECT_EQ(ReplicasThatMeet(job), 1);
}

constexpr int32_t kMicrobatches = 8;

// Microbatches with their number modulo 2 equal to `parity` take three times as
// long as the others.
StageGraph UnevenGraph(int32_t parity) {
  const StageGraph even = UniformGraph({.ranks = 3,
                                        .microbatches = kMicrobatches,
                                        .weight_grad = kZero,
                                        .delay = Microseconds(20)});
  IdVector<TaskId, Task> tasks = even.tasks();
  for (Task& task : tasks) {
    if (task.microbatch.value() % 2 == parity) task.duration *= 3;
  }
  absl::StatusOr<StageGraph> made =
      StageGraph::Create(even.name(), even.ranks(), even.module_names(),
                         std::move(tasks), even.edges());
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

Duration Alone(const ExecutionPlan& plan) {
  const absl::StatusOr<StepTrace> trace = EmulateStep(plan);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace->step_time();
}

TEST(FindUnlikeWork, NamesWorkThatAReplicaLacks) {
  JobSpec job = JobOf({{Llama3Block()}, {MoeBlock()}}, {.ep = 2, .dp = 2});
  const auto work = [](std::vector<std::pair<int32_t, int32_t>> subs) {
    Microbatches made;
    for (const auto& [microbatch, module] : subs) {
      made.num_microbatches = microbatch + 1;
      made.sub_microbatches.push_back({.module = ModuleId(module),
                                       .microbatch = MicrobatchId(microbatch),
                                       .shape = {}});
    }
    return made;
  };
  const Microbatches whole = work({{0, 0}, {0, 1}, {1, 0}, {1, 1}});
  // No replicas meet in passes of the module without experts.
  const Microbatches no_image = work({{0, 0}, {0, 1}, {1, 1}});
  EXPECT_FALSE(FindUnlikeWork(job, {whole, no_image, whole}).has_value());
  const Microbatches no_text = work({{0, 0}, {0, 1}, {1, 0}});
  const auto found = FindUnlikeWork(job, {whole, whole, no_text});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->replica, 2);
  EXPECT_EQ(found->microbatch, MicrobatchId(1));
  EXPECT_EQ(found->module, ModuleId(1));
  EXPECT_EQ(found->parts, 0);
  EXPECT_EQ(found->first_parts, 1);
  EXPECT_EQ(FindUnlikeWork(job, {no_text, whole})->parts, 1);
  // All that gather weights in each pass meet in all.
  job.training.optimizer_sharding = OptimizerSharding::kZero3;
  EXPECT_EQ(FindUnlikeWork(job, {whole, no_image})->module, ModuleId(0));
}

TEST(EmulateMeeting, NoPassIsOverBeforeThatOfTheSlowestReplica) {
  const StageGraph graphs[] = {UnevenGraph(0), UnevenGraph(1)};
  const ExecutionPlan even = LowerNaively(graphs[0], OneFOneBOrders(graphs[0]));
  const ExecutionPlan odd = LowerNaively(graphs[1], OneFOneBOrders(graphs[1]));
  // All passes three times as long.
  IdVector<TaskId, Task> tasks = graphs[0].tasks();
  for (const TaskId t : tasks.ids()) {
    tasks[t].duration = std::max(tasks[t].duration, graphs[1].task(t).duration);
  }
  ASSERT_OK_AND_ASSIGN(
      const StageGraph slow,
      StageGraph::Create("slow", graphs[0].ranks(), graphs[0].module_names(),
                         std::move(tasks), graphs[0].edges()));
  const Duration together = Alone(LowerNaively(slow, OneFOneBOrders(slow)));
  const auto step_time = [&](const ParallelLayout& parallel,
                             std::vector<const ExecutionPlan*> plans) {
    const auto step = EmulateMeeting(ExpertJob(parallel), plans);
    EXPECT_TRUE(step.ok()) << step.status();
    EXPECT_FALSE(step->different.has_value());
    return step->step_time;
  };
  EXPECT_EQ(step_time({.ep = 2, .pp = 3, .dp = 2}, {&even, &odd}), together);
  EXPECT_GT(together, std::max(Alone(even), Alone(odd)));
  // Replicas that do not meet, or are alike, take what they take alone.
  const Duration apart = std::max(Alone(even), Alone(odd));
  EXPECT_EQ(step_time({.ep = 1, .pp = 3, .dp = 2}, {&even, &odd}), apart);
  EXPECT_EQ(step_time({.ep = 2, .pp = 3, .dp = 2}, {&even, &even}),
            Alone(even));
  EXPECT_EQ(step_time({.ep = 2, .pp = 3, .dp = 4}, {&even, &even, &odd, &odd}),
            apart);
  EXPECT_EQ(step_time({.ep = 2, .pp = 3, .dp = 4}, {&even, &odd, &odd, &even}),
            together);
}

TEST(EmulateMeeting, FindsTheRankWherePlansCannotRunTogether) {
  const StageGraph graph = UnevenGraph(0);
  const ExecutionPlan one = LowerNaively(graph, OneFOneBOrders(graph));
  const ExecutionPlan other = LowerNaively(graph, GPipeOrders(graph));
  const ExecutionPlan* const replicas[] = {&one, &other};
  ASSERT_OK_AND_ASSIGN(
      const MeetingStep step,
      EmulateMeeting(ExpertJob({.ep = 2, .pp = 3, .dp = 2}), replicas));
  EXPECT_EQ(step.different, RankId(0));
  EXPECT_EQ(step.step_time, kZero);
  // Without experts on other replicas they do not have to.
  ASSERT_OK_AND_ASSIGN(
      const MeetingStep apart,
      EmulateMeeting(ExpertJob({.ep = 1, .pp = 3, .dp = 2}), replicas));
  EXPECT_FALSE(apart.different.has_value());
}

}  // namespace
}  // namespace pipeloom::emulator
