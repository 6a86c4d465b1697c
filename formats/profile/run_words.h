// The NAME=VALUE words of a cell in a table of measured runs
// (formats/profile/measured_runs.h).
#ifndef PIPELOOM_FORMATS_PROFILE_RUN_WORDS_H_
#define PIPELOOM_FORMATS_PROFILE_RUN_WORDS_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace pipeloom::formats {

// The words of one cell. Each must be asked for, or status() names it.
class Words {
 public:
  Words(std::string where, absl::string_view column, absl::string_view text)
      : where_(std::move(where)), column_(column) {
    for (const absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      const std::vector<std::string> parts = absl::StrSplit(word, '=');
      if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
        Fail(absl::StrCat("\"", word, "\"; it must be NAME=VALUE"));
      } else if (!values_.emplace(parts[0], parts[1]).second) {
        Fail(absl::StrCat("\"", parts[0], "\" twice"));
      }
    }
  }

  int64_t Int(const char* name, int64_t missing, int64_t least) {
    const std::string text = Take(name);
    if (text.empty()) return missing;
    int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < least || value > kMax) {
      Fail(absl::StrFormat("%s=%s; it must be a whole number >= %d", name, text,
                           least));
      return missing;
    }
    return value;
  }

  double Real(const char* name, double missing) {
    const std::string text = Take(name);
    if (text.empty()) return missing;
    double value = 0;
    if (!absl::SimpleAtod(text, &value) || !(value >= 0 && value <= 1e9)) {
      Fail(absl::StrFormat("%s=%s; it must be a number >= 0", name, text));
      return missing;
    }
    return value;
  }

  template <typename E>
  E OneOf(const char* name, E missing,
          std::initializer_list<std::pair<absl::string_view, E>> choices) {
    const std::string text = Take(name);
    if (text.empty()) return missing;
    std::vector<absl::string_view> names;
    for (const auto& [choice, value] : choices) {
      if (choice == text) return value;
      names.push_back(choice);
    }
    Fail(absl::StrFormat("%s=%s; it must be one of %s", name, text,
                         absl::StrJoin(names, ", ")));
    return missing;
  }

  // Returns the text of a word, empty if it is missing.
  std::string Text(const char* name) { return Take(name); }

  // Records that the word has a value that it must not have.
  void Refuse(const char* name, absl::string_view value,
              absl::string_view right) {
    Fail(absl::StrCat(name, "=", value, "; it must be ", right));
  }

  absl::Status status() {
    if (!values_.empty()) {
      Fail(absl::StrCat("\"", values_.begin()->first, "\", which is unknown"));
    }
    return status_;
  }

 private:
  static constexpr int64_t kMax = int64_t{1} << 40;

  std::string Take(const char* name) {
    const auto it = values_.find(name);
    if (it == values_.end()) return "";
    std::string value = std::move(it->second);
    values_.erase(it);
    return value;
  }
  void Fail(const std::string& what) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, "column \"", column_, "\" has ", what));
  }

  std::string where_;
  absl::string_view column_;
  std::map<std::string, std::string> values_{};
  absl::Status status_ = absl::OkStatus();
};

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_RUN_WORDS_H_
