#include "adapters/megatron_order.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "adapters/action_table.h"
#include "adapters/torch_schedule.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

constexpr int32_t kMax = 1 << 16;
constexpr size_t kMaxSteps = size_t{1} << 20;

size_t At(int32_t i) { return static_cast<size_t>(i); }

absl::Status No(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("a Megatron order cannot say this plan: ", what));
}

// The chunks of a rank's steps, in the order of forwards and of backwards.
void FillRank(const std::vector<MegatronStep>& table, int32_t warmup,
              int32_t vp, std::vector<int32_t>* order) {
  const auto total = static_cast<int32_t>(table.size());
  const auto forward = [&](int32_t i) {
    order->push_back(table[At(i)].chunk + 1);
  };
  const auto backward = [&](int32_t i) {
    order->push_back(-(vp - table[At(i)].chunk));
  };
  for (int32_t i = 0; i < warmup; ++i) forward(i);
  for (int32_t i = warmup; i < total; ++i) {
    forward(i);
    backward(i - warmup);
  }
  for (int32_t i = total - warmup; i < total; ++i) backward(i);
}

absl::StatusOr<int32_t> Number(absl::string_view text, size_t line,
                               absl::string_view what) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what,
                                                   " is \"", text.substr(0, 40),
                                                   "\", no whole number"));
  }
  return value;
}

}  // namespace

std::vector<MegatronStep> MegatronTable(int32_t num_microbatches, int32_t vp,
                                        int32_t group) {
  std::vector<MegatronStep> table;
  for (int32_t first = 0; first < num_microbatches; first += group) {
    const int32_t end = std::min(num_microbatches, first + group);
    for (int32_t chunk = 0; chunk < vp; ++chunk) {
      for (int32_t m = first; m < end; ++m) table.push_back({m, chunk});
    }
  }
  return table;
}

int32_t MegatronWarmup(int32_t pp, int32_t rank, int32_t vp,
                       int32_t num_microbatches, int32_t group) {
  const int64_t total = int64_t{num_microbatches} * vp;
  const int64_t wanted =
      vp == 1 ? pp - rank - 1
              : int64_t{2} * (pp - rank - 1) + int64_t{vp - 1} * group;
  return static_cast<int32_t>(std::min(total, wanted));
}

MegatronOrder MegatronOrderOf(int32_t pp, int32_t vp, int32_t num_microbatches,
                              int32_t group) {
  MegatronOrder order{pp, vp, num_microbatches, group, {}};
  const auto table = MegatronTable(num_microbatches, vp, std::max(group, 1));
  for (int32_t r = 0; r < pp; ++r) {
    order.ranks.emplace_back();
    FillRank(table, MegatronWarmup(pp, r, vp, num_microbatches, group), vp,
             &order.ranks.back());
  }
  return order;
}

absl::StatusOr<MegatronOrder> StockMegatronOrder(int32_t pp, int32_t vp,
                                                 int32_t num_microbatches,
                                                 int32_t group) {
  if (pp < 1 || vp < 1 || num_microbatches < 1 || pp > kMax || vp > kMax ||
      num_microbatches > kMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "pp %d, vp %d, microbatches %d: each must be in [1, 65536]", pp, vp,
        num_microbatches));
  }
  if (vp > 1 && (group < pp || group > num_microbatches)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "group is %d; it must be at least pp, %d, and at most the "
        "microbatches, %d",
        group, pp, num_microbatches));
  }
  const int32_t rest = vp > 1 ? num_microbatches % group : 0;
  if (rest > 0 && rest < pp) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d microbatches in groups of %d leave %d, fewer than pp, %d",
        num_microbatches, group, rest, pp));
  }
  return MegatronOrderOf(pp, vp, num_microbatches, group);
}

absl::StatusOr<MegatronOrder> ToMegatronOrder(const ActionTable& table) {
  TableShape shape;
  PIPELOOM_RETURN_IF_ERROR(CheckTable(table, &shape));
  MegatronOrder order;
  order.pp = static_cast<int32_t>(table.ranks.size());
  order.num_microbatches = shape.num_microbatches;
  order.vp = shape.num_stages / order.pp;
  for (int32_t s = 0; s < shape.num_stages; ++s) {
    const int32_t rank = shape.rank_of_stage[At(s)];
    if (rank != s % order.pp) {
      return No(absl::StrFormat(
          "stage %d of %d is on rank %d; Megatron places stages in a loop, "
          "this one on rank %d",
          s, shape.num_stages, rank, s % order.pp));
    }
  }
  if (shape.num_stages % order.pp != 0) {
    return No(absl::StrFormat("%d stages on %d ranks; every rank needs as many",
                              shape.num_stages, order.pp));
  }
  std::vector<int32_t> first_forwards;
  for (int32_t r = 0; r < order.pp; ++r) {
    std::vector<int32_t> list;
    std::vector<int32_t> forwards;
    std::vector<int32_t> backwards(At(shape.num_stages), 0);
    for (const Cell& cell : table.ranks[At(r)]) {
      if (cell.actions.size() > 1) {
        return No(absl::StrCat(TorchName(cell), " overlaps two passes"));
      }
      for (const Action& a : cell.actions) {
        if (IsTransfer(a.kind)) continue;
        const int32_t chunk = a.stage / order.pp + 1;
        if (a.kind == ActionKind::kForward) {
          list.push_back(chunk);
          forwards.push_back(chunk);
        } else if (a.kind == ActionKind::kBackward) {
          int32_t& next = backwards[At(a.stage)];
          if (a.microbatch != next) {
            return No(absl::StrFormat(
                "%s: backwards of a stage go in ascending order; microbatch "
                "%d is next",
                TorchName(a), next));
          }
          ++next;
          list.push_back(-chunk);
        } else {
          return No(absl::StrCat(TorchName(a),
                                 " has its weight gradient apart; "
                                 "`plan --for megatron-stock` makes a plan "
                                 "with whole backwards"));
        }
      }
    }
    if (r == 0) first_forwards = forwards;
    if (forwards != first_forwards) {
      return No(absl::StrFormat(
          "rank %d goes forward through its chunks in another order than rank "
          "0; Megatron has one schedule table for all ranks",
          r));
    }
    order.ranks.push_back(std::move(list));
  }
  // Only stock schedules with the table's own group can equal it.
  int32_t group = order.vp == 1 ? order.pp : 0;
  if (order.vp > 1) {
    while (At(group) < first_forwards.size() &&
           first_forwards[At(group)] == 1) {
      ++group;
    }
  }
  const auto stock =
      StockMegatronOrder(order.pp, order.vp, order.num_microbatches, group);
  if (stock.ok() && stock->ranks == order.ranks) order.group = group;
  return order;
}

ActionTable FromMegatronOrder(const MegatronOrder& order) {
  ActionTable table;
  for (int32_t r = 0; r < order.pp; ++r) {
    table.ranks.emplace_back();
    std::vector<int32_t> forwards(At(order.vp), 0);
    std::vector<int32_t> backwards(At(order.vp), 0);
    for (const int32_t step : order.ranks[At(r)]) {
      const bool forward = step > 0;
      const int32_t chunk = (forward ? step : -step) - 1;
      int32_t& next = (forward ? forwards : backwards)[At(chunk)];
      table.ranks.back().push_back(
          {{{chunk * order.pp + r,
             forward ? ActionKind::kForward : ActionKind::kBackward, next++}}});
    }
  }
  return table;
}

std::string PrintMegatronOrder(const MegatronOrder& order) {
  std::string text =
      absl::StrFormat("megatron-order pp %d vp %d microbatches %d group %d\n",
                      order.pp, order.vp, order.num_microbatches, order.group);
  for (int32_t r = 0; r < order.pp; ++r) {
    absl::StrAppend(&text, "rank ", r, ": ",
                    absl::StrJoin(order.ranks[At(r)], " "), "\n");
  }
  return text;
}

absl::StatusOr<MegatronOrder> ParseMegatronOrder(absl::string_view text) {
  MegatronOrder order;
  bool has_header = false;
  size_t steps = 0;
  size_t line_number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++line_number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!has_header) {
      constexpr absl::string_view kNames[] = {"pp", "vp", "microbatches",
                                              "group"};
      int32_t* const values[] = {&order.pp, &order.vp, &order.num_microbatches,
                                 &order.group};
      bool well_formed = words.size() == 9 && words[0] == "megatron-order";
      for (size_t i = 0; well_formed && i < 4; ++i) {
        well_formed = words[1 + 2 * i] == kNames[i];
        if (!well_formed) break;
        PIPELOOM_ASSIGN_OR_RETURN(
            *values[i], Number(words[2 + 2 * i], line_number, kNames[i]));
      }
      if (!well_formed || order.pp < 1 || order.vp < 1 ||
          order.num_microbatches < 1 || order.group < 0 || order.pp > kMax ||
          order.vp > kMax || order.num_microbatches > kMax) {
        return absl::InvalidArgumentError(absl::StrCat(
            "line ", line_number,
            ": expected \"megatron-order pp N vp N microbatches N group N\""));
      }
      has_header = true;
      continue;
    }
    const std::string prefix = absl::StrCat(order.ranks.size(), ":");
    if (words.size() < 2 || words[0] != "rank" || words[1] != prefix ||
        order.ranks.size() >= At(order.pp)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d: expected \"rank %d: STEPS\" of %d ranks",
                          line_number, order.ranks.size(), order.pp));
    }
    order.ranks.emplace_back();
    for (size_t i = 2; i < words.size(); ++i) {
      PIPELOOM_ASSIGN_OR_RETURN(const int32_t step,
                                Number(words[i], line_number, "a step"));
      if (step == 0 || step > order.vp || step < -order.vp ||
          ++steps > kMaxSteps) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "line %d: step %d; steps are a chunk from 1 to %d, negative for a "
            "backward, at most 2^20 in all",
            line_number, step, order.vp));
      }
      order.ranks.back().push_back(step);
    }
  }
  if (!has_header || order.ranks.size() != At(order.pp)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("line %d: the file ends after %d ranks", line_number,
                        order.ranks.size()));
  }
  return order;
}

}  // namespace pipeloom::adapters
