// Turns of the clients' calls, so that a client with many calls does not delay
// a client with one.
//
// gRPC takes calls in the order of their bytes: 20 calls that one client sends
// at once are answered before the call of the next. Here, a connection's call
// passes at once while the connection has no other that is not answered. The
// others wait outside gRPC, and take turns by connection: a few of all
// connections are with the server at a time. A call that waits in the server
// for something, such as a plan, gives its place free after a short time, but
// not while the server is behind and has not even read such calls: those that
// pass then would only wait inside it, ahead of other clients' first calls.
#ifndef PIPELOOM_SERVICE_GUARD_CALL_TURNS_H_
#define PIPELOOM_SERVICE_GUARD_CALL_TURNS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "service/guard/frame_walker.h"

namespace pipeloom::service {

struct TurnLimits {
  // Calls of all connections that are not their connection's first.
  int64_t calls = 4;
  // After this time, as many more pass, answered or not.
  std::chrono::microseconds time{2000};
  // The same while the server has read none of those that passed before.
  std::chrono::microseconds longest{100'000};
};

// The turns of all connections. Threads: one at a time.
class CallTurns {
 public:
  using Clock = FrameWalker::Clock;

  // A connection with a call that waits.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // Passes the call; the waiter may ask for another turn at once.
    virtual void PassCall() = 0;
    // Whether the server has still to read bytes of its calls.
    virtual bool IsUnread() const = 0;
  };

  explicit CallTurns(const TurnLimits& limits) : limits_(limits) {}

  // Returns whether a further call may pass now. If not, the waiter's turn
  // comes. REQUIRES: the waiter does not wait already, and calls Leave before
  // it is destroyed.
  bool Take(Waiter* waiter);
  // A call that took a turn is answered.
  void Answered();
  // Forgets a connection, whether it waits or has taken turns.
  void Leave(const Waiter* waiter);
  // Gives turns to those that wait.
  void Advance(Clock::time_point now);

  bool any_waits() const { return !waiting_.empty(); }

 private:
  bool IsServerBehind() const;

  const TurnLimits limits_;
  int64_t taken_ = 0;  // Since `since_`, less those that are answered.
  Clock::time_point since_{};
  std::deque<Waiter*> waiting_{};
  std::vector<const Waiter*> passed_{};  // Those that took turns since then.
};

// The calls of one connection, and its bytes that have not passed.
class HeldCalls {
 public:
  // Adds the bytes that the client's walker has just walked.
  void Add(absl::string_view bytes, const FrameWalker& walker);
  // Returns the bytes that may pass now: up to the next call, and none of a
  // frame's header that is not complete.
  absl::string_view Ready() const;
  // Removes the first of these bytes, which have passed.
  void Passed(size_t count);
  // Whether a call waits at the front.
  bool waits() const { return !marks_.empty() && marks_.front().at == passed_; }
  // Lets it pass. REQUIRES: `waits`.
  void Begin(bool took_turn);
  // Notes that the server or the client ended a call that has begun. Returns
  // whether it had taken a turn.
  bool End(uint32_t stream);
  // Forgets the bytes.
  void Clear();

  // Calls that passed and are not answered.
  size_t open() const { return open_.size(); }

 private:
  struct Mark {
    int64_t at = 0;  // Counted in the client's bytes.
    uint32_t stream = 0;
    bool ended = false;  // The client gave it up before it began.
  };

  std::string bytes_{};
  size_t used_ = 0;        // Bytes of these that have passed.
  int64_t passed_ = 0;     // All bytes that have.
  size_t incomplete_ = 0;  // Bytes at the end, of a frame's header.
  std::deque<Mark> marks_{};
  absl::flat_hash_map<uint32_t, bool> open_{};  // Whether it took a turn.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_CALL_TURNS_H_
