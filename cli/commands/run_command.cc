// `pipeloom run`: executes a plan with the runtime and compares it with the
// prediction.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/progress.h"
#include "cli/console/table.h"
#include "cli/input/learned_file.h"
#include "cli/input/plan_source.h"
#include "cli/report/report.h"
#include "cli/run/run_feed.h"
#include "cli/run/run_ranks.h"
#include "cli/run/torch_run.h"
#include "emulator/calibration/cost_learner.h"
#include "emulator/step/emulate_step.h"
#include "formats/text/json_writer.h"
#include "runtime/launch.h"
#include "runtime/run_steps.h"
#include "runtime/synthetic_device.h"
#include "trace/chrome_trace.h"

namespace pipeloom::cli {
namespace {

// Returns this process's resident memory; 0 where there is no /proc.
Bytes ResidentMemory() {
  const absl::StatusOr<std::string> text = ReadFile("/proc/self/statm");
  int64_t pages = 0;
  if (!text.ok() || std::sscanf(text->c_str(), "%*d %ld", &pages) != 1) {
    return Bytes(0);
  }
  return Bytes(pages * sysconf(_SC_PAGESIZE));
}

// Returns what a run should measure: in its transports each pair of ranks has a
// link.
absl::StatusOr<StepTrace> PredictRun(const ExecutionPlan& plan) {
  return emulator::EmulateStep(
      plan,
      {.links = SharedLinks{.host_bandwidth = plan.links.host_bandwidth}});
}

class RunCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "run", "PLAN | JOB --batch FILE [options]",
        "execute a plan; predicted against measured",
        "Executes the plan's instructions, one thread or process a rank, "
        "on devices that spend the predicted time of each task, and prints "
        "predicted and measured step time and the error. With --repeat the "
        "median counts. --time-scale 0.1 runs ten times as fast as real time; "
        "times are printed as of real time."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendPlanSourceFlags(&source_, &flags);
    flags.push_back({"transport",
                     &transport_,
                     "NAME",
                     "how ranks exchange tensors: inproc, as threads of this "
                     "process; mpi or nccl (a GPU a rank), as the processes "
                     "that mpirun starts",
                     {"inproc", "mpi", "nccl"}});
    flags.push_back({"device",
                     &device_,
                     "NAME",
                     "what executes tasks",
                     {"synthetic", "torch"}});
    AppendTorchFlags(&torch_, &flags);
    const size_t of_synthetic = flags.size();
    flags.push_back({"time-scale",
                     &time_scale_,
                     "X",
                     "synthetic device: wall time per plan time",
                     {},
                     1e-6,
                     1000});
    flags.push_back({"repeat",
                     &repeat_,
                     "N",
                     "synthetic device: execute each plan N times",
                     {},
                     1,
                     100000});
    SetNeeds({"device=synthetic"}, of_synthetic, &flags);
    flags.push_back({"steps",
                     &steps_,
                     "N",
                     "steps of JOB to plan and execute one after another; the "
                     "next is planned while one runs",
                     {},
                     1,
                     100000});
    flags.push_back({"service", &service_.target, "ADDRESS",
                     "have JOB's steps planned by `pipeloom serve` there, of "
                     "replica 0; where no plan comes in time the run goes on "
                     "with its own, without a search"});
    const size_t of_service = flags.size();
    flags.push_back({"service-wait", &service_wait_, "TIME",
                     "for a plan of --service; 1s"});
    flags.push_back(
        {"token-file", &service_.token_file, "FILE", "the token of --service"});
    flags.push_back({"tls-ca", &service_.tls_ca, "FILE",
                     "whom to trust as --service, PEM; turns TLS on"});
    SetNeeds({"service"}, of_service, &flags);
    flags.push_back(OutputFlag("learn", &learn_,
                               "keep there what the measured tasks took, and "
                               "what it holds already; plan with it by "
                               "--learned",
                               Output::kNamedFile));
    flags.push_back({"failure-timeout", &failure_timeout_, "TIME",
                     "within which all ranks end once one has failed, stopped "
                     "or vanished"});
    flags.push_back(
        Needing({"transport=mpi", "transport=nccl"},
                {"start-timeout", &start_timeout_, "TIME",
                 "transport mpi or nccl: within which MPI must have "
                 "started (default 30s)"}));
    flags.push_back(OutputFlag("trace", &trace_,
                               "write the measured timeline of the last step, "
                               "of its median run, as Chrome trace JSON"));
    flags.push_back(OutputFlag(
        "report", &report_, "write an HTML report: predicted over measured"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& arguments,
                   const Context& context) override {
    std::vector<std::string> args = arguments;
    runtime::RunOptions options;
    options.time_scale = time_scale_;
    options.failure_timeout =
        std::chrono::nanoseconds(failure_timeout_.value_or(Seconds(5)).count());
    options.start_timeout =
        std::chrono::nanoseconds(start_timeout_.value_or(Seconds(30)).count());
    options.stop = context.stop;
    if (service_wait_) {
      service_.wait = std::chrono::nanoseconds(service_wait_->count());
    }
    if (device_ == "torch" && !service_.target.empty()) {
      return UsageError(
          "--service is for --device synthetic: this run plans with what it "
          "measures; a PyTorch training has its plans from a service by "
          "pipeloom.Session (docs/integration.md)");
    }
    if (device_ == "torch" && (!trace_.empty() || !report_.empty())) {
      return UsageError("--trace and --report are for --device synthetic");
    }
    PIPELOOM_RETURN_IF_ERROR(SettlePlanFile(&source_, &args, {"learned"}));
    if (device_ == "torch") {
      return RunTorch({.flags = torch_,
                       .source = source_,
                       .args = args,
                       .steps = steps_,
                       .transport = transport_,
                       .learn = learn_,
                       .json = format_ == "json",
                       .options = options},
                      context);
    }
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::unique_ptr<RunRanks> ranks,
        StartRanks(transport_, options, runtime::MakeSyntheticDevice,
                   /*keep_time=*/true));
    return RunToEnd(*ranks, context,
                    [&] { return Execute(args, context, *ranks); });
  }

 private:
  // Consecutive runs of one plan.
  struct Group {
    runtime::SharedPlan plan{};
    std::vector<StepTrace> runs{};
  };
  // The summary of a group.
  struct Row {
    int64_t step = 0;
    TraceComparison comparison{};
  };

  absl::Status Execute(const std::vector<std::string>& args,
                       const Context& context, RunRanks& ranks) {
    runtime::PlanFeed feed;
    if (ranks.leads()) {
      PIPELOOM_ASSIGN_OR_RETURN(
          feed, service_.target.empty()
                    ? MakeRunFeed(source_, args, steps_, repeat_, context)
                    : MakeServiceFeed(source_, service_, args, steps_, repeat_,
                                      context, &counts_));
    }
    LearnedFile learned;
    LearnedFile applied;
    if (!source_.learned.empty() && ranks.leads()) {
      PIPELOOM_ASSIGN_OR_RETURN(applied, ReadLearned(source_.learned));
    }
    if (!learn_.empty() && ranks.leads() && access(learn_.c_str(), F_OK) == 0) {
      PIPELOOM_ASSIGN_OR_RETURN(learned, ReadLearned(learn_));
    }
    Group group;
    std::vector<Row> rows;
    {
      Context quiet = context;
      if (!ranks.leads()) quiet.show_progress = nullptr;
      Progress progress(quiet, "running", steps_ * repeat_);
      PIPELOOM_RETURN_IF_ERROR(runtime::RunSteps(
          steps_ * repeat_, ranks.Share(std::move(feed)),
          [&](runtime::SharedPlan plan) {
            return ranks.RunStep(std::move(plan));
          },
          [&](int64_t i, runtime::SharedPlan plan,
              StepTrace trace) -> absl::Status {
            progress.Set(i + 1);
            if (!ranks.leads()) return absl::OkStatus();
            if (i + 1 == Early()) memory_early_ = ResidentMemory();
            if (!learn_.empty()) {
              if (!plan->job.empty()) learned.jobs.insert(plan->job);
              const absl::Status status =
                  learned.costs
                      .Learn(plan->graph,
                             runtime::WithTimesSpent(plan->graph, trace),
                             applied.costs.Factors(
                                 plan->graph.module_names(),
                                 emulator::CostLearner::kMaxCorrection))
                      .status();
              if (!status.ok()) return status;
            }
            if (plan != group.plan) group = {.plan = plan, .runs = {}};
            group.runs.push_back(std::move(trace));
            if ((i + 1) % repeat_ != 0) return absl::OkStatus();
            PIPELOOM_ASSIGN_OR_RETURN(const StepTrace predicted,
                                      PredictRun(*plan));
            rows.push_back(
                {plan->step, CompareTraces(predicted, Median(group.runs))});
            return absl::OkStatus();
          }));
    }
    if (!ranks.leads()) return absl::OkStatus();
    if (!learn_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteLearned(learn_, learned));
    }
    const ExecutionPlan& plan = *group.plan;
    if (plan.links.sharing != LinkSharing::kPerPair ||
        plan.links.blocking_sends) {
      context.warn(absl::StrFormat(
          "note: with the links that its ranks share the plan takes %s; a run "
          "gives each pair of ranks a link of its own, and sends do not block",
          FormatDuration(plan.predicted_step_time)));
    }
    const StepTrace& median = Median(group.runs);
    const TraceComparison& comparison = rows.back().comparison;
    if (!trace_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          trace_, trace::ChromeTrace({{{&plan, &median}}})));
    }
    if (!report_.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(const StepTrace predicted, PredictRun(plan));
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_, ReportHtml(MakeReport(plan, predicted, median, comparison,
                                         context))));
    }
    if (format_ == "json") {
      context.print(Json(plan, rows, group.runs));
    } else {
      context.print(rows.size() > 1 ? StepWords(plan, rows)
                                    : Words(plan, comparison, group.runs));
      if (!service_.target.empty()) {
        context.print(
            absl::StrFormat("plans: %d of the service, %d of the run's own\n",
                            counts_.planned, counts_.own));
      }
      for (const std::string& path : {trace_, report_}) {
        if (!path.empty()) context.print(absl::StrCat("wrote ", path, "\n"));
      }
    }
    for (const Row& row : rows) {
      if (row.comparison.same_order) continue;
      return absl::InternalError(absl::StrFormat(
          "step %d: a rank ran its tasks in another order than predicted",
          row.step));
    }
    return absl::OkStatus();
  }

  // Returns the number of runs in the first tenth, which is compared with the
  // end.
  int64_t Early() const { return std::max<int64_t>(1, steps_ * repeat_ / 10); }

  // Compares memory and errors at the begin and end of a long run.
  std::string LongRunWords(const std::vector<Row>& rows) const {
    const size_t tenth = rows.size() / 10;
    if (tenth < 1) return "";
    const auto mean_error = [&](size_t first) {
      double sum = 0;
      for (size_t i = first; i < first + tenth; ++i) {
        sum += rows[i].comparison.step_time_error;
      }
      return 100 * sum / static_cast<double>(tenth);
    };
    return absl::StrFormat(
        "\nresident memory %s after %d steps, %s after %d; mean error of the "
        "first tenth %+.2f %%, of the last %+.2f %%\n",
        FormatBytes(memory_early_), Early(), FormatBytes(ResidentMemory()),
        steps_ * repeat_, mean_error(0), mean_error(rows.size() - tenth));
  }

  static const StepTrace& Median(const std::vector<StepTrace>& runs) {
    std::vector<const StepTrace*> by_time;
    for (const StepTrace& run : runs) by_time.push_back(&run);
    std::stable_sort(by_time.begin(), by_time.end(),
                     [](const StepTrace* x, const StepTrace* y) {
                       return x->finish < y->finish;
                     });
    return *by_time[(by_time.size() - 1) / 2];
  }

  // Returns the report of several steps.
  std::string StepWords(const ExecutionPlan& plan,
                        const std::vector<Row>& rows) const {
    std::string text = absl::StrFormat(
        "%s, strategy %s: %d steps on %d ranks (%s, %s device), time scale "
        "%g\n\n",
        plan.job, plan.schedule, rows.size(), plan.graph.num_ranks(),
        RanksInWords(transport_), device_, time_scale_);
    Table table({"step", "predicted", "measured", "error"});
    for (const Row& row : rows) {
      table.AddRow(
          {absl::StrCat(row.step),
           FormatDuration(row.comparison.predicted_step_time),
           FormatDuration(row.comparison.measured_step_time),
           absl::StrFormat("%+.2f %%", 100 * row.comparison.step_time_error)});
    }
    return text + table.ToString() + LongRunWords(rows);
  }

  static Report MakeReport(const ExecutionPlan& plan,
                           const StepTrace& predicted,
                           const StepTrace& measured,
                           const TraceComparison& comparison,
                           const Context& context) {
    Report report;
    report.title = absl::StrCat("Run of ", plan.job);
    report.subtitle = absl::StrFormat("strategy %s, step %d, replica %d",
                                      plan.schedule, plan.step, plan.replica);
    report.command = context.command_line;
    report.figures = {
        {"predicted", FormatDuration(comparison.predicted_step_time), ""},
        {"measured", FormatDuration(comparison.measured_step_time),
         absl::StrFormat("%+.2f %% of the prediction",
                         100 * comparison.step_time_error)},
        {"error of a task", FormatPercent(comparison.mean_task_time_error, 2),
         "mean"}};
    report.steps = {{.title = absl::StrCat("Step ", plan.step),
                     .plan = &plan,
                     .trace = &predicted,
                     .measured = &measured}};
    return report;
  }

  std::string Json(const ExecutionPlan& plan, const std::vector<Row>& rows,
                   const std::vector<StepTrace>& runs) const {
    const TraceComparison& comparison = rows.back().comparison;
    formats::JsonWriter json(true);
    json.BeginObject().Key("job").String(plan.job);
    json.Key("strategy").String(plan.schedule);
    json.Key("schedule").String(plan.schedule);
    json.Key("ranks").Int(plan.graph.num_ranks());
    json.Key("time_scale").Number(time_scale_);
    json.Key("predicted_us").Micros(comparison.predicted_step_time);
    json.Key("measured_us").Micros(comparison.measured_step_time);
    json.Key("error_ratio").Number(comparison.step_time_error);
    json.Key("mean_task_error_ratio").Number(comparison.mean_task_time_error);
    json.Key("same_order").Bool(comparison.same_order);
    if (!service_.target.empty()) {
      json.Key("plans_of_service").Int(counts_.planned);
      json.Key("plans_of_own").Int(counts_.own);
    }
    json.Key("runs_us").BeginArray();
    for (const StepTrace& run : runs) json.Micros(run.step_time());
    json.EndArray();
    json.Key("steps").BeginArray();
    for (const Row& row : rows) {
      json.BeginObject().Key("step").Int(row.step);
      json.Key("predicted_us").Micros(row.comparison.predicted_step_time);
      json.Key("measured_us").Micros(row.comparison.measured_step_time);
      json.Key("error_ratio").Number(row.comparison.step_time_error);
      json.EndObject();
    }
    return json.EndArray().EndObject().text() + "\n";
  }

  std::string Words(const ExecutionPlan& plan,
                    const TraceComparison& comparison,
                    const std::vector<StepTrace>& runs) const {
    std::string text = absl::StrFormat(
        "%s, strategy %s: %d tasks on %d ranks (%s, %s device), time scale "
        "%g\n\n",
        plan.job, plan.schedule, plan.graph.num_tasks(), plan.graph.num_ranks(),
        RanksInWords(transport_), device_, time_scale_);
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
    constexpr size_t kMaxRows = 10;
    for (size_t i = 0; i < std::min(runs.size(), kMaxRows); ++i) {
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
  TorchFlags torch_{};
  double time_scale_ = 1;
  int64_t repeat_ = 1;
  int64_t steps_ = 1;
  FollowOptions service_{};
  std::optional<Duration> service_wait_{};
  FeedCounts counts_{};
  std::optional<Duration> failure_timeout_{};
  std::optional<Duration> start_timeout_{};
  std::string learn_{};
  std::string trace_{};
  std::string report_{};
  std::string format_ = "table";
  Bytes memory_early_{};
};

}  // namespace

std::unique_ptr<Command> MakeRunCommand() {
  return std::make_unique<RunCommand>();
}

}  // namespace pipeloom::cli
