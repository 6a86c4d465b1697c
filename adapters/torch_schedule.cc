#include "adapters/torch_schedule.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

constexpr int32_t kMaxIndex = 1 << 16;
constexpr size_t kMaxCells = size_t{1} << 20;
constexpr absl::string_view kOverlap = "OVERLAP_F_B";

struct Word {
  absl::string_view text{};
  ActionKind kind{};
};
// The words of dialect 2.6.
constexpr std::array<Word, 10> kWords = {{
    {"F", ActionKind::kForward},
    {"B", ActionKind::kBackward},
    {"I", ActionKind::kBackwardInput},
    {"W", ActionKind::kWeightGrad},
    {"SEND_F", ActionKind::kSendForward},
    {"RECV_F", ActionKind::kRecvForward},
    {"SEND_B", ActionKind::kSendBackward},
    {"RECV_B", ActionKind::kRecvBackward},
    {"WAIT_SEND_F", ActionKind::kWaitSendForward},
    {"WAIT_SEND_B", ActionKind::kWaitSendBackward},
}};

absl::Status Unknown(absl::string_view text, TorchDialect dialect) {
  const absl::string_view letters = dialect == TorchDialect::k26 ? "F, B, I, W"
                                    : dialect == TorchDialect::kBw
                                        ? "F, B, BW, W"
                                        : "F, B, W";
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::CHexEscape(text.substr(0, 40)), "\" is no action: expected ",
      "stage, one of ", letters, ", SEND_F, RECV_F, SEND_B, RECV_B, ",
      dialect == TorchDialect::k26 ? "WAIT_SEND_F, WAIT_SEND_B, " : "",
      "and microbatch, as in 2F5",
      dialect == TorchDialect::k26 ? ", or a pair (0F7;7B3)OVERLAP_F_B" : ""));
}

// Digits at the front; false without any, or beyond the limit.
bool TakeIndex(absl::string_view* text, int32_t* value) {
  size_t digits = 0;
  while (digits < text->size() && absl::ascii_isdigit((*text)[digits])) {
    ++digits;
  }
  if (digits == 0 || digits > 9 ||
      !absl::SimpleAtoi(text->substr(0, digits), value) ||
      *value >= kMaxIndex) {
    return false;
  }
  text->remove_prefix(digits);
  return true;
}

// False: no action of the dialect. `*has_kind` false: one that is left out.
bool ParseOne(absl::string_view text, TorchDialect dialect, Action* action,
              bool* has_kind) {
  if (!TakeIndex(&text, &action->stage)) return false;
  for (const absl::string_view skipped :
       {"UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"}) {
    if (text == skipped) {
      *has_kind = false;
      return true;
    }
  }
  *has_kind = true;
  size_t letters = 0;
  while (letters < text.size() && !absl::ascii_isdigit(text[letters])) {
    ++letters;
  }
  const absl::string_view word = text.substr(0, letters);
  text.remove_prefix(letters);
  if (!TakeIndex(&text, &action->microbatch) || !text.empty()) return false;
  if (dialect == TorchDialect::kBw && word == "BW") {
    action->kind = ActionKind::kBackward;
    return true;
  }
  for (const Word& known : kWords) {
    if (known.text != word) continue;
    if (known.kind == ActionKind::kBackwardInput || IsWait(known.kind)) {
      if (dialect != TorchDialect::k26) return false;
    }
    action->kind = known.kind;
    if (known.kind == ActionKind::kBackward && dialect != TorchDialect::k26) {
      action->kind = ActionKind::kBackwardInput;
    }
    return true;
  }
  return false;
}

// In 2.5 a B is whole unless its stage and microbatch have a W.
void WholeWhereNoWeightGrad(ActionTable* table) {
  std::vector<std::pair<int32_t, int32_t>> split;
  for (const auto& row : table->ranks) {
    for (const Cell& cell : row) {
      for (const Action& a : cell.actions) {
        if (a.kind == ActionKind::kWeightGrad) {
          split.push_back({a.stage, a.microbatch});
        }
      }
    }
  }
  std::sort(split.begin(), split.end());
  for (auto& row : table->ranks) {
    for (Cell& cell : row) {
      for (Action& a : cell.actions) {
        if (a.kind == ActionKind::kBackwardInput &&
            !std::binary_search(split.begin(), split.end(),
                                std::pair(a.stage, a.microbatch))) {
          a.kind = ActionKind::kBackward;
        }
      }
    }
  }
}

}  // namespace

std::string TorchName(const Action& action) {
  for (const Word& word : kWords) {
    if (word.kind == action.kind) {
      return absl::StrCat(action.stage, word.text, action.microbatch);
    }
  }
  return "";
}

std::string TorchName(const Cell& cell) {
  if (cell.actions.size() == 1) return TorchName(cell.actions[0]);
  if (cell.actions.empty()) return "";
  return absl::StrCat("(",
                      absl::StrJoin(cell.actions, ";",
                                    [](std::string* out, const Action& a) {
                                      absl::StrAppend(out, TorchName(a));
                                    }),
                      ")", kOverlap);
}

absl::StatusOr<Cell> ParseTorchName(absl::string_view text,
                                    TorchDialect dialect) {
  const absl::string_view whole = absl::StripAsciiWhitespace(text);
  Cell cell;
  if (whole.empty()) return cell;
  absl::string_view rest = whole;
  if (absl::ConsumePrefix(&rest, "(")) {
    if (dialect != TorchDialect::k26 || !absl::ConsumeSuffix(&rest, kOverlap) ||
        !absl::ConsumeSuffix(&rest, ")")) {
      return Unknown(whole, dialect);
    }
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, ';');
    for (const absl::string_view part : parts) {
      Action action;
      bool has_kind = false;
      if (!ParseOne(part, dialect, &action, &has_kind) || !has_kind) {
        return Unknown(whole, dialect);
      }
      cell.actions.push_back(action);
    }
    if (cell.actions.size() != 2 ||
        cell.actions[0].kind != ActionKind::kForward ||
        cell.actions[1].kind != ActionKind::kBackward) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CHexEscape(whole.substr(0, 60)),
                       "\": a pair is a forward and a whole backward, as in "
                       "(0F7;7B3)OVERLAP_F_B"));
    }
    return cell;
  }
  Action action;
  bool has_kind = false;
  if (!ParseOne(rest, dialect, &action, &has_kind)) {
    return Unknown(whole, dialect);
  }
  if (has_kind) cell.actions.push_back(action);
  return cell;
}

std::string PrintTorchCsv(const ActionTable& table) {
  std::string text;
  for (const auto& row : table.ranks) {
    bool first = true;
    for (const Cell& cell : row) {
      absl::StrAppend(&text, first ? "" : ",", TorchName(cell));
      first = false;
    }
    text += '\n';
  }
  return text;
}

absl::StatusOr<ActionTable> ParseTorchCsv(absl::string_view text,
                                          TorchDialect dialect) {
  ActionTable table;
  size_t cells = 0;
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && absl::StripAsciiWhitespace(lines.back()).empty()) {
    lines.pop_back();
  }
  if (lines.empty()) {
    return absl::InvalidArgumentError("the file is empty: no rank has a row");
  }
  for (size_t line = 0; line < lines.size(); ++line) {
    std::vector<Cell> row;
    size_t column = 0;
    for (const absl::string_view part : absl::StrSplit(lines[line], ',')) {
      ++column;
      if (++cells > kMaxCells) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than ", kMaxCells, " cells"));
      }
      absl::StatusOr<Cell> cell = ParseTorchName(part, dialect);
      if (!cell.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", line + 1, ", cell ", column, ": ",
                         cell.status().message()));
      }
      row.push_back(*std::move(cell));
    }
    table.ranks.push_back(std::move(row));
  }
  if (dialect == TorchDialect::k25) WholeWhereNoWeightGrad(&table);
  return table;
}

}  // namespace pipeloom::adapters
