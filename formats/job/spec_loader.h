// Readers of JSON files into the values of ir/: jobs, models, clusters, batches
// and task graphs.
//
// Jobs, models and clusters are proto3 JSON of pipeloom.v1.Job, ModelSpec and
// ClusterSpec, read strictly. Every result has passed the checks of ir/. Errors
// are InvalidArgument (NotFound for a name that is not shipped):
//   FILE:LINE: field "training.microbatches" is -3; it must be in [1, 1000000]
// Files are read only by the FileReader that is passed in; nothing throws. Cost
// is linear in the text; 100,000 samples take about a second.
#ifndef PIPELOOM_FORMATS_JOB_SPEC_LOADER_H_
#define PIPELOOM_FORMATS_JOB_SPEC_LOADER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/job/batch_metadata.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/job_spec.h"
#include "ir/job/model_spec.h"
#include "ir/plan/stage_graph.h"

namespace pipeloom::formats {

// A function that returns the content of a file, or why there is none.
using FileReader =
    std::function<absl::StatusOr<std::string>(const std::string& path)>;

// Return the sorted names of shipped files:
// data_dir/{jobs,models,clusters}/NAME.json.
std::vector<std::string> ShippedJobNames();
std::vector<std::string> ShippedModelNames();
std::vector<std::string> ShippedClusterNames();
std::vector<std::string> ShippedProfileNames();  // Names of devices.

// Load a file. `name_or_path` with a slash or ending in ".json" is a path,
// otherwise a shipped name. The error of an unknown name lists the shipped
// ones.
absl::StatusOr<JobSpec> LoadJob(absl::string_view name_or_path,
                                const std::string& data_dir,
                                const FileReader& read);
absl::StatusOr<ModelSpec> LoadModel(absl::string_view name_or_path,
                                    const std::string& data_dir,
                                    const FileReader& read);
absl::StatusOr<ClusterSpec> LoadCluster(absl::string_view name_or_path,
                                        const std::string& data_dir,
                                        const FileReader& read);

// Parse a text. `file_name` is used in errors, and for its folder: a job may
// name its model or cluster by a path relative to it.
absl::StatusOr<JobSpec> ParseJob(absl::string_view text,
                                 const std::string& file_name,
                                 const std::string& data_dir,
                                 const FileReader& read);
absl::StatusOr<ModelSpec> ParseModel(absl::string_view text,
                                     const std::string& file_name);
absl::StatusOr<ClusterSpec> ParseCluster(absl::string_view text,
                                         const std::string& file_name);

// Parses JSON Lines, one sample per line, every field optional:
//   {"text_tokens": 312, "images": [[1024, 768]], "audio_seconds": [12.5],
//    "videos": [{"frames": 64, "width": 640, "height": 360, "seconds": 4.0}]}
// A field of a video that is absent is not known (0). Other fields are ignored.
// `warnings` (may be null) gets at most three lines: the first field that is
// not used, videos without width and height, and videos without a length.
absl::StatusOr<BatchMetadata> ParseBatch(absl::string_view text,
                                         const std::string& file_name,
                                         std::vector<std::string>* warnings);

// A TaskGraph file. Its task ids may be any distinct integers; tasks are
// renumbered in a topological order, with the smallest external id first among
// those that may come next.
struct LoadedGraph {
  StageGraph graph{};
  IdVector<TaskId, int64_t> external_id{};
};
absl::StatusOr<LoadedGraph> ParseTaskGraph(absl::string_view text,
                                           const std::string& file_name);

// Prints the graph as such a file, with its own task ids. Leaves out what the
// format has no field for: transfers' sizes and occupancy, epilogues, the items
// of static memory. Printing and parsing a parsed graph gives an equal one.
std::string PrintTaskGraph(const StageGraph& graph);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_SPEC_LOADER_H_
