// The engine's loop. To be included by step_engine.cc only.
#ifndef PIPELOOM_EMULATOR_STEP_STEP_ENGINE_INL_H_
#define PIPELOOM_EMULATOR_STEP_STEP_ENGINE_INL_H_

#include <algorithm>

#include "emulator/step/step_engine.h"

namespace pipeloom::emulator {

// Calls watch(event) before each turn of a rank; stops when that returns true.
template <bool kOrdered, bool kFair, typename Watch>
void StepEngine::Loop(Watch&& watch) {
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
        if (watch(event)) return;
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
      ops_ + program_->op_begin[static_cast<size_t>(id)];
  const StepOp* const end =
      ops_ + program_->op_begin[static_cast<size_t>(id) + 1];
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
  const auto reach = [&](uint32_t index) {
    const bool woke = Reach<kFair>(index, now);
    if constexpr (kOrdered) {
      if (woke || kFair) horizon = Horizon<kFair>(id);
    }
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
        reach(index);
        continue;
      case OpCode::kBlockingSend: {
        if (must_yield()) break;
        reach(index);
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
        reach(index);
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

template <bool kFair>
bool StepEngine::Reach(uint32_t index, int64_t at) {
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
  // One of the two ends is being reached, so at most one rank waits.
  return Wake(kind.from, index, left) || Wake(kind.to, index, left + kind.lag);
}

inline bool StepEngine::Wake(int32_t id, uint32_t transfer, int64_t at) {
  RankState& rank = ranks_[static_cast<size_t>(id)];
  if (rank.waits_for != static_cast<int32_t>(transfer)) return false;
  GoOn(&rank, id, at);
  return true;
}

inline void StepEngine::GoOn(RankState* rank, int32_t id, int64_t at) {
  rank->waits_for = -1;
  if (at > rank->now) {
    ++rank->waits;
    rank->now = at;
  }
  ++rank->next;
  ++ops_done_;
  const RankEvent event{rank->now, id};
  if (program_->order_free && !in_order_) {
    stack_.push_back(event);
  } else {
    queue_.Push(event);
  }
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_STEP_STEP_ENGINE_INL_H_
