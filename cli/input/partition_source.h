// The source of the partition that a job is planned with.
#ifndef PIPELOOM_CLI_INPUT_PARTITION_SOURCE_H_
#define PIPELOOM_CLI_INPUT_PARTITION_SOURCE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::cli {

// Returns whether a source is a word, "rule", "dip" or "search", and no file.
bool IsPartitionWord(absl::string_view source);

// Returns the source to use: `given` unless it is empty, else that of the
// environment's PIPELOOM_PARTITION, else "kept" for the strategy `pipeloom` (of
// an earlier search, or of one that is made and kept), and "rule" for others.
// UsageError: the variable holds something else than a word.
absl::StatusOr<std::string> SourceOf(const std::string& given,
                                     absl::string_view strategy);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_INPUT_PARTITION_SOURCE_H_
