// `pipeloom import`: makes a plan from a schedule of another tool.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "adapters/deepspeed_steps.h"
#include "adapters/megatron_order.h"
#include "adapters/plan_actions.h"
#include "adapters/torch_schedule.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "formats/text/json_writer.h"
#include "ir/plan/schedule.h"
#include "planner/lower/lower_plan.h"

namespace pipeloom::cli {
namespace {

class ImportCommand : public Command {
 public:
  CommandText text() const override {
    return {"import", "FILE --from FORMAT [--out PLAN]",
            "a schedule of another tool as a plan",
            "Reads a schedule file, checks it and makes a plan of it that "
            "every other command takes: `pipeloom emulate`, `run`, "
            "`export`. Prints what it would take.\n\n"
            "Schedule files have no times. --forward, --backward and "
            "--weight-grad are of one microbatch on one rank, all its stages "
            "together, which share them equally; a whole backward takes both "
            "of the latter. Passes that the file overlaps count as one "
            "operation without gain.\n\n"
            "torch-csv needs --dialect, because the letter B changed its "
            "meaning: 2.6 (B whole, I input gradient), 2.5 (B is the input "
            "gradient where there is a W), bw (BW whole)."};
  }

  std::vector<Flag> Flags() override {
    return {
        {"from",
         &from_,
         "FORMAT",
         "of the file",
         {"torch-csv", "megatron-order", "deepspeed"}},
        Needing(
            {"from=torch-csv"},
            {"dialect", &dialect_, "D", "of torch-csv", {"2.5", "bw", "2.6"}}),
        {"forward", &forward_, "TIME", "default 1ms"},
        {"backward", &backward_, "TIME", "input gradient; default 1ms"},
        {"weight-grad", &weight_grad_, "TIME", "default 1ms"},
        {"transfer", &transfer_, "TIME", "between ranks; default 0"},
        {"activation", &activation_, "SIZE",
         "a stage keeps for a microbatch (a bare number is bytes); default "
         "1MiB"},
        OutputFlag("out", &out_, "write the plan there", Output::kNamedFile),
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}}};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::string path,
                              OneArgument(args, "FILE"));
    if (from_.empty()) return UsageError("--from FORMAT is missing");
    if (from_ == "torch-csv" && dialect_.empty()) {
      return UsageError("--dialect is missing: 2.5, bw or 2.6");
    }
    PIPELOOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    absl::StatusOr<ExecutionPlan> plan = Plan(text);
    if (!plan.ok()) {
      return absl::Status(plan.status().code(),
                          absl::StrCat(path, ": ", plan.status().message()));
    }
    if (!out_.empty()) PIPELOOM_RETURN_IF_ERROR(WritePlan(out_, *plan));
    Print(*plan, context);
    if (!out_.empty() && format_ != "json") {
      context.print(absl::StrCat("wrote ", out_, "\n"));
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<adapters::ActionTable> Table(const std::string& text) const {
    if (from_ == "megatron-order") {
      PIPELOOM_ASSIGN_OR_RETURN(const auto order,
                                adapters::ParseMegatronOrder(text));
      return adapters::FromMegatronOrder(order);
    }
    if (from_ == "deepspeed") {
      PIPELOOM_ASSIGN_OR_RETURN(const auto steps,
                                adapters::ParseDeepSpeed(text));
      return adapters::FromDeepSpeed(steps);
    }
    return adapters::ParseTorchCsv(
        text, dialect_ == "2.5"  ? adapters::TorchDialect::k25
              : dialect_ == "bw" ? adapters::TorchDialect::kBw
                                 : adapters::TorchDialect::k26);
  }

  absl::StatusOr<ExecutionPlan> Plan(const std::string& text) const {
    PIPELOOM_ASSIGN_OR_RETURN(const adapters::ActionTable table, Table(text));
    adapters::ActionTimes times;
    times.forward = forward_.value_or(times.forward);
    times.backward_input = backward_.value_or(times.backward_input);
    times.weight_grad = weight_grad_.value_or(times.weight_grad);
    times.transfer = transfer_.value_or(times.transfer);
    times.activation = activation_.value_or(times.activation);
    PIPELOOM_ASSIGN_OR_RETURN(
        adapters::ImportedSchedule imported,
        adapters::ScheduleOf(table, times, "imported schedule"));
    PIPELOOM_ASSIGN_OR_RETURN(
        const Schedule schedule,
        TimeSchedule(imported.graph, std::move(imported.order)));
    PIPELOOM_ASSIGN_OR_RETURN(ExecutionPlan plan,
                              planner::LowerPlan(imported.graph, schedule));
    plan.job = "imported";
    plan.schedule = from_;
    PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(plan));
    return plan;
  }

  void Print(const ExecutionPlan& plan, const Context& context) const {
    Bytes most{};
    for (const Bytes peak : planner::PlanPeaks(plan)) {
      most = std::max(most, peak);
    }
    int32_t stages = 0;
    int32_t microbatches = 0;
    for (const Task& task : plan.graph.tasks()) {
      stages = std::max(stages, task.stage.value() + 1);
      microbatches = std::max(microbatches, task.microbatch.value() + 1);
    }
    if (format_ == "json") {
      formats::JsonWriter json(true);
      json.BeginObject().Key("ranks").Int(plan.graph.num_ranks());
      json.Key("stages").Int(stages).Key("microbatches").Int(microbatches);
      json.Key("tasks").Int(plan.graph.num_tasks());
      json.Key("step_time_us").Micros(plan.predicted_step_time);
      json.Key("bubble_ratio")
          .Number(BubbleRatio(plan.graph, plan.predicted_step_time));
      json.Key("epilogue_ratio")
          .Number(EpilogueRatio(plan.graph, plan.predicted_step_time));
      json.Key("peak_bytes").BeginArray();
      for (const Bytes peak : planner::PlanPeaks(plan)) json.Count(peak);
      json.EndArray();
      if (!out_.empty()) json.Key("out").String(out_);
      context.print(absl::StrCat(json.EndObject().text(), "\n"));
      return;
    }
    context.print(absl::StrFormat(
        "%d ranks, %d stages, %d microbatches: %d tasks\n"
        "step time  %s\nbubble     %s\nepilogue   %s\npeak       %s on one "
        "rank\n",
        plan.graph.num_ranks(), stages, microbatches, plan.graph.num_tasks(),
        FormatDuration(plan.predicted_step_time),
        absl::StrFormat(
            "%.1f%%", 100 * BubbleRatio(plan.graph, plan.predicted_step_time)),
        absl::StrFormat(
            "%.1f%%",
            100 * EpilogueRatio(plan.graph, plan.predicted_step_time)),
        FormatBytes(most)));
  }

  std::string from_{};
  std::string format_ = "table";
  std::string dialect_{};
  std::optional<Duration> forward_{};
  std::optional<Duration> backward_{};
  std::optional<Duration> weight_grad_{};
  std::optional<Duration> transfer_{};
  std::optional<Bytes> activation_{};
  std::string out_{};
};

}  // namespace

std::unique_ptr<Command> MakeImportCommand() {
  return std::make_unique<ImportCommand>();
}

}  // namespace pipeloom::cli
