// The options of a command as a table: one row per option, bound to the
// variable that takes its value. The same table parses the command line and
// prints the help, so the two cannot disagree; the defaults are the values that
// the bound variables hold.
//
//   int64_t steps = 1;
//   ParseFlags({{"steps", &steps, "N", "how many steps to plan"}}, args);
//
// Forms: `--name value`, `--name=value`, `--flag`, `--no-flag`; `--` ends the
// options.
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

// The values of an option that may be given several times, each adding one
// value. Commas are part of a value.
struct Repeated {
  std::vector<std::string> values{};
};

// A ratio, given as "3%" or "0.03".
struct Share {
  double value = 0;
};

// The variable that takes an option's value. Lists are comma separated. An
// absent optional keeps the caller's default.
using FlagTarget =
    std::variant<bool*, int64_t*, double*, std::string*,
                 std::vector<std::string>*, std::optional<std::string>*,
                 std::optional<int64_t>*, std::optional<double>*,
                 std::optional<Duration>*, std::optional<Bytes>*,
                 std::optional<Share>*, Repeated*>;

// Whether an option's value names something that the command writes. A kFile
// may be "-", the standard output; a kNamedFile may not, as it has bytes that
// are no text or is read again.
enum class Output { kNone, kFile, kNamedFile, kFolder };

struct Flag {
  std::string name{};  // Without the dashes.
  FlagTarget target{};
  std::string value_name{};  // In the help: "N", "FILE"; none for a bool.
  std::string help{};
  // Allowed values of a string or list; empty: any.
  std::vector<std::string> choices{};
  // Bounds of a number.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  Output output = Output::kNone;
  // Other names of the option, which the help does not show.
  std::vector<std::string> aliases{};
  // The option has an effect only with one of these others, "robust" (given) or
  // "device=torch" (with that value), and is refused without. Empty: always.
  std::vector<std::string> needs{};
};

// Returns an option that names a file or a folder to write, which is checked
// before the command runs (cli/console/outputs.h).
Flag OutputFlag(absl::string_view name, std::string* target,
                absl::string_view help, Output output = Output::kFile);

// Returns `flag` with `needs`.
Flag Needing(std::vector<std::string> needs, Flag flag);

// Sets the `needs` of all options from `first` on.
void SetNeeds(const std::vector<std::string>& needs, size_t first,
              std::vector<Flag>* flags);

// Returns an error of the user in the command line, which gives exit code 2.
absl::Status UsageError(absl::string_view message);
bool IsUsageError(const absl::Status& status);

// Sets the bound values and returns the arguments that are not options, in
// order. A UsageError names the argument and, for an unknown option, options
// with similar names; or it names an option that is given without one that it
// needs.
absl::StatusOr<std::vector<std::string>> ParseFlags(
    absl::Span<const Flag> flags, absl::Span<const std::string> args);

// Returns the help, one paragraph per option, 80 columns wide.
std::string FlagsHelp(absl::Span<const Flag> flags);

// Parses "100ms", "1.5 s", "2min", "250us" or "0". Units: ns, us, ms, s, min,
// h. InvalidArgument: another form, or a negative or too large value.
absl::StatusOr<Duration> ParseDuration(absl::string_view text);

// Parses "80GiB", "64 GB" or "1024" (bytes). KB is 1000 bytes, KiB 1024.
// InvalidArgument: another form, or a negative or too large value.
absl::StatusOr<Bytes> ParseSize(absl::string_view text);

// Parses "3%", "3 %" or "0.03". InvalidArgument: another form, or a value that
// is not in [0, 1).
absl::StatusOr<Share> ParseShare(absl::string_view text);

// Returns `; did you mean "a" or "b"?` with the candidates nearest to `word`,
// or an empty string if none is near.
std::string DidYouMean(absl::string_view word,
                       absl::Span<const std::string> candidates);

// Breaks `text` at spaces into lines of at most 80 columns. The first line
// begins at column `begin`, the others are indented by `indent`.
std::string WrapText(absl::string_view text, int indent, int begin = 0);

}  // namespace pipeloom::cli

#endif  // PIPELOOM_CLI_CONSOLE_FLAGS_H_
