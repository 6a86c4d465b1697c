#include "tests/oracles/step_oracle.h"

#include <algorithm>
#include <set>

namespace pipeloom::testing {
namespace {

constexpr int64_t kForever = INT64_MAX;

class Scan {
 public:
  Scan(const ExecutionPlan& plan, bool blocking,
       const std::function<std::vector<std::string>(int32_t, int32_t)>& ports)
      : plan_(plan), blocking_(blocking), ports_of_(ports) {}

  OracleStep Run() {
    const int32_t ranks = plan_.graph.num_ranks();
    busy_until_.assign(static_cast<size_t>(ranks), 0);
    next_.assign(static_cast<size_t>(ranks), 0);
    reduced_.assign(static_cast<size_t>(ranks), false);
    while (true) {
      BeginTransfers();
      if (StepLowestRank()) continue;
      const int64_t later = NextMoment();
      if (later == kForever) break;
      clock_ = later;
    }
    for (int32_t r = 0; r < ranks; ++r) {
      const auto i = static_cast<size_t>(r);
      if (next_[i] < plan_.programs[RankId(r)].size()) out_.deadlock = true;
      out_.finish = std::max(out_.finish, busy_until_[i]);
    }
    return out_;
  }

 private:
  struct Ends {
    bool sent = false;
    bool received = false;
  };

  int32_t From(int32_t e) const {
    return plan_.graph.task(plan_.graph.edge(EdgeId(e)).from).rank.value();
  }
  int32_t To(int32_t e) const {
    return plan_.graph.task(plan_.graph.edge(EdgeId(e)).to).rank.value();
  }
  int64_t Left(int32_t e) const {
    const auto it = out_.transfer_start.find(e);
    if (it == out_.transfer_start.end()) return kForever;
    return it->second + plan_.graph.edge(EdgeId(e)).occupancy.count();
  }
  int64_t Arrived(int32_t e) const {
    const auto it = out_.transfer_start.find(e);
    if (it == out_.transfer_start.end()) return kForever;
    return it->second + plan_.graph.edge(EdgeId(e)).delay.count();
  }

  // One instruction of the lowest rank that has one to execute now.
  bool StepLowestRank() {
    for (int32_t r = 0; r < plan_.graph.num_ranks(); ++r) {
      const auto i = static_cast<size_t>(r);
      if (busy_until_[i] > clock_) continue;
      if (next_[i] == plan_.programs[RankId(r)].size()) continue;
      if (Execute(r, plan_.programs[RankId(r)][next_[i]])) {
        ++next_[i];
        return true;
      }
    }
    return false;
  }

  bool Execute(int32_t r, const Instruction& instruction) {
    int64_t& busy = busy_until_[static_cast<size_t>(r)];
    busy = std::max(busy, clock_);
    if (const auto* c = std::get_if<Compute>(&instruction)) {
      for (const EdgeId e : plan_.graph.incoming(c->task)) {
        const Dependency& d = plan_.graph.edge(e);
        if (plan_.graph.task(d.from).rank.value() != r) continue;
        const auto before = out_.task_start.find(d.from.value());
        if (before == out_.task_start.end()) continue;
        const int64_t at = before->second +
                           plan_.graph.task(d.from).duration.count() +
                           d.delay.count();
        if (at > clock_) {
          busy = std::max(busy, at);
          return false;
        }
      }
      out_.task_start[c->task.value()] = clock_;
      busy = clock_ + plan_.graph.task(c->task).duration.count();
      return true;
    }
    if (const auto* s = std::get_if<Send>(&instruction)) {
      const int32_t e = s->edge.value();
      if (!ends_[e].sent) Meet(e, &ends_[e].sent);
      return !blocking_ || Left(e) <= clock_;
    }
    if (const auto* v = std::get_if<Recv>(&instruction)) {
      Meet(v->edge.value(), &ends_[v->edge.value()].received);
      return true;
    }
    if (const auto* w = std::get_if<WaitRecv>(&instruction)) {
      return Arrived(w->edge.value()) <= clock_;
    }
    if (const auto* w = std::get_if<WaitSend>(&instruction)) {
      return Left(w->edge.value()) <= clock_;
    }
    const auto epilogue = [&] {
      busy = clock_ + plan_.graph.rank(RankId(r)).epilogue.count();
    };
    if (std::holds_alternative<ReduceGradients>(instruction)) {
      reduced_[static_cast<size_t>(r)] = true;
      epilogue();
    } else if (std::holds_alternative<OptimizerStep>(instruction) &&
               !reduced_[static_cast<size_t>(r)]) {
      epilogue();
    }
    return true;
  }

  void Meet(int32_t e, bool* end) {
    *end = true;
    if (ends_[e].sent && ends_[e].received) waiting_.push_back(e);
    BeginTransfers();
  }

  // A transfer that waits keeps its ports for itself: none overtakes it.
  void BeginTransfers() {
    std::set<std::string> taken;
    for (const auto& [port, until] : port_until_) {
      if (until > clock_) taken.insert(port);
    }
    std::vector<int32_t> still;
    for (const int32_t e : waiting_) {
      const std::vector<std::string> ports = ports_of_(From(e), To(e));
      const bool free = std::none_of(
          ports.begin(), ports.end(),
          [&](const std::string& p) { return taken.count(p) > 0; });
      const int64_t until =
          clock_ + plan_.graph.edge(EdgeId(e)).occupancy.count();
      if (free) out_.transfer_start[e] = clock_;
      for (const std::string& port : ports) {
        if (free) port_until_[port] = until;
        if (!free || until > clock_) taken.insert(port);
      }
      if (!free) still.push_back(e);
    }
    waiting_ = still;
  }

  int64_t NextMoment() const {
    int64_t next = kForever;
    const auto consider = [&](int64_t at) {
      if (at > clock_) next = std::min(next, at);
    };
    for (const int64_t at : busy_until_) consider(at);
    for (const auto& [port, until] : port_until_) consider(until);
    for (const auto& [e, start] : out_.transfer_start) {
      consider(Left(e));
      consider(Arrived(e));
    }
    return next;
  }

  const ExecutionPlan& plan_;
  const bool blocking_;
  const std::function<std::vector<std::string>(int32_t, int32_t)>& ports_of_;
  OracleStep out_{};
  int64_t clock_ = 0;
  std::vector<int64_t> busy_until_{};
  std::vector<size_t> next_{};
  std::vector<bool> reduced_{};
  std::map<int32_t, Ends> ends_{};
  std::vector<int32_t> waiting_{};
  std::map<std::string, int64_t> port_until_{};
};

}  // namespace

OracleStep EmulateByScanning(
    const ExecutionPlan& plan, bool blocking_sends,
    const std::function<std::vector<std::string>(int32_t, int32_t)>& ports_of) {
  return Scan(plan, blocking_sends, ports_of).Run();
}

}  // namespace pipeloom::testing
