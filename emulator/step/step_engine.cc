#include "emulator/step/step_engine.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "emulator/step/huge_pages.h"
#include "emulator/step/step_engine_inl.h"

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

}  // namespace

void StepEngine::Load(const StepProgram& program, const StepTimes& times) {
  program_ = &program;
  ops_ = program.ops.data();
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
  std::vector<uint32_t> last(program.routes.size(), UINT32_MAX);
  for (size_t t = 0; t < count; ++t) {
    const StepTimes::Edge& takes = times.transfers[t];
    const uint32_t route = program.transfers[t].route;
    uint32_t& kind = last[route];
    if (kind == UINT32_MAX || kinds_[kind].occupancy != takes.occupancy ||
        kinds_[kind].lag != takes.lag) {
      kind = static_cast<uint32_t>(kinds_.size());
      const EdgeRoute& r = program.routes[route];
      kinds_.push_back(
          {takes.occupancy, takes.lag, r.from, r.to, r.link_out, r.link_in});
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
    Wake(kind.from, index, at);
    Wake(kind.to, index, at + kind.lag);
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
    if (++waiting > kMaxRanksShown) continue;
    const auto index = static_cast<uint32_t>(rank.waits_for);
    const EdgeRoute& route = program_->route_of(index);
    const StepOp& op =
        ops_[program_->op_begin[static_cast<size_t>(id)] + rank.next];
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
