#include "planner/memory/smallest_limit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "planner/bounds/plan_bound.h"
#include "planner/construct/list_scheduler.h"
#include "planner/core/flat_graph.h"
#include "planner/core/memory_feasibility.h"

namespace pipeloom::planner {
namespace {

// One decision may use one of this many parts of the sets.
constexpr int64_t kParts = 8;

// How near to a limit that is too small one is looked for that works, and how
// often one that grows faster and faster is tried.
constexpr double kLimitStep = 0.01;
constexpr int kMostLimits = 12;

class Decider {
 public:
  Decider(FlatGraph graph, const IdVector<RankId, RankSpec>& ranks,
          int64_t max_sets)
      : flat_(std::move(graph)),
        most_sets_(std::max<int64_t>(1, max_sets / kParts)),
        sets_left_(max_sets) {
    for (const RankSpec& spec : ranks) {
      static_bytes_.push_back(spec.memory.static_bytes().count());
    }
  }

  // Returns a limit that none can be below: the most static memory of a rank.
  int64_t Least() const {
    int64_t least = 0;
    for (const int64_t bytes : static_bytes_) least = std::max(least, bytes);
    return least;
  }

  // Returns the limit that running the graph's groups one after another needs.
  int64_t OneByOne() {
    for (int64_t& capacity : flat_.capacity) capacity = -1;
    const MemoryGuard guard(flat_);
    int64_t limit = Least();
    for (size_t r = 0; r < static_bytes_.size(); ++r) {
      limit = std::max(limit, static_bytes_[r] + guard.shortage().needed[r]);
    }
    return limit;
  }

  // Decides whether `limit` is enough. On kLegal, lowers `limit` to what the
  // order found needs.
  Feasibility Decide(int64_t* limit) {
    if (sets_left_ <= 0) return Feasibility::kUnknown;
    SetLimit(*limit);
    const FeasibilityResult result =
        DecideFeasibility(flat_, std::min(most_sets_, sets_left_));
    sets_left_ -= std::max<int64_t>(1, result.sets);
    if (result.verdict == Feasibility::kLegal) *limit = Need(result.sequence);
    return result.verdict;
  }

 private:
  void SetLimit(int64_t limit) {
    for (size_t r = 0; r < static_bytes_.size(); ++r) {
      flat_.capacity[r] = limit - static_bytes_[r];
    }
  }
  int64_t Need(absl::Span<const int32_t> sequence) const {
    std::vector<int64_t> held(static_bytes_);
    int64_t need = Least();
    for (const int32_t t : sequence) {
      int64_t& bytes = held[static_cast<size_t>(flat_.rank[t])];
      bytes += flat_.alloc[t];
      need = std::max(need, bytes);
      bytes -= flat_.free[t];
    }
    return need;
  }

  FlatGraph flat_;
  std::vector<int64_t> static_bytes_{};
  int64_t most_sets_;  // The most sets of one decision.
  int64_t sets_left_;
};

SmallestLimit Find(FlatGraph graph, const IdVector<RankId, RankSpec>& ranks,
                   int64_t max_sets) {
  const bool empty = graph.num_tasks == 0;
  Decider decider(std::move(graph), ranks, max_sets);
  if (empty) return {decider.Least(), decider.Least()};
  SmallestLimit found{.at_least = decider.Least(),
                      .enough = decider.OneByOne()};
  // Usually the constructive end is right: one byte less is refuted.
  int64_t limit = found.enough - 1;
  // Lowest limit that was decided, or found too hard to decide.
  int64_t open = found.enough;
  while (found.at_least < open) {
    int64_t need = limit;
    switch (decider.Decide(&need)) {
      case Feasibility::kLegal:
        found.enough = open = need;
        break;
      case Feasibility::kImpossible:
        found.at_least = limit + 1;
        break;
      case Feasibility::kUnknown:
        open = limit;
        break;
    }
    limit = found.at_least + (open - found.at_least) / 2;
  }
  return found;
}

}  // namespace

SmallestLimit FindSmallestLimit(const StageGraph& graph, int64_t max_sets) {
  return Find(FlatGraph(graph), graph.ranks(), max_sets);
}

SmallestLimit SmallestLimitOfStep(const StageGraph& graph,
                                  const partition::StepMemory& memory,
                                  int64_t max_sets) {
  SmallestLimit found{
      .at_least =
          Find(LeastMemory(graph, memory), graph.ranks(), max_sets).at_least,
      .enough = std::numeric_limits<int64_t>::max()};
  for (const partition::MemorySelection& selection :
       {memory.MinMemory(), memory.KeepEverything()}) {
    const absl::StatusOr<StageGraph> chosen =
        partition::ApplyMemory(graph, memory, selection);
    if (!chosen.ok()) continue;
    found.enough =
        std::min(found.enough, FindSmallestLimit(*chosen, max_sets).enough);
  }
  return found;
}

std::optional<Bytes> FindLimitThatWorks(Bytes too_small, Bytes guess,
                                        absl::FunctionRef<bool(Bytes)> works,
                                        const std::function<bool()>& is_late,
                                        const std::stop_token& stop) {
  // The next limit that an error can name, from a share above `below` on.
  const auto above = [](Bytes below, double share) {
    return RoundUpAsFormatted(Bytes(static_cast<int64_t>(
        std::ceil(static_cast<double>(below.count() + 1) * (1 + share)))));
  };
  Bytes low = too_small;
  Bytes high = above(std::max(guess - Bytes(1), low), 0);
  double step = kLimitStep;
  for (int tries = 0; !works(high); ++tries) {
    if (tries == kMostLimits || stop.stop_requested()) return std::nullopt;
    low = high;
    high = above(low, step);
    step *= 2;
  }
  while (!stop.stop_requested() && !(is_late && is_late())) {
    const Bytes middle = above(Bytes((low.count() + high.count()) / 2), 0);
    if (middle >= high || above(low, kLimitStep) >= high) break;
    (works(middle) ? high : low) = middle;
  }
  return high;
}

absl::Status DescribeInfeasibleStep(const absl::Status& error,
                                    std::optional<int64_t> at_least,
                                    Bytes given, std::optional<Bytes> works) {
  std::string text(error.message());
  if (at_least.has_value() && given.count() < *at_least) {
    absl::StrAppend(&text,
                    "; whatever is kept or recomputed and in any order, no "
                    "limit below ",
                    FormatBytes(RoundDownAsFormatted(Bytes(*at_least))),
                    " works (proven)");
  } else if (at_least.has_value()) {
    absl::StrAppend(&text, "; only limits below ",
                    FormatBytes(RoundDownAsFormatted(Bytes(*at_least))),
                    " are proven too small, this one is not");
  }
  if (works.has_value()) {
    absl::StrAppend(&text,
                    "; on this partition a plan was found for a limit of ",
                    FormatBytes(*works));
  }
  return absl::Status(error.code(), text);
}

absl::Status DescribeInfeasible(const StageGraph& graph,
                                const MemoryShortage& shortage) {
  const absl::Status error = DescribeShortage(graph, shortage);
  const SmallestLimit limit = FindSmallestLimit(graph);
  // Exactly, as a graph's limits are numbers of bytes; large ones for people
  // too.
  const auto words = [](int64_t bytes) {
    const std::string exact = absl::StrCat(bytes, " B");
    return bytes < kGibibyte.count()
               ? exact
               : absl::StrCat(exact, " = ", FormatBytes(Bytes(bytes)));
  };
  const std::string none_below =
      limit.proven() ? std::string(" and none below (proven)")
                     : absl::StrCat(" and none below ", words(limit.at_least),
                                    " (both proven)");
  bool same = true;  // Whether all ranks have one limit.
  for (const RankId r : graph.rank_ids()) {
    same = same &&
           graph.rank(r).memory.limit == graph.rank(RankId(0)).memory.limit;
  }
  return absl::Status(
      error.code(),
      absl::StrCat(std::string(error.message()),
                   same ? "; its tasks fit a limit of "
                        : "; with the same limit on all ranks its tasks fit ",
                   words(limit.enough), none_below));
}

}  // namespace pipeloom::planner
