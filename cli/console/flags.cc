#include "cli/console/flags.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/overloaded.h"
#include "base/status_macros.h"

namespace pipeloom::cli {
namespace {

constexpr char kUsagePayload[] = "pipeloom.cli/usage";
constexpr size_t kColumns = 80;

// Returns the Levenshtein distance. O(a x b).
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1,
                         diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

struct NumberAndUnit {
  double number = 0;
  std::string unit;
};

absl::StatusOr<NumberAndUnit> SplitUnit(absl::string_view text,
                                        absl::string_view what,
                                        absl::string_view example) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t end = 0;
  while (end < trimmed.size() &&
         (std::isdigit(static_cast<unsigned char>(trimmed[end])) != 0 ||
          trimmed[end] == '.')) {
    ++end;
  }
  NumberAndUnit result;
  if (!absl::SimpleAtod(trimmed.substr(0, end), &result.number)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no ", what, "; for example ", example));
  }
  result.unit = std::string(absl::StripAsciiWhitespace(trimmed.substr(end)));
  return result;
}

struct Unit {
  absl::string_view name;
  double factor;
};

// Parses `text`; returns its value in the smallest unit, rounded.
absl::StatusOr<int64_t> ParseScaled(absl::string_view text,
                                    absl::string_view what,
                                    absl::string_view example,
                                    absl::Span<const Unit> units) {
  PIPELOOM_ASSIGN_OR_RETURN(const NumberAndUnit parts,
                            SplitUnit(text, what, example));
  for (const Unit& unit : units) {
    if (parts.unit != unit.name) continue;
    const double value = parts.number * unit.factor;
    if (!(value < 9e18)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text, "\" is too large for a ", what));
    }
    return std::llround(value);
  }
  if (parts.unit.empty() && parts.number == 0) return 0;
  std::vector<absl::string_view> names;
  for (const Unit& unit : units) {
    if (!unit.name.empty()) names.push_back(unit.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no ", what, ": its unit must be one of ",
                   absl::StrJoin(names, ", "), "; for example ", example));
}

absl::Status BadValue(const Flag& flag, absl::string_view text,
                      absl::string_view wanted) {
  return UsageError(
      absl::StrCat("--", flag.name, ": \"", text, "\" is no ", wanted));
}

absl::Status CheckRange(const Flag& flag, double value,
                        absl::string_view text) {
  if (value >= flag.least && value <= flag.most) return absl::OkStatus();
  std::string allowed;
  if (std::isfinite(flag.least)) absl::StrAppend(&allowed, " >= ", flag.least);
  if (std::isfinite(flag.most)) {
    absl::StrAppend(&allowed, allowed.empty() ? "" : " and", " <= ", flag.most);
  }
  return UsageError(
      absl::StrCat("--", flag.name, ": ", text, "; it must be", allowed));
}

absl::Status CheckChoice(const Flag& flag, absl::string_view value) {
  if (flag.choices.empty() ||
      std::find(flag.choices.begin(), flag.choices.end(), value) !=
          flag.choices.end()) {
    return absl::OkStatus();
  }
  return UsageError(absl::StrCat(
      "--", flag.name, ": there is no \"", value, "\"; there is ",
      absl::StrJoin(flag.choices, ", "), DidYouMean(value, flag.choices)));
}

absl::Status SetInt(const Flag& flag, absl::string_view text, int64_t* value) {
  if (!absl::SimpleAtoi(text, value)) {
    return BadValue(flag, text, "whole number");
  }
  return CheckRange(flag, static_cast<double>(*value), text);
}

absl::Status SetDouble(const Flag& flag, absl::string_view text,
                       double* value) {
  if (!absl::SimpleAtod(text, value) || !std::isfinite(*value)) {
    return BadValue(flag, text, "number");
  }
  return CheckRange(flag, *value, text);
}

absl::Status SetValue(const Flag& flag, absl::string_view text) {
  const auto set_string = [&](std::string* value) {
    *value = std::string(text);
    return CheckChoice(flag, text);
  };
  return std::visit(
      Overloaded{[&](bool*) {
                   return UsageError(
                       absl::StrCat("--", flag.name, " takes no value"));
                 },
                 [&](int64_t* value) { return SetInt(flag, text, value); },
                 [&](double* value) { return SetDouble(flag, text, value); },
                 [&](std::string* value) { return set_string(value); },
                 [&](std::vector<std::string>* value) {
                   *value = absl::StrSplit(text, ',', absl::SkipWhitespace());
                   if (value->empty())
                     return BadValue(flag, text, "list of names");
                   for (std::string& item : *value) {
                     item = std::string(absl::StripAsciiWhitespace(item));
                     PIPELOOM_RETURN_IF_ERROR(CheckChoice(flag, item));
                   }
                   return absl::OkStatus();
                 },
                 [&](std::optional<std::string>* value) {
                   return set_string(&value->emplace());
                 },
                 [&](Repeated* value) {
                   return set_string(&value->values.emplace_back());
                 },
                 [&](std::optional<int64_t>* value) {
                   return SetInt(flag, text, &value->emplace());
                 },
                 [&](std::optional<double>* value) {
                   return SetDouble(flag, text, &value->emplace());
                 },
                 [&](std::optional<Duration>* value) {
                   const absl::StatusOr<Duration> parsed = ParseDuration(text);
                   if (!parsed.ok()) {
                     return UsageError(absl::StrCat("--", flag.name, ": ",
                                                    parsed.status().message()));
                   }
                   *value = *parsed;
                   return absl::OkStatus();
                 },
                 [&](std::optional<Bytes>* value) {
                   const absl::StatusOr<Bytes> parsed = ParseSize(text);
                   if (!parsed.ok()) {
                     return UsageError(absl::StrCat("--", flag.name, ": ",
                                                    parsed.status().message()));
                   }
                   *value = *parsed;
                   return absl::OkStatus();
                 },
                 [&](std::optional<Share>* value) {
                   const absl::StatusOr<Share> parsed = ParseShare(text);
                   if (!parsed.ok()) {
                     return UsageError(absl::StrCat("--", flag.name, ": ",
                                                    parsed.status().message()));
                   }
                   *value = *parsed;
                   return absl::OkStatus();
                 }},
      flag.target);
}

// Returns the default, for the help: the value of the bound variable before
// parsing, or "" if it has none.
std::string DefaultText(const Flag& flag) {
  return std::visit(
      Overloaded{
          [](const bool*) { return std::string(); },
          [](const int64_t* v) { return absl::StrCat(*v); },
          [](const double* v) { return absl::StrCat(*v); },
          [](const std::string* v) { return *v; },
          [](const std::vector<std::string>* v) {
            return absl::StrJoin(*v, ",");
          },
          [](const std::optional<std::string>*) { return std::string(); },
          [](const std::optional<int64_t>*) { return std::string(); },
          [](const std::optional<double>*) { return std::string(); },
          [](const std::optional<Share>*) { return std::string(); },
          [](const std::optional<Duration>*) { return std::string(); },
          [](const std::optional<Bytes>*) { return std::string(); },
          [](const Repeated*) { return std::string(); }},
      flag.target);
}

// Returns whether an option has a value, as one of several in a list.
bool HasValue(const Flag& flag, const std::string& value) {
  return std::visit(
      Overloaded{
          [&](const std::string* v) { return *v == value; },
          [&](const std::optional<std::string>* v) { return *v == value; },
          [&](const std::vector<std::string>* v) {
            return std::find(v->begin(), v->end(), value) != v->end();
          },
          [](const auto*) { return false; }},
      flag.target);
}

// Checks that every option that is given has one of those that it needs.
// `given`: indexed as `flags`.
absl::Status CheckNeeds(absl::Span<const Flag> flags,
                        const std::vector<bool>& given) {
  const auto is_met = [&](const std::string& need) {
    const size_t equals = need.find('=');
    for (size_t i = 0; i < flags.size(); ++i) {
      if (flags[i].name != need.substr(0, equals)) continue;
      if (equals != std::string::npos) {
        return HasValue(flags[i], need.substr(equals + 1));
      }
      bool* const* const on = std::get_if<bool*>(&flags[i].target);
      return given[i] && (on == nullptr || **on);
    }
    return false;
  };
  for (size_t i = 0; i < flags.size(); ++i) {
    const std::vector<std::string>& needs = flags[i].needs;
    bool* const* const on = std::get_if<bool*>(&flags[i].target);
    if (!given[i] || needs.empty() || (on != nullptr && !**on) ||
        std::any_of(needs.begin(), needs.end(), is_met)) {
      continue;
    }
    std::vector<std::string> typed;
    for (const std::string& need : needs) {
      typed.push_back(
          absl::StrCat("--", absl::StrReplaceAll(need, {{"=", " "}})));
    }
    return UsageError(absl::StrCat("--", flags[i].name, " needs ",
                                   absl::StrJoin(typed, " or "),
                                   "; add it, or leave out --", flags[i].name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UsageError(absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

Flag OutputFlag(absl::string_view name, std::string* target,
                absl::string_view help, Output output) {
  Flag flag{std::string(name), target,
            output == Output::kFolder ? "DIR" : "FILE", std::string(help)};
  flag.output = output;
  return flag;
}

Flag Needing(std::vector<std::string> needs, Flag flag) {
  flag.needs = std::move(needs);
  return flag;
}

void SetNeeds(const std::vector<std::string>& needs, size_t first,
              std::vector<Flag>* flags) {
  for (size_t i = first; i < flags->size(); ++i) (*flags)[i].needs = needs;
}

absl::StatusOr<std::vector<std::string>> ParseFlags(
    absl::Span<const Flag> flags, absl::Span<const std::string> args) {
  std::vector<std::string> positional;
  std::vector<bool> given(flags.size());
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view argument = args[i];
    if (argument == "--") {
      positional.insert(positional.end(), args.begin() + i + 1, args.end());
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') {
      positional.push_back(args[i]);
      continue;
    }
    if (!absl::ConsumePrefix(&argument, "--")) {
      return UsageError(absl::StrCat("unknown option \"", args[i],
                                     "\"; options begin with two dashes"));
    }
    const size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    bool negated = false;
    const Flag* flag = nullptr;
    for (const Flag& candidate : flags) {
      if (candidate.name == name ||
          std::find(candidate.aliases.begin(), candidate.aliases.end(), name) !=
              candidate.aliases.end()) {
        flag = &candidate;
      }
      if (std::holds_alternative<bool*>(candidate.target) &&
          name == absl::StrCat("no-", candidate.name)) {
        flag = &candidate;
        negated = true;
      }
    }
    if (flag == nullptr) {
      std::vector<std::string> names;
      for (const Flag& candidate : flags) {
        names.push_back(absl::StrCat("--", candidate.name));
      }
      return UsageError(
          absl::StrCat("unknown option \"--", name, "\"",
                       DidYouMean(absl::StrCat("--", name), names)));
    }
    given[static_cast<size_t>(flag - flags.data())] = true;
    if (bool* const* value = std::get_if<bool*>(&flag->target)) {
      if (equals != absl::string_view::npos) {
        return SetValue(*flag, argument);
      }
      **value = !negated;
      continue;
    }
    if (equals == absl::string_view::npos && i + 1 == args.size()) {
      return UsageError(
          absl::StrCat("--", name, " needs a value (", flag->value_name, ")"));
    }
    // Errors name the option as it is typed.
    Flag typed = *flag;
    typed.name = name;
    PIPELOOM_RETURN_IF_ERROR(
        SetValue(typed, equals == absl::string_view::npos
                            ? absl::string_view(args[++i])
                            : argument.substr(equals + 1)));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckNeeds(flags, given));
  return positional;
}

std::string FlagsHelp(absl::Span<const Flag> flags) {
  constexpr int kIndent = 26;
  std::string text;
  for (const Flag& flag : flags) {
    std::string head = absl::StrCat("  --", flag.name);
    if (!flag.value_name.empty()) absl::StrAppend(&head, " ", flag.value_name);
    std::string help = flag.help;
    if (!flag.choices.empty()) {
      absl::StrAppend(&help, ": ", absl::StrJoin(flag.choices, ", "));
    }
    const std::string default_text = DefaultText(flag);
    if (!default_text.empty()) {
      absl::StrAppend(&help, " (default ", default_text, ")");
    }
    const std::string gap =
        head.size() + 1 < static_cast<size_t>(kIndent)
            ? std::string(static_cast<size_t>(kIndent) - head.size(), ' ')
            : absl::StrCat("\n", std::string(kIndent, ' '));
    absl::StrAppend(&text, head, gap, WrapText(help, kIndent, kIndent), "\n");
  }
  return text;
}

absl::StatusOr<Duration> ParseDuration(absl::string_view text) {
  static constexpr Unit kUnits[] = {{"ns", 1},  {"us", 1e3},   {"ms", 1e6},
                                    {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}};
  PIPELOOM_ASSIGN_OR_RETURN(const int64_t count,
                            ParseScaled(text, "duration", "100ms", kUnits));
  return Duration(count);
}

absl::StatusOr<Bytes> ParseSize(absl::string_view text) {
  static constexpr Unit kUnits[] = {{"", 1},
                                    {"B", 1},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"KiB", 1024.0},
                                    {"MiB", 1024.0 * 1024},
                                    {"GiB", 1024.0 * 1024 * 1024},
                                    {"TiB", 1024.0 * 1024 * 1024 * 1024}};
  PIPELOOM_ASSIGN_OR_RETURN(const int64_t count,
                            ParseScaled(text, "size", "64GiB", kUnits));
  return Bytes(count);
}

absl::StatusOr<Share> ParseShare(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  const bool percent = absl::ConsumeSuffix(&number, "%");
  Share share;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &share.value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no share; for example 3% or 0.03"));
  }
  if (percent) share.value /= 100;
  if (!(share.value >= 0 && share.value < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" must be at least 0 and less than 100% (1)"));
  }
  return share;
}

std::string DidYouMean(absl::string_view word,
                       absl::Span<const std::string> candidates) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    const bool is_prefix = word.size() > 3 && absl::StartsWith(candidate, word);
    if (is_prefix || distance <= std::max<size_t>(2, word.size() / 3)) {
      near.emplace_back(is_prefix ? 0 : distance, candidate);
    }
  }
  if (near.empty()) return "";
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;
  });
  std::vector<std::string> quoted;
  for (size_t i = 0; i < near.size() && i < 3; ++i) {
    quoted.push_back(absl::StrCat("\"", near[i].second, "\""));
  }
  return absl::StrCat("; did you mean ", absl::StrJoin(quoted, " or "), "?");
}

std::string WrapText(absl::string_view text, int indent, int begin) {
  std::string result;
  auto column = static_cast<size_t>(begin);
  bool first = true;
  for (const absl::string_view word :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!first && column + 1 + word.size() > kColumns) {
      absl::StrAppend(&result, "\n",
                      std::string(static_cast<size_t>(indent), ' '));
      column = static_cast<size_t>(indent);
    } else if (!first) {
      result += ' ';
      ++column;
    }
    first = false;
    absl::StrAppend(&result, word);
    column += word.size();
  }
  return result;
}

}  // namespace pipeloom::cli
