#include "cli/run/torch_run.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/job_input.h"
#include "cli/input/learned_file.h"
#include "cli/input/plan_file.h"
#include "cli/run/run_module.h"
#include "cli/run/run_ranks.h"
#include "cli/run/torch_times.h"
#include "emulator/calibration/cost_learner.h"
#include "formats/text/json_writer.h"
#include "partition/batching/step_instances.h"
#include "planner/strategies/registry.h"
#include "proto/convert/serialize_plan.h"
#include "runtime/torch/torch_message.h"
#include "runtime/torch/torch_trainer.h"
#include "runtime/torch/torch_work.h"
#include "studies/job/planned_step.h"

namespace pipeloom::cli {
namespace {

// Steps after the warm-up that are learned from before predictions are judged.
constexpr int64_t kLearnSteps = 3;

// A row of the output: step, loss, times and errors.
constexpr char kRow[] = "%5s  %12s  %12s  %12s  %10s  %12s  %s\n";

// Makes the C library keep the memory of one step for the next. By default,
// large tensors are mapped and unmapped each time, and the page faults for each
// 4 KiB of them take as long as small layers, with varying times.
void KeepFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_ARENA_MAX, 1);
#endif
}

absl::StatusOr<runtime::TorchEntryPoint> LoadTorchModule() {
  KeepFreedMemory();
  // Each rank works on one thread, so BLAS must not start more.
  setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/0);
  setenv("OMP_NUM_THREADS", "1", /*overwrite=*/0);
  PIPELOOM_ASSIGN_OR_RETURN(
      void* const entry,
      LoadModule("pipeloom_torch.so", runtime::kTorchEntryPoint, "torch device",
                 "libtorch (Debian: libtorch-dev)"));
  return reinterpret_cast<runtime::TorchEntryPoint>(entry);
}

runtime::TorchPrecision PrecisionOf(const std::string& name) {
  if (name == "bf16") return runtime::TorchPrecision::kBf16;
  return name == "fp64" ? runtime::TorchPrecision::kFp64
                        : runtime::TorchPrecision::kFp32;
}

// Changes the job to one GPU per rank and a model that a CPU can train.
absl::Status MakeSmall(int64_t scale, int64_t ranks, JobSpec* job) {
  if (!job->module_parallelism.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.modules gives \"%s\" a tp or cp of its own; the torch device "
        "is one GPU a rank and holds no copies: leave parallel.modules out, or "
        "run on the synthetic device",
        job->module_parallelism.front().module));
  }
  // The scaled model of a layer that the device lacks may be no model at all.
  PIPELOOM_RETURN_IF_ERROR(runtime::CheckTorchLayers(job->model));
  if (ranks > 0) job->parallel.pp = static_cast<int32_t>(ranks);
  job->model =
      runtime::ScaleModel(job->model, scale, std::max<int64_t>(1, scale / 4));
  job->parallel.tp = job->parallel.cp = job->parallel.ep = 1;
  job->parallel.expert_tp = 0;
  job->parallel.dp = 1;
  job->partition = {};
  return ValidateJobSpec(*job);
}

// Sums over all ranks, on the leader.
struct RankSums {
  double loss = 0;
  runtime::TorchSpent spent{};
};

absl::StatusOr<RankSums> GatherSums(const runtime::TorchTrainer& trainer,
                                    RunRanks& ranks) {
  RankSums sums{.loss = trainer.Loss(), .spent = trainer.Spent()};
  std::vector<double*> values{&sums.loss};
  for (std::vector<double>* list :
       {&sums.spent.tasks, &sums.spent.between, &sums.spent.epilogue}) {
    for (double& value : *list) values.push_back(&value);
  }
  std::string bytes(values.size() * sizeof(double), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&bytes[i * sizeof(double)], values[i], sizeof(double));
    *values[i] = 0;
  }
  PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            ranks.Gather(std::move(bytes)));
  for (const std::string& one : all) {
    if (one.size() != values.size() * sizeof(double)) continue;
    for (size_t i = 0; i < values.size(); ++i) {
      double value = 0;
      std::memcpy(&value, &one[i * sizeof(double)], sizeof(double));
      *values[i] += value;
    }
  }
  return sums;
}

double MeanPercent(const std::vector<double>& errors) {
  double sum = 0;
  for (const double error : errors) sum += std::abs(error);
  return errors.empty() ? 0 : 100 * sum / static_cast<double>(errors.size());
}

// The leader's part of a run: plans and predicts each step and reports it.
class Leader {
 public:
  Leader(const TorchRun& run, const studies::JobInput& input,
         const Context& context)
      : run_(run), input_(input), context_(context) {}

  absl::Status Start(const planner::PreparedJob& prepared) {
    prepared_ = &prepared;
    settings_ = SettingsOf(run_.source, input_);
    PIPELOOM_ASSIGN_OR_RETURN(
        packed_,
        studies::PackSteps(input_, run_.steps, StudyContextOf(context_)));
    if (!run_.source.learned.empty()) {
      PIPELOOM_ASSIGN_OR_RETURN(applied_, ReadLearned(run_.source.learned));
    }
    if (!run_.learn.empty() && access(run_.learn.c_str(), F_OK) == 0) {
      PIPELOOM_ASSIGN_OR_RETURN(learned_, ReadLearned(run_.learn));
    }
    return absl::OkStatus();
  }

  // Plans a step; returns the message for all ranks.
  absl::StatusOr<std::string> Plan(int64_t step) {
    const partition::PackedStep& now = packed_[static_cast<size_t>(step)];
    Progress progress(context_, "training", run_.steps);
    PIPELOOM_ASSIGN_OR_RETURN(
        studies::PlannedStep planned,
        studies::PlanReplicas(*prepared_, now, step, 1, settings_,
                              context_.stop, SetterOf(progress)));
    planner::PlanResult& result = planned.replicas[0];
    runtime::TorchMessage message;
    PIPELOOM_ASSIGN_OR_RETURN(
        message.work,
        runtime::MakeTorchWork(
            input_.job.model,
            partition::InstancesOf(input_.job.model, now, /*replica=*/0),
            result.microbatches, run_.flags.scale,
            settings_.seed + static_cast<uint64_t>(step)));
    message.memory = std::move(result.memory);
    message.plan = convert::SerializePlan(result.plan);
    planned_ = std::move(result.plan);
    return runtime::ToString(message);
  }

  // Predicts the step's time. Called before the step runs.
  absl::Status Predict(const ExecutionPlan& plan,
                       const runtime::TorchWork& work) {
    PIPELOOM_ASSIGN_OR_RETURN(predicted_, times_.Predict(plan, work));
    PIPELOOM_ASSIGN_OR_RETURN(first_predicted_,
                              first_times_.Predict(plan, work));
    return absl::OkStatus();
  }

  absl::Status Report(int64_t step, const RankSums& sums,
                      const ExecutionPlan& plan, const runtime::TorchWork& work,
                      const StepTrace& trace) {
    PIPELOOM_ASSIGN_OR_RETURN(const Duration undisturbed,
                              times_.Learn(plan, work, sums.spent, trace));
    constexpr int64_t kLearned = TorchTimes::kWarmUpSteps + kLearnSteps;
    if (step + 1 == kLearned) first_times_ = times_;
    // Uses the planned tasks, whose times are the job's own.
    if (!run_.learn.empty()) {
      PIPELOOM_RETURN_IF_ERROR(
          learned_.costs
              .Learn(planned_.graph, trace,
                     applied_.costs.Factors(planned_.graph.module_names()))
              .status());
    }
    const auto ratio = [](Duration measured, Duration predicted) {
      return ToSeconds(measured) / ToSeconds(predicted) - 1;
    };
    const auto words = [](double error) {
      return absl::StrFormat("%+.2f %%", 100 * error);
    };
    std::string error = "-";
    std::string undisturbed_error = "-";
    if (predicted_.has_value() && predicted_->undisturbed > kZero) {
      const double of_step = ratio(trace.step_time(), predicted_->step);
      const double of_work = ratio(undisturbed, predicted_->undisturbed);
      error = words(of_step);
      undisturbed_error = words(of_work);
      if (step >= kLearned) {
        errors_.push_back(of_step);
        undisturbed_errors_.push_back(of_work);
        measured_ += trace.step_time();
        predicted_sum_ += predicted_->step;
      }
    }
    if (step >= kLearned && first_predicted_.has_value()) {
      first_errors_.push_back(ratio(trace.step_time(), first_predicted_->step));
    }
    Row row{.step = step,
            .loss = sums.loss,
            .measured = trace.step_time(),
            .undisturbed = undisturbed};
    if (predicted_) row.predicted = predicted_->step;
    rows_.push_back(row);
    if (run_.json) return absl::OkStatus();
    context_.print(absl::StrFormat(
        kRow, absl::StrCat(step), absl::StrFormat("%.6f", sums.loss),
        predicted_ ? FormatDuration(predicted_->step) : "-",
        FormatDuration(trace.step_time()), error, FormatDuration(undisturbed),
        undisturbed_error));
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (run_.json) {
      context_.print(Json());
    } else if (!errors_.empty()) {
      context_.print(absl::StrFormat(
          "\nmean |error| of %d steps, after %d to warm up and %d learned "
          "from: %.2f %%\n"
          "  of all these steps together %+.2f %%; of what they would take "
          "undisturbed %.2f %%; learning no more after those %d: %.2f %%\n",
          errors_.size(), TorchTimes::kWarmUpSteps, kLearnSteps,
          MeanPercent(errors_),
          100 * (ToSeconds(measured_) / ToSeconds(predicted_sum_) - 1),
          MeanPercent(undisturbed_errors_), kLearnSteps,
          MeanPercent(first_errors_)));
    }
    if (run_.learn.empty()) return absl::OkStatus();
    learned_.jobs.insert(input_.job.name);
    return WriteLearned(run_.learn, learned_);
  }

 private:
  // A step that ran.
  struct Row {
    int64_t step = 0;
    double loss = 0;
    std::optional<Duration> predicted{};
    Duration measured{};
    Duration undisturbed{};
  };

  std::string Json() const {
    formats::JsonWriter json(true);
    json.BeginObject().Key("job").String(input_.job.name);
    json.Key("strategy").String(prepared_->strategy->name());
    json.Key("ranks").Int(input_.job.parallel.pp);
    json.Key("scale").Int(run_.flags.scale);
    json.Key("precision").String(run_.flags.precision);
    json.Key("judged_steps").Int(static_cast<int64_t>(errors_.size()));
    if (!errors_.empty()) {
      json.Key("mean_error_ratio").Number(MeanPercent(errors_) / 100);
      json.Key("mean_undisturbed_error_ratio")
          .Number(MeanPercent(undisturbed_errors_) / 100);
    }
    json.Key("steps").BeginArray();
    for (const Row& row : rows_) {
      json.BeginObject().Key("step").Int(row.step);
      json.Key("loss").Number(row.loss);
      if (row.predicted) json.Key("predicted_us").Micros(*row.predicted);
      json.Key("measured_us").Micros(row.measured);
      json.Key("undisturbed_us").Micros(row.undisturbed).EndObject();
    }
    return absl::StrCat(json.EndArray().EndObject().text(), "\n");
  }

  const TorchRun& run_;
  const studies::JobInput& input_;
  const Context& context_;
  const planner::PreparedJob* prepared_ = nullptr;
  studies::SearchSettings settings_{};
  std::vector<partition::PackedStep> packed_{};
  ExecutionPlan planned_{};
  TorchTimes times_{};
  std::optional<TorchTimes::Prediction> predicted_{};
  LearnedFile learned_{};
  LearnedFile applied_{};
  // The times as learned from the first steps alone.
  TorchTimes first_times_{};
  std::optional<TorchTimes::Prediction> first_predicted_{};
  std::vector<Row> rows_{};
  // Measured over predicted time, less 1, for each step that is judged.
  std::vector<double> errors_{};
  std::vector<double> undisturbed_errors_{};
  std::vector<double> first_errors_{};
  Duration measured_{};
  Duration predicted_sum_{};
};

// Runs all steps; called on every process. Sets `trainer`, which the ranks'
// devices use.
absl::Status Train(const TorchRun& run, runtime::TorchEntryPoint make_trainer,
                   std::unique_ptr<runtime::TorchTrainer>* trainer,
                   RunRanks& ranks, const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name,
                            OneArgument(run.args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                            ReadPlannedJob(name, run.source, context));
  PIPELOOM_RETURN_IF_ERROR(
      MakeSmall(run.flags.scale, run.flags.ranks, &input.job));
  input.replicas = 1;
  const JobSpec& job = input.job;
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto planner,
      // The job is of GPUs, and the times are of a small model on this machine.
      MakePlanner(input, run.source, run.source.learned, context,
                  emulator::CostLearner::kMaxFactor));
  const planner::PreparedJob& prepared = planner->prepared();

  runtime::TorchSetup setup{.model = job.model,
                            .partition = prepared.partition,
                            .only_rank = ranks.only_rank()};
  for (const ModuleId m : job.model.modules.ids()) {
    setup.frozen.push_back(job.IsFrozen(m));
  }
  setup.options.seed = studies::Settle(run.source.search, job.search).seed;
  setup.options.precision = PrecisionOf(run.flags.precision);
  setup.options.cuda = run.flags.place == "cuda";
  setup.options.cuda_index = ranks.host_rank();
  PIPELOOM_ASSIGN_OR_RETURN(*trainer, make_trainer(setup));
  Leader leader(run, input, context);
  if (ranks.leads()) {
    PIPELOOM_RETURN_IF_ERROR(leader.Start(prepared));
  }
  if (ranks.leads() && !run.json) {
    context.print(absl::StrFormat(
        "%s, strategy %s: %d parameters on %d ranks (%s, torch device on %s in "
        "%s), scale %d\n\n",
        job.name, std::string(planner->strategy().name()),
        (*trainer)->NumParameters(), job.parallel.pp,
        RanksInWords(run.transport), run.flags.place, run.flags.precision,
        run.flags.scale));
    context.print(absl::StrFormat(kRow, "step", "loss", "predicted", "measured",
                                  "error", "undisturbed", "error"));
  }
  for (int64_t step = 0; step < run.steps; ++step) {
    std::string bytes;
    if (ranks.leads()) {
      PIPELOOM_ASSIGN_OR_RETURN(bytes, leader.Plan(step));
    }
    PIPELOOM_ASSIGN_OR_RETURN(bytes, ranks.Broadcast(std::move(bytes)));
    PIPELOOM_ASSIGN_OR_RETURN(const runtime::TorchMessage message,
                              runtime::ParseTorchMessage(bytes));
    PIPELOOM_ASSIGN_OR_RETURN(
        const ExecutionPlan planned,
        ParsePlanFile(message.plan, "the plan of rank 0"));
    PIPELOOM_ASSIGN_OR_RETURN(
        ExecutionPlan sized,
        (*trainer)->BeginStep(planned, message.work, message.memory));
    const auto plan = std::make_shared<const ExecutionPlan>(std::move(sized));
    if (ranks.leads()) {
      PIPELOOM_RETURN_IF_ERROR(leader.Predict(*plan, message.work));
    }
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace, ranks.RunStep(plan));
    PIPELOOM_ASSIGN_OR_RETURN(const RankSums sums,
                              GatherSums(**trainer, ranks));
    if (!ranks.leads()) continue;
    PIPELOOM_RETURN_IF_ERROR(
        leader.Report(step, sums, *plan, message.work, trace));
  }
  return ranks.leads() ? leader.Finish() : absl::OkStatus();
}

}  // namespace

void AppendTorchFlags(TorchFlags* values, std::vector<Flag>* flags) {
  const size_t first = flags->size();
  flags->push_back({"scale",
                    &values->scale,
                    "N",
                    "torch device: widths and tokens over N, layers over N/4",
                    {},
                    1,
                    1024});
  flags->push_back({"ranks",
                    &values->ranks,
                    "N",
                    "torch device: of the pipeline, instead of the job's",
                    {},
                    0,
                    1024});
  flags->push_back({"precision",
                    &values->precision,
                    "NAME",
                    "torch device: of products and activations",
                    {"fp32", "bf16", "fp64"}});
  flags->push_back({"torch-on",
                    &values->place,
                    "NAME",
                    "torch device: where it computes",
                    {"cpu", "cuda"}});
  SetNeeds({"device=torch"}, first, flags);
}

absl::Status RunTorch(const TorchRun& run, const Context& context) {
  if (!run.source.plan_file.empty()) {
    return UsageError(
        "--device torch takes JOB --batch FILE: a plan does not tell the "
        "model");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const runtime::TorchEntryPoint make_trainer,
                            LoadTorchModule());
  std::unique_ptr<runtime::TorchTrainer> trainer;
  runtime::RunOptions options = run.options;
  options.time_scale = 1;
  options.whole_tensors = true;
  options.timeout = std::chrono::hours(24);
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<RunRanks> ranks,
      StartRanks(
          run.transport, options,
          [&trainer](const runtime::DeviceContext& device) {
            return trainer->MakeDevice(device);
          },
          /*keep_time=*/false));
  return RunToEnd(*ranks, context, [&] {
    return Train(run, make_trainer, &trainer, *ranks, context);
  });
}

}  // namespace pipeloom::cli
