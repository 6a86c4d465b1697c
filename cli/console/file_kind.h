// Recognition of a file's kind from its content.
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
  kProfile,
  kBatch,
  kTaskGraph,
  kPartition,
  kPlanText,
  kPlanBytes,
  kUnknown,
};
const char* FileKindName(FileKind kind);

// Guesses the kind of a file. JSON objects are told apart by the names of their
// members, even if they are otherwise invalid; a text whose first word is
// "plan" is a plan's text form, and bytes that are no text are a plan.
// O(length of the first object).
FileKind GuessFileKind(absl::string_view content);

// Returns how each kind is recognised, for the error about a file of none.
std::string FileKindsText();

// Returns the member names of the JSON object at the front of `text`, as far as
// it can be read. Escapes in names stay unchanged.
std::vector<std::string> MemberNames(absl::string_view text);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_FILE_KIND_H_
