#include "partition/placement/level_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

namespace pipeloom::partition {
namespace {

constexpr int32_t kMaxMoves = 400;
// With more cuts than kManyCuts, no pairs are tried, and only moves of up to
// kShort cuts.
constexpr size_t kManyCuts = 64;
constexpr size_t kShort = 8;

struct Quality {
  int64_t most = 0;
  double squares = 0;
  bool operator<(const Quality& o) const {
    return most != o.most ? most < o.most : squares < o.squares;
  }
};

Quality QualityOf(const std::vector<int64_t>& loads) {
  Quality q;
  for (const int64_t load : loads) {
    q.most = std::max(q.most, load);
    q.squares += static_cast<double>(load) * static_cast<double>(load);
  }
  return q;
}

// Cuts [first, last] of a chain, each moved by `step` units.
struct Move {
  size_t chain = 0;
  size_t first = 0;
  size_t last = 0;
  int32_t step = 0;
};

class Leveller {
 public:
  Leveller(int32_t num_ranks, std::vector<CutChain>* chains)
      : chains_(*chains), loads_(LoadsOf(*chains, num_ranks)) {
    for (const CutChain& chain : chains_) {
      num_cuts_ +=
          chain.begins.size() - std::min<size_t>(chain.begins.size(), 2);
    }
  }

  void Run() {
    for (int32_t moves = 0; moves < kMaxMoves; ++moves) {
      if (const std::optional<Move> one = BestMove(QualityOf(loads_))) {
        Apply(*one);
      } else if (num_cuts_ > kManyCuts || !ApplyBestPair()) {
        return;
      }
    }
  }

 private:
  // Calls visit(move) for every move, with loads_ as they are after it.
  template <typename Visit>
  void ForEachMove(const Visit& visit) {
    for (size_t c = 0; c < chains_.size(); ++c) {
      const size_t end = chains_[c].begins.size();
      for (const int32_t step : {-1, 1}) {
        for (size_t first = 1; first + 1 < end; ++first) {
          const size_t most =
              num_cuts_ > kManyCuts ? std::min(end, first + kShort + 1) : end;
          size_t shifted = first;
          for (; shifted + 1 < most && Shift(c, shifted, step); ++shifted) {
            const Move move{c, first, shifted, step};
            if (KeepsRuns(move)) visit(move);
          }
          while (shifted > first) Unshift(c, --shifted, step);
        }
      }
    }
  }

  // Returns whether the outer runs still have a unit.
  bool KeepsRuns(const Move& move) const {
    const std::vector<int32_t>& begins = chains_[move.chain].begins;
    return move.step < 0 ? begins[move.first] - 1 > begins[move.first - 1]
                         : begins[move.last] + 1 < begins[move.last + 1];
  }

  struct Carried {
    int64_t taken = 0;
    int64_t given = 0;
    size_t from = 0;
    size_t to = 0;
  };
  // Returns the work that moving the cut carries from rank to rank; nullopt if
  // the move is not allowed.
  std::optional<Carried> CarriedBy(size_t chain, size_t cut,
                                   int32_t step) const {
    const CutChain& c = chains_[chain];
    const int32_t unit = step < 0 ? c.begins[cut] - 1 : c.begins[cut];
    const size_t from = step < 0 ? cut - 1 : cut;
    const size_t to = step < 0 ? cut : cut - 1;
    if (unit < 0 || static_cast<size_t>(unit) >= c.weights.size() ||
        (c.may && !c.may(unit, static_cast<int32_t>(to)))) {
      return std::nullopt;
    }
    return Carried{.taken = WeightIn(c, static_cast<size_t>(unit), from),
                   .given = WeightIn(c, static_cast<size_t>(unit), to),
                   .from = static_cast<size_t>(c.rank_of_run[from]),
                   .to = static_cast<size_t>(c.rank_of_run[to])};
  }
  bool Shift(size_t chain, size_t cut, int32_t step) {
    const std::optional<Carried> carried = CarriedBy(chain, cut, step);
    if (!carried.has_value()) return false;
    loads_[carried->from] -= carried->taken;
    loads_[carried->to] += carried->given;
    return true;
  }
  void Unshift(size_t chain, size_t cut, int32_t step) {
    const std::optional<Carried> carried = CarriedBy(chain, cut, step);
    loads_[carried->from] += carried->taken;
    loads_[carried->to] -= carried->given;
  }

  std::optional<Move> BestMove(Quality now) {
    std::optional<Move> best;
    ForEachMove([&](const Move& move) {
      const Quality q = QualityOf(loads_);
      if (!(q < now)) return;
      now = q;
      best = move;
    });
    return best;
  }

  void Apply(const Move& move) {
    for (size_t cut = move.first; cut <= move.last; ++cut) {
      Shift(move.chain, cut, move.step);
    }
    for (size_t cut = move.first; cut <= move.last; ++cut) {
      chains_[move.chain].begins[cut] += move.step;
    }
  }
  void Revert(Move move) {
    move.step = -move.step;
    Apply(move);
  }

  bool ApplyBestPair() {
    const auto busiest = static_cast<size_t>(
        std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
    const int64_t most = loads_[busiest];
    std::vector<Move> easing;
    ForEachMove([&](const Move& move) {
      if (loads_[busiest] < most) easing.push_back(move);
    });
    Quality best = QualityOf(loads_);
    std::optional<Move> first;
    std::optional<Move> second;
    for (const Move& move : easing) {
      Apply(move);
      if (const std::optional<Move> next = BestMove(best)) {
        Apply(*next);
        best = QualityOf(loads_);
        Revert(*next);
        first = move;
        second = next;
      }
      Revert(move);
    }
    if (!first.has_value()) return false;
    Apply(*first);
    Apply(*second);
    return true;
  }

  std::vector<CutChain>& chains_;
  std::vector<int64_t> loads_;
  size_t num_cuts_ = 0;
};

}  // namespace

int64_t WeightIn(const CutChain& chain, size_t unit, size_t run) {
  const int64_t weight = chain.weights[unit];
  if (chain.slow_of_run.empty() || chain.slow_of_run[run] == 1) return weight;
  return std::llround(static_cast<double>(weight) * chain.slow_of_run[run]);
}

std::vector<int64_t> LoadsOf(const std::vector<CutChain>& chains,
                             int32_t num_ranks) {
  std::vector<int64_t> loads(static_cast<size_t>(num_ranks), 0);
  for (const CutChain& chain : chains) {
    for (size_t run = 0; run + 1 < chain.begins.size(); ++run) {
      int64_t& load = loads[static_cast<size_t>(chain.rank_of_run[run])];
      for (int32_t u = chain.begins[run]; u < chain.begins[run + 1]; ++u) {
        load += WeightIn(chain, static_cast<size_t>(u), run);
      }
    }
  }
  return loads;
}

void LevelRanks(int32_t num_ranks, std::vector<CutChain>* chains) {
  Leveller(num_ranks, chains).Run();
}

}  // namespace pipeloom::partition
