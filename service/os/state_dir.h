// Files that survive a crash. Each is written beside its place, flushed and
// renamed, and begins with a checksum: after a crash at any moment a file is
// there as it was before, or in full, or not at all; what a disk has damaged
// is told from it.
//
// Names are relative, "jobs/vlm/job": letters, digits, ".", "_", "-" and "/".
// All methods may be called from any thread, on different names at a time.
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
  // Creates the folder if need be and locks it for this process.
  // FailedPrecondition: another process has it.
  static absl::StatusOr<std::unique_ptr<StateDir>> Open(
      const std::string& path);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  // Unavailable: the disk is full or broken; the file is as it was.
  absl::Status Write(const std::string& name, absl::string_view content) const;
  // NotFound; DataLoss: cut off or changed.
  absl::StatusOr<std::string> Read(const std::string& name) const;
  // A file, or a folder with all that is in it. What is not there is no error.
  void Remove(const std::string& name) const;
  // Takes a folder out of sight, which is quick; returns its name until it is
  // removed. List deletes what a crash leaves. Empty: it was not there.
  std::string SetAside(const std::string& folder) const;
  // Names in a folder, sorted, without what a crash left half written (that is
  // deleted). Empty where there is no folder.
  std::vector<std::string> List(const std::string& folder) const;

 private:
  StateDir(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_STATE_DIR_H_
