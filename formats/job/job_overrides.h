// Changes of single fields of a job by path, for what-if questions:
//
//   training.microbatches=32
//   parallel.tp=*0.5                          a factor on a number
//   cluster.inter_node.bandwidth_bytes_per_second=*2
//   cluster=h100-sxm                          another shipped file, or a path
//   cluster.device=b200-sxm                   its GPU alone
//   model.modules[vision_encoder].precision=PRECISION_FP8
//   model.modules[*].layers[*].layer.attention.density=0.5
//
// A job's model and cluster count as parts of it: `model.` and `cluster.` lead
// into them, whether the job contains or names them. A list is entered by
// index, by its items' "name", or by [*], which skips items that lack the next
// field. A value is JSON, or else a string. The changed job is read like any
// other, so a field that does not exist, a value out of range or parts that do
// not fit are the reader's errors.
// do not fit are the reader's errors.
#ifndef PIPELOOM_FORMATS_JOB_JOB_OVERRIDES_H_
#define PIPELOOM_FORMATS_JOB_JOB_OVERRIDES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_reader.h"
#include "ir/job/job_spec.h"

namespace pipeloom::formats {

// One change of a field.
struct JobOverride {
  std::string path{};
  std::string value{};
  bool operator==(const JobOverride&) const = default;
};

// Parses "path=value". InvalidArgument without a path or "=".
absl::StatusOr<JobOverride> ParseOverride(absl::string_view text);

// A job file read once, with its model and cluster resolved.
class JobTemplate {
 public:
  // Reads the job. What changes may cure is left to With; returns the errors of
  // LoadJob if the file cannot be read or is no JSON object.
  static absl::StatusOr<JobTemplate> Load(absl::string_view name_or_path,
                                          const std::string& data_dir,
                                          const FileReader& read);

  // Returns the job with the changes, made one after another and checked
  // together. InvalidArgument names the path and the value, or is that of
  // LoadJob where the changes leave the file's own mistake as it is.
  // Thread-safe. O(size of the job).
  absl::StatusOr<JobSpec> With(absl::Span<const JobOverride> changes) const;

  // Returns the error of With() if a path or a value is wrong by itself; OK if
  // the values only do not fit one another, such as more ranks than GPUs.
  // Thread-safe. O(size of the job).
  absl::Status CheckReadable(absl::Span<const JobOverride> changes) const;

 private:
  // Implements With(). Sets `readable` to whether every field is known and its
  // value allowed, even if the values do not fit one another.
  absl::StatusOr<JobSpec> Make(absl::Span<const JobOverride> changes,
                               bool* readable) const;
  absl::Status Apply(const JobOverride& change, JsonValue* tree) const;

  std::string name_{};  // For error messages.
  std::string file_{};
  std::string data_dir_{};
  FileReader read_{};
  JsonValue tree_{};
  absl::Status own_error_{};  // That of the job as it is.
};

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_JOB_JOB_OVERRIDES_H_
