#include "runtime/learned_costs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace pipeloom::runtime {
namespace {

constexpr absl::string_view kTitle = "pipeloom learned costs version 1";

double MedianOf(std::vector<double> values) {
  const size_t half = values.size() / 2;
  std::nth_element(values.begin(),
                   values.begin() + static_cast<ptrdiff_t>(half), values.end());
  return values[half];
}

}  // namespace

void LearnedCosts::Learn(const ExecutionPlan& plan, const StepTrace& measured,
                         const LearnedCosts* applied) {
  std::map<Key, std::vector<double>> ratios;
  for (const Span& span : measured.spans) {
    if (span.kind != SpanKind::kTask) continue;
    const Task& task = plan.graph.task(span.task);
    if (task.duration <= kZero || span.end <= span.start) continue;
    const std::string& module =
        plan.graph.module_names()[static_cast<size_t>(task.module.value())];
    const double factor =
        applied == nullptr ? 1 : applied->Factor(module, task.pass);
    const double priced = static_cast<double>(task.duration.count()) / factor;
    const auto spent = static_cast<double>((span.end - span.start).count());
    ratios[{module, task.pass, std::llround(priced)}].push_back(spent / priced);
  }
  if (ratios.empty()) return;
  ++steps_;
  for (auto& [key, values] : ratios) {
    Shape& shape = shapes_[key];
    shape.last_step = steps_;
    shape.ratios.push_back(MedianOf(std::move(values)));
    if (shape.ratios.size() > kRemembered) shape.ratios.pop_front();
  }
  std::erase_if(shapes_, [&](const auto& entry) {
    return steps_ - entry.second.last_step >= kForgottenAfter;
  });
}

double LearnedCosts::Factor(absl::string_view module, Pass pass) const {
  double priced = 0;
  double spent = 0;
  for (const auto& [key, shape] : shapes_) {
    if (key.module != module || key.pass != pass) continue;
    const auto time = static_cast<double>(key.priced_ns);
    priced += time;
    spent += time * MedianOf({shape.ratios.begin(), shape.ratios.end()});
  }
  if (priced > 0) return spent / priced;
  return pass == Pass::kWeightGrad ? Factor(module, Pass::kBackward) : 1;
}

std::string LearnedCosts::ToString() const {
  std::string text = absl::StrFormat("%s\nsteps %d\n", kTitle, steps_);
  for (const auto& [key, shape] : shapes_) {
    absl::StrAppendFormat(&text, "%c %d %d \"%s\"", PassLetter(key.pass),
                          key.priced_ns, shape.last_step,
                          absl::CEscape(key.module));
    for (const double ratio : shape.ratios) {
      absl::StrAppendFormat(&text, " %.17g", ratio);
    }
    text += "\n";
  }
  return text;
}

absl::StatusOr<LearnedCosts> LearnedCosts::Parse(absl::string_view text) {
  LearnedCosts costs;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t n = 0; n < lines.size(); ++n) {
    const std::string& line = lines[n];
    const auto wrong = [&](const char* expected) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d: expected %s", n + 1, expected));
    };
    if (n == 0) {
      if (line != kTitle) return wrong("\"pipeloom learned costs version 1\"");
      continue;
    }
    if (n == 1) {
      if (line.compare(0, 6, "steps ") != 0 ||
          !absl::SimpleAtoi(line.substr(6), &costs.steps_)) {
        return wrong("\"steps\" and their number");
      }
      continue;
    }
    if (line.empty()) continue;
    const size_t begin = line.find('"');
    const size_t end = line.rfind('"');
    if (begin == std::string::npos || end == begin) {
      return wrong("a module in quotes");
    }
    Key key;
    Shape shape;
    const std::vector<std::string> front =
        absl::StrSplit(line.substr(0, begin), ' ', absl::SkipEmpty());
    bool known = front.size() == 3 && front[0].size() == 1;
    for (const Pass pass :
         {Pass::kForward, Pass::kBackward, Pass::kWeightGrad}) {
      if (known && front[0][0] == PassLetter(pass)) key.pass = pass;
    }
    known =
        known && front[0][0] == PassLetter(key.pass) &&
        absl::SimpleAtoi(front[1], &key.priced_ns) && key.priced_ns > 0 &&
        absl::SimpleAtoi(front[2], &shape.last_step) &&
        absl::CUnescape(line.substr(begin + 1, end - begin - 1), &key.module);
    if (!known) return wrong("pass, priced ns, last step and module");
    for (const absl::string_view word :
         absl::StrSplit(line.substr(end + 1), ' ', absl::SkipEmpty())) {
      double ratio = 0;
      if (!absl::SimpleAtod(word, &ratio) || !(ratio > 0) ||
          !std::isfinite(ratio)) {
        return wrong("ratios above 0");
      }
      shape.ratios.push_back(ratio);
    }
    if (shape.ratios.empty() || shape.ratios.size() > kRemembered) {
      return wrong("1 to 9 ratios");
    }
    costs.shapes_[key] = shape;
  }
  if (lines.size() < 2) {
    return absl::InvalidArgumentError("these are no learned costs");
  }
  return costs;
}

}  // namespace pipeloom::runtime
