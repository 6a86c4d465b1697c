// The text form of learned costs:
//
//   pipeloom learned costs version 2
//   pass F 1400 "vision"            tasks ever measured, module
//   step 12                         number, or - for none; oldest first
//   plain 9 5230000 40 1.37         size, priced ns, tasks, ratio
//   recomputed 10 8230000 4 1.2
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/numeric.h"
#include "emulator/calibration/cost_learner.h"

namespace pipeloom::emulator {
namespace {

constexpr absl::string_view kTitle1 = "pipeloom learned costs version 1";
constexpr absl::string_view kTitle2 = "pipeloom learned costs version 2";

absl::Status Wrong(size_t line, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrFormat("line %d: expected %s", line + 1, std::string(expected)));
}

std::optional<Pass> PassOf(absl::string_view word) {
  for (const Pass pass : {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
    if (word.size() == 1 && word[0] == PassLetter(pass)) return pass;
  }
  return std::nullopt;
}

std::vector<std::string> WordsOf(absl::string_view text) {
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

// A line with a module in quotes.
struct QuotedLine {
  std::vector<std::string> before{};
  std::string module{};
  std::vector<std::string> after{};
};

std::optional<QuotedLine> ParseQuoted(const std::string& line) {
  const size_t begin = line.find('"');
  const size_t end = line.rfind('"');
  QuotedLine quoted;
  if (begin == std::string::npos || end == begin ||
      !absl::CUnescape(line.substr(begin + 1, end - begin - 1),
                       &quoted.module)) {
    return std::nullopt;
  }
  quoted.before = WordsOf(line.substr(0, begin));
  quoted.after = WordsOf(line.substr(end + 1));
  return quoted;
}

bool ParsePositive(absl::string_view word, double* value) {
  return absl::SimpleAtod(word, value) && *value > 0 && std::isfinite(*value);
}

}  // namespace

std::string CostLearner::ToString() const {
  std::string text = absl::StrCat(kTitle2, "\n");
  for (const auto& [key, known] : known_) {
    absl::StrAppendFormat(&text, "pass %c %d \"%s\"\n", PassLetter(key.second),
                          known.tasks, absl::CEscape(key.first));
    for (const Step& step : known.steps) {
      absl::StrAppend(&text, "step ",
                      step.number ? absl::StrCat(*step.number) : "-", "\n");
      for (const auto& [size, ratio] : step.ratios) {
        absl::StrAppendFormat(&text, "%s %d %.17g %d %.17g\n",
                              size.recomputes ? "recomputed" : "plain",
                              size.power, ratio.priced, ratio.tasks,
                              ratio.ratio);
      }
    }
  }
  return text;
}

absl::StatusOr<CostLearner> CostLearner::Parse(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines[0] == kTitle2) return ParseVersion2(lines);
  if (lines[0] == kTitle1) return ParseVersion1(lines);
  return Wrong(0, absl::StrCat("\"", kTitle2, "\", or version 1"));
}

absl::StatusOr<CostLearner> CostLearner::ParseVersion2(
    const std::vector<std::string>& lines) {
  CostLearner learner;
  Known* known = nullptr;
  for (size_t n = 1; n < lines.size(); ++n) {
    const std::vector<std::string> words = WordsOf(lines[n]);
    if (words.empty()) continue;
    if (words[0] == "pass") {
      const std::optional<QuotedLine> line = ParseQuoted(lines[n]);
      int64_t tasks = 0;
      if (!line || line->before.size() != 3 || !line->after.empty() ||
          !PassOf(line->before[1]) ||
          !absl::SimpleAtoi(line->before[2], &tasks) || tasks < 1) {
        return Wrong(n, "a pass (F, B or W), its tasks and a module in quotes");
      }
      const Key key(line->module, *PassOf(line->before[1]));
      const auto [at, added] = learner.known_.try_emplace(key);
      if (!added) return Wrong(n, "each module and pass once");
      known = &at->second;
      known->tasks = tasks;
    } else if (words[0] == "step") {
      Step step;
      int64_t number = 0;
      if (words.size() != 2 ||
          (words[1] != "-" && !absl::SimpleAtoi(words[1], &number))) {
        return Wrong(n, "a step's number, or -");
      }
      if (words[1] != "-") step.number = number;
      if (known == nullptr || known->steps.size() == kSteps ||
          (!known->steps.empty() && known->steps.back().ratios.empty())) {
        return Wrong(n, "a pass, then 1 to 9 steps with at least one ratio");
      }
      known->steps.push_back(step);
    } else {
      Size size{.recomputes = words[0] == "recomputed"};
      Ratio ratio;
      if (words.size() != 5 || (words[0] != "plain" && !size.recomputes) ||
          !absl::SimpleAtoi(words[1], &size.power) || size.power < 0 ||
          !ParsePositive(words[2], &ratio.priced) ||
          !absl::SimpleAtoi(words[3], &ratio.tasks) || ratio.tasks < 1 ||
          !ParsePositive(words[4], &ratio.ratio) ||
          ratio.ratio != std::clamp(ratio.ratio, 1 / kMaxFactor, kMaxFactor)) {
        return Wrong(n,
                     "plain or recomputed, size, priced ns, tasks and a ratio "
                     "in [1e-6, 1e6]");
      }
      if (known == nullptr || known->steps.empty() ||
          !known->steps.back().ratios.emplace(size, ratio).second) {
        return Wrong(n, "each size of a step once");
      }
    }
  }
  for (const auto& [key, known_pass] : learner.known_) {
    if (known_pass.steps.empty() || known_pass.steps.back().ratios.empty()) {
      return Wrong(lines.size() - 1, "ratios of every pass and step");
    }
  }
  return learner;
}

// A line holds a priced time's pass, ns, last step and module, and its ratios
// in the last steps that had it, oldest first. They are taken to have been
// consecutive.
absl::StatusOr<CostLearner> CostLearner::ParseVersion1(
    const std::vector<std::string>& lines) {
  std::map<Key, std::map<int64_t, std::map<Size, std::vector<Ratio>>>> seen;
  int64_t steps = 0;
  if (lines.size() < 2 || lines[1].compare(0, 6, "steps ") != 0 ||
      !absl::SimpleAtoi(lines[1].substr(6), &steps)) {
    return Wrong(1, "\"steps\" and their number");
  }
  for (size_t n = 2; n < lines.size(); ++n) {
    if (lines[n].empty()) continue;
    const std::optional<QuotedLine> line = ParseQuoted(lines[n]);
    int64_t priced = 0;
    int64_t last = 0;
    if (!line || line->before.size() != 3 || !PassOf(line->before[0]) ||
        !absl::SimpleAtoi(line->before[1], &priced) || priced < 1 ||
        !absl::SimpleAtoi(line->before[2], &last) || last < 1 || last > steps) {
      return Wrong(n, "pass, priced ns, last step and module");
    }
    if (line->after.empty() || line->after.size() > kSteps) {
      return Wrong(n, "1 to 9 ratios");
    }
    auto& by_step = seen[{line->module, *PassOf(line->before[0])}];
    for (size_t i = 0; i < line->after.size(); ++i) {
      Ratio ratio{.ratio = 0, .priced = Real(priced), .tasks = 1};
      if (!ParsePositive(line->after[i], &ratio.ratio)) {
        return Wrong(n, "ratios above 0");
      }
      ratio.ratio = std::clamp(ratio.ratio, 1 / kMaxFactor, kMaxFactor);
      by_step[last - static_cast<int64_t>(line->after.size() - 1 - i)]
             [SizeOf(ratio.priced, false)]
                 .push_back(ratio);
    }
  }
  CostLearner learner;
  for (const auto& [key, by_step] : seen) {
    Known& known = learner.known_[key];
    for (const auto& [number, sizes] : by_step) {
      Step step;
      for (const auto& [size, ratios] : sizes) {
        step.ratios[size] = Pool(ratios);
        known.tasks += step.ratios[size].tasks;
      }
      known.steps.push_back(std::move(step));
      if (known.steps.size() > kSteps) known.steps.pop_front();
    }
  }
  return learner;
}

}  // namespace pipeloom::emulator
