// Writes JSON text value by value, so that large documents need no tree.
//
//   JsonWriter json;
//   json.BeginObject().Key("ranks").Int(4).EndObject();
//   json.text();   // {"ranks": 4}
//
// Strings are escaped; bytes that are no UTF-8 become U+FFFD. Numbers are the
// shortest that read back the same; those without a JSON form become null.
// Nesting is the caller's business: each Begin needs its End.
#ifndef PIPELOOM_CLI_CONSOLE_JSON_WRITER_H_
#define PIPELOOM_CLI_CONSOLE_JSON_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/units.h"

namespace pipeloom::cli {

class JsonWriter {
 public:
  // With `lines`, members of the outermost two levels stand on lines of their
  // own, for people, but for plain values in lists; else all is on one line.
  explicit JsonWriter(bool lines = false) : lines_(lines) {}

  JsonWriter& BeginObject() { return Begin('{'); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray() { return Begin('['); }
  JsonWriter& EndArray() { return End(']'); }
  JsonWriter& Key(absl::string_view key);
  JsonWriter& String(absl::string_view value);
  JsonWriter& Int(int64_t value);
  JsonWriter& Number(double value);
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  // Exact, in microseconds: 12.345.
  JsonWriter& Micros(Duration value);
  JsonWriter& Count(Bytes value) { return Int(value.count()); }

  const std::string& text() const { return text_; }

 private:
  JsonWriter& Begin(char bracket);
  JsonWriter& End(char bracket);
  void BeforeValue(bool plain);
  void NewLine();

  bool lines_;
  bool after_key_ = false;
  struct Level {
    int count = 0;          // Values so far.
    bool on_lines = false;  // One of them began a line.
  };
  std::vector<Level> levels_{};  // By open bracket.
  std::string text_{};
};

// `text` with quotes and escapes.
std::string QuoteJson(absl::string_view text);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_JSON_WRITER_H_
