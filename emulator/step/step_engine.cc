#include "emulator/step/step_engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "emulator/step/huge_pages.h"

namespace pipeloom::emulator {
namespace {

constexpr int kMaxRanksShown = 8;
constexpr uint32_t kPhases = 4;

const char* Word(OpCode code) {
  switch (code) {
    case OpCode::kSend:
    case OpCode::kBlockingSend:
      return "send";
    case OpCode::kWaitRecv:
      return "wait_recv";
    case OpCode::kWaitSend:
      return "wait_send";
    default:
      return "instruction";
  }
}

// Loads the part of an array after `item` into the cache: a rank goes through
// its arrays from front to back, but ranks take turns, so that the processor
// does not see that.
template <typename T>
inline void PrefetchNext(const T* item) {
  constexpr size_t kAhead = 128;  // Bytes.
  __builtin_prefetch(reinterpret_cast<const char*>(item) + kAhead);
}

}  // namespace

template <bool kOrdered, bool kFair>
void StepEngine::Loop() {
  if constexpr (!kOrdered) {
    while (!stack_.empty()) {
      const RankEvent event = stack_.back();
      stack_.pop_back();
      RunRank<kOrdered, kFair>(event.rank);
    }
  } else {
    while (true) {
      if constexpr (kFair) {
        while (fair_.next() != FairLinks::kNever &&
               (queue_.empty() || fair_.next() <= queue_.next().at)) {
          FinishFlows();
        }
      }
      if (queue_.empty()) return;
      RankEvent event = queue_.Pop();
      while (true) {
        if (RunRank<kOrdered, kFair>(event.rank) != Stop::kYield) break;
        const RankEvent here{ranks_[static_cast<size_t>(event.rank)].now,
                             event.rank};
        if constexpr (kFair) {
          queue_.Push(here);
          break;
        } else {
          event = queue_.Exchange(here);
        }
      }
    }
  }
}

template <bool kOrdered, bool kFair>
StepEngine::Stop StepEngine::RunRank(int32_t id) {
  RankState& rank = ranks_[static_cast<size_t>(id)];
  const StepOp* const begin =
      program_->ops.data() + program_->op_begin[static_cast<size_t>(id)];
  const StepOp* const end =
      program_->ops.data() + program_->op_begin[static_cast<size_t>(id) + 1];
  const StepOp* op = begin + rank.next;
  int64_t now = rank.now;
  int64_t* const starts = starts_.data();
  const int64_t* const durations = durations_.data();
  const TransferState* const transfers = transfers_.data();
  Stop stop = Stop::kDone;
  int64_t horizon = 0;
  if constexpr (kOrdered) horizon = Horizon<kFair>(id);
  const auto must_yield = [&] { return kOrdered && now >= horizon; };
  // The horizon moves only when reaching an end of a transfer changes
  // something.
  const auto reached = [&](bool woke) {
    if constexpr (kOrdered) {
      if (woke || kFair) horizon = Horizon<kFair>(id);
    }
  };
  const auto send = [&](uint32_t index) {
    PrefetchNext(transfers + index);
    reached(Reach<kOrdered, kFair, true>(index, Sent(index, now)));
  };
  const auto wait_until = [&](int64_t at) {
    if (at <= now) return;
    ++rank.waits;
    now = at;
  };
  for (; op != end; ++op) {
    const uint32_t index = op->index;
    switch (op->code) {
      case OpCode::kCompute:
        PrefetchNext(starts + index);
        PrefetchNext(durations + index);
        starts[index] = now;
        now += durations[index];
        continue;
      case OpCode::kComputeGuarded: {
        const Guard& guard = program_->guards[index];
        for (const uint32_t copy : guard.fetches) {
          now = std::max(now, copies_[copy].end);
        }
        for (const Guard::Local& local : guard.locals) {
          wait_until(starts[local.slot] + durations[local.slot] +
                     local_lags_[local.index]);
        }
        starts[guard.slot] = now;
        now += durations[guard.slot];
        continue;
      }
      case OpCode::kSend:
        if (must_yield()) break;
        send(index);
        continue;
      case OpCode::kBlockingSend: {
        if (must_yield()) break;
        send(index);
        const TransferState& transfer = transfers[index];
        if (transfer.stamp != run_ + kLeft) {
          rank.waits_for = static_cast<int32_t>(index);
          stop = Stop::kBlocked;
          break;
        }
        wait_until(Left<kFair>(index, transfer));
        continue;
      }
      case OpCode::kRecv:
        if (must_yield()) break;
        if (!received_.empty()) received_[index] = now;
        PrefetchNext(transfers + index);
        reached(Reach<kOrdered, kFair, false>(index, now));
        continue;
      case OpCode::kWaitRecv: {
        const TransferState& transfer = transfers[index];
        if (transfer.stamp != run_ + kLeft) {
          rank.waits_for = static_cast<int32_t>(index);
          stop = Stop::kBlocked;
          break;
        }
        wait_until(Left<kFair>(index, transfer) + kinds_[transfer.kind].lag);
        continue;
      }
      case OpCode::kWaitSend: {
        const TransferState& transfer = transfers[index];
        if (transfer.stamp != run_ + kLeft) {
          rank.waits_for = static_cast<int32_t>(index);
          stop = Stop::kBlocked;
          break;
        }
        wait_until(Left<kFair>(index, transfer));
        continue;
      }
      case OpCode::kOffload:
      case OpCode::kFetch: {
        const bool shared = !host_free_.empty();
        if (shared && must_yield()) break;
        int64_t start = std::max(now, rank.copied);
        if (shared) {
          int64_t& host = host_free_[static_cast<size_t>(
              program_->host_link[static_cast<size_t>(id)])];
          start = std::max(start, host);
          host = start + copy_times_[index];
        }
        rank.copied = start + copy_times_[index];
        copies_[index] = {start, rank.copied};
        continue;
      }
      case OpCode::kEpilogue:
        rank.epilogue_at = now;
        now += epilogues_[static_cast<size_t>(id)];
        continue;
      case OpCode::kFree:
      case OpCode::kNothing:
        continue;
    }
    if (stop == Stop::kDone) stop = Stop::kYield;
    break;
  }
  const auto next = static_cast<uint32_t>(op - begin);
  ops_done_ += next - rank.next;
  rank.next = next;
  rank.now = now;
  return stop;
}

template <bool kFair>
int64_t StepEngine::Horizon(int32_t id) const {
  int64_t horizon = INT64_MAX;
  if (!queue_.empty()) {
    const RankEvent& next = queue_.next();
    horizon = next.at + (next.rank < id ? 0 : 1);
  }
  if constexpr (kFair) horizon = std::min(horizon, fair_.next());
  return horizon;
}

inline int64_t StepEngine::Sent(uint32_t index, int64_t at) {
  if (!delays_sends_) return at;
  const TransferKind& kind = kinds_[transfers_[index].kind];
  if (kind.ahead == 0) return at;
  if (kind.link_out == kNoLink) return at + kind.ahead;
  int64_t& free = link_free_[static_cast<size_t>(kind.link_out)];
  free = std::max(at, free) + kind.ahead;
  return free;
}

template <bool kOrdered, bool kFair, bool kAtSender>
inline bool StepEngine::Reach(uint32_t index, int64_t at) {
  TransferState& transfer = transfers_[index];
  if (transfer.stamp < run_) {
    transfer.stamp = run_ + kOneEnd;
    transfer.start = at;
    return false;
  }
  const TransferKind& kind = kinds_[transfer.kind];
  int64_t start = std::max(at, transfer.start);
  if constexpr (kFair) {
    if (kind.link_out != kNoLink && kind.occupancy > 0) {
      transfer.start = start;
      transfer.stamp = run_ + kFlowing;
      fair_.Add(index, kind.link_out, kind.link_in, start, kind.occupancy);
      return false;
    }
    left_[index] = start + kind.occupancy;
  } else {
    if (kind.link_out != kNoLink) {
      int64_t& free = link_free_[static_cast<size_t>(kind.link_out)];
      start = std::max(start, free);
      if (kind.link_in != kNoLink) {
        int64_t& free_in = link_free_[static_cast<size_t>(kind.link_in)];
        start = std::max(start, free_in);
        free_in = start + kind.occupancy;
      }
      free = start + kind.occupancy;
    }
  }
  transfer.start = start;
  transfer.stamp = run_ + kLeft;
  const int64_t left = start + kind.occupancy;
  // The rank that reaches this end does not wait.
  return kAtSender ? Wake<kOrdered>(kind.to, index, left + kind.lag)
                   : Wake<kOrdered>(kind.from, index, left);
}

template <bool kOrdered>
inline bool StepEngine::Wake(int32_t id, uint32_t transfer, int64_t at) {
  RankState& rank = ranks_[static_cast<size_t>(id)];
  if (rank.waits_for != static_cast<int32_t>(transfer)) return false;
  GoOn<kOrdered>(&rank, id, at);
  return true;
}

template <bool kOrdered>
inline void StepEngine::GoOn(RankState* rank, int32_t id, int64_t at) {
  rank->waits_for = -1;
  if (at > rank->now) {
    ++rank->waits;
    rank->now = at;
  }
  ++rank->next;
  ++ops_done_;
  const RankEvent event{rank->now, id};
  if constexpr (kOrdered) {
    queue_.Push(event);
  } else {
    stack_.push_back(event);
  }
}

void StepEngine::Load(const StepProgram& program, const StepTimes& times) {
  program_ = &program;
  durations_ = times.durations;
  copy_times_ = times.copies;
  epilogues_ = times.epilogues;
  local_lags_ = times.local_lags;
  run_ = 0;
  const size_t count = program.transfers.size();
  transfers_.clear();
  if (transfers_.capacity() < count) {
    transfers_.reserve(count);
    AdviseHugePages(transfers_.data(), count * sizeof(TransferState));
  }
  kinds_.clear();
  own_kinds_ = false;
  delays_sends_ = false;
  std::vector<uint32_t> last(program.routes.size(), UINT32_MAX);
  for (size_t t = 0; t < count; ++t) {
    const StepTimes::Edge& takes = times.transfers[t];
    const uint32_t route = program.transfers[t].route;
    uint32_t& kind = last[route];
    if (kind == UINT32_MAX || kinds_[kind].occupancy != takes.occupancy ||
        kinds_[kind].lag != takes.lag || kinds_[kind].ahead != takes.ahead) {
      kind = static_cast<uint32_t>(kinds_.size());
      const EdgeRoute& r = program.routes[route];
      kinds_.push_back({takes.occupancy, takes.lag, r.from, r.to, r.link_out,
                        r.link_in, takes.ahead});
      delays_sends_ |= takes.ahead > 0;
    }
    transfers_.push_back({.kind = kind});
  }
  left_.assign(program.fair_links ? count : 0, 0);
  received_.clear();
  starts_.resize(program.task_of_slot.size());
  copies_.resize(program.copies.size());
  ranks_.resize(static_cast<size_t>(program.num_ranks));
  link_free_.resize(static_cast<size_t>(program.num_links));
  int32_t hosts = 0;
  if (!copies_.empty()) {
    for (const int32_t h : program.host_link) hosts = std::max(hosts, h + 1);
  }
  host_free_.resize(static_cast<size_t>(hosts));
}

void StepEngine::GiveOwnKinds() {
  std::vector<TransferKind> own;
  own.reserve(transfers_.size());
  for (TransferState& transfer : transfers_) {
    own.push_back(kinds_[transfer.kind]);
    transfer.kind = static_cast<uint32_t>(own.size() - 1);
  }
  kinds_ = std::move(own);
  own_kinds_ = true;
}

void StepEngine::Reset() {
  if (run_ >= UINT32_MAX - 2 * kPhases) {
    for (TransferState& transfer : transfers_) transfer.stamp = 0;
    run_ = 0;
  }
  run_ += kPhases;
  ranks_.assign(ranks_.size(), RankState());
  link_free_.assign(link_free_.size(), 0);
  host_free_.assign(host_free_.size(), 0);
  if (program_->fair_links) fair_.Reset(program_->num_links);
  queue_.clear();
  stack_.clear();
  ops_done_ = 0;
}

void StepEngine::FinishFlows() {
  const int64_t at = fair_.next();
  flowed_.clear();
  fair_.Finish(&flowed_);
  for (const uint32_t index : flowed_) {
    TransferState& transfer = transfers_[index];
    const TransferKind& kind = kinds_[transfer.kind];
    left_[index] = at;
    transfer.stamp = run_ + kLeft;
    Wake<true>(kind.from, index, at);
    Wake<true>(kind.to, index, at + kind.lag);
  }
}

absl::Status StepEngine::Run(bool in_order) {
  Reset();
  if (program_->order_free && !in_order) {
    for (int32_t r = program_->num_ranks - 1; r >= 0; --r) {
      stack_.push_back({0, r});
    }
    Loop<false, false>();
    return Conclude();
  }
  for (int32_t r = 0; r < program_->num_ranks; ++r) queue_.Push({0, r});
  if (program_->fair_links) {
    Loop<true, true>();
  } else {
    Loop<true, false>();
  }
  return Conclude();
}

absl::Status StepEngine::Conclude() {
  finish_ = 0;
  for (int32_t r = 0; r < program_->num_ranks; ++r) {
    const RankState& rank = ranks_[static_cast<size_t>(r)];
    if (rank.next < program_->ops_of(r).size()) return Deadlock();
    finish_ = std::max({finish_, rank.now, rank.copied});
  }
  return absl::OkStatus();
}

absl::Status StepEngine::Deadlock() const {
  std::string text = "the plan deadlocks:";
  int waiting = 0;
  for (int32_t id = 0; id < program_->num_ranks; ++id) {
    const RankState& rank = ranks_[static_cast<size_t>(id)];
    if (rank.next >= program_->ops_of(id).size()) continue;
    if (++waiting > kMaxRanksShown) continue;
    const auto index = static_cast<uint32_t>(rank.waits_for);
    const EdgeRoute& route = program_->route_of(index);
    const StepOp& op =
        program_->ops[program_->op_begin[static_cast<size_t>(id)] + rank.next];
    absl::StrAppendFormat(
        &text,
        "%s rank %d waits at instruction %d (%s edge %d) for rank %d, which",
        waiting == 1 ? "" : ";", id, rank.next, Word(op.code),
        program_->transfers[index].edge.value(),
        id == route.from ? route.to : route.from);
    const absl::Span<const StepOp> ops = program_->ops_of(id);
    const bool posted = std::any_of(
        ops.begin(), ops.begin() + rank.next, [&](const StepOp& earlier) {
          return earlier.code == OpCode::kRecv && earlier.index == index;
        });
    if (id == route.to && !posted) {
      absl::StrAppend(&text, " may send, but no recv was posted here");
    } else {
      absl::StrAppend(&text, id == route.from ? " has not posted its recv"
                                              : " has not sent it");
    }
  }
  if (waiting > kMaxRanksShown) {
    absl::StrAppendFormat(&text, "; and %d more ranks",
                          waiting - kMaxRanksShown);
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace pipeloom::emulator
