// Monte-Carlo tree search over a decision made one choice after another and
// judged only at its end. Follows DIP (arXiv 2504.14145, section 5.1): a node
// keeps the best score seen below it, and selection maximises
//     score^alpha
//       + beta * sqrt(log(1 + visits of parent) / (1 + visits of child)).
// In each step one node is expanded, several random completions are tried from
// it, and the best of them is propagated upwards. Points that the paper leaves
// open: score = (least known cost) / cost, and by default alpha = 8, beta = 0.1
// and 4 completions.
//
// One tree is for one thread; a search with several threads runs several trees
// and merges them by tree index, so results do not depend on thread timing.
#ifndef PIPELOOM_PLANNER_STRATEGIES_DIP_TREE_SEARCH_H_
#define PIPELOOM_PLANNER_STRATEGIES_DIP_TREE_SEARCH_H_

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/random.h"

namespace pipeloom::planner {

// A decision to search over; the search knows nothing else of it. Choices are
// counted from 0 among those that are left.
template <typename P>
concept SequentialProblem = requires(P problem, typename P::State state,
                                     int32_t choice) {
  { problem.Root() } -> std::same_as<typename P::State>;
  // 0 at the end.
  { problem.NumChoices(state) } -> std::same_as<int32_t>;
  {problem.Apply(&state, choice)};
  // Called at the end only; at least 1.
  { problem.Cost(state) } -> std::same_as<int64_t>;
};

// Parameters of the search.
struct TreeSearchOptions {
  double alpha = 8;
  double beta = 0.1;
  int32_t rollouts = 4;
  int32_t max_nodes = 1 << 20;
  // A node of n visits has at most 1 + widening * sqrt(n) children, so that a
  // few steps get deeper than one level. 0: a node gets all its children first.
  double widening = 0;
};

// The search.
template <SequentialProblem P>
class TreeSearch {
 public:
  // Keeps a reference to `problem`.
  TreeSearch(P& problem, uint64_t seed, const TreeSearchOptions& options = {})
      : problem_(&problem), options_(options), random_(seed) {
    nodes_.push_back({});
  }

  // Makes one selection, one expansion and a set of completions, each of which
  // calls Cost once. Returns the number of calls; 0 if everything has been
  // tried.
  int32_t Step();

  // Returns the least cost so far and its state; unset before the first Step.
  int64_t best_cost() const { return best_cost_; }
  const typename P::State& best_state() const { return best_state_; }
  int32_t num_nodes() const { return static_cast<int32_t>(nodes_.size()); }

 private:
  struct Node {
    // Pairs of (choice, node).
    std::vector<std::pair<int32_t, int32_t>> children{};
    int64_t best = std::numeric_limits<int64_t>::max();
    int32_t visits = 0;
    bool closed = false;  // Whether everything below it has been tried.
  };
  double Score(const Node& child, const Node& parent) const {
    const double score =
        static_cast<double>(best_cost_) / static_cast<double>(child.best);
    return std::pow(score, options_.alpha) +
           options_.beta *
               std::sqrt(std::log(1.0 + parent.visits) / (1.0 + child.visits));
  }

  bool AllClosed(const Node& node) const {
    for (const auto& [choice, child] : node.children) {
      if (!nodes_[child].closed) return false;
    }
    return true;
  }

  // Closes the path's last node if it is an end, and each node above it whose
  // choices are all closed.
  void Close(const std::vector<int32_t>& path, bool is_end) {
    if (!is_end) return;
    typename P::State state = problem_->Root();
    std::vector<int32_t> choices = {problem_->NumChoices(state)};
    nodes_[path.back()].closed = true;
    for (size_t i = 0; i + 2 < path.size(); ++i) {
      for (const auto& [choice, child] : nodes_[path[i]].children) {
        if (child == path[i + 1]) problem_->Apply(&state, choice);
      }
      choices.push_back(problem_->NumChoices(state));
    }
    for (size_t i = path.size() - 1; i-- > 0;) {
      Node& node = nodes_[path[i]];
      if (static_cast<int32_t>(node.children.size()) < choices[i]) return;
      for (const auto& [choice, child] : node.children) {
        if (!nodes_[child].closed) return;
      }
      node.closed = true;
    }
  }

  P* problem_;
  TreeSearchOptions options_;
  Random random_;
  std::vector<Node> nodes_{};
  int64_t best_cost_ = std::numeric_limits<int64_t>::max();
  typename P::State best_state_{};
};

template <SequentialProblem P>
int32_t TreeSearch<P>::Step() {
  typename P::State state = problem_->Root();
  std::vector<int32_t> path = {0};
  if (nodes_[0].closed) return 0;
  while (true) {
    const int32_t choices = problem_->NumChoices(state);
    if (choices == 0) break;
    Node& node = nodes_[path.back()];
    const auto tried = static_cast<int32_t>(node.children.size());
    const bool may_widen =
        options_.widening <= 0 ||
        tried < 1 + options_.widening * std::sqrt(node.visits) ||
        AllClosed(node);
    if (tried < choices && may_widen && num_nodes() < options_.max_nodes) {
      // Children are added in the order of choices: the problem lists the most
      // promising ones first.
      const int32_t child = num_nodes();
      node.children.emplace_back(tried, child);
      problem_->Apply(&state, tried);
      nodes_.push_back({});
      path.push_back(child);
      break;
    }
    if (tried == 0) break;
    size_t best = 0;
    double best_score = -1;
    for (size_t i = 0; i < node.children.size(); ++i) {
      if (nodes_[node.children[i].second].closed) continue;
      const double score = Score(nodes_[node.children[i].second], node);
      if (score > best_score) {
        best_score = score;
        best = i;
      }
    }
    problem_->Apply(&state, node.children[best].first);
    path.push_back(node.children[best].second);
  }
  int32_t calls = 0;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int32_t rollout = 0; rollout < options_.rollouts; ++rollout) {
    typename P::State end = state;
    const bool is_end = problem_->NumChoices(end) == 0;
    // The first completion takes the problem's own order.
    for (int32_t choices = problem_->NumChoices(end); choices > 0;
         choices = problem_->NumChoices(end)) {
      problem_->Apply(&end, rollout == 0
                                ? 0
                                : static_cast<int32_t>(random_.Below(choices)));
    }
    const int64_t cost = problem_->Cost(end);
    ++calls;
    least = std::min(least, cost);
    if (cost < best_cost_) {
      best_cost_ = cost;
      best_state_ = std::move(end);
    }
    if (is_end) break;
  }
  Close(path, problem_->NumChoices(state) == 0);
  for (const int32_t node : path) {
    nodes_[node].best = std::min(nodes_[node].best, least);
    ++nodes_[node].visits;
  }
  return calls;
}

}  // namespace pipeloom::planner

#endif  // PIPELOOM_PLANNER_STRATEGIES_DIP_TREE_SEARCH_H_
