#include "cli/torch_run.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/job_input.h"
#include "cli/planned_step.h"
#include "emulator/emulate_step.h"
#include "partition/token_count.h"
#include "planner/strategy.h"
#include "runtime/inproc_transport.h"
#include "runtime/launch.h"
#include "runtime/torch/torch_trainer.h"
#include "runtime/torch/torch_work.h"

namespace pipeloom::cli {
namespace {

absl::StatusOr<runtime::TorchEntryPoint> LoadTorchModule() {
  // One thread a rank does the work; BLAS must start no more.
  setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/0);
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::string tried;
  for (const std::filesystem::path& path :
       {folder / "pipeloom_torch.so",
        folder / ".." / PIPELOOM_LIBDIR / "pipeloom" / "pipeloom_torch.so"}) {
    if (!std::filesystem::exists(path, error)) {
      absl::StrAppend(&tried, tried.empty() ? "" : " and ", path.string());
      continue;
    }
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("the torch device cannot be loaded: ", dlerror()));
    }
    void* entry = dlsym(module, runtime::kTorchEntryPoint);
    if (entry == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          path.string(), " is not the torch device of this program"));
    }
    return reinterpret_cast<runtime::TorchEntryPoint>(entry);
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no torch device: ", tried,
      " do not exist; build with libtorch (Debian: libtorch-dev)"));
}

// On one GPU a rank, with a model that a CPU can train.
absl::Status MakeSmall(int64_t scale, JobSpec* job) {
  job->model =
      runtime::ScaleModel(job->model, scale, std::max<int64_t>(1, scale / 4));
  job->parallel.tp = job->parallel.cp = job->parallel.ep = 1;
  job->parallel.dp = 1;
  job->partition = {};
  return ValidateJobSpec(*job);
}

absl::StatusOr<runtime::TorchWork> WorkOf(const JobSpec& job,
                                          const partition::PackedStep& packed,
                                          const Microbatches& microbatches,
                                          int64_t scale, uint64_t seed) {
  IdVector<MicrobatchId,
           IdVector<ModuleId, std::vector<runtime::InstanceShape>>>
      all;
  for (const std::vector<SampleId>& samples : packed.packed[0]) {
    auto& shapes = all[all.push_back({})];
    shapes.resize(job.model.modules.size());
    for (size_t owner = 0; owner < samples.size(); ++owner) {
      IdVector<ModuleId, std::vector<WorkShape>> of(job.model.modules.size());
      partition::AppendInstances(job.model,
                                 packed.samples.samples[samples[owner]], &of);
      for (const ModuleId m : of.ids()) {
        for (const WorkShape& shape : of[m]) {
          shapes[m].push_back({.owner = static_cast<int32_t>(owner),
                               .tokens = shape.tokens,
                               .output_tokens = shape.output_tokens});
        }
      }
    }
  }
  return runtime::MakeTorchWork(job.model, all, microbatches, scale, seed);
}

// What tasks have taken so far, in proportion to their tokens.
class TaskTimes {
 public:
  void Learn(const ExecutionPlan& plan, const runtime::TorchWork& work,
             const StepTrace& trace) {
    for (const Span& span : trace.spans) {
      if (span.kind != SpanKind::kTask) continue;
      const Task& task = plan.graph.task(span.task);
      Seen& seen = seen_[{task.stage, task.pass}];
      seen.seconds += ToSeconds(span.end - span.start);
      seen.tokens += Tokens(work, task);
    }
  }
  // Nothing before something has been learned.
  absl::StatusOr<std::optional<Duration>> Predict(
      const ExecutionPlan& plan, const runtime::TorchWork& work) const {
    if (seen_.empty()) return std::nullopt;
    IdVector<TaskId, Task> tasks = plan.graph.tasks();
    for (Task& task : tasks) {
      const auto found = seen_.find({task.stage, task.pass});
      if (found == seen_.end()) return std::nullopt;
      const Seen& seen = found->second;
      task.duration = Seconds(seen.seconds / seen.tokens * Tokens(work, task));
    }
    IdVector<RankId, RankSpec> ranks = plan.graph.ranks();
    for (RankSpec& rank : ranks) {
      if (rank.epilogue > kZero) rank.epilogue = Nanoseconds(1);
    }
    ExecutionPlan timed = plan;
    PIPELOOM_ASSIGN_OR_RETURN(
        timed.graph, StageGraph::Create(plan.graph.name(), std::move(ranks),
                                        plan.graph.module_names(),
                                        std::move(tasks), plan.graph.edges()));
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace predicted,
                              emulator::EmulateStep(timed));
    return predicted.step_time();
  }

 private:
  struct Seen {
    double seconds = 0;
    double tokens = 0;
  };
  static double Tokens(const runtime::TorchWork& work, const Task& task) {
    int64_t sum = 1;
    for (const runtime::TorchSequence& s : work.Of(task)) sum += s.tokens();
    return static_cast<double>(sum);
  }
  std::map<std::pair<StageId, Pass>, Seen> seen_{};
};

}  // namespace

void AppendTorchFlags(TorchFlags* values, std::vector<Flag>* flags) {
  flags->push_back({"scale",
                    &values->scale,
                    "N",
                    "torch device: widths and tokens over N, layers over N/4",
                    {},
                    1,
                    1024});
  flags->push_back({"precision",
                    &values->precision,
                    "NAME",
                    "torch device: of products and activations",
                    {"fp32", "bf16"}});
  flags->push_back({"torch-on",
                    &values->place,
                    "NAME",
                    "torch device: where it computes",
                    {"cpu", "cuda"}});
}

absl::Status RunTorch(const TorchFlags& torch, const PlanSource& source,
                      const std::vector<std::string>& args, int64_t steps,
                      const Context& context) {
  if (!source.plan_file.empty()) {
    return UsageError(
        "--device torch takes JOB --batch FILE: a plan does not tell the "
        "model");
  }
  PIPELOOM_ASSIGN_OR_RETURN(const runtime::TorchEntryPoint make_trainer,
                            LoadTorchModule());
  PIPELOOM_ASSIGN_OR_RETURN(const std::string name, OneArgument(args, "JOB"));
  PIPELOOM_ASSIGN_OR_RETURN(JobInput input,
                            ReadJobInput(name, source.job, context));
  PIPELOOM_RETURN_IF_ERROR(MakeSmall(torch.scale, &input.job));
  input.replicas = 1;
  const JobSpec& job = input.job;
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<planner::Strategy> strategy,
      planner::MakeStrategy(source.schedule.value_or(job.search.schedule)));
  PIPELOOM_ASSIGN_OR_RETURN(const auto packed,
                            PackSteps(input, steps, context));
  const emulator::StageCostModel costs(job, CostsOf(input));
  PIPELOOM_ASSIGN_OR_RETURN(
      const planner::PreparedJob prepared,
      planner::PrepareJob(*strategy, costs, SampleOf(input.batch)));
  const SearchSettings settings = Settle(source.search, job.search);

  runtime::TorchSetup setup{.model = job.model,
                            .partition = prepared.partition};
  for (const ModuleId m : job.model.modules.ids()) {
    setup.frozen.push_back(job.IsFrozen(m));
  }
  setup.options.seed = settings.seed;
  setup.options.bf16 = torch.precision == "bf16";
  setup.options.cuda = torch.place == "cuda";
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<runtime::TorchTrainer> trainer,
      make_trainer(setup));
  context.print(absl::StrFormat(
      "%s, schedule %s: %d parameters on %d ranks (threads, inproc transport, "
      "torch device on %s in %s), scale %d\n\n%5s  %12s  %12s  %12s  %s\n",
      job.name, std::string(strategy->name()), trainer->NumParameters(),
      job.parallel.pp, torch.place, torch.precision, torch.scale, "step",
      "loss", "predicted", "measured", "error"));

  const runtime::RunParts parts{
      .make_transport =
          [](const ExecutionPlan& p, const runtime::RunOptions&) {
            return std::make_unique<runtime::InprocTransport>(
                p.graph.num_ranks(), 1);
          },
      .make_device =
          [&](const runtime::DeviceContext& device) {
            return trainer->MakeDevice(device);
          }};
  TaskTimes times;
  for (int64_t step = 0; step < steps; ++step) {
    const partition::PackedStep& now = packed[static_cast<size_t>(step)];
    Progress progress(context, "training", steps);
    PIPELOOM_ASSIGN_OR_RETURN(
        const PlannedStep planned,
        PlanReplicas(prepared, now, step, 1, settings, context, progress));
    const planner::PlanResult& result = planned.replicas[0];
    PIPELOOM_ASSIGN_OR_RETURN(
        const runtime::TorchWork work,
        WorkOf(job, now, result.microbatches, torch.scale,
               settings.seed + static_cast<uint64_t>(step)));
    PIPELOOM_ASSIGN_OR_RETURN(
        const ExecutionPlan plan,
        trainer->BeginStep(result.plan, work, result.memory));
    runtime::RunOptions options;
    options.whole_tensors = true;
    options.timeout = std::chrono::hours(24);
    options.stop = context.stop;
    PIPELOOM_ASSIGN_OR_RETURN(const std::optional<Duration> predicted,
                              times.Predict(plan, work));
    PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace,
                              runtime::RunPlanWith(plan, options, parts));
    times.Learn(plan, work, trace);
    const Duration measured = trace.step_time();
    context.print(absl::StrFormat(
        "%5d  %12.6f  %12s  %12s  %s\n", step, trainer->Loss(),
        predicted ? FormatDuration(*predicted) : "-", FormatDuration(measured),
        predicted && *predicted > kZero
            ? absl::StrFormat(
                  "%+.2f %%",
                  100 * (ToSeconds(measured) / ToSeconds(*predicted) - 1))
            : "-"));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::cli
