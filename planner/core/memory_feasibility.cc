#include "planner/core/memory_feasibility.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace pipeloom::planner {
namespace {

using TaskSet = std::vector<uint64_t>;

// Decides one set of tasks that is closed under dependencies, with nothing else
// on the ranks. The search is depth-first without recursion, as its depth (the
// number of branchings) can reach the number of tasks.
class SetSearch {
 public:
  SetSearch(const FlatGraph& graph, std::vector<int32_t> tasks)
      : g_(graph),
        tasks_(std::move(tasks)),
        index_(static_cast<size_t>(graph.num_tasks), -1),
        missing_(tasks_.size()),
        done_((tasks_.size() + 63) / 64, 0),
        held_(static_cast<size_t>(graph.num_ranks), 0) {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const int32_t t = tasks_[i];
      index_[t] = static_cast<int32_t>(i);
      missing_[i] = g_.pred_offset[t + 1] - g_.pred_offset[t];
      if (missing_[i] == 0) ready_.push_back(t);
    }
  }

  Feasibility Decide(int64_t max_sets, int64_t* sets) {
    struct Node {
      size_t length = 0;  // Length of the sequence when it was entered.
      std::vector<int32_t> choices{};  // Best last.
    };
    std::vector<Node> path;
    absl::flat_hash_set<TaskSet> seen;
    const auto enter = [&] {
      RunFree();
      if (!seen.insert(done_).second) return false;
      ++*sets;
      path.push_back({.length = sequence_.size(), .choices = Choices()});
      return true;
    };
    enter();
    while (sequence_.size() < tasks_.size()) {
      if (*sets >= max_sets) return Feasibility::kUnknown;
      Node& node = path.back();
      UndoTo(node.length);
      if (node.choices.empty()) {
        path.pop_back();
        if (path.empty()) return Feasibility::kImpossible;
        continue;
      }
      const int32_t t = node.choices.back();
      node.choices.pop_back();
      Do(t);
      enter();
    }
    return Feasibility::kLegal;
  }

  const std::vector<int32_t>& sequence() const { return sequence_; }

 private:
  bool Fits(int32_t t) const {
    return held_[g_.rank[t]] + g_.alloc[t] <= g_.capacity[g_.rank[t]];
  }
  void Do(int32_t t) {
    ready_.erase(std::find(ready_.begin(), ready_.end(), t));
    held_[g_.rank[t]] += g_.alloc[t] - g_.free[t];
    done_[index_[t] / 64] |= uint64_t{1} << (index_[t] % 64);
    sequence_.push_back(t);
    for (int32_t e = g_.succ_offset[t]; e < g_.succ_offset[t + 1]; ++e) {
      const int32_t next = g_.succ[e];
      if (--missing_[index_[next]] == 0) ready_.push_back(next);
    }
  }
  void UndoTo(size_t length) {
    while (sequence_.size() > length) {
      const int32_t t = sequence_.back();
      sequence_.pop_back();
      for (int32_t e = g_.succ_offset[t]; e < g_.succ_offset[t + 1]; ++e) {
        const int32_t next = g_.succ[e];
        if (missing_[index_[next]]++ == 0) {
          ready_.erase(std::find(ready_.begin(), ready_.end(), next));
        }
      }
      held_[g_.rank[t]] -= g_.alloc[t] - g_.free[t];
      done_[index_[t] / 64] &= ~(uint64_t{1} << (index_[t] % 64));
      ready_.push_back(t);
    }
  }
  // Runs tasks that hold no more afterwards than before: in any legal end of
  // the sequence they may as well come first.
  void RunFree() {
    for (size_t i = 0; i < ready_.size();) {
      const int32_t t = ready_[i];
      if (g_.alloc[t] <= g_.free[t] && Fits(t)) {
        Do(t);
        i = 0;
      } else {
        ++i;
      }
    }
  }
  std::vector<int32_t> Choices() const {
    std::vector<int32_t> choices;
    for (const int32_t t : ready_) {
      if (Fits(t)) choices.push_back(t);
    }
    // The task with the highest index goes last and so is tried first: it is
    // nearest to the end.
    std::sort(choices.begin(), choices.end(),
              [&](int32_t a, int32_t b) { return index_[a] > index_[b]; });
    return choices;
  }

  const FlatGraph& g_;
  std::vector<int32_t> tasks_;
  std::vector<int32_t> index_;
  std::vector<int32_t> missing_;
  TaskSet done_;
  std::vector<int64_t> held_;
  std::vector<int32_t> ready_{};
  std::vector<int32_t> sequence_{};
};

// Returns the connected parts, each sorted by task id, in the order of their
// first tasks.
std::vector<std::vector<int32_t>> Parts(const FlatGraph& g) {
  std::vector<int32_t> parent(static_cast<size_t>(g.num_tasks));
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int32_t t) {
    while (parent[t] != t) t = parent[t] = parent[parent[t]];
    return t;
  };
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      const int32_t a = root(g.pred[e]);
      const int32_t b = root(t);
      parent[std::max(a, b)] = std::min(a, b);
    }
  }
  std::vector<int32_t> number(static_cast<size_t>(g.num_tasks), -1);
  std::vector<std::vector<int32_t>> parts;
  for (int32_t t = 0; t < g.num_tasks; ++t) {
    int32_t& part = number[root(t)];
    if (part < 0) {
      part = static_cast<int32_t>(parts.size());
      parts.emplace_back();
    }
    parts[static_cast<size_t>(part)].push_back(t);
  }
  return parts;
}

// Returns whether the part gives back all that it takes, and every byte given
// back was taken by an ancestor on the same rank: then it never holds less than
// nothing, whichever of its tasks are done. Sufficient, but not necessary.
bool StandsAlone(const FlatGraph& g, const std::vector<int32_t>& part) {
  std::vector<int64_t> total(static_cast<size_t>(g.num_ranks), 0);
  std::vector<int32_t> index(static_cast<size_t>(g.num_tasks), -1);
  std::vector<int64_t> left(part.size());
  const size_t words = (part.size() + 63) / 64;
  std::vector<uint64_t> ancestors(part.size() * words, 0);
  for (size_t i = 0; i < part.size(); ++i) {
    const int32_t t = part[i];
    index[t] = static_cast<int32_t>(i);
    uint64_t* const mine = &ancestors[i * words];
    mine[i / 64] |= uint64_t{1} << (i % 64);
    for (int32_t e = g.pred_offset[t]; e < g.pred_offset[t + 1]; ++e) {
      const auto from = static_cast<size_t>(index[g.pred[e]]);
      for (size_t w = 0; w < words; ++w) {
        mine[w] |= ancestors[from * words + w];
      }
    }
    total[g.rank[t]] += g.alloc[t] - g.free[t];
    left[i] = g.alloc[t];
    int64_t owed = g.free[t];
    // The latest ancestor goes first: earlier ones can pay for more tasks.
    for (size_t j = i + 1; j-- > 0 && owed > 0;) {
      if ((mine[j / 64] >> (j % 64) & 1) == 0) continue;
      if (g.rank[part[j]] != g.rank[t]) continue;
      const int64_t paid = std::min(owed, left[j]);
      left[j] -= paid;
      owed -= paid;
    }
    if (owed > 0) return false;
  }
  return std::all_of(total.begin(), total.end(),
                     [](int64_t b) { return b == 0; });
}

}  // namespace

FeasibilityResult DecideFeasibility(const FlatGraph& graph, int64_t max_sets) {
  FeasibilityResult result;
  const auto impossible = [&] {
    result.verdict = Feasibility::kImpossible;
    result.sequence.clear();
    return result;
  };
  for (int32_t r = 0; r < graph.num_ranks; ++r) {
    if (graph.capacity[r] < 0) return impossible();
  }
  std::vector<std::vector<int32_t>> parts = Parts(graph);
  if (!std::all_of(parts.begin(), parts.end(), [&](const auto& part) {
        return StandsAlone(graph, part);
      })) {
    std::vector<int32_t> all(static_cast<size_t>(graph.num_tasks));
    std::iota(all.begin(), all.end(), 0);
    parts = {std::move(all)};
  }
  bool unknown = false;
  for (std::vector<int32_t>& part : parts) {
    SetSearch search(graph, std::move(part));
    int64_t sets = 0;
    const Feasibility verdict = search.Decide(max_sets - result.sets, &sets);
    result.sets += sets;
    if (verdict == Feasibility::kImpossible) return impossible();
    unknown = unknown || verdict == Feasibility::kUnknown;
    result.sequence.insert(result.sequence.end(), search.sequence().begin(),
                           search.sequence().end());
  }
  if (unknown) {
    result.sequence.clear();
  } else {
    result.verdict = Feasibility::kLegal;
  }
  return result;
}

bool FitsMemory(const FlatGraph& graph, absl::Span<const int32_t> sequence) {
  std::vector<int64_t> held(static_cast<size_t>(graph.num_ranks), 0);
  for (const int32_t t : sequence) {
    int64_t& bytes = held[graph.rank[t]];
    bytes += graph.alloc[t];
    if (bytes > graph.capacity[graph.rank[t]]) return false;
    bytes -= graph.free[t];
  }
  return true;
}

bool MemoryIsShort(const FlatGraph& graph) {
  std::vector<int64_t> most(static_cast<size_t>(graph.num_ranks), 0);
  for (int32_t t = 0; t < graph.num_tasks; ++t) {
    most[graph.rank[t]] += graph.alloc[t];
  }
  for (int32_t r = 0; r < graph.num_ranks; ++r) {
    if (most[r] > graph.capacity[r]) return true;
  }
  return false;
}

}  // namespace pipeloom::planner
