#include "cli/console/file_kind.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

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

// Returns the first word that is in no comment.
absl::string_view FirstWord(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  while (absl::StartsWith(text, "#")) {
    const size_t end = text.find('\n');
    if (end == absl::string_view::npos) return "";
    text = absl::StripLeadingAsciiWhitespace(text.substr(end));
  }
  return text.substr(0, text.find_first_of(" \t\r\n"));
}

// Returns whether the content is one empty object alone.
bool IsEmptyObject(absl::string_view text) {
  return absl::ConsumePrefix(&text, "{") &&
         absl::StripAsciiWhitespace(text) == "}";
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
    case FileKind::kPartition:
      return "partition";
    case FileKind::kPlanText:
      return "plan (text)";
    case FileKind::kPlanBytes:
      return "plan";
    case FileKind::kUnknown:
      return "file of no known kind";
  }
  return "?";
}

std::string FileKindsText() {
  return "jobs have the member \"model\" or \"training\", models \"modules\", "
         "clusters \"device\", device profiles \"rates\", samples of batches "
         "\"text_tokens\", \"images\", \"videos\" or \"audio_seconds\", task "
         "graphs \"tasks\", partitions \"stages\"; the text of a plan begins "
         "with the word \"plan\"";
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
    if (IsBinary(content)) return FileKind::kPlanBytes;
    return FirstWord(text) == "plan" ? FileKind::kPlanText : FileKind::kUnknown;
  }
  const std::vector<std::string> names = MemberNames(text);
  const auto has = [&](std::initializer_list<absl::string_view> any) {
    return std::any_of(any.begin(), any.end(), [&](absl::string_view name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    });
  };
  if (has({"stages", "num_ranks", "numRanks"})) return FileKind::kPartition;
  if (has({"modules"})) return FileKind::kModel;
  if (has({"tasks"})) return FileKind::kTaskGraph;
  if (has({"model", "model_spec", "modelSpec", "training"})) {
    return FileKind::kJob;
  }
  if (has({"rates"})) return FileKind::kProfile;
  if (has({"device"})) return FileKind::kCluster;
  if (has({"text_tokens", "textTokens", "images", "videos", "audio_seconds",
           "audioSeconds"})) {
    return FileKind::kBatch;
  }
  // The first of several samples may be empty.
  if (names.empty() && !IsEmptyObject(text)) return FileKind::kBatch;
  return FileKind::kUnknown;
}

}  // namespace pipeloom::cli
