// `pipeloom plan`: plans steps of a job and writes plans, trace and report.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "cli/commands/slow_flags.h"
#include "cli/commands/trainer_output.h"
#include "cli/console/command.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/console/table.h"
#include "cli/input/attention_density.h"
#include "cli/input/learned_file.h"
#include "cli/input/measured_flags.h"
#include "cli/input/plan_file.h"
#include "cli/input/planning_flags.h"
#include "cli/input/robust_flags.h"
#include "cli/report/report.h"
#include "formats/text/json_writer.h"
#include "planner/strategy.h"
#include "studies/job/launch_times.h"
#include "studies/job/planned_step.h"
#include "trace/chrome_trace.h"

namespace pipeloom::cli {
namespace {

constexpr size_t kMaxDrawnSteps = 3;

std::string FormatLimit(Bytes limit) {
  return limit > Bytes(0) ? FormatBytes(limit) : "none";
}

// Returns the gap to what no partition can beat.
std::string AnyPartition(const studies::PlannedStep& step) {
  return step.any_partition_bound > kZero
             ? FormatPercent(step.any_partition_gap())
             : "-";
}

Table StepsTable(const std::vector<studies::PlannedStep>& steps) {
  Table table({"step", "samples", "microbatches", "step time", "lower bound",
               "gap", "any partition", "bubble", "epilogue", "MFU",
               "peak memory", "search", "evaluations"});
  for (const studies::PlannedStep& step : steps) {
    table.AddRow({absl::StrCat(step.step), absl::StrCat(step.num_samples),
                  absl::StrCat(step.slowest().microbatches.num_microbatches),
                  FormatDuration(step.step_time()),
                  absl::StrCat(FormatDuration(step.lower_bound()), " (",
                               step.bound_source(), ")"),
                  FormatPercent(step.gap_ratio()), AnyPartition(step),
                  FormatPercent(step.bubble_ratio()),
                  FormatPercent(step.epilogue_ratio()),
                  FormatPercent(step.mfu()), FormatBytes(step.peak()),
                  FormatDuration(step.search_time),
                  absl::StrCat(step.evaluations())});
  }
  return table;
}

// Writes what to feed to the replicas of a step: the samples of the plan's
// microbatches, as indices into the batch, and the order in which a trainer
// takes the microbatches. `schedules`: its files by replica; empty: none.
void WriteFeeds(const studies::PlannedStep& step,
                const partition::PackedStep& packed,
                absl::Span<const adapters::TrainerFile> schedules,
                formats::JsonWriter* json) {
  json->Key("replicas").BeginArray();
  for (size_t r = 0; r < step.replicas.size(); ++r) {
    json->BeginObject().Key("replica").Int(step.replicas[r].plan.replica);
    json->Key("microbatch_samples").BeginArray();
    for (const auto& samples : step.replicas[r].microbatches.samples) {
      json->BeginArray();
      for (const SampleId s : samples) json->Int(packed.piece_of[s].value());
      json->EndArray();
    }
    json->EndArray();
    if (!schedules.empty()) {
      json->Key("feed_order").BeginArray();
      const std::vector<int32_t>& order = schedules[r].feed_order;
      for (int32_t i = 0; i < step.replicas[r].microbatches.num_microbatches;
           ++i) {
        json->Int(order.empty() ? i : order[static_cast<size_t>(i)]);
      }
      json->EndArray();
    }
    json->EndObject();
  }
  json->EndArray();
}

std::string Json(const JobSpec& job, const std::string& strategy,
                 const std::vector<studies::PlannedStep>& steps,
                 const std::vector<partition::PackedStep>& packed,
                 const std::string& trainer, const std::string& arguments,
                 const TrainerOutput& output) {
  formats::JsonWriter json(true);
  json.BeginObject().Key("job").String(job.name);
  if (!arguments.empty()) {
    json.Key("for").String(trainer).Key("launch").String(arguments);
  }
  json.Key("steps").BeginArray();
  for (size_t s = 0; s < steps.size(); ++s) {
    const studies::PlannedStep& step = steps[s];
    json.BeginObject().Key("step").Int(step.step);
    json.Key("samples").Int(step.num_samples);
    json.Key("microbatches").Int(step.slowest().microbatches.num_microbatches);
    json.Key("strategy").String(strategy);
    json.Key("schedule").String(strategy);
    json.Key("step_time_us").Micros(step.step_time());
    json.Key("lower_bound_us").Micros(step.lower_bound());
    json.Key("bound_source").String(step.bound_source());
    json.Key("gap_ratio").Number(step.gap_ratio());
    json.Key("any_partition_bound_us").Micros(step.any_partition_bound);
    json.Key("any_partition_gap_ratio").Number(step.any_partition_gap());
    json.Key("bubble_ratio").Number(step.bubble_ratio());
    json.Key("epilogue_ratio").Number(step.epilogue_ratio());
    json.Key("mfu").Number(step.mfu());
    json.Key("peak_bytes").BeginArray();
    for (const Bytes peak : step.peak_bytes()) json.Count(peak);
    json.EndArray().Key("search_us").Micros(step.search_time);
    json.Key("evaluations").Int(step.evaluations());
    if (const auto& robust = step.slowest().robust) {
      WriteRobust(robust->chosen, robust->nominal, &json);
    }
    WriteFeeds(step, packed[s],
               output.schedules.empty()
                   ? absl::Span<const adapters::TrainerFile>()
                   : absl::MakeConstSpan(output.schedules[s]),
               &json);
    json.EndObject();
  }
  json.EndArray()
      .Key("mean_step_time_us")
      .Micros(studies::MeansOf(steps).step_time);
  const studies::Throughput rates = studies::ThroughputOf(job, steps);
  json.Key("samples_per_second").Number(rates.samples_per_second);
  json.Key("tokens_per_second").Number(rates.tokens_per_second);
  json.Key("flops_per_second_per_gpu").Number(rates.flops_per_gpu);
  return json.EndObject().text() + "\n";
}

class PlanCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "plan", "JOB --batch FILE [options]",
        "plan training steps; write plans, a timeline, a report",
        "Takes the samples of each step from the batch, splits them over "
        "replicas and microbatches, searches a schedule for every replica, "
        "checks the plan and emulates it. JOB is a JSON file or the name of a "
        "shipped job such as dip-vlm-s.\n\n"
        "The step time is that of the slowest replica; peak memory is of one "
        "GPU, by pipeline rank; the lower bound is what no schedule of the "
        "same stages can beat, \"any partition\" the gap to what no partition "
        "and order of these microbatches can. --out writes plan.pb for one "
        "step and replica, "
        "plan-0003.pb and plan-0003-r1.pb for several; a name that ends in "
        ".txt gets the text form. --format json has the samples of each "
        "microbatch too, as indices into the batch; one that was cut is in "
        "several.\n\n"
        "--for keeps to what a trainer can execute, prints its launch "
        "arguments and writes its schedule files next to the plans "
        "(docs/integration.md). megatron: Megatron-Core with PlanRunner; "
        "megatron-stock: its own schedules; torch: schedule files of "
        "torch.distributed.pipelining; torchtitan: the same with its "
        "configuration; deepspeed: instruction lists."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags;
    AppendPlanningFlags(&planning_, true, &flags);
    AppendRobustFlags(&robust_flags_, &flags);
    AppendSlowFlags(&slow_flags_, &flags);
    AppendMeasuredFlags(&measured_flags_, &flags);
    flags.push_back(WarmUpFlag(&warm_up_));
    flags.push_back(TrainerFlag(
        &trainer_,
        "plan only what that trainer can execute, and write its files"));
    flags.push_back(AttentionDensityFlag(&densities_, true));
    flags.push_back(
        OutputFlag("out", &out_, "write the plans", Output::kNamedFile));
    flags.push_back(OutputFlag("trace", &trace_,
                               "write the timeline as Chrome trace JSON"));
    flags.push_back(OutputFlag("report", &report_, "write an HTML report"));
    flags.push_back(
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}});
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<double> densities,
                              ParseDensities(densities_));
    if (!densities.empty() && !measured_flags_.traces.empty()) {
      return UsageError(
          "--attention-density with --costs-from: which density the traces "
          "were measured with is not known; use one of the two");
    }
    PIPELOOM_RETURN_IF_ERROR(CheckSlow(slow_flags_, measured_flags_));
    PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
    PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                              ReadPlannedJob(name, planning_, context));
    JobSpec slow_job = input.job;
    PIPELOOM_RETURN_IF_ERROR(ApplySlow(slow_flags_, &slow_job));
    const std::string name_of_strategy =
        planning_.strategy.value_or(input.job.search.schedule);
    PIPELOOM_ASSIGN_OR_RETURN(const std::unique_ptr<planner::Strategy> strategy,
                              MakeStrategyFor(trainer_, name_of_strategy));
    planner::TrainerStrategy* const limited = AsTrainerStrategy(strategy.get());
    PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                              studies::PackSteps(input, planning_.job.steps,
                                                 StudyContextOf(context)));
    emulator::StageCostModel costs(input.job, studies::CostsOf(input));
    studies::SearchSettings settings = SettingsOf(planning_, input);
    PIPELOOM_RETURN_IF_ERROR(
        CheckWarmUp(warm_up_, settings, {name_of_strategy}));
    PIPELOOM_RETURN_IF_ERROR(
        ApplyMeasured(measured_flags_, input, name_of_strategy,
                      planning_.partition, settings, context, &costs));
    settings.robust = DisturbancesOf(robust_flags_, settings.seed);
    PIPELOOM_ASSIGN_OR_RETURN(
        planner::PreparedJob prepared,
        limited != nullptr
            ? PrepareForTrainer(input, packed, costs, planning_.partition,
                                settings, context, limited)
            : PrepareWithPartition(input, *strategy, costs, planning_.partition,
                                   settings, context));
    // The partition is that of the healthy job, as moving weights takes long.
    // Each step is planned with the times of the slow ranks and links.
    std::unique_ptr<emulator::StageCostModel> slow_costs;
    if (slow_flags_.given()) {
      PIPELOOM_ASSIGN_OR_RETURN(
          slow_costs,
          SlowCosts(std::move(slow_job), measured_flags_.learned, &input));
      prepared.costs = slow_costs.get();
    }
    if (limited == nullptr || warm_up_.has_value()) {
      PIPELOOM_ASSIGN_OR_RETURN(settings.warm_up,
                                WarmUp(warm_up_, prepared, input,
                                       planning_.partition, settings, context));
    }
    DensityByStep by_step(
        prepared, input, densities, [&](emulator::StageCostModel* sparse) {
          return ApplyLearned(measured_flags_.learned, sparse);
        });
    PIPELOOM_ASSIGN_OR_RETURN(
        const std::vector<studies::PlannedStep> steps,
        PlanSteps(input, packed, settings, context, &by_step,
                  /*keeps_cut=*/true));
    TrainerOutput output;
    std::string arguments;
    if (limited != nullptr) {
      PIPELOOM_ASSIGN_OR_RETURN(output, TrainerOutputOf(*limited, steps));
      PIPELOOM_ASSIGN_OR_RETURN(
          arguments,
          LaunchArgumentsOf(*limited, prepared, output, steps, out_));
    }
    PIPELOOM_ASSIGN_OR_RETURN(
        std::vector<std::string> written,
        WriteFiles(input, name_of_strategy, steps, context));
    if (limited != nullptr && !out_.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(
          const std::vector<std::string> more,
          WriteTrainerOutput(output, arguments, limited->trainer(), steps,
                             out_));
      written.insert(written.end(), more.begin(), more.end());
    }
    if (!steps.empty()) {
      const auto operators = studies::CostsOf(input);
      const auto notes = studies::LaunchNotes(
          input.job, steps[0].slowest().microbatches, operators.get());
      output.notes.insert(output.notes.end(), notes.begin(), notes.end());
      for (std::string& note :
           studies::GraphNotes(input.job, steps[0].slowest().microbatches)) {
        output.notes.push_back(std::move(note));
      }
      double mfu = 0;
      for (const studies::PlannedStep& step : steps) {
        mfu = std::max(mfu, step.mfu());
      }
      for (std::string& note : studies::MfuNotes(input.job, mfu)) {
        output.notes.push_back(std::move(note));
      }
      for (const studies::PlannedStep& step : steps) {
        const auto meeting = studies::MeetingNotes(*prepared.costs, step);
        output.notes.insert(output.notes.end(), meeting.begin(), meeting.end());
        if (!meeting.empty()) break;
      }
    }
    for (const std::string& note : output.notes) {
      context.warn(absl::StrCat("note: ", note));
    }
    absl::Status end;
    if (context.stop.stop_requested()) {
      context.warn(absl::StrFormat(
          "note: %d of %d steps are planned, the last with the best until the "
          "interrupt",
          steps.size(), packed.size()));
      end = absl::CancelledError("stopped");
    }
    if (format_ == "json") {
      context.print(Json(input.job, name_of_strategy, steps, packed, trainer_,
                         arguments, output));
      return end;
    }
    PrintTable(input, name_of_strategy, steps, context);
    if (!arguments.empty()) {
      context.print(
          absl::StrCat("\nlaunch arguments for ", trainer_, ":\n", arguments));
    }
    for (const std::string& path : written) {
      context.print(absl::StrCat("wrote ", path, "\n"));
    }
    return end;
  }

 private:
  static std::string Heading(const studies::JobInput& input,
                             const std::string& strategy) {
    const ParallelLayout& layout = input.job.parallel;
    return absl::StrFormat(
        "strategy %s, batch %s, %d replica%s of %d ranks of %d GPU%s, %s, %s",
        strategy, input.batch_name, input.replicas,
        input.replicas == 1 ? "" : "s", layout.pp, layout.gpus_per_rank(),
        layout.gpus_per_rank() == 1 ? "" : "s", input.job.cluster.device.name,
        MemoryLimitText(input.job));
  }

  void PrintTable(const studies::JobInput& input, const std::string& strategy,
                  const std::vector<studies::PlannedStep>& steps,
                  const Context& context) const {
    context.print(absl::StrCat(input.job.name, ": ", Heading(input, strategy),
                               "\n\n", StepsTable(steps).ToString()));
    const studies::StepMeans means = studies::MeansOf(steps);
    context.print(absl::StrFormat(
        "\nmean step time %s, bubble %s, epilogue %s, MFU %s; peak memory %s "
        "of %s\n",
        FormatDuration(means.step_time), FormatPercent(means.bubble_ratio),
        FormatPercent(means.epilogue_ratio), FormatPercent(means.mfu),
        FormatBytes(means.peak), FormatLimit(input.job.MemoryLimit())));
    const studies::Throughput rates = studies::ThroughputOf(input.job, steps);
    context.print(absl::StrFormat(
        "%.4g samples/s, %.0f backbone tokens/s, %.0f a GPU; %.4g TFLOP/s a "
        "GPU\n",
        rates.samples_per_second, rates.tokens_per_second, rates.tokens_per_gpu,
        rates.flops_per_gpu / 1e12));
    for (const studies::PlannedStep& step : steps) {
      if (const auto& robust = step.slowest().robust) {
        context.print(
            absl::StrCat("step ", step.step, " ",
                         RobustText(robust->chosen, robust->nominal)));
      }
    }
  }

  absl::StatusOr<std::vector<std::string>> WriteFiles(
      const studies::JobInput& input, const std::string& strategy,
      const std::vector<studies::PlannedStep>& steps,
      const Context& context) const {
    std::vector<std::string> written;
    if (!out_.empty()) {
      for (const studies::PlannedStep& step : steps) {
        for (const planner::PlanResult& result : step.replicas) {
          const std::string path =
              PlanPath(out_, step.step, steps.size() > 1, result.plan.replica);
          PIPELOOM_RETURN_IF_ERROR(WritePlan(path, result.plan));
          written.push_back(path);
        }
      }
    }
    if (!trace_.empty()) {
      std::vector<trace::TracedPlan> plans;
      for (const studies::PlannedStep& step : steps) {
        for (const planner::PlanResult& result : step.replicas) {
          plans.push_back({&result.plan, &result.predicted});
        }
      }
      PIPELOOM_RETURN_IF_ERROR(
          WriteFileAtomically(trace_, trace::ChromeTrace(plans)));
      written.push_back(trace_);
    }
    if (!report_.empty()) {
      PIPELOOM_RETURN_IF_ERROR(WriteFileAtomically(
          report_, ReportHtml(MakeReport(input, strategy, steps, context))));
      written.push_back(report_);
    }
    return written;
  }

  static Report MakeReport(const studies::JobInput& input,
                           const std::string& strategy,
                           const std::vector<studies::PlannedStep>& steps,
                           const Context& context) {
    const studies::StepMeans means = studies::MeansOf(steps);
    int64_t evaluations = 0;
    for (const studies::PlannedStep& step : steps)
      evaluations += step.evaluations();
    Report report;
    report.title = absl::StrCat("Plan of ", input.job.name);
    report.subtitle = Heading(input, strategy);
    report.command = context.command_line;
    report.figures = {
        {"step time", FormatDuration(means.step_time),
         steps.size() == 1 ? "1 step"
                           : absl::StrCat("mean of ", steps.size(), " steps")},
        {"over the lower bound", FormatPercent(means.gap_ratio),
         "no schedule is below it"},
        {"bubble", FormatPercent(means.bubble_ratio), "idle rank time"},
        {"epilogue", FormatPercent(means.epilogue_ratio),
         "rank time of gradient reduction and optimizer"},
        {"MFU", FormatPercent(means.mfu), "of bf16 peak"},
        {"peak memory", FormatBytes(means.peak),
         absl::StrCat("limit ", FormatLimit(input.job.MemoryLimit()))},
        {"search", FormatDuration(means.search_time),
         absl::StrCat("a step; ", evaluations, " evaluations in all")}};
    report.tables.push_back({"Steps", StepsTable(steps)});
    for (size_t s = 0; s < std::min(steps.size(), kMaxDrawnSteps); ++s) {
      const planner::PlanResult& slowest = steps[s].slowest();
      std::string title = absl::StrCat("Step ", steps[s].step);
      if (steps[s].replicas.size() > 1) {
        absl::StrAppend(&title, ", replica ", slowest.plan.replica,
                        " (the slowest)");
      }
      report.steps.push_back({.title = title,
                              .plan = &slowest.plan,
                              .trace = &slowest.predicted,
                              .microbatches = &slowest.microbatches});
    }
    report.notes = {
        "Times and memory are emulated from the job's model, cluster and "
        "batch; memory is of one GPU of a rank. docs/report.md says what the "
        "causes of idle time mean."};
    return report;
  }

  PlanningFlags planning_{};
  RobustFlags robust_flags_{};
  SlowFlags slow_flags_{};
  std::optional<Duration> warm_up_{};
  MeasuredFlags measured_flags_{};
  std::vector<std::string> densities_{};
  std::string out_{};
  std::string trace_{};
  std::string report_{};
  std::string format_ = "table";
  std::string trainer_{};
};

}  // namespace

std::unique_ptr<Command> MakePlanCommand() {
  return std::make_unique<PlanCommand>();
}

}  // namespace pipeloom::cli
