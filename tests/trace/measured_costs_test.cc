// Learns the factors of a step that was made with known ones.
#include "trace/measured_costs.h"

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::trace {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::RandomBatch;
using ::pipeloom::testing::SmallVlmJob;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Each module and pass has a factor of its own.
double FactorOf(ModuleId module, Pass pass) {
  return 0.5 + module.value() + 0.25 * static_cast<int>(pass);
}

class LearnFromTasksTest : public ::testing::TestWithParam<bool> {
 protected:
  LearnFromTasksTest() : job_(SmallVlmJob()), costs_(job_) {
    const auto strategy = *planner::MakeStrategy("1f1b");
    const BatchMetadata batch = RandomBatch(3, 200, 6);
    partition_ = planner::PrepareJob(*strategy, costs_, batch)->partition;
    partition_.sub_microbatch_instances[ModuleId(0)] = 2;
    packed_ = *partition::PackStep(job_, batch, 0);
    microbatches_ = *partition::SplitMicrobatches(job_, packed_, 0, partition_);
  }
  // The step as it would be measured: every task takes its factor's times what
  // it is priced at. `changed` may alter the tasks.
  StageGraph Measured(
      const partition::GraphOptions& options,
      const std::function<void(IdVector<TaskId, Task>*)>& changed = {}) {
    const partition::BuiltGraph built =
        *partition::BuildStageGraph(costs_, partition_, microbatches_, options);
    IdVector<TaskId, Task> tasks = built.graph.tasks();
    for (Task& task : tasks) {
      task.duration =
          Duration(std::llround(FactorOf(task.module, task.pass) *
                                static_cast<double>(task.duration.count())));
    }
    if (changed) changed(&tasks);
    return *StageGraph::Create("measured", built.graph.ranks(),
                               built.graph.module_names(), std::move(tasks),
                               {});
  }

  const JobSpec job_;
  const emulator::StageCostModel costs_;
  Partition partition_{};
  partition::PackedStep packed_{};
  Microbatches microbatches_{};
};
INSTANTIATE_TEST_SUITE_P(SplitBackward, LearnFromTasksTest, ::testing::Bool());

TEST_P(LearnFromTasksTest, EveryModulesAndPassesFactorComesBack) {
  partition::GraphOptions options;
  options.split_backward = GetParam();
  ASSERT_OK_AND_ASSIGN(
      const emulator::CostLearner learned,
      LearnFromTasks(Measured(options), costs_, partition_, microbatches_));
  for (const ModuleId m : job_.model.modules.ids()) {
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      EXPECT_NEAR(learned.Factor(job_.model.modules[m].name, pass),
                  FactorOf(m, pass), 1e-4);
    }
  }
}

// A backward that recomputes takes its forward's time too.
TEST_P(LearnFromTasksTest, RecomputationIsPricedWithItsForward) {
  partition::GraphOptions options;
  options.split_backward = GetParam();
  options.memory =
      PolicyByStage(AllRecomputed(partition_), partition_, microbatches_);
  ASSERT_OK_AND_ASSIGN(
      const emulator::CostLearner learned,
      LearnFromTasks(Measured(options), costs_, partition_, microbatches_));
  for (const ModuleId m : job_.model.modules.ids()) {
    EXPECT_NEAR(learned.Factor(job_.model.modules[m].name, Pass::kBackward),
                FactorOf(m, Pass::kBackward), 1e-4);
  }
}

// A trace does not say what a backward recomputes, here the operators of
// attention. Where some backwards of a module recompute nothing, those alone
// give its factor.
TEST_P(LearnFromTasksTest, MixedRecomputationLeavesTheFactorsOfTheOthers) {
  partition::GraphOptions options;
  options.split_backward = GetParam();
  IdVector<StageId, MemoryChoice> choices = AllRecomputed(partition_);
  for (MemoryChoice& choice : choices) {
    choice = RecomputeGroups(static_cast<int32_t>(choice.layers.size()),
                             {OperatorGroup::kCoreAttention});
  }
  options.memory = PolicyByStage(choices, partition_, microbatches_);
  const auto kept = static_cast<int32_t>(options.memory.choices.size());
  options.memory.choices.emplace_back();
  // The first half of the sub-microbatches recomputes.
  IdVector<StagePairId, int32_t>& choice_of = options.memory.choice_of;
  for (const StagePairId pair : choice_of.ids()) {
    if (pair.value() >= choice_of.size() / 2) choice_of[pair] = kept;
  }
  std::map<ModuleId, std::array<int, 2>> backwards;  // Indexed by recomputes.
  const StageGraph measured = Measured(options);
  for (const Task& task : measured.tasks()) {
    if (task.pass == Pass::kBackward) {
      ++backwards[task.module][task.recomputes ? 1 : 0];
    }
  }
  ASSERT_OK_AND_ASSIGN(
      const emulator::CostLearner learned,
      LearnFromTasks(measured, costs_, partition_, microbatches_));
  for (const ModuleId m : job_.model.modules.ids()) {
    EXPECT_GT(backwards[m][0], 0);
    EXPECT_GT(backwards[m][1], 0);
    EXPECT_NEAR(learned.Factor(job_.model.modules[m].name, Pass::kBackward),
                FactorOf(m, Pass::kBackward),
                0.01 * FactorOf(m, Pass::kBackward));
  }
}

TEST_P(LearnFromTasksTest, AStepOfAnotherPartitionOrBatchIsRefused) {
  partition::GraphOptions options;
  options.split_backward = GetParam();
  const StageGraph other = Measured(
      options, [](auto* tasks) { (*tasks)[TaskId(4)].stage = StageId(99); });
  EXPECT_THAT(
      LearnFromTasks(other, costs_, partition_, microbatches_),
      FailsWith(absl::StatusCode::kInvalidArgument,
                AllOf(HasSubstr("stage 99"), HasSubstr("only in the trace"))));
  // Without its weight gradient a backward is one that makes both.
  const int32_t last = GetParam() ? 2 : 1;
  const StageGraph fewer = Measured(
      options, [&](auto* tasks) { tasks->resize(tasks->size() - last); });
  EXPECT_THAT(LearnFromTasks(fewer, costs_, partition_, microbatches_),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        HasSubstr("only in the job's step")));
}

// Traces of trainers that know of no modules.
TEST(LearnFromOtherTracesTest, OneModuleIsFoundByItsStages) {
  JobSpec job = SmallVlmJob();
  job.model.modules = {job.model.modules[ModuleId(1)]};
  job.model.edges.clear();
  const emulator::StageCostModel costs(job);
  const auto strategy = *planner::MakeStrategy("1f1b");
  const BatchMetadata batch = RandomBatch(3, 200, 0);
  const Partition partition =
      planner::PrepareJob(*strategy, costs, batch)->partition;
  const Microbatches microbatches = *partition::SplitMicrobatches(
      job, *partition::PackStep(job, batch, 0), 0, partition);
  const StageGraph graph =
      partition::BuildStageGraph(costs, partition, microbatches)->graph;
  IdVector<TaskId, Task> tasks = graph.tasks();
  for (Task& task : tasks) task.duration = task.duration * 3;
  const StageGraph measured =
      *StageGraph::Create("measured", graph.ranks(), {"model"}, tasks, {});
  ASSERT_OK_AND_ASSIGN(
      const emulator::CostLearner learned,
      LearnFromTasks(measured, costs, partition, microbatches));
  EXPECT_NEAR(learned.Factor("backbone", Pass::kForward), 3, 1e-4);
}

}  // namespace
}  // namespace pipeloom::trace
