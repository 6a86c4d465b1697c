// A folder of files that survive a crash. Each file is written under a
// temporary name in the same folder, flushed and renamed: after a crash at any
// moment it is there as before, or in full, or not at all. It begins with a
// checksum, which detects damage by the disk.
//
// Names are relative, such as "jobs/vlm/job", of letters, digits, ".", "_", "-"
// and "/". All methods may be called from any thread, concurrently for
// different names.
#ifndef PIPELOOM_SERVICE_OS_STATE_DIR_H_
#define PIPELOOM_SERVICE_OS_STATE_DIR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::service {

class StateDir {
 public:
  // Creates the folder if needed and locks it for this process.
  // FailedPrecondition: another process has locked it.
  static absl::StatusOr<std::unique_ptr<StateDir>> Open(
      const std::string& path);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  // Writes or replaces a file. Unavailable: the disk is full or broken; the
  // file is as it was before.
  absl::Status Write(const std::string& name, absl::string_view content) const;
  // Reads a file. NotFound: it does not exist. DataLoss: it was read, and is
  // cut off or changed. Unavailable: it cannot be read, with path and reason.
  absl::StatusOr<std::string> Read(const std::string& name) const;
  // Returns false if there is something else than a folder of that name, such
  // as a file; true if nothing can be learned about it.
  bool IsFolder(const std::string& name) const;
  // Removes a file, or a folder with its content, if it exists. Unavailable: it
  // cannot be removed, with path and reason.
  absl::Status Remove(const std::string& name) const;
  // Renames a folder so that List does not return it, which is quick. Returns
  // its new name, for Remove; after a crash, List deletes it. Returns an empty
  // name if the folder does not exist. Unavailable: it cannot be renamed.
  absl::StatusOr<std::string> SetAside(const std::string& folder) const;
  // Moves a file or folder that cannot be used to damaged/, where nothing reads
  // or deletes it, and returns its path there. Unavailable: it cannot be moved,
  // with path and reason; NotFound: it does not exist.
  absl::StatusOr<std::string> Keep(const std::string& name) const;
  // Returns the sorted names in a folder; none if there is no such folder.
  // Deletes files that a crash left half written. Unavailable: the folder
  // cannot be read, with path and reason.
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& folder) const;

 private:
  StateDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_STATE_DIR_H_
