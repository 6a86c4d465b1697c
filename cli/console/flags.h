// The options of a command as a table: one row an option, bound to where its
// value goes. The same table parses the command line and prints the help, so
// the two cannot disagree; the defaults are what the bound values hold.
//
//   int64_t steps = 1;
//   ParseFlags({{"steps", &steps, "N", "how many steps to plan"}}, args);
//
// `--name value`, `--name=value`, `--flag`, `--no-flag`; `--` ends the options.
#ifndef PIPELOOM_CLI_CONSOLE_FLAGS_H_
#define PIPELOOM_CLI_CONSOLE_FLAGS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace pipeloom::cli {

// An option that may stand several times, each adding a value; commas are part
// of it.
struct Repeated {
  std::vector<std::string> values{};
};

// A part of a whole: "3%" or "0.03".
struct Share {
  double value = 0;
};

// Lists are comma separated. An absent optional keeps the caller's default.
using FlagTarget =
    std::variant<bool*, int64_t*, double*, std::string*,
                 std::vector<std::string>*, std::optional<std::string>*,
                 std::optional<int64_t>*, std::optional<Duration>*,
                 std::optional<Bytes>*, std::optional<Share>*, Repeated*>;

struct Flag {
  std::string name{};  // Without the dashes.
  FlagTarget target{};
  std::string value_name{};  // In the help: "N", "FILE"; none for a bool.
  std::string help{};
  std::vector<std::string> choices{};  // Of a string or list; empty: any.
  double least = -std::numeric_limits<double>::infinity();  // Of a number.
  double most = std::numeric_limits<double>::infinity();    // Of a number.
};

// An error of whoever typed the command line: exit code 2.
absl::Status UsageError(absl::string_view message);
bool IsUsageError(const absl::Status& status);

// Sets the bound values and returns the arguments that are no options, in
// order. A UsageError names the argument and, for an unknown option, those
// with similar names.
absl::StatusOr<std::vector<std::string>> ParseFlags(
    absl::Span<const Flag> flags, absl::Span<const std::string> args);

// One paragraph an option, 80 columns wide.
std::string FlagsHelp(absl::Span<const Flag> flags);

// "100ms", "1.5 s", "2min", "250us", "0". Units: ns, us, ms, s, min, h.
// InvalidArgument otherwise, and for a negative or too large one.
absl::StatusOr<Duration> ParseDuration(absl::string_view text);

// "80GiB", "64 GB", "1024" (bytes). KB is 1000 bytes, KiB 1024.
// InvalidArgument otherwise, and for a negative or too large one.
absl::StatusOr<Bytes> ParseSize(absl::string_view text);

// "3%", "3 %", "0.03". InvalidArgument otherwise, and for one not in [0, 1).
absl::StatusOr<Share> ParseShare(absl::string_view text);

// `; did you mean "a" or "b"?` with the candidates nearest to `word`, or
// nothing when none is near.
std::string DidYouMean(absl::string_view word,
                       absl::Span<const std::string> candidates);

// `text` broken at spaces to lines of at most 80 columns; the first begins at
// column `begin`, the others are indented by `indent`.
std::string WrapText(absl::string_view text, int indent, int begin = 0);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_FLAGS_H_
