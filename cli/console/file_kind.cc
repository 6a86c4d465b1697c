#include "cli/console/file_kind.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace pipeloom::cli {
namespace {

// Returns whether the content has bytes that text files do not have.
bool IsBinary(absl::string_view content) {
  const absl::string_view front = content.substr(0, 4096);
  return std::any_of(front.begin(), front.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 && !absl::ascii_isspace(byte);
  });
}

}  // namespace

const char* FileKindName(FileKind kind) {
  switch (kind) {
    case FileKind::kJob:
      return "job";
    case FileKind::kModel:
      return "model";
    case FileKind::kCluster:
      return "cluster";
    case FileKind::kProfile:
      return "profile";
    case FileKind::kBatch:
      return "batch";
    case FileKind::kTaskGraph:
      return "task graph";
    case FileKind::kPlanText:
      return "plan (text)";
    case FileKind::kPlanBytes:
      return "plan";
  }
  return "?";
}

std::vector<std::string> MemberNames(absl::string_view text) {
  std::vector<std::string> names;
  int depth = 0;
  bool expects_name = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      const size_t begin = ++i;
      while (i < text.size() && text[i] != '"') i += text[i] == '\\' ? 2 : 1;
      if (i >= text.size()) return names;
      if (depth == 1 && expects_name) {
        names.emplace_back(text.substr(begin, i - begin));
        expects_name = false;
      }
    } else if (c == '{' || c == '[') {
      expects_name = ++depth == 1;
    } else if (c == '}' || c == ']') {
      if (--depth <= 0) return names;
    } else if (c == ',' && depth == 1) {
      expects_name = true;
    }
  }
  return names;
}

FileKind GuessFileKind(absl::string_view content) {
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(content);
  if (text.empty() || text[0] != '{') {
    return IsBinary(content) ? FileKind::kPlanBytes : FileKind::kPlanText;
  }
  const std::vector<std::string> names = MemberNames(text);
  const auto has = [&](absl::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (has("tasks") || has("edges")) {
    return has("modules") ? FileKind::kModel : FileKind::kTaskGraph;
  }
  if (has("model") || has("training")) return FileKind::kJob;
  if (has("modules")) return FileKind::kModel;
  if (has("rates")) return FileKind::kProfile;
  if (has("device")) return FileKind::kCluster;
  if (has("text_tokens") || has("images") || has("videos") ||
      has("audio_seconds") || names.empty()) {
    return FileKind::kBatch;
  }
  return FileKind::kJob;
}

}  // namespace pipeloom::cli
