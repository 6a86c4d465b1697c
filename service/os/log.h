// A structured log: one JSON object per line.
//
//   {"time_us": 1790000000000000, "level": "info", "event": "plan",
//    "job": "vlm", "step": 3}
//
// Lines below the level cost nothing but the call. Threads: any.
#ifndef PIPELOOM_SERVICE_OS_LOG_H_
#define PIPELOOM_SERVICE_OS_LOG_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace pipeloom::service {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

class Log {
 public:
  // Receives whole lines, one at a time.
  using Sink = std::function<void(absl::string_view line)>;
  Log(LogLevel least, Sink sink)
      : least_(sink ? least : LogLevel::kOff), sink_(std::move(sink)) {}

  // A name and its value, which is text or a whole number.
  struct Field {
    Field(absl::string_view a_name, absl::string_view a_text)
        : name(a_name), text(a_text) {}
    Field(absl::string_view a_name, const std::string& a_text)
        : name(a_name), text(a_text) {}
    Field(absl::string_view a_name, const char* a_text)
        : name(a_name), text(a_text) {}
    Field(absl::string_view a_name, int64_t a_number)
        : name(a_name), number(a_number), is_number(true) {}
    absl::string_view name;
    absl::string_view text{};
    int64_t number = 0;
    bool is_number = false;
  };
  void Write(LogLevel level, absl::string_view event,
             std::initializer_list<Field> fields = {});

 private:
  LogLevel least_;
  Mutex mutex_{};
  Sink sink_ ABSL_GUARDED_BY(mutex_);
};

// Returns `text` as a JSON string with its quotes. Bytes that are not UTF-8
// become escapes.
std::string JsonString(absl::string_view text);

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_LOG_H_
