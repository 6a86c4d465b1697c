#include "cli/input/partition_source.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "cli/console/flags.h"

namespace pipeloom::cli {

bool IsPartitionWord(absl::string_view source) {
  return source == "rule" || source == "dip" || source == "search";
}

absl::StatusOr<std::string> SourceOf(const std::string& given,
                                     absl::string_view strategy) {
  if (!given.empty()) return given;
  const char* variable = std::getenv("PIPELOOM_PARTITION");
  if (variable != nullptr && variable[0] != '\0') {
    if (IsPartitionWord(variable)) return std::string(variable);
    return UsageError(absl::StrCat("PIPELOOM_PARTITION=", variable,
                                   ": it must be rule, dip or search"));
  }
  return std::string(strategy == "pipeloom" ? "kept" : "rule");
}

}  // namespace pipeloom::cli
