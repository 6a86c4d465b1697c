// `pipeloom run`: executes a plan with the runtime and compares it with the
// prediction.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/chrome_trace.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/json_writer.h"
#include "cli/plan_source.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "emulator/emulate_step.h"
#include "runtime/launch.h"

namespace pipeloom::cli {
namespace {

class RunCommand : public Command {
 public:
  CommandText text() const override {
    return {"run", "--plan FILE | JOB --batch FILE [options]",
            "execute a plan; predicted against measured",
            "Executes the plan's instructions, one thread a rank, on devices "
            "that spend the predicted time of each task, and prints predicted "
            "and measured step time and the error. With --repeat the median "
            "counts. --time-scale 0.1 runs ten times as fast as real time; "
            "times are printed as of real time."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendPlanSourceFlags(&source_, &flags);
    flags.push_back({"transport",
                     &transport_,
                     "NAME",
                     "how ranks exchange tensors",
                     {"inproc"}});
    flags.push_back(
        {"device", &device_, "NAME", "what executes tasks", {"synthetic"}});
    flags.push_back({"time-scale",
                     &time_scale_,
                     "X",
                     "wall time per plan time",
                     {},
                     1e-6,
                     1000});
    flags.push_back(
        {"repeat", &repeat_, "N", "execute N times", {}, 1, 100000});
    flags.push_back({"trace", &trace_, "FILE",
                     "write the measured timeline of the median run as Chrome "
                     "trace JSON"});
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const SourcedPlan sourced,
                              GetPlan(source_, args, context));
    const ExecutionPlan& plan = sourced.plan;
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace predicted,
                              emulator::EmulateStep(plan));
    runtime::RunOptions options;
    options.time_scale = time_scale_;
    options.stop = context.stop;
    std::vector<StepTrace> runs;
    {
      Progress progress(context, "running", repeat_);
      for (int64_t i = 0; i < repeat_; ++i) {
        progress.Set(i);
        PIPELOOM_ASSIGN_OR_RETURN(StepTrace measured,
                                  runtime::RunPlan(plan, options));
        runs.push_back(std::move(measured));
      }
    }
    std::vector<const StepTrace*> by_time;
    for (const StepTrace& run : runs) by_time.push_back(&run);
    std::stable_sort(by_time.begin(), by_time.end(),
                     [](const StepTrace* a, const StepTrace* b) {
                       return a->finish < b->finish;
                     });
    const StepTrace& median = *by_time[(by_time.size() - 1) / 2];
    const TraceComparison comparison = CompareTraces(predicted, median);
    if (!trace_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(
          WriteFileAtomically(trace_, ChromeTrace({{{&plan, &median}}})));
    }
    if (format_ == "json") {
      context.print(Json(plan, comparison, runs));
    } else {
      context.print(Words(plan, comparison, runs));
      if (!trace_.empty()) {
        context.print(absl::StrCat("wrote ", trace_, "\n"));
      }
    }
    if (comparison.same_order) return absl::OkStatus();
    return absl::InternalError(
        "a rank ran its tasks in another order than predicted");
  }

 private:
  std::string Json(const ExecutionPlan& plan, const TraceComparison& comparison,
                   const std::vector<StepTrace>& runs) const {
    JsonWriter json(true);
    json.BeginObject().Key("job").String(plan.job);
    json.Key("schedule").String(plan.schedule);
    json.Key("ranks").Int(plan.graph.num_ranks());
    json.Key("time_scale").Number(time_scale_);
    json.Key("predicted_us").Micros(comparison.predicted_step_time);
    json.Key("measured_us").Micros(comparison.measured_step_time);
    json.Key("error_ratio").Number(comparison.step_time_error);
    json.Key("mean_task_error_ratio").Number(comparison.mean_task_time_error);
    json.Key("same_order").Bool(comparison.same_order);
    json.Key("runs_us").BeginArray();
    for (const StepTrace& run : runs) json.Micros(run.step_time());
    return json.EndArray().EndObject().text() + "\n";
  }

  std::string Words(const ExecutionPlan& plan,
                    const TraceComparison& comparison,
                    const std::vector<StepTrace>& runs) const {
    std::string text = absl::StrFormat(
        "%s, schedule %s: %d tasks on %d ranks (threads, %s transport, %s "
        "device), time scale %g\n\n",
        plan.job, plan.schedule, plan.graph.num_tasks(), plan.graph.num_ranks(),
        transport_, device_, time_scale_);
    Table table({"run", "step time", "error"});
    const double predicted = ToSeconds(comparison.predicted_step_time);
    const auto error = [&](Duration d) {
      return predicted > 0
                 ? absl::StrFormat("%+.2f %%",
                                   100 * (ToSeconds(d) / predicted - 1))
                 : std::string("-");
    };
    table.AddRow(
        {"predicted", FormatDuration(comparison.predicted_step_time), ""});
    constexpr size_t kMostRows = 10;
    for (size_t i = 0; i < std::min(runs.size(), kMostRows); ++i) {
      table.AddRow({absl::StrCat("measured ", i + 1),
                    FormatDuration(runs[i].step_time()),
                    error(runs[i].step_time())});
    }
    if (runs.size() > 1) {
      table.AddRow({absl::StrCat("median of ", runs.size()),
                    FormatDuration(comparison.measured_step_time),
                    error(comparison.measured_step_time)});
    }
    absl::StrAppend(&text, table.ToString());
    absl::StrAppendFormat(
        &text,
        "\nmean error of a task %s; every rank in the planned order: "
        "%s\n",
        FormatPercent(comparison.mean_task_time_error, 2),
        comparison.same_order ? "yes" : "no");
    return text;
  }

  PlanSource source_{};
  std::string transport_ = "inproc";
  std::string device_ = "synthetic";
  double time_scale_ = 1;
  int64_t repeat_ = 1;
  std::string trace_{};
  std::string format_ = "table";
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() {
  return std::make_unique<RunCommand>();
}

}  // namespace pipeloom::cli
