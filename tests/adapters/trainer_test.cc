// Plans within the limits of each trainer, on random jobs: legal, and their
// files are written without leaving anything out and read back.
// PIPELOOM_TRAINER_JOBS=300 for more jobs.
#include "ir/plan/trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "adapters/action_table.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_layout.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "adapters/trainer_files.h"
#include "base/status_macros.h"
#include "planner/strategies/registry.h"
#include "tests/adapters/trainer_plans.h"
#include "tests/planner/random_job.h"
#include "tests/support/small_job.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::adapters {
namespace {

using ::pipeloom::testing::IsOk;
using ::pipeloom::testing::kSmallTrainerJob;
using ::pipeloom::testing::PlanForTrainer;
using ::pipeloom::testing::RandomJob;
using ::pipeloom::testing::RandomJobCase;
using ::pipeloom::testing::SmallVlmJob;
using ::pipeloom::testing::TrainerPlanned;
using ::testing::HasSubstr;

uint64_t NumJobs() {
  const char* text = std::getenv("PIPELOOM_TRAINER_JOBS");
  return text == nullptr ? 32 : static_cast<uint64_t>(std::atoll(text));
}

const TrainerLimits& Trainer(absl::string_view name) {
  return *FindTrainer(name);
}

// Reads a schedule file back as a table.
absl::StatusOr<ActionTable> ReadBack(const TrainerFile& file) {
  if (file.extension == "csv") {
    return ParseTorchCsv(file.text, TorchDialect::k26);
  }
  if (file.extension == "order") {
    PIPELOOM_ASSIGN_OR_RETURN(const MegatronOrder order,
                              ParseMegatronOrder(file.text));
    return FromMegatronOrder(order);
  }
  PIPELOOM_ASSIGN_OR_RETURN(const DeepSpeedSteps steps,
                            ParseDeepSpeed(file.text));
  return FromDeepSpeed(steps);
}

// Returns an error if Megatron's layout in the launch arguments does not have
// as many stages as the partition, and the layers that they name.
absl::Status CheckLayout(const std::string& launch,
                         const Partition& partition) {
  constexpr absl::string_view kLayout = "--pipeline-model-parallel-layout \"";
  constexpr absl::string_view kLayers = "--num-layers ";
  const size_t at = launch.find(std::string(kLayout));
  const size_t count = launch.find(std::string(kLayers));
  if (at == std::string::npos || count == std::string::npos) {
    return absl::InternalError("no layout or no number of layers");
  }
  const size_t begin = at + kLayout.size();
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<std::string> stages,
      ParseMegatronLayout(launch.substr(begin, launch.find('"', begin) - begin),
                          partition.num_ranks));
  int64_t layers = 0;
  for (const std::string& stage : stages) {
    layers += std::count(stage.begin(), stage.end(), 't');
  }
  if (static_cast<int32_t>(stages.size()) !=
          partition.num_ranks * partition.num_segments ||
      layers != std::atoll(launch.c_str() + count + kLayers.size())) {
    return absl::InternalError("the layout's stages or layers");
  }
  return absl::OkStatus();
}

// Returns an error if the plan is not what the trainer can execute.
absl::Status CheckPlan(const TrainerLimits& trainer, const JobSpec& job,
                       const TrainerPlanned& planned) {
  const ExecutionPlan& plan = planned.result.plan;
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
  PIPELOOM_RETURN_IF_ERROR(
      CheckTrainerPartition(trainer, job, planned.partition));
  const Bytes limit = job.MemoryLimit();
  for (const Bytes peak : planned.result.peak_bytes()) {
    if (limit > Bytes(0) && peak > limit) return absl::InternalError("memory");
  }
  std::map<int32_t, int32_t> rank_of;
  for (const Task& task : plan.graph.tasks()) {
    rank_of[task.stage.value()] = task.rank.value();
    if (task.pass == Pass::kWeightGrad && !trainer.split_backward) {
      return absl::InternalError("a weight gradient apart");
    }
    if (task.recomputes && planned.recompute.is_none()) {
      return absl::InternalError("recomputation that is not set at launch");
    }
  }
  if (static_cast<int32_t>(rank_of.size()) !=
      planned.partition.num_ranks * planned.partition.num_segments) {
    return absl::InternalError("the number of stages");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const TrainerFile file,
                            ScheduleFileOf(trainer, plan));
  PIPELOOM_ASSIGN_OR_RETURN(const std::string launch,
                            LaunchArguments(trainer, job, planned.partition,
                                            planned.recompute, file, "plan"));
  if (launch.empty()) return absl::InternalError("no launch arguments");
  if (IsPlain(trainer, planned.partition.num_ranks)) {
    if (planned.partition.num_segments > 1) {
      return absl::InternalError("several stages on one rank");
    }
    Pass before = Pass::kBackward;
    for (const Instruction& instruction : plan.programs[RankId(0)]) {
      const auto* const compute = std::get_if<Compute>(&instruction);
      if (compute == nullptr) continue;
      const Pass pass = plan.graph.task(compute->task).pass;
      if (pass == before || pass == Pass::kWeightGrad) {
        return absl::InternalError("no backward behind each forward");
      }
      before = pass;
    }
  }
  if (absl::StartsWith(trainer.name, "megatron")) {
    PIPELOOM_RETURN_IF_ERROR(CheckLayout(launch, planned.partition));
  }
  if (trainer.order == PassOrder::kAny) return absl::OkStatus();
  PIPELOOM_ASSIGN_OR_RETURN(const ActionTable table, ReadBack(file));
  TableShape shape;
  PIPELOOM_RETURN_IF_ERROR(CheckTable(table, &shape));
  if (shape.num_stages != static_cast<int32_t>(rank_of.size()) ||
      shape.num_microbatches != file.most_microbatches) {
    return absl::InternalError("the shape of the table");
  }
  return ScheduleOf(table, {}, "again").status();
}

std::string NameOf(const ::testing::TestParamInfo<std::string>& value) {
  std::string name = value.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class EachTrainer : public ::testing::TestWithParam<std::string> {};

TEST_P(EachTrainer, ExportsEveryPlanOfRandomJobs) {
  const TrainerLimits& trainer = Trainer(GetParam());
  int32_t planned = 0;
  int32_t refused = 0;
  for (uint64_t seed = 0; seed < NumJobs(); ++seed) {
    SCOPED_TRACE(seed);
    RandomJobCase made = RandomJob(seed, kSmallTrainerJob);
    if (seed % 4 > 0) made.job.training.frozen_modules.clear();
    const absl::StatusOr<TrainerPlanned> plan =
        PlanForTrainer(trainer, made, 20);
    if (!CheckTrainerJob(trainer, made.job).ok()) {
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(plan.status().message(), HasSubstr("--for pipeloom"));
      ++refused;
      continue;
    }
    if (absl::IsFailedPrecondition(plan.status())) {
      // Fewer layers than ranks, or than the encoder's rank leaves.
      EXPECT_THAT(plan.status().message(), HasSubstr("parallel.pp"));
      ++refused;
      continue;
    }
    ASSERT_THAT(plan.status(), IsOk());
    EXPECT_THAT(CheckPlan(trainer, made.job, *plan), IsOk());
    ++planned;
  }
  EXPECT_GE(planned, refused / 3);
}

// The rows of `pipeloom compare --for`.
TEST_P(EachTrainer, ExportsOtherStrategiesOrSaysWhyNot) {
  const TrainerLimits& trainer = Trainer(GetParam());
  int32_t planned = 0;
  int32_t refused = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    RandomJobCase made = RandomJob(seed, kSmallTrainerJob);
    made.job.training.frozen_modules.clear();
    if (!CheckTrainerJob(trainer, made.job).ok()) continue;
    for (const absl::string_view name : planner::StrategyNames()) {
      if (name == "pipeloom") continue;
      SCOPED_TRACE(absl::StrCat(seed, " ", name));
      ASSERT_OK_AND_ASSIGN(std::unique_ptr<planner::Strategy> rival,
                           planner::MakeStrategy(name));
      const absl::StatusOr<TrainerPlanned> plan =
          PlanForTrainer(trainer, made, 5, std::move(rival));
      if (plan.ok()) {
        EXPECT_THAT(CheckPlan(trainer, made.job, *plan), IsOk());
        ++planned;
      } else {
        EXPECT_FALSE(plan.status().message().empty());
        ++refused;
      }
    }
  }
  EXPECT_GT(planned, 0);
  EXPECT_GT(refused, 0);
}

TEST_P(EachTrainer, IsDeterministic) {
  const TrainerLimits& trainer = Trainer(GetParam());
  const RandomJobCase made{SmallVlmJob(),
                           ::pipeloom::testing::RandomBatch(3, 200, 2)};
  const auto one = PlanForTrainer(trainer, made, 60);
  const auto two = PlanForTrainer(trainer, made, 60);
  ASSERT_THAT(one.status(), IsOk());
  ASSERT_THAT(two.status(), IsOk());
  EXPECT_EQ(one->result.plan, two->result.plan);
}

TEST_P(EachTrainer, RecomputesAtLaunchWhereMemoryIsShort) {
  const TrainerLimits& trainer = Trainer(GetParam());
  int32_t recomputed = 0;
  for (uint64_t seed = 0; seed < NumJobs() / 2; ++seed) {
    SCOPED_TRACE(seed);
    RandomJobCase made = RandomJob(seed, kSmallTrainerJob);
    made.job.training.memory_strategies = {MemoryStrategy::kKeep,
                                           MemoryStrategy::kRecompute};
    const absl::StatusOr<TrainerPlanned> roomy =
        PlanForTrainer(trainer, made, 1);
    if (!roomy.ok()) continue;
    Bytes most;
    Bytes fixed;
    for (const Bytes peak : roomy->result.peak_bytes()) {
      most = std::max(most, peak);
    }
    for (const RankSpec& rank : roomy->result.plan.graph.ranks()) {
      fixed = std::max(fixed, rank.memory.static_bytes());
    }
    made.job.training.memory_limit = Bytes((fixed + most).count() / 2);
    const absl::StatusOr<TrainerPlanned> tight =
        PlanForTrainer(trainer, made, 20);
    if (absl::IsResourceExhausted(tight.status())) continue;
    ASSERT_THAT(tight.status(), IsOk());
    EXPECT_THAT(CheckPlan(trainer, made.job, *tight), IsOk());
    recomputed += tight->recompute.is_none() ? 0 : 1;
  }
  EXPECT_GT(recomputed, 0);
}

INSTANTIATE_TEST_SUITE_P(Trainers, EachTrainer,
                         ::testing::Values("megatron", "megatron-stock",
                                           "torch", "torchtitan", "deepspeed"),
                         NameOf);

TEST(TrainerJob, NamesWhatCannotBeExecuted) {
  JobSpec job = SmallVlmJob();
  const TrainerLimits& torch = Trainer("torch");
  EXPECT_THAT(CheckTrainerJob(torch, job), IsOk());
  JobSpec frozen = job;
  frozen.training.frozen_modules = {"encoder"};
  EXPECT_THAT(CheckTrainerJob(torch, frozen).message(),
              HasSubstr("training.frozen_modules names encoder"));
  JobSpec apart = job;
  apart.model.edges.clear();
  EXPECT_THAT(CheckTrainerJob(torch, apart).message(),
              HasSubstr("module encoder does not feed module backbone"));
  JobSpec two = job;
  two.model.modules[ModuleId(0)].layers.push_back(
      {.kind = LayerKind::kLossHead, .name = "head"});
  EXPECT_THAT(CheckTrainerJob(torch, two).message(), HasSubstr("loss head"));
  JobSpec own = job;
  own.module_parallelism = {{.module = "encoder", .tp = 1}};
  EXPECT_THAT(CheckTrainerJob(torch, own).message(),
              HasSubstr("parallel.modules"));
  EXPECT_THAT(CheckTrainerJob(Trainer("pipeloom"), two), IsOk());
}

}  // namespace
}  // namespace pipeloom::adapters
