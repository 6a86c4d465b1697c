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
  // Reads a file. NotFound: it does not exist. DataLoss: it is cut off or
  // changed.
  absl::StatusOr<std::string> Read(const std::string& name) const;
  // Removes a file, or a folder with its content, if it exists.
  void Remove(const std::string& name) const;
  // Renames a folder so that List does not return it, which is quick. Returns
  // its new name, for Remove; after a crash, List deletes it. Returns an empty
  // name if the folder does not exist, or cannot be renamed and was removed.
  std::string SetAside(const std::string& folder) const;
  // Returns the sorted names in a folder; empty if there is no such folder.
  // Deletes files that a crash left half written.
  std::vector<std::string> List(const std::string& folder) const;

 private:
  StateDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_STATE_DIR_H_
