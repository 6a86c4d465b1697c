#include "adapters/megatron_layout.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

constexpr size_t kMaxSymbols = size_t{1} << 20;
constexpr int kDeepest = 16;

// text = item* ; item = symbol count? | '(' text ')' count? ; count = '*' n
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::string> Parse() {
    PIPELOOM_ASSIGN_OR_RETURN(std::string flat, Items(0));
    if (at_ < text_.size()) return Error("unexpected \")\"");
    return flat;
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("layout, character ", at_ + 1, ": ", what));
  }

  absl::StatusOr<std::string> Items(int depth) {
    if (depth > kDeepest) return Error("more than 16 parentheses deep");
    std::string flat;
    while (at_ < text_.size() && text_[at_] != ')') {
      const char c = text_[at_];
      std::string item;
      if (c == ',' || absl::ascii_isspace(static_cast<unsigned char>(c))) {
        ++at_;
        continue;
      }
      if (c == '(') {
        ++at_;
        PIPELOOM_ASSIGN_OR_RETURN(item, Items(depth + 1));
        if (at_ >= text_.size()) return Error("\")\" is missing");
        ++at_;
      } else if (absl::string_view("EtmL|").find(c) !=
                 absl::string_view::npos) {
        item = std::string(1, c);
        ++at_;
      } else {
        return Error("expected one of E t m L | ( )");
      }
      int32_t count = 1;
      if (at_ < text_.size() && text_[at_] == '*') {
        ++at_;
        const size_t begin = at_;
        while (at_ < text_.size() &&
               absl::ascii_isdigit(static_cast<unsigned char>(text_[at_]))) {
          ++at_;
        }
        if (!absl::SimpleAtoi(text_.substr(begin, at_ - begin), &count) ||
            count < 1) {
          return Error("expected a count of at least 1 behind *");
        }
      }
      if (flat.size() + item.size() * static_cast<size_t>(count) >
          kMaxSymbols) {
        return Error("more than 2^20 symbols");
      }
      for (int32_t i = 0; i < count; ++i) flat += item;
    }
    return flat;
  }

  absl::string_view text_;
  size_t at_ = 0;
};

absl::Status Check(const std::vector<std::string>& stages, int32_t pp) {
  const auto bad = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("layout: ", what));
  };
  if (pp < 1) return bad(absl::StrCat("pp is ", pp, "; at least 1"));
  if (stages.size() % static_cast<size_t>(pp) != 0) {
    return bad(
        absl::StrFormat("%d stages on %d ranks; their number must be a "
                        "multiple of pp",
                        stages.size(), pp));
  }
  std::string flat;
  size_t with_mtp = 0;
  size_t mtp_stage = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    flat += stages[s];
    if (stages[s].find('m') != std::string::npos) {
      ++with_mtp;
      mtp_stage = s;
    }
  }
  if (std::count(flat.begin(), flat.end(), 'E') != 1 || flat[0] != 'E') {
    return bad("the first symbol must be E, the only one");
  }
  if (std::count(flat.begin(), flat.end(), 'L') != 1 || flat.back() != 'L') {
    return bad("the last symbol must be L, the only one");
  }
  const size_t first_mtp = flat.find('m');
  if (first_mtp != std::string::npos) {
    const size_t last_layer = flat.rfind('t');
    if (last_layer != std::string::npos && last_layer > first_mtp) {
      return bad("every m must stand behind every t");
    }
    if (with_mtp > 1) return bad("all m must be in one stage");
    if (mtp_stage / static_cast<size_t>(pp) + 1 !=
        stages.size() / static_cast<size_t>(pp)) {
      return bad("m must be in the last chunk of its rank");
    }
  }
  return absl::OkStatus();
}

std::string Short(absl::string_view stage) {
  std::string text;
  for (size_t i = 0; i < stage.size();) {
    size_t end = i;
    while (end < stage.size() && stage[end] == stage[i]) ++end;
    if (end - i > 3) {
      absl::StrAppend(&text, stage.substr(i, 1), "*", end - i);
    } else {
      absl::StrAppend(&text, stage.substr(i, end - i));
    }
    i = end;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseMegatronLayout(
    absl::string_view text, int32_t pp) {
  PIPELOOM_ASSIGN_OR_RETURN(const std::string flat, Parser(text).Parse());
  std::vector<std::string> stages = absl::StrSplit(flat, '|');
  PIPELOOM_RETURN_IF_ERROR(Check(stages, pp));
  return stages;
}

std::string PrintMegatronLayout(absl::Span<const std::string> stages) {
  std::string text;
  for (size_t i = 0; i < stages.size();) {
    size_t end = i;
    while (end < stages.size() && stages[end] == stages[i]) ++end;
    const std::string one = Short(stages[i]);
    // The last stage has no bar behind it.
    const size_t whole = end == stages.size() ? end - i - 1 : end - i;
    if (whole > 1) {
      absl::StrAppend(&text, "(", one, "|)*", whole);
    } else if (whole == 1) {
      absl::StrAppend(&text, one, "|");
    }
    if (end == stages.size()) text += one;
    i = end;
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> MegatronLayoutOf(
    absl::Span<const int32_t> layers_by_stage) {
  if (layers_by_stage.empty()) {
    return absl::InvalidArgumentError("layers: at least one stage");
  }
  std::vector<std::string> stages;
  for (const int32_t layers : layers_by_stage) {
    if (layers < 0 || layers > (1 << 16)) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers of stage ", stages.size(), " are ", layers,
                       "; they must be in [0, 65536]"));
    }
    stages.push_back(std::string(static_cast<size_t>(layers), 't'));
  }
  stages.front() = absl::StrCat("E", stages.front());
  stages.back() += "L";
  return stages;
}

}  // namespace pipeloom::adapters
