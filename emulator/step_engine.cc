#include "emulator/step_engine.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "emulator/step_engine_inl.h"

namespace pipeloom::emulator {
namespace {

constexpr int kMostRanksShown = 8;
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

}  // namespace

StepEngine::StepEngine(const StepProgram& program, const StepTimes& times)
    : program_(&program),
      ops_(program.ops.data()),
      durations_(times.durations),
      copy_times_(times.copies),
      epilogues_(times.epilogues),
      transfers_(program.edges.size()),
      starts_(program.task_of_slot.size()),
      copies_(program.copies.size()),
      ranks_(static_cast<size_t>(program.num_ranks)),
      link_free_(static_cast<size_t>(program.num_links)) {
  if (!program.guards.empty()) local_lags_.resize(program.edges.size());
  for (size_t e = 0; e < transfers_.size(); ++e) {
    TransferState& transfer = transfers_[e];
    const EdgeRoute& route = program.edges[e];
    transfer.from = route.from;
    transfer.to = route.to;
    transfer.link_out = route.link_out;
    transfer.link_in = route.link_in;
    transfer.occupancy = times.edges[e].occupancy;
    transfer.lag = times.edges[e].lag;
    // Inside a rank nothing occupies a link: the whole delay is lag.
    if (!local_lags_.empty()) {
      local_lags_[e] = times.edges[e].occupancy + times.edges[e].lag;
    }
  }
  int32_t hosts = 0;
  if (!copies_.empty()) {
    for (const int32_t h : program.host_link) hosts = std::max(hosts, h + 1);
  }
  host_free_.resize(static_cast<size_t>(hosts));
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
  for (const uint32_t edge : flowed_) {
    TransferState& transfer = transfers_[edge];
    transfer.left = at;
    transfer.stamp = run_ + kLeft;
    Wake(transfer.from, edge, at);
    Wake(transfer.to, edge, at + transfer.lag);
  }
}

absl::Status StepEngine::Run(bool in_order) {
  Reset();
  in_order_ = in_order;
  const auto never = [](const RankEvent&) { return false; };
  if (program_->order_free && !in_order) {
    for (int32_t r = program_->num_ranks - 1; r >= 0; --r) {
      stack_.push_back({0, r});
    }
    Loop<false, false>(never);
    return Conclude();
  }
  for (int32_t r = 0; r < program_->num_ranks; ++r) queue_.Push({0, r});
  if (program_->fair_links) {
    Loop<true, true>(never);
  } else {
    Loop<true, false>(never);
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
    if (++waiting > kMostRanksShown) continue;
    const auto edge = static_cast<size_t>(rank.waits_for);
    const TransferState& transfer = transfers_[edge];
    const StepOp& op =
        ops_[program_->op_begin[static_cast<size_t>(id)] + rank.next];
    absl::StrAppendFormat(
        &text,
        "%s rank %d waits at instruction %d (%s edge %d) for rank %d, which",
        waiting == 1 ? "" : ";", id, rank.next, Word(op.code), rank.waits_for,
        id == transfer.from ? transfer.to : transfer.from);
    const absl::Span<const StepOp> ops = program_->ops_of(id);
    const bool posted = std::any_of(
        ops.begin(), ops.begin() + rank.next, [&](const StepOp& earlier) {
          return earlier.code == OpCode::kRecv && earlier.index == edge;
        });
    if (id == transfer.to && !posted) {
      absl::StrAppend(&text, " may send, but no recv was posted here");
    } else {
      absl::StrAppend(&text, id == transfer.from ? " has not posted its recv"
                                                 : " has not sent it");
    }
  }
  if (waiting > kMostRanksShown) {
    absl::StrAppendFormat(&text, "; and %d more ranks",
                          waiting - kMostRanksShown);
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace pipeloom::emulator
