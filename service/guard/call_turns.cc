#include "service/guard/call_turns.h"

#include <algorithm>

namespace pipeloom::service {
namespace {

constexpr size_t kKept = 4096;  // Bytes of memory of an idle connection.

}  // namespace

bool CallTurns::Take(Waiter* waiter) {
  if (waiting_.empty() && taken_ < limits_.calls) {
    ++taken_;
    passed_.push_back(waiter);
    return true;
  }
  waiting_.push_back(waiter);
  return false;
}

void CallTurns::Answered() { taken_ = std::max<int64_t>(0, taken_ - 1); }

void CallTurns::Leave(const Waiter* waiter) {
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), waiter),
                 waiting_.end());
  passed_.erase(std::remove(passed_.begin(), passed_.end(), waiter),
                passed_.end());
}

bool CallTurns::IsServerBehind() const {
  // All of them, as the server may have a reason not to read one connection.
  return !passed_.empty() &&
         std::all_of(passed_.begin(), passed_.end(),
                     [](const Waiter* each) { return each->IsUnread(); });
}

void CallTurns::Advance(Clock::time_point now) {
  const auto elapsed = now - since_;
  if (elapsed >= limits_.time &&
      (elapsed >= limits_.longest || !IsServerBehind())) {
    since_ = now;
    taken_ = 0;
    passed_.clear();
  }
  while (taken_ < limits_.calls && !waiting_.empty()) {
    Waiter* const waiter = waiting_.front();
    waiting_.pop_front();
    ++taken_;
    passed_.push_back(waiter);
    waiter->PassCall();
  }
}

void HeldCalls::Add(absl::string_view bytes, const FrameWalker& walker) {
  bytes_.erase(0, used_);
  used_ = 0;
  const int64_t begin = passed_ + static_cast<int64_t>(bytes_.size());
  bytes_.append(bytes.data(), bytes.size());
  incomplete_ = walker.incomplete_bytes();
  for (const FrameWalker::Call& call : walker.calls()) {
    marks_.push_back({.at = begin + call.at, .stream = call.stream});
  }
  for (const uint32_t stream : walker.resets()) {
    for (Mark& mark : marks_) mark.ended |= mark.stream == stream;
  }
}

absl::string_view HeldCalls::Ready() const {
  const absl::string_view all = absl::string_view(bytes_).substr(used_);
  if (marks_.empty()) return all.substr(0, all.size() - incomplete_);
  return all.substr(0, static_cast<size_t>(marks_.front().at - passed_));
}

void HeldCalls::Passed(size_t count) {
  used_ += count;
  passed_ += static_cast<int64_t>(count);
  if (used_ < bytes_.size()) return;
  used_ = 0;
  // A connection without calls keeps little.
  if (bytes_.capacity() > kKept) bytes_ = std::string();
  bytes_.clear();
}

void HeldCalls::Begin(bool took_turn) {
  if (!marks_.front().ended) open_[marks_.front().stream] = took_turn;
  marks_.pop_front();
}

bool HeldCalls::End(uint32_t stream) {
  const auto found = open_.find(stream);
  if (found == open_.end()) return false;
  const bool took_turn = found->second;
  open_.erase(found);
  return took_turn;
}

void HeldCalls::Clear() {
  bytes_ = std::string();
  used_ = 0;
  marks_.clear();
  incomplete_ = 0;
}

}  // namespace pipeloom::service
