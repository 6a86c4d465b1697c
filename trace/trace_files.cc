#include "trace/trace_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pipeloom::trace {
namespace {

namespace fs = std::filesystem;

constexpr char kGzip[] = "\x1f\x8b";  // First bytes of a compressed file.

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (fs::exists(path, error)) return std::vector<std::string>{path};
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  std::vector<std::string> files;
  std::vector<std::string> compressed;
  for (fs::directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".json") files.push_back(it->path().string());
    if (absl::EndsWith(it->path().string(), ".json.gz")) {
      compressed.push_back(it->path().string());
    }
  }
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", error.message()));
  }
  std::sort(compressed.begin(), compressed.end());
  for (const std::string& name : compressed) {
    const absl::string_view unpacked = absl::StripSuffix(name, ".gz");
    if (std::find(files.begin(), files.end(), unpacked) != files.end()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the file is compressed; gunzip it first"));
  }
  if (files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no file in this folder ends in .json"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<std::vector<TraceSource>> OpenTraces(
    const std::vector<std::string>& paths) {
  std::vector<TraceSource> sources;
  for (const std::string& path : paths) {
    PIPELOOM_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                              FilesOf(path));
    for (const std::string& name : files) {
      auto file = std::make_shared<std::ifstream>();
      auto is_first = std::make_shared<bool>(true);
      sources.push_back(
          {name,
           [file, is_first, name](char* buffer,
                                  size_t size) -> absl::StatusOr<size_t> {
             if (!file->is_open()) file->open(name, std::ios::binary);
             file->read(buffer, static_cast<std::streamsize>(size));
             if (!file->is_open() || file->bad()) {
               return absl::DataLossError("cannot be read to its end");
             }
             const auto got = static_cast<size_t>(file->gcount());
             const bool at_start = std::exchange(*is_first, false);
             if (at_start && absl::StartsWith({buffer, got}, kGzip)) {
               return absl::InvalidArgumentError(
                   "the file is compressed; gunzip it first");
             }
             return got;
           }});
    }
  }
  return sources;
}

}  // namespace pipeloom::trace
