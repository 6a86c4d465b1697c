// Applies the adapters to schedule tables, for tests that compare them with
// torch's own code (torch_peer_test.py). Reads one request per line on stdin
// and writes one answer per line on stdout; fields are separated by tabs, rows
// of a table by `|`:
//
//   check TABLE          ok, or no and why
//   lower TABLE          ok and the table with transfers
//   waits TABLE          ok and the table with transfers and waits
//   plan NAME P M SEED   ok and the strategy's plan on P ranks and M
//                        microbatches: passes (dualpipe-v with pairs), and with
//                        the plan's own transfers and waits; NAME-random: its
//                        stages in any order
//   trainer NAME SEED    ok, the schedule file and the launch arguments of a
//                        plan for the trainer, of a random job; `|` for ends of
//                        lines in both
//   job SEED             ok, the job's file and the batch's that `pipeloom
//   plan`
//                        reads, of the same random job, in the same way
//   names                ok and the strategies that `plan` takes
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "adapters/action_table.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "adapters/trainer_files.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "tests/adapters/job_files.h"
#include "tests/adapters/plans.h"
#include "tests/adapters/strategies.h"
#include "tests/adapters/trainer_plans.h"
#include "tests/support/random_problem.h"

namespace pipeloom::adapters {
namespace {

using ::pipeloom::testing::PlanOf;
using ::pipeloom::testing::Strategy;

std::string OneLine(const ActionTable& table) {
  std::string text = PrintTorchCsv(table);
  if (!text.empty()) text.pop_back();
  return absl::StrReplaceAll(text, {{"\n", "|"}});
}

absl::StatusOr<ActionTable> TableOf(const std::string& text) {
  return ParseTorchCsv(absl::StrReplaceAll(text, {{"|", "\n"}}),
                       TorchDialect::k26);
}

// Any order in which every stage goes forward through its microbatches in
// ascending order.
RankOrders AscendingOrders(const StageGraph& graph, uint64_t seed) {
  Random random(seed);
  std::map<std::tuple<int32_t, int32_t>, TaskId> forward;
  for (const TaskId t : graph.task_ids()) {
    const Task& task = graph.task(t);
    if (task.pass != Pass::kForward) continue;
    forward[{task.stage.value(), task.microbatch.value()}] = t;
  }
  IdVector<TaskId, int32_t> waits(graph.num_tasks(), 0);
  IdVector<TaskId, std::vector<TaskId>> after(graph.num_tasks());
  const auto add = [&](TaskId from, TaskId to) {
    after[from].push_back(to);
    ++waits[to];
  };
  for (const Dependency& e : graph.edges()) add(e.from, e.to);
  for (const auto& [key, t] : forward) {
    const auto [stage, microbatch] = key;
    if (microbatch > 0) add(forward.at({stage, microbatch - 1}), t);
  }
  std::vector<TaskId> ready;
  for (const TaskId t : graph.task_ids()) {
    if (waits[t] == 0) ready.push_back(t);
  }
  RankOrders orders(graph.num_ranks());
  while (!ready.empty()) {
    const auto i = static_cast<size_t>(random.Below(ready.size()));
    const TaskId t = ready[i];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(i));
    orders[graph.task(t).rank].push_back(t);
    for (const TaskId next : after[t]) {
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
  return orders;
}

// `name` may end in "-random": the strategy's places in any order.
absl::StatusOr<ExecutionPlan> PlanFor(const Strategy& strategy, bool random,
                                      int32_t p, int32_t m, uint64_t seed) {
  const StageGraph graph =
      testing::UniformGraph({.ranks = p,
                             .chunks = strategy.chunks,
                             .microbatches = m,
                             .vee = strategy.vee,
                             .split_backward = strategy.split,
                             .delay = Microseconds(100)});
  if (random) return PlanOf(graph, AscendingOrders(graph, seed));
  PIPELOOM_ASSIGN_OR_RETURN(RankOrders orders,
                            strategy.orders(planner::VirtualPipeline(graph)));
  return PlanOf(graph, std::move(orders));
}

testing::RandomJobCase TrainedJob(uint64_t seed) {
  testing::RandomJobCase made =
      testing::RandomJob(seed, testing::kSmallTrainerJob);
  made.job.training.frozen_modules.clear();
  return made;
}

absl::StatusOr<std::string> JobAnswer(uint64_t seed) {
  const testing::RandomJobCase made = TrainedJob(seed);
  PIPELOOM_ASSIGN_OR_RETURN(const std::string job, testing::JobFile(made.job));
  return absl::StrReplaceAll(
      absl::StrCat(job, "\t", testing::BatchFile(made.batch)), {{"\n", "|"}});
}

// Returns the files that `pipeloom plan --for` writes for a random job.
absl::StatusOr<std::string> TrainerAnswer(const std::string& name,
                                          uint64_t seed) {
  const TrainerLimits* const trainer = FindTrainer(name);
  if (trainer == nullptr) {
    return absl::NotFoundError(absl::StrCat("no trainer ", name));
  }
  const testing::RandomJobCase made = TrainedJob(seed);
  PIPELOOM_ASSIGN_OR_RETURN(
      const testing::TrainerPlanned planned,
      testing::PlanForTrainer(*trainer, made, /*evaluations=*/20));
  PIPELOOM_ASSIGN_OR_RETURN(const TrainerFile file,
                            ScheduleFileOf(*trainer, planned.result.plan));
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::string launch,
      LaunchArguments(*trainer, made.job, planned.partition, planned.recompute,
                      file, "plan"));
  return absl::StrReplaceAll(absl::StrCat(file.text, "\t", launch),
                             {{"\n", "|"}});
}

absl::StatusOr<std::string> Answer(const std::vector<std::string>& fields) {
  const std::string& request = fields[0];
  if (request == "names") {
    std::string names;
    for (const Strategy& s : testing::Strategies()) {
      absl::StrAppend(&names, names.empty() ? "" : "\t", s.name);
    }
    return names;
  }
  if (request == "plan") {
    int32_t p = 0;
    int32_t m = 0;
    uint64_t seed = 0;
    if (fields.size() != 5 || !absl::SimpleAtoi(fields[2], &p) ||
        !absl::SimpleAtoi(fields[3], &m) ||
        !absl::SimpleAtoi(fields[4], &seed)) {
      return absl::InvalidArgumentError("expected plan NAME P M SEED");
    }
    absl::string_view name = fields[1];
    const bool random = absl::ConsumeSuffix(&name, "-random");
    for (const Strategy& strategy : testing::Strategies()) {
      if (strategy.name != name) continue;
      PIPELOOM_ASSIGN_OR_RETURN(const ExecutionPlan plan,
                                PlanFor(strategy, random, p, m, seed));
      ActionOptions options;
      if (strategy.name == "dualpipe-v" && !random) {
        testing::FindDualPipeVOperations(plan.graph, m, &options);
      }
      PIPELOOM_ASSIGN_OR_RETURN(const PlanActions passes,
                                ActionsOf(plan, options));
      PIPELOOM_ASSIGN_OR_RETURN(PlanActions transfers,
                                ActionsOf(plan, {.transfers = true}));
      PIPELOOM_RETURN_IF_ERROR(AddWaits(&transfers.table));
      return absl::StrCat(OneLine(passes.table), "\t",
                          OneLine(transfers.table));
    }
    return absl::NotFoundError(absl::StrCat("no strategy ", fields[1]));
  }
  if (request == "trainer") {
    uint64_t seed = 0;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[2], &seed)) {
      return absl::InvalidArgumentError("expected trainer NAME SEED");
    }
    return TrainerAnswer(fields[1], seed);
  }
  if (request == "job") {
    uint64_t seed = 0;
    if (fields.size() != 2 || !absl::SimpleAtoi(fields[1], &seed)) {
      return absl::InvalidArgumentError("expected job SEED");
    }
    return JobAnswer(seed);
  }
  if (fields.size() != 2) return absl::InvalidArgumentError("expected a table");
  PIPELOOM_ASSIGN_OR_RETURN(ActionTable table, TableOf(fields[1]));
  TableShape shape;
  if (request == "check") {
    PIPELOOM_RETURN_IF_ERROR(CheckTable(table, &shape));
    return std::string();
  }
  PIPELOOM_RETURN_IF_ERROR(AddTransfers(&table));
  if (request == "waits") PIPELOOM_RETURN_IF_ERROR(AddWaits(&table));
  return OneLine(table);
}

}  // namespace
}  // namespace pipeloom::adapters

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    const absl::StatusOr<std::string> answer =
        pipeloom::adapters::Answer(fields);
    if (answer.ok()) {
      std::cout << "ok\t" << *answer << std::endl;
    } else {
      std::cout << "no\t"
                << absl::StrReplaceAll(std::string(answer.status().message()),
                                       {{"\n", " "}})
                << std::endl;
    }
  }
  return 0;
}
