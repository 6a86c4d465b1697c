// JSON text as a small tree that remembers lines, so that an error can name
// the line of what is wrong.
//
// Stricter than JSON: a key may stand once in an object, text must be UTF-8,
// nesting is limited. Cost is linear in the text. No exceptions come out.
#ifndef PIPELOOM_FORMATS_TEXT_JSON_READER_H_
#define PIPELOOM_FORMATS_TEXT_JSON_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {

struct JsonValue {
  enum class Kind {
    kNull,
    kBool,
    kInteger,   // Fits int64_t.
    kUnsigned,  // Above int64_t, fits uint64_t.
    kNumber,    // Anything else: has a fraction, an exponent or is huge.
    kString,
    kList,
    kObject,
  };
  Kind kind = Kind::kNull;
  int32_t line = 0;      // Where it begins; 1 is the first.
  int64_t integer = 0;   // kInteger; kBool as 0 or 1; kUnsigned by bits.
  double number = 0;     // Every kind of number.
  std::string string{};  // kString.
  std::vector<JsonValue> items{};   // kList; values of kObject.
  std::vector<std::string> keys{};  // kObject, beside items.

  bool is_number() const {
    return kind == Kind::kInteger || kind == Kind::kUnsigned ||
           kind == Kind::kNumber;
  }
};

// "FILE:LINE: what", as InvalidArgument.
absl::Status ErrorAt(absl::string_view file, int32_t line,
                     absl::string_view what);

// A value for an error text: `-3`, `"abc"`, `a list`. Short, plain ASCII.
std::string Describe(const JsonValue& value);

// One JSON value and nothing after it. `first_line` is the number of the
// text's first line in `file`. InvalidArgument: "FILE:LINE: ..." with what is
// wrong.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text,
                                    absl::string_view file,
                                    int32_t first_line = 1);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_TEXT_JSON_READER_H_
