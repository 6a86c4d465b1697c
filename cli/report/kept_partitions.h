// The partitions that searches found, and what sample steps planned with them
// teach, kept between commands: both are searched once for each content of a
// job.
#ifndef PIPELOOM_CLI_REPORT_KEPT_PARTITIONS_H_
#define PIPELOOM_CLI_REPORT_KEPT_PARTITIONS_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/fingerprint.h"
#include "ir/job/job_spec.h"
#include "ir/plan/carried_step.h"
#include "ir/plan/partition.h"

namespace pipeloom::cli {

// A folder of partition files, named by a fingerprint of all that a search
// depends on, with a file of lessons next to each. Holds the 256 partitions
// that were written last. Several processes may use one folder.
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

  // Returns the lessons kept for a partition (planner/job/warm_up.h); nullopt
  // if there are none, or if their file is damaged or of another partition.
  std::optional<std::vector<std::shared_ptr<const CarriedStep>>> FindLessons(
      const Fingerprint& key, const Partition& partition) const;

  // Writes the lessons of a partition. An error names the file and why.
  absl::Status KeepLessons(
      const Fingerprint& key, const Partition& partition,
      const std::vector<std::shared_ptr<const CarriedStep>>& lessons) const;

 private:
  std::string LessonsPathOf(const Fingerprint& key) const;
  absl::Status MakeFolder() const;
  void DropOldest() const;

  std::string folder_;
};

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_REPORT_KEPT_PARTITIONS_H_
