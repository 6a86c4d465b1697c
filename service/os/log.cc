#include "service/os/log.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::service {
namespace {

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    default:
      return "error";
  }
}

}  // namespace

std::string JsonString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte >= 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04x", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void Log::Write(LogLevel level, absl::string_view event,
                std::initializer_list<Field> fields) {
  if (level < least_ || least_ == LogLevel::kOff) return;
  const int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  std::string line =
      absl::StrFormat("{\"time_us\": %d, \"level\": \"%s\", \"event\": %s", now,
                      NameOf(level), JsonString(event));
  for (const Field& field : fields) {
    absl::StrAppend(&line, ", ", JsonString(field.name), ": ");
    if (field.is_number) {
      absl::StrAppend(&line, field.number);
    } else {
      line += JsonString(field.text);
    }
  }
  line += "}\n";
  const MutexLock lock(&mutex_);
  sink_(line);
}

}  // namespace pipeloom::service
