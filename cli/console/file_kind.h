// What kind of file a text is, from its content.
#ifndef PIPELOOM_CLI_CONSOLE_FILE_KIND_H_
#define PIPELOOM_CLI_CONSOLE_FILE_KIND_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace pipeloom::cli {

enum class FileKind {
  kJob,
  kModel,
  kCluster,
  kBatch,
  kTaskGraph,
  kPlanText,
  kPlanBytes,
};
const char* FileKindName(FileKind kind);

// JSON objects by the names of their members, whatever is wrong with them
// otherwise; other text is a plan's text form, other bytes a plan. An object
// that could be anything is a job. O(length of the first object).
FileKind GuessFileKind(absl::string_view content);

// The member names of the JSON object at the front of `text`, as far as it can
// be read. Escapes in names are left as they are.
std::vector<std::string> MemberNames(absl::string_view text);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_FILE_KIND_H_
