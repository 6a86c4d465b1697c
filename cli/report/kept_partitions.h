// The partitions that searches found, kept between commands: a partition is
// searched once for each content of a job.
#ifndef PIPELOOM_CLI_REPORT_KEPT_PARTITIONS_H_
#define PIPELOOM_CLI_REPORT_KEPT_PARTITIONS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "ir/job/job_spec.h"
#include "ir/plan/partition.h"

namespace pipeloom::cli {

// A folder of partition files, named by a fingerprint of all that a search
// depends on. Holds the 256 files that were written last. Several processes may
// use one folder.
class KeptPartitions {
 public:
  // Does not touch the folder yet. An empty name keeps and finds nothing.
  explicit KeptPartitions(std::string folder) : folder_(std::move(folder)) {}

  // Returns that of the user: "partitions" in the environment's
  // PIPELOOM_CACHE_DIR, in XDG_CACHE_HOME/pipeloom or in HOME/.cache/pipeloom,
  // whichever is set first; nothing is kept if none is.
  static KeptPartitions OfUser();

  // Returns the file of a key; empty if nothing is kept.
  std::string PathOf(const Fingerprint& key) const;

  // Returns the kept partition; nullopt if there is none, or if its file is
  // damaged or breaks a rule of the job.
  std::optional<Partition> Find(const Fingerprint& key,
                                const JobSpec& job) const;

  // Writes a partition with a comment for readers of the file. Makes the folder
  // if there is none. An error names the file and why.
  absl::Status Keep(const Fingerprint& key, const JobSpec& job,
                    const Partition& partition,
                    const std::string& comment) const;

 private:
  void DropOldest() const;

  std::string folder_;
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_KEPT_PARTITIONS_H_
