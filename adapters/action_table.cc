#include "adapters/action_table.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "adapters/torch_schedule.h"
#include "base/status_macros.h"

namespace pipeloom::adapters {
namespace {

constexpr int32_t kMaxIndex = 1 << 16;
constexpr int64_t kMaxActions = int64_t{1} << 20;

// The passes of a stage and microbatch that are done.
struct Progress {
  bool forward = false;
  bool backward = false;  // The input gradient, at least.
  bool weight_grad = false;
  bool sent_forward = false;
  bool got_forward = false;
  bool sent_backward = false;
  bool got_backward = false;
  bool waited_forward = false;
  bool waited_backward = false;
};

absl::Status Violation(size_t rank, size_t column, const Action& action,
                       absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "rank %d, cell %d, %s: %s", rank, column + 1, TorchName(action), what));
}

class Checker {
 public:
  Checker(const ActionTable& table, TableShape* shape)
      : table_(table), shape_(*shape) {}

  absl::Status Run() {
    PIPELOOM_RETURN_IF_ERROR(FindShape());
    done_.resize(static_cast<size_t>(shape_.num_stages) *
                 static_cast<size_t>(shape_.num_microbatches));
    for (size_t r = 0; r < table_.ranks.size(); ++r) {
      PIPELOOM_RETURN_IF_ERROR(CheckRank(r));
    }
    PIPELOOM_RETURN_IF_ERROR(CheckComplete());
    if (shape_.has_transfers) PIPELOOM_RETURN_IF_ERROR(CheckChannels());
    return CheckProgress();
  }

 private:
  absl::Status FindShape() {
    shape_ = TableShape();
    int64_t actions = 0;
    for (size_t r = 0; r < table_.ranks.size(); ++r) {
      const auto& row = table_.ranks[r];
      for (size_t c = 0; c < row.size(); ++c) {
        for (const Action& a : row[c].actions) {
          if (a.stage < 0 || a.stage >= kMaxIndex || a.microbatch < 0 ||
              a.microbatch >= kMaxIndex || ++actions > kMaxActions) {
            return absl::InvalidArgumentError(absl::StrCat(
                "rank ", r, ", cell ", c + 1,
                ": beyond 65535 stages or microbatches, or 2^20 actions"));
          }
          shape_.num_stages = std::max(shape_.num_stages, a.stage + 1);
          shape_.num_microbatches =
              std::max(shape_.num_microbatches, a.microbatch + 1);
          shape_.has_transfers |= IsTransfer(a.kind);
          shape_.has_waits |= IsWait(a.kind);
        }
      }
    }
    if (actions == 0) {
      return absl::FailedPreconditionError("no rank has anything to do");
    }
    if (int64_t{shape_.num_stages} * shape_.num_microbatches > actions) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%d stages and %d microbatches, but %d actions: every stage needs a "
          "forward and a backward of every microbatch",
          shape_.num_stages, shape_.num_microbatches, actions));
    }
    shape_.rank_of_stage.assign(static_cast<size_t>(shape_.num_stages), -1);
    for (size_t r = 0; r < table_.ranks.size(); ++r) {
      const auto& row = table_.ranks[r];
      for (size_t c = 0; c < row.size(); ++c) {
        for (const Action& a : row[c].actions) {
          int32_t& owner = shape_.rank_of_stage[static_cast<size_t>(a.stage)];
          if (owner < 0) owner = static_cast<int32_t>(r);
          if (owner != static_cast<int32_t>(r)) {
            return Violation(
                r, c, a,
                absl::StrCat("stage ", a.stage, " is on rank ", owner, " too"));
          }
        }
      }
    }
    return absl::OkStatus();
  }

  Progress& Of(int32_t stage, int32_t microbatch) {
    return done_[static_cast<size_t>(stage) *
                     static_cast<size_t>(shape_.num_microbatches) +
                 static_cast<size_t>(microbatch)];
  }
  bool Crosses(int32_t from, int32_t to) const {
    return from >= 0 && to >= 0 && from < shape_.num_stages &&
           to < shape_.num_stages &&
           shape_.rank_of_stage[static_cast<size_t>(from)] !=
               shape_.rank_of_stage[static_cast<size_t>(to)];
  }

  // Why the action may not stand here; "" if it may. Marks it done.
  std::string Do(const Action& a) {
    Progress& p = Of(a.stage, a.microbatch);
    const auto once = [](bool* flag) {
      if (*flag) return std::string("stands twice");
      *flag = true;
      return std::string();
    };
    const bool with = shape_.has_transfers;
    switch (a.kind) {
      case ActionKind::kForward: {
        if (a.microbatch > 0 && !Of(a.stage, a.microbatch - 1).forward) {
          return absl::StrFormat(
              "the stage has not done microbatch %d forward yet; forwards go "
              "in ascending order",
              a.microbatch - 1);
        }
        if (with && Crosses(a.stage - 1, a.stage) && !p.got_forward) {
          return "its input has not been received";
        }
        return once(&p.forward);
      }
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput: {
        if (!p.forward) return "its forward has not been done";
        if (with && Crosses(a.stage + 1, a.stage) && !p.got_backward) {
          return "its output gradient has not been received";
        }
        if (a.kind == ActionKind::kBackward) p.weight_grad = true;
        return once(&p.backward);
      }
      case ActionKind::kWeightGrad:
        if (!p.backward) return "its input gradient has not been done";
        return once(&p.weight_grad);
      case ActionKind::kSendForward:
        if (!Crosses(a.stage, a.stage + 1)) return "no rank waits for it";
        if (!p.forward) return "its forward has not been done";
        return once(&p.sent_forward);
      case ActionKind::kRecvForward:
        if (!Crosses(a.stage - 1, a.stage)) return "no rank sends it";
        return once(&p.got_forward);
      case ActionKind::kSendBackward:
        if (!Crosses(a.stage, a.stage - 1)) return "no rank waits for it";
        if (!p.backward) return "its input gradient has not been done";
        return once(&p.sent_backward);
      case ActionKind::kRecvBackward:
        if (!Crosses(a.stage + 1, a.stage)) return "no rank sends it";
        return once(&p.got_backward);
      case ActionKind::kWaitSendForward:
        if (!p.sent_forward) return "its output has not been sent";
        return once(&p.waited_forward);
      case ActionKind::kWaitSendBackward:
        if (!p.sent_backward) return "its input gradient has not been sent";
        return once(&p.waited_backward);
    }
    return "unknown";
  }

  absl::Status CheckRank(size_t rank) {
    const auto& row = table_.ranks[rank];
    for (size_t c = 0; c < row.size(); ++c) {
      for (const Action& a : row[c].actions) {
        const std::string wrong = Do(a);
        if (!wrong.empty()) return Violation(rank, c, a, wrong);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckComplete() {
    for (int32_t s = 0; s < shape_.num_stages; ++s) {
      for (int32_t m = 0; m < shape_.num_microbatches; ++m) {
        const Progress& p = Of(s, m);
        const char* lacks = !p.forward       ? "forward"
                            : !p.backward    ? "backward"
                            : !p.weight_grad ? "weight gradient"
                                             : nullptr;
        if (shape_.has_transfers && lacks == nullptr) {
          if (Crosses(s, s + 1) && !p.sent_forward) {
            lacks = "send of its output";
          } else if (Crosses(s, s - 1) && !p.sent_backward) {
            lacks = "send of its input gradient";
          } else if (shape_.has_waits && p.sent_forward != p.waited_forward) {
            lacks = "wait for the send of its output";
          } else if (shape_.has_waits && p.sent_backward != p.waited_backward) {
            lacks = "wait for the send of its input gradient";
          }
        }
        if (lacks != nullptr) {
          return absl::FailedPreconditionError(absl::StrFormat(
              "stage %d, microbatch %d: there is no %s", s, m, lacks));
        }
      }
    }
    return absl::OkStatus();
  }

  // Between two ranks torch matches tensors by order alone, in each direction.
  absl::Status CheckChannels() {
    using Channel = std::pair<int32_t, int32_t>;         // From rank, to rank.
    using Message = std::tuple<bool, int32_t, int32_t>;  // Forward, from, mb.
    std::map<Channel, std::vector<Message>> sent;
    std::map<Channel, std::vector<Message>> received;
    const auto owner = [&](int32_t stage) {
      return shape_.rank_of_stage[static_cast<size_t>(stage)];
    };
    for (const auto& row : table_.ranks) {
      for (const Cell& cell : row) {
        for (const Action& a : cell.actions) {
          if (IsWait(a.kind)) continue;
          const bool forward = a.kind == ActionKind::kSendForward ||
                               a.kind == ActionKind::kRecvForward;
          const int32_t step = forward ? 1 : -1;
          if (a.kind == ActionKind::kSendForward ||
              a.kind == ActionKind::kSendBackward) {
            sent[{owner(a.stage), owner(a.stage + step)}].push_back(
                {forward, a.stage, a.microbatch});
          } else if (IsTransfer(a.kind)) {
            received[{owner(a.stage - step), owner(a.stage)}].push_back(
                {forward, a.stage - step, a.microbatch});
          }
        }
      }
    }
    for (const auto& [channel, messages] : sent) {
      const auto& other = received[channel];
      for (size_t i = 0; i < messages.size(); ++i) {
        if (i < other.size() && other[i] == messages[i]) continue;
        const auto name = [](const Message& m, const char* what) {
          return absl::StrFormat("%s of %s from stage %d, microbatch %d", what,
                                 std::get<0>(m) ? "the output" : "the gradient",
                                 std::get<1>(m), std::get<2>(m));
        };
        return absl::FailedPreconditionError(absl::StrCat(
            "rank ", channel.first, " to rank ", channel.second, ", message ",
            i, ": ", name(messages[i], "send"), " meets ",
            i < other.size() ? name(other[i], "receive") : "no receive"));
      }
    }
    return absl::OkStatus();
  }

  // Runs the table: every rank goes on while its next cell has its inputs.
  absl::Status CheckProgress() {
    std::vector<Progress> finished(done_.size());
    const auto of = [&](int32_t s, int32_t m) -> Progress& {
      return finished[static_cast<size_t>(s) *
                          static_cast<size_t>(shape_.num_microbatches) +
                      static_cast<size_t>(m)];
    };
    std::vector<size_t> at(table_.ranks.size(), 0);
    const auto ready = [&](const Action& a) {
      const int32_t s = a.stage;
      const int32_t m = a.microbatch;
      switch (a.kind) {
        case ActionKind::kForward:
          return s == 0 || of(s - 1, m).forward;
        case ActionKind::kBackward:
        case ActionKind::kBackwardInput:
          return s + 1 == shape_.num_stages || of(s + 1, m).backward;
        case ActionKind::kRecvForward:
          return of(s - 1, m).sent_forward;
        case ActionKind::kRecvBackward:
          return of(s + 1, m).sent_backward;
        case ActionKind::kWaitSendForward:
          return of(s + 1, m).got_forward;
        case ActionKind::kWaitSendBackward:
          return of(s - 1, m).got_backward;
        default:
          return true;  // Sends do not block.
      }
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t r = 0; r < at.size(); ++r) {
        const auto& row = table_.ranks[r];
        while (at[r] < row.size()) {
          const auto& actions = row[at[r]].actions;
          if (!std::all_of(actions.begin(), actions.end(), ready)) break;
          for (const Action& a : actions) {
            Progress& p = of(a.stage, a.microbatch);
            p.forward |= a.kind == ActionKind::kForward;
            p.backward |= a.kind == ActionKind::kBackward ||
                          a.kind == ActionKind::kBackwardInput;
            p.sent_forward |= a.kind == ActionKind::kSendForward;
            p.sent_backward |= a.kind == ActionKind::kSendBackward;
            p.got_forward |= a.kind == ActionKind::kRecvForward;
            p.got_backward |= a.kind == ActionKind::kRecvBackward;
          }
          ++at[r];
          progress = true;
        }
      }
    }
    std::string waiting;
    for (size_t r = 0; r < at.size(); ++r) {
      if (at[r] == table_.ranks[r].size()) continue;
      absl::StrAppend(&waiting, waiting.empty() ? "" : "; ", "rank ", r,
                      " waits at cell ", at[r] + 1, ", ",
                      TorchName(table_.ranks[r][at[r]]));
    }
    if (waiting.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("deadlock: ", waiting));
  }

  const ActionTable& table_;
  TableShape& shape_;
  std::vector<Progress> done_{};
};

}  // namespace

absl::Status CheckTable(const ActionTable& table, TableShape* shape) {
  return Checker(table, shape).Run();
}

absl::Status AddTransfers(ActionTable* table) {
  TableShape shape;
  PIPELOOM_RETURN_IF_ERROR(CheckTable(*table, &shape));
  if (shape.has_transfers) {
    return absl::FailedPreconditionError("the table has transfers already");
  }
  const auto owner = [&](int32_t stage) {
    return static_cast<size_t>(shape.rank_of_stage[static_cast<size_t>(stage)]);
  };
  std::vector<std::vector<Cell>> lowered(table->ranks.size());
  // Indexed by rank: the passes done and the receives listed there.
  std::vector<std::set<std::tuple<int, int32_t, int32_t>>> known(
      table->ranks.size());
  const auto has = [&](size_t rank, ActionKind kind, int32_t stage,
                       int32_t microbatch) {
    return known[rank].count({static_cast<int>(kind), stage, microbatch}) > 0;
  };
  const auto know = [&](size_t rank, const Action& a) {
    // Both kinds of backward make the input gradient.
    const ActionKind kind =
        a.kind == ActionKind::kBackwardInput ? ActionKind::kBackward : a.kind;
    known[rank].insert({static_cast<int>(kind), a.stage, a.microbatch});
  };
  const auto is_forward = [](const Action& a) {
    return a.kind == ActionKind::kForward;
  };
  // Forwards go up the stages, backwards down; weight gradients stay.
  const auto step_of = [&](const Action& a) {
    return is_forward(a) ? 1 : a.kind == ActionKind::kWeightGrad ? 0 : -1;
  };
  const auto exists = [&](int32_t stage) {
    return stage >= 0 && stage < shape.num_stages;
  };
  const auto ready = [&](size_t rank, const Action& a) {
    const int32_t source = a.stage - step_of(a);
    if (source == a.stage || !exists(source)) return true;
    return has(rank,
               is_forward(a) ? ActionKind::kRecvForward
                             : ActionKind::kRecvBackward,
               a.stage, a.microbatch) ||
           has(rank,
               is_forward(a) ? ActionKind::kForward : ActionKind::kBackward,
               source, a.microbatch);
  };
  std::vector<size_t> at(table->ranks.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t r = 0; r < at.size(); ++r) {
      if (at[r] == table->ranks[r].size()) continue;
      const Cell& cell = table->ranks[r][at[r]];
      if (!std::all_of(cell.actions.begin(), cell.actions.end(),
                       [&](const Action& a) { return ready(r, a); })) {
        continue;
      }
      if (!cell.actions.empty()) lowered[r].push_back(cell);
      for (const Action& a : cell.actions) {
        know(r, a);
        const int32_t target = a.stage + step_of(a);
        if (!exists(target) || owner(target) == r) continue;
        const bool forward = is_forward(a);
        const Action send = {
            a.stage,
            forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
            a.microbatch};
        const Action receive = {
            target,
            forward ? ActionKind::kRecvForward : ActionKind::kRecvBackward,
            a.microbatch};
        lowered[r].push_back({{send}});
        lowered[owner(target)].push_back({{receive}});
        know(owner(target), receive);
      }
      ++at[r];
      progress = true;
    }
  }
  table->ranks = std::move(lowered);
  return absl::OkStatus();
}

absl::Status AddWaits(ActionTable* table) {
  TableShape shape;
  PIPELOOM_RETURN_IF_ERROR(CheckTable(*table, &shape));
  if (shape.has_waits) {
    return absl::FailedPreconditionError("the table has waits already");
  }
  for (auto& row : table->ranks) {
    std::vector<Action> sends;
    std::set<std::pair<int32_t, int32_t>> pending;  // Outputs.
    std::vector<Cell> with_waits;
    const auto wait_for = [&](const Action& a, ActionKind kind) {
      with_waits.push_back({{{a.stage, kind, a.microbatch}}});
    };
    for (Cell& cell : row) {
      with_waits.push_back(cell);
      for (const Action& a : cell.actions) {
        if (a.kind == ActionKind::kSendForward) {
          pending.insert({a.stage, a.microbatch});
        }
        if (a.kind == ActionKind::kSendForward ||
            a.kind == ActionKind::kSendBackward) {
          sends.push_back(a);
        }
        if ((a.kind == ActionKind::kBackward ||
             a.kind == ActionKind::kBackwardInput) &&
            pending.erase({a.stage, a.microbatch}) > 0) {
          wait_for(a, ActionKind::kWaitSendForward);
        }
      }
    }
    for (const Action& send : sends) {
      if (send.kind == ActionKind::kSendBackward) {
        wait_for(send, ActionKind::kWaitSendBackward);
      } else if (pending.count({send.stage, send.microbatch}) > 0) {
        wait_for(send, ActionKind::kWaitSendForward);
      }
    }
    row = std::move(with_waits);
  }
  return absl::OkStatus();
}

void MergeBackwards(ActionTable* table) {
  for (auto& row : table->ranks) {
    std::vector<Cell> merged;
    for (Cell& cell : row) {
      if (cell.actions.size() == 1 && !merged.empty() &&
          merged.back().actions.size() == 1 &&
          cell.actions[0].kind == ActionKind::kWeightGrad) {
        Action& before = merged.back().actions[0];
        if (before.kind == ActionKind::kBackwardInput &&
            before.stage == cell.actions[0].stage &&
            before.microbatch == cell.actions[0].microbatch) {
          before.kind = ActionKind::kBackward;
          continue;
        }
      }
      merged.push_back(std::move(cell));
    }
    row = std::move(merged);
  }
}

}  // namespace pipeloom::adapters
