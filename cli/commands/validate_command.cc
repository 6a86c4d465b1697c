// `pipeloom validate`: checks files of any kind.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cli/commands/slow_flags.h"
#include "cli/commands/trainer_output.h"
#include "cli/console/command.h"
#include "cli/console/file_kind.h"
#include "cli/console/files.h"
#include "cli/console/study_context.h"
#include "cli/input/attention_density.h"
#include "cli/input/job_input.h"
#include "cli/input/partition_input.h"
#include "cli/input/plan_file.h"
#include "cli/input/planning_flags.h"
#include "emulator/stage/stage_cost.h"
#include "formats/job/device_share_notes.h"
#include "formats/job/partition_reader.h"
#include "formats/job/spec_loader.h"
#include "formats/profile/profile_reader.h"
#include "formats/text/json_writer.h"
#include "ir/job/job_notes.h"
#include "ir/job/model_spec.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/defer_surplus.h"
#include "partition/placement/recipe.h"
#include "planner/job/check_plan.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"

namespace pipeloom::cli {
namespace {

// Steps of a batch are packed one after another up to the plan's.
constexpr int64_t kMaxStep = 1'000'000;

// The content of a file.
struct Content {
  std::string words{};
  std::optional<ModelSpec> model{};  // That of a model or of a job.
};

// Returns "7.56B parameters in 2 modules"; small models in millions.
std::string Size(const ModelSpec& model) {
  const auto parameters = static_cast<double>(Parameters(model));
  const bool small = parameters < 0.01 * 1e9;
  return absl::StrFormat(
      "%.*f%s parameters in %d module%s", parameters < 0.01 * 1e6 ? 4 : 2,
      parameters / (small ? 1e6 : 1e9), small ? "M" : "B", model.modules.size(),
      model.modules.size() == 1 ? "" : "s");
}

Content Describe(const JobSpec& job) {
  return {
      absl::StrFormat("job %s: %s, %d of %d GPUs", job.name, Size(job.model),
                      job.parallel.num_gpus(), job.cluster.num_gpus()),
      job.model};
}

std::string Describe(const DeviceProfile& profile) {
  const auto points = [](const auto& tables) {
    size_t sum = 0;
    for (const auto& table : tables) sum += table.us.size();
    return sum;
  };
  return absl::StrFormat(
      "profile of %s: %d points of products, %d of attention, %d of "
      "streaming, %d of experts, %d of collectives",
      profile.device, points(profile.gemm), points(profile.attention),
      points(profile.stream), points(profile.moe),
      points(profile.collectives.curves));
}

// The options that a plan was made with.
struct MadeWith {
  PlanningFlags planning{};
  SlowFlags slow{};
  std::vector<double> densities{};
  std::string trainer{};
};

// Checks by planner::CheckPlan() that the plan is one of the job's, with the
// batch, the partition and the changes of `made`; without --strategy, with the
// partition of the strategy that the plan names. If the job defers surplus, the
// samples may be dealt either way.
absl::Status CheckPlanOfJob(const ExecutionPlan& plan, const std::string& job,
                            const MadeWith& made, const Context& context) {
  if (plan.step < 0 || plan.step >= kMaxStep) {
    return absl::FailedPreconditionError(
        absl::StrFormat("plan: its step is %d; steps of a batch are in [0, %d)",
                        plan.step, kMaxStep));
  }
  PIPELOOM_ASSIGN_OR_RETURN(studies::JobInput input,
                            ReadPlannedJob(job, made.planning, context));
  JobSpec slow_job = input.job;
  PIPELOOM_RETURN_IF_ERROR(ApplySlow(made.slow, &slow_job));
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<planner::Strategy> strategy,
      MakeStrategyFor(made.trainer,
                      made.planning.strategy.value_or(plan.schedule)));
  PIPELOOM_ASSIGN_OR_RETURN(
      const auto packed,
      studies::PackSteps(input, plan.step + 1, StudyContextOf(context)));
  const emulator::StageCostModel costs(input.job, studies::CostsOf(input));
  const studies::SearchSettings settings = SettingsOf(made.planning, input);
  const PartitionFlags partition = PartitionFlagsFor(
      AsTrainerStrategy(strategy.get()), made.planning.partition);
  PIPELOOM_ASSIGN_OR_RETURN(planner::PreparedJob prepared,
                            PrepareWithPartition(input, *strategy, costs,
                                                 partition, settings, context));
  std::unique_ptr<emulator::StageCostModel> slow_costs;
  if (made.slow.given()) {
    PIPELOOM_ASSIGN_OR_RETURN(slow_costs,
                              SlowCosts(std::move(slow_job), "", &input));
    prepared.costs = slow_costs.get();
  }
  DensityByStep by_step(
      prepared, input, made.densities,
      [](emulator::StageCostModel*) { return absl::OkStatus(); });
  PIPELOOM_ASSIGN_OR_RETURN(const planner::PreparedJob* const of_step,
                            by_step.Of(plan.step));
  const partition::PackedStep& step = packed[static_cast<size_t>(plan.step)];
  const absl::Status as_it_is = planner::CheckPlan(*of_step, step, plan);
  if (as_it_is.ok() || !settings.defer) return as_it_is;
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::SampleCosts samples,
      partition::SampleCosts::Create(input.job, costs, step.samples));
  const partition::PackedStep moved =
      partition::DeferSurplus(input.job, samples, step);
  if (planner::CheckPlan(*of_step, moved, plan).ok()) return absl::OkStatus();
  return as_it_is;
}

// Checks a partition, with the job's layout or that of the file; returns what
// it holds.
absl::StatusOr<Content> CheckPartition(const std::string& content,
                                       const std::string& file,
                                       const std::string& job,
                                       const PlanningFlags& planning,
                                       const Context& context) {
  PIPELOOM_ASSIGN_OR_RETURN(const formats::PartitionHead head,
                            formats::ParsePartitionHead(content, file));
  std::string words =
      absl::StrFormat("partition%s: %d stages on %d ranks",
                      head.job.empty() ? "" : absl::StrCat(" of ", head.job),
                      head.num_stages, head.num_ranks);
  if (job.empty()) {
    return Content{absl::StrCat(
        words, "; its modules and layers are checked with --job and --batch")};
  }
  PlanningFlags with_file = planning;
  with_file.partition.source = file;
  PIPELOOM_ASSIGN_OR_RETURN(const studies::JobInput input,
                            ReadPlannedJob(job, with_file, context));
  PIPELOOM_ASSIGN_OR_RETURN(const Partition partition,
                            formats::ParsePartition(content, file, input.job));
  const absl::Status kept =
      partition::CheckPartitionRules(input.job, partition);
  if (kept.ok()) return Content{std::move(words)};
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", kept.message()));
}

// Returns the error about a file of no known kind.
absl::Status UnknownKind(const std::string& content, const std::string& file) {
  if (absl::StripAsciiWhitespace(content).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is empty"));
  }
  const std::vector<std::string> names = MemberNames(content);
  const bool is_object =
      absl::StartsWith(absl::StripLeadingAsciiWhitespace(content), "{");
  return absl::InvalidArgumentError(absl::StrCat(
      file, " is a file of no known kind",
      names.empty()
          ? (is_object ? ": it is an empty object" : "")
          : absl::StrCat(": its members are ", absl::StrJoin(names, ", ")),
      "; ", FileKindsText()));
}

void Note(const std::vector<std::string>& notes, const Context& context) {
  for (const std::string& note : notes) {
    context.warn(absl::StrCat("note: ", note));
  }
}

class ValidateCommand : public Command {
 public:
  CommandText text() const override {
    return {
        "validate", "FILE... [options]", "check files of any kind",
        "Checks jobs, models, clusters, device profiles, batches (JSON "
        "Lines), task graphs, partitions and plans (protobuf or text), "
        "told apart by their content; a name "
        "without a file is that of a shipped job. Prints OK and what the "
        "file holds (in JSON also the parameters of models and jobs), or "
        "what is wrong with it, and fails if any is "
        "wrong. A plan is checked to its end: passes, dependencies, "
        "matching sends and receives, deadlocks, memory limits, predicted "
        "time. With --job and --batch, and the options that it was made "
        "with, it is also compared with the job: the passes of every "
        "sub-microbatch, their times, transfers, static memory and shares "
        "of the loss. Times measured for a job (`plan --costs-from`) are "
        "not known to it. A partition is compared with the job too: modules, "
        "layers, ranks and its rules.\n\n"
        "Notes name what can be planned, but what trainers refuse: heads "
        "that tp does not divide, experts that ep does not, modules of "
        "widths that do not fit."};
  }

  std::vector<Flag> Flags() override {
    std::vector<Flag> flags{
        {"format", &format_, "FORMAT", "of the output", {"table", "json"}},
        {"job", &job_, "JOB",
         "that the plans and partitions are of, with --batch"}};
    const size_t of_job = flags.size();
    AppendJobFlags(&made_.planning.job, false, &flags);
    flags.push_back(StrategyFlag(&made_.planning.strategy,
                                 "of the plans, if not the named one"));
    AppendPartitionFlags(&made_.planning.partition, &flags);
    flags.push_back(
        TrainerFlag(&made_.trainer, "the plans were made for that trainer"));
    AppendSlowFlags(&made_.slow, &flags);
    flags.push_back(AttentionDensityFlag(&densities_, true));
    for (size_t i = of_job; i < flags.size(); ++i) {
      const std::string& name = flags[i].name;
      if (name != "batch" && name != "data-dir") flags[i].needs = {"job"};
    }
    return flags;
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (args.empty()) return UsageError("FILE is missing");
    if (job_.empty() != made_.planning.job.batch.empty()) {
      return UsageError(job_.empty() ? "--batch is given and --job is missing"
                                     : "--job is given and --batch is missing");
    }
    PIPELOOM_ASSIGN_OR_RETURN(made_.densities, ParseDensities(densities_));
    const bool as_json = format_ == "json";
    formats::JsonWriter json(true);
    json.BeginObject().Key("files").BeginArray();
    int num_bad = 0;
    for (const std::string& file : args) {
      std::optional<FileKind> kind;
      const absl::StatusOr<Content> result = Check(file, context, &kind);
      if (IsUsageError(result.status())) return result.status();
      if (as_json) WriteJson(file, result, kind, &json);
      if (result.ok()) {
        if (!as_json) {
          context.print(absl::StrCat(file, ": OK, ", result->words, "\n"));
        }
        continue;
      }
      ++num_bad;
      if (as_json) continue;
      // Most messages already begin with the file's name.
      const std::string message(result.status().message());
      context.print(absl::StrCat(
          absl::StartsWith(message, file) ? "" : absl::StrCat(file, ": "),
          message,
          kind && *kind != FileKind::kUnknown
              ? absl::StrCat(" (read as a ", FileKindName(*kind), ")")
              : "",
          "\n"));
    }
    if (as_json) {
      context.print(absl::StrCat(json.EndArray().EndObject().text(), "\n"));
    }
    if (num_bad == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrFormat("%d of %d file%s not right", num_bad, args.size(),
                        args.size() == 1 ? " is" : "s are"));
  }

 private:
  static void WriteJson(const std::string& file,
                        const absl::StatusOr<Content>& result,
                        std::optional<FileKind> kind,
                        formats::JsonWriter* json) {
    json->BeginObject().Key("file").String(file);
    json->Key("ok").Bool(result.ok());
    if (kind && *kind != FileKind::kUnknown) {
      json->Key("kind").String(FileKindName(*kind));
    }
    if (result.ok()) {
      json->Key("description").String(result->words);
      if (const auto& model = result->model) {
        json->Key("parameters").Int(Parameters(*model));
        json->Key("modules").BeginArray();
        for (const ModuleSpec& module : model->modules) {
          json->BeginObject().Key("name").String(module.name);
          json->Key("parameters").Int(Parameters(module)).EndObject();
        }
        json->EndArray();
      }
    } else {
      json->Key("error").String(result.status().message());
    }
    json->EndObject();
  }

  // Checks a file; returns what it holds. Sets `kind` to what the file was read
  // as, if it could be opened.
  absl::StatusOr<Content> Check(const std::string& file, const Context& context,
                                std::optional<FileKind>* kind) {
    const auto read = [](const std::string& path) { return ReadFile(path); };
    const bool is_name = !FileExists(file) && !absl::StrContains(file, "/") &&
                         !absl::StrContains(file, ".");
    if (is_name) {
      PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                                FindDataDir(made_.planning.job.data_dir));
      PIPELOOM_ASSIGN_OR_RETURN(const JobSpec job,
                                formats::LoadJob(file, data_dir, read));
      Note(JobNotes(job), context);
      Note(formats::DeviceShareNotes(job.cluster, data_dir, read), context);
      *kind = FileKind::kJob;
      return Describe(job);
    }
    PIPELOOM_ASSIGN_OR_RETURN(const std::string content, ReadFile(file));
    *kind = absl::EndsWith(file, ".jsonl") ? FileKind::kBatch
                                           : GuessFileKind(content);
    return ContentOf(**kind, content, file, context);
  }

  // Checks a file of a known kind; returns what it holds.
  absl::StatusOr<Content> ContentOf(FileKind kind, const std::string& content,
                                    const std::string& file,
                                    const Context& context) {
    const auto read = [](const std::string& path) { return ReadFile(path); };
    switch (kind) {
      case FileKind::kJob: {
        PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                                  FindDataDir(made_.planning.job.data_dir));
        PIPELOOM_ASSIGN_OR_RETURN(
            const JobSpec job,
            formats::ParseJob(content, file, data_dir, read));
        Note(JobNotes(job), context);
        Note(formats::DeviceShareNotes(job.cluster, data_dir, read), context);
        return Describe(job);
      }
      case FileKind::kModel: {
        PIPELOOM_ASSIGN_OR_RETURN(const ModelSpec model,
                                  formats::ParseModel(content, file));
        Note(ModelNotes(model), context);
        return Content{absl::StrFormat("model %s: %s", model.name, Size(model)),
                       model};
      }
      case FileKind::kCluster: {
        PIPELOOM_ASSIGN_OR_RETURN(const ClusterSpec cluster,
                                  formats::ParseCluster(content, file));
        Note(ClusterNotes(cluster), context);
        // Without the shipped files there is nothing to compare with.
        if (const auto data_dir = FindDataDir(made_.planning.job.data_dir);
            data_dir.ok()) {
          Note(formats::DeviceShareNotes(cluster, *data_dir, read), context);
        }
        return Content{absl::StrFormat("cluster %s: %d x %d %s", cluster.name,
                                       cluster.num_nodes, cluster.gpus_per_node,
                                       cluster.device.name)};
      }
      case FileKind::kProfile: {
        PIPELOOM_ASSIGN_OR_RETURN(const DeviceProfile profile,
                                  formats::ParseDeviceProfile(content, file));
        return Content{Describe(profile)};
      }
      case FileKind::kBatch: {
        std::vector<std::string> warnings;
        PIPELOOM_ASSIGN_OR_RETURN(
            const BatchMetadata batch,
            formats::ParseBatch(content, file, &warnings));
        for (const std::string& warning : warnings) {
          context.warn(absl::StrCat("note: ", warning));
        }
        if (batch.samples.empty()) {
          return absl::InvalidArgumentError(
              absl::StrCat(file, " is empty: it has no samples"));
        }
        return Content{
            absl::StrFormat("batch of %d samples", batch.samples.size())};
      }
      case FileKind::kTaskGraph: {
        PIPELOOM_ASSIGN_OR_RETURN(const formats::LoadedGraph loaded,
                                  formats::ParseTaskGraph(content, file));
        return Content{absl::StrFormat("task graph of %d tasks on %d ranks",
                                       loaded.graph.num_tasks(),
                                       loaded.graph.num_ranks())};
      }
      case FileKind::kPartition:
        return CheckPartition(content, file, job_, made_.planning, context);
      case FileKind::kUnknown:
        return UnknownKind(content, file);
      case FileKind::kPlanText:
      case FileKind::kPlanBytes: {
        PIPELOOM_ASSIGN_OR_RETURN(const ExecutionPlan plan,
                                  ParsePlanFile(content, file));
        if (!job_.empty()) {
          PIPELOOM_RETURN_IF_ERROR(CheckPlanOfJob(plan, job_, made_, context));
        }
        return Content{absl::StrFormat(
            "plan of %s, step %d, replica %d, strategy %s: %d tasks on %d "
            "ranks",
            plan.job, plan.step, plan.replica, plan.schedule,
            plan.graph.num_tasks(), plan.graph.num_ranks())};
      }
    }
    return absl::InternalError("unknown kind of file");
  }

  std::string format_ = "table";
  std::string job_{};
  std::vector<std::string> densities_{};
  MadeWith made_{};
};

}  // namespace

std::unique_ptr<Command> MakeValidateCommand() {
  return std::make_unique<ValidateCommand>();
}

}  // namespace pipeloom::cli
