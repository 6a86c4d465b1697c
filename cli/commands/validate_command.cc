// `pipeloom validate`: checks files of any kind.
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/command.h"
#include "cli/console/file_kind.h"
#include "cli/console/files.h"
#include "cli/input/job_input.h"
#include "cli/input/plan_file.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_writer.h"

namespace pipeloom::cli {
namespace {

// A file's content.
struct Checked {
  FileKind kind = FileKind::kJob;
  std::string words{};
};

std::string Describe(const JobSpec& job) {
  return absl::StrFormat(
      "job %s: %.2fB parameters in %d module%s, %d of %d GPUs", job.name,
      static_cast<double>(Parameters(job.model)) / 1e9,
      job.model.modules.size(), job.model.modules.size() == 1 ? "" : "s",
      job.parallel.num_gpus(), job.cluster.num_gpus());
}

class ValidateCommand : public Command {
 public:
  CommandText text() const override {
    return {"validate", "FILE... [options]", "check files of any kind",
            "Checks jobs, models, clusters, batches (JSON Lines), task graphs "
            "and plans (protobuf or text), told apart by their content; a name "
            "without a file is that of a shipped job. Prints OK and what the "
            "file holds, or what is wrong with it, and fails if any is "
            "wrong. A plan is checked to its end: dependencies, matching "
            "sends and receives, deadlocks, memory limits."};
  }

  std::vector<Flag> Flags() override {
    return {{"format", &format_, "FORMAT", "of the output", {"table", "json"}},
            DataDirFlag(&data_dir_flag_)};
  }

  absl::Status Run(const std::vector<std::string>& args,
                   const Context& context) override {
    if (args.empty()) return UsageError("FILE is missing");
    const bool as_json = format_ == "json";
    formats::JsonWriter json(true);
    json.BeginObject().Key("files").BeginArray();
    int num_bad = 0;
    for (const std::string& file : args) {
      const absl::StatusOr<Checked> result = Check(file, context);
      if (as_json) WriteJson(file, result, &json);
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
      context.print(absl::StartsWith(message, file)
                        ? absl::StrCat(message, "\n")
                        : absl::StrCat(file, ": ", message, "\n"));
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
                        const absl::StatusOr<Checked>& result,
                        formats::JsonWriter* json) {
    json->BeginObject().Key("file").String(file);
    json->Key("ok").Bool(result.ok());
    if (result.ok()) {
      json->Key("kind").String(FileKindName(result->kind));
      json->Key("description").String(result->words);
    } else {
      json->Key("error").String(result.status().message());
    }
    json->EndObject();
  }

  // Checks a file; returns its kind and a description of its content.
  absl::StatusOr<Checked> Check(const std::string& file,
                                const Context& context) {
    const auto read = [](const std::string& path) { return ReadFile(path); };
    const bool is_name = !FileExists(file) && !absl::StrContains(file, "/") &&
                         !absl::StrContains(file, ".");
    if (is_name) {
      PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                                FindDataDir(data_dir_flag_));
      PIPELOOM_ASSIGN_OR_RETURN(const JobSpec job,
                                formats::LoadJob(file, data_dir, read));
      return Checked{FileKind::kJob, Describe(job)};
    }
    PIPELOOM_ASSIGN_OR_RETURN(const std::string content, ReadFile(file));
    const FileKind kind = absl::EndsWith(file, ".jsonl")
                              ? FileKind::kBatch
                              : GuessFileKind(content);
    PIPELOOM_ASSIGN_OR_RETURN(std::string words,
                              WordsOf(kind, content, file, context));
    return Checked{kind, std::move(words)};
  }

  // Checks a file of a known kind; returns a description of its content.
  absl::StatusOr<std::string> WordsOf(FileKind kind, const std::string& content,
                                      const std::string& file,
                                      const Context& context) {
    const auto read = [](const std::string& path) { return ReadFile(path); };
    switch (kind) {
      case FileKind::kJob: {
        PIPELOOM_ASSIGN_OR_RETURN(const std::string data_dir,
                                  FindDataDir(data_dir_flag_));
        PIPELOOM_ASSIGN_OR_RETURN(
            const JobSpec job,
            formats::ParseJob(content, file, data_dir, read));
        return Describe(job);
      }
      case FileKind::kModel: {
        PIPELOOM_ASSIGN_OR_RETURN(const ModelSpec model,
                                  formats::ParseModel(content, file));
        return absl::StrFormat(
            "model %s: %.2fB parameters in %d modules", model.name,
            static_cast<double>(Parameters(model)) / 1e9, model.modules.size());
      }
      case FileKind::kCluster: {
        PIPELOOM_ASSIGN_OR_RETURN(const ClusterSpec cluster,
                                  formats::ParseCluster(content, file));
        return absl::StrFormat("cluster %s: %d x %d %s", cluster.name,
                               cluster.num_nodes, cluster.gpus_per_node,
                               cluster.device.name);
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
        return absl::StrFormat("batch of %d samples", batch.samples.size());
      }
      case FileKind::kTaskGraph: {
        PIPELOOM_ASSIGN_OR_RETURN(const formats::LoadedGraph loaded,
                                  formats::ParseTaskGraph(content, file));
        return absl::StrFormat("task graph of %d tasks on %d ranks",
                               loaded.graph.num_tasks(),
                               loaded.graph.num_ranks());
      }
      case FileKind::kPlanText:
      case FileKind::kPlanBytes: {
        PIPELOOM_ASSIGN_OR_RETURN(const ExecutionPlan plan,
                                  ParsePlanFile(content, file));
        return absl::StrFormat(
            "plan of %s, step %d, replica %d, strategy %s: %d tasks on %d "
            "ranks",
            plan.job, plan.step, plan.replica, plan.schedule,
            plan.graph.num_tasks(), plan.graph.num_ranks());
      }
    }
    return absl::InternalError("unknown kind of file");
  }

  std::string format_ = "table";
  std::string data_dir_flag_{};
};

}  // namespace

std::unique_ptr<Command> MakeValidateCommand() {
  return std::make_unique<ValidateCommand>();
}

}  // namespace pipeloom::cli
