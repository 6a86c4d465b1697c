// The shipped workloads, as the tests see them.
#ifndef PIPELOOM_TESTS_FORMATS_DATA_DIR_H_
#define PIPELOOM_TESTS_FORMATS_DATA_DIR_H_

#include <fstream>
#include <iterator>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace pipeloom::formats {

inline const char kDataDir[] = PIPELOOM_SOURCE_DIR "/workloads";

inline absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return std::string(std::istreambuf_iterator<char>(in),
                     std::istreambuf_iterator<char>());
}

}  // namespace pipeloom::formats

#endif  // PIPELOOM_TESTS_FORMATS_DATA_DIR_H_
