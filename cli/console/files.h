// Reading of whole files, writing of whole files or nothing, and the search for
// the shipped data.
#ifndef PIPELOOM_CLI_CONSOLE_FILES_H_
#define PIPELOOM_CLI_CONSOLE_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::cli {

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// Returns the file's bytes. NotFound, PermissionDenied and InvalidArgument (a
// folder, or larger than `max_bytes`) name the file.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     int64_t max_bytes = kMaxFileBytes);

bool FileExists(const std::string& path);

// Writes a temporary file in the same folder, flushes it to the disk and
// renames it to `path`: a reader sees the old contents or all of the new. On
// an error (a full disk, no such folder) the temporary file is removed and
// `path` is as it was. Keeps the permissions of a file that exists. A path
// that is no regular file (a pipe, /dev/stdout) is written to directly, and "-"
// is the standard output.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view contents);

// Creates `path` as a folder unless it is one; its parent must exist.
absl::Status MakeFolder(const std::string& path);

// Returns the folder of the shipped jobs, models, clusters and batches: `flag`
// if it is not empty, else the environment's PIPELOOM_DATA_DIR, else the
// installed data next to the folder of the running binary (../share/pipeloom),
// else the source tree that the binary was built from. NotFound lists the
// places that were tried.
absl::StatusOr<std::string> FindDataDir(const std::string& flag);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_FILES_H_
