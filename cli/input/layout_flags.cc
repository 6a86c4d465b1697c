#include "cli/input/layout_flags.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cli/console/files.h"
#include "cli/input/partition_source.h"
#include "cli/report/layout_report.h"
#include "formats/job/partition_reader.h"

namespace pipeloom::cli {

void AppendLayoutFlags(LayoutFlags* values, std::vector<Flag>* flags) {
  flags->push_back({"layouts", &values->layouts, "",
                    "search the job's tp, cp, ep, pp and dp too"});
  flags->push_back({"gpus",
                    &values->gpus,
                    "N",
                    "with --layouts: GPUs of each layout; 0: the job's",
                    {},
                    0,
                    1e9});
  flags->push_back({"by-module", &values->by_module, "",
                    "with --layouts: also smaller tp and cp for modules other "
                    "than the largest, whose copies share a rank's GPUs"});
  const struct {
    const char* name;
    int64_t* value;
    const char* help;
  } sizes[] = {
      {"tp", &values->tp, "with --layouts: tensor parallelism; 0: any"},
      {"cp", &values->cp, "with --layouts: context parallelism; 0: any"},
      {"ep", &values->ep, "with --layouts: expert parallelism; 0: any"},
      {"pp", &values->pp, "with --layouts: pipeline ranks; 0: any"},
      {"dp", &values->dp, "with --layouts: replicas; 0: any"}};
  for (const auto& size : sizes) {
    flags->push_back({size.name, size.value, "N", size.help, {}, 0, 65536});
  }
}

absl::Status CheckLayoutFlags(const LayoutFlags& flags) {
  if (flags.layouts ||
      (!flags.by_module && std::max({flags.gpus, flags.tp, flags.cp, flags.ep,
                                     flags.pp, flags.dp}) == 0)) {
    return absl::OkStatus();
  }
  return UsageError(
      "--gpus, --tp, --cp, --ep, --pp, --dp and --by-module are for --layouts; "
      "without it the layout is the job's");
}

planner::LayoutConstraints FixedBy(const LayoutFlags& flags) {
  return {.gpus = flags.gpus,
          .tp = static_cast<int32_t>(flags.tp),
          .cp = static_cast<int32_t>(flags.cp),
          .ep = static_cast<int32_t>(flags.ep),
          .pp = static_cast<int32_t>(flags.pp),
          .dp = static_cast<int32_t>(flags.dp),
          .by_module = flags.by_module};
}

absl::Status TakeLayoutOfFile(const PartitionFlags& partition,
                              const JobFlags& flags, const Context& context,
                              studies::JobInput* input) {
  const std::string& source = partition.source;
  if (source.empty() || IsPartitionWord(source)) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadFile(source);
  if (!text.ok()) return absl::OkStatus();  // PrepareWithPartition says why.
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::optional<formats::PartitionLayout> layout,
      formats::ParsePartitionLayout(*text, source));
  if (!layout.has_value()) return absl::OkStatus();
  JobSpec& job = input->job;
  const std::string before = absl::StrFormat(
      "%s, %d microbatches", LayoutWords(job.parallel, job.module_parallelism),
      job.training.microbatches);
  const JobSpec own = job;
  const ContextParallelism context_kind = job.parallel.context;
  job.parallel = layout->parallel;
  job.parallel.context = context_kind;
  job.module_parallelism = layout->modules;
  if (!flags.microbatches.has_value() && layout->microbatches > 0) {
    job.training.microbatches = layout->microbatches;
  }
  const absl::Status valid = ValidateJobSpec(job);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--partition ", source, ": its layout is ",
                     LayoutWords(job.parallel, job.module_parallelism), ": ",
                     valid.message()));
  }
  if (flags.replicas > job.parallel.dp) {
    return UsageError(absl::StrFormat("--replicas %d: the layout of %s has %d",
                                      flags.replicas, source, job.parallel.dp));
  }
  input->replicas = flags.replicas > 0 ? static_cast<int32_t>(flags.replicas)
                                       : job.parallel.dp;
  if (!(job == own)) {
    const int32_t of_file = layout->microbatches > 0
                                ? layout->microbatches
                                : job.training.microbatches;
    context.warn(absl::StrFormat(
        "note: %s has its own layout: %s, %d microbatches; job %s has %s. The "
        "file's is used",
        source, LayoutWords(job.parallel, job.module_parallelism), of_file,
        job.name, before));
  }
  if (layout->microbatches > 0 &&
      job.training.microbatches != layout->microbatches) {
    const int64_t dp = job.parallel.dp;
    context.warn(absl::StrFormat(
        "note: --microbatches %d is used instead of the %d microbatches of %s: "
        "the global batch of a step is %d microbatches instead of %d",
        job.training.microbatches, layout->microbatches, source,
        dp * job.training.microbatches, dp * layout->microbatches));
  }
  return absl::OkStatus();
}

}  // namespace pipeloom::cli
