// A client with many calls at once, and the calls of others.
#include "service/guard/call_turns.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "service/guard/frame_walker.h"
#include "tests/service/bare_guard.h"
#include "tests/service/guarded_rpc.h"
#include "tests/service/rpc_by_hand.h"

namespace pipeloom::testing {
namespace {

using service::CallTurns;
using service::FrameWalker;
using service::HeldCalls;

constexpr char kEndOfCall = 5;  // END_STREAM and END_HEADERS.

char StreamOf(int call) { return static_cast<char>(2 * call + 1); }

std::string Call(int call) {
  return BeginCall("/a.B/Echo", StreamOf(call)) + Request("x", StreamOf(call));
}

// A client's socket, and its server's end.
class Pair {
 public:
  Pair(BareGuard* bare, int calls) {
    client_ = Connect(bare->guard->port());
    std::string bytes = Preface();
    for (int c = 0; c < calls; ++c) bytes += Call(c);
    const size_t before = bare->taken.Count();
    Send(client_, bytes);
    Eventually([&] { return bare->taken.Count() > before; });
    server_ = bare->taken.Last();
  }
  ~Pair() {
    close(client_);
    close(server_);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  // Waits until the server has got so many calls; says whether it has no more.
  bool Gets(int calls) {
    Eventually([&] {
      ReadServer(10);
      return calls_ >= calls;
    });
    ReadServer(50);
    return calls_ == calls;
  }
  // The calls that the server could read.
  int Waiting() const {
    char buffer[65536];
    const ssize_t got = recv(server_, buffer, sizeof(buffer), MSG_PEEK);
    FrameWalker walker({}, {});
    if (got > 0) walker.Walk({buffer, static_cast<size_t>(got)}, {});
    return static_cast<int>(walker.calls().size());
  }
  // The server answers a call with trailers alone.
  void Answer(int call) {
    Send(server_, Frame(1, kEndOfCall, "", StreamOf(call)));
  }
  void Reset(int call) {
    Send(client_, Frame(3, 0, std::string(4, 0), StreamOf(call)));
  }

 private:
  static void Send(int fd, const std::string& bytes) {
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void ReadServer(int most_ms) {
    pollfd ready = {server_, POLLIN, 0};
    char buffer[65536];
    while (poll(&ready, 1, most_ms) > 0) {
      const ssize_t got = recv(server_, buffer, sizeof(buffer), 0);
      if (got <= 0) return;
      walker_.Walk({buffer, static_cast<size_t>(got)}, {});
      calls_ += static_cast<int>(walker_.calls().size());
    }
  }

  int client_ = -1;
  int server_ = -1;
  FrameWalker walker_{{}, {}};
  int calls_ = 0;
};

service::GuardLimits TwoTurns(std::chrono::microseconds time) {
  service::GuardLimits limits;
  limits.turns = {.calls = 2, .time = time};
  return limits;
}

TEST(CallTurnsTest, CallsTakeTurnsByConnection) {
  BareGuard bare(TwoTurns(std::chrono::hours(1)));
  Pair many(&bare, 10);
  EXPECT_TRUE(many.Gets(3));
  // The first call of another connection waits for nothing.
  Pair one(&bare, 1);
  EXPECT_TRUE(one.Gets(1));
  Pair some(&bare, 4);
  EXPECT_TRUE(some.Gets(1));
  // The first call took no turn, the others did.
  many.Answer(0);
  EXPECT_TRUE(many.Gets(3));
  many.Answer(1);
  EXPECT_TRUE(many.Gets(4));
  EXPECT_TRUE(some.Gets(1));
  many.Answer(2);
  EXPECT_TRUE(some.Gets(2));
  EXPECT_TRUE(many.Gets(4));
}

TEST(CallTurnsTest, AServerThatIsBehindGetsNoFurtherCalls) {
  service::GuardLimits limits = TwoTurns(milliseconds(1));
  limits.turns.longest = std::chrono::hours(1);
  BareGuard bare(limits);
  Pair many(&bare, 10);
  EXPECT_TRUE(Eventually([&] { return many.Waiting() == 3; }));
  Pair some(&bare, 4);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(many.Waiting(), 3);
  EXPECT_EQ(some.Waiting(), 1);
  EXPECT_TRUE(many.Gets(10));
  EXPECT_TRUE(some.Gets(4));
}

TEST(CallTurnsTest, AServerThatReadsNothingGetsThemLater) {
  service::GuardLimits limits = TwoTurns(milliseconds(1));
  limits.turns.longest = milliseconds(20);
  BareGuard bare(limits);
  Pair many(&bare, 10);
  EXPECT_TRUE(Eventually([&] { return many.Waiting() == 10; }));
}

TEST(CallTurnsTest, AConnectionThatEndsHoldsUpNoTurns) {
  service::GuardLimits limits = TwoTurns(milliseconds(1));
  limits.turns.longest = std::chrono::hours(1);
  BareGuard bare(limits);
  Pair some(&bare, 1);
  {
    Pair many(&bare, 10);
    EXPECT_TRUE(Eventually([&] { return many.Waiting() == 3; }));
  }
  Pair others(&bare, 3);
  EXPECT_TRUE(others.Gets(3));
}

TEST(CallTurnsTest, ACallThatIsGivenUpGivesItsPlaceFree) {
  BareGuard bare(TwoTurns(std::chrono::hours(1)));
  Pair some(&bare, 3);
  EXPECT_TRUE(some.Gets(3));
  Pair others(&bare, 3);
  EXPECT_TRUE(others.Gets(1));
  some.Reset(1);
  EXPECT_TRUE(others.Gets(2));
  // One that is given up before it began passes with its end, and is not open
  // after that.
  others.Reset(2);
  some.Reset(2);
  EXPECT_TRUE(others.Gets(3));
}

TEST(CallTurnsTest, CallsThatAreNotAnsweredHoldUpOthersForAShortTime) {
  BareGuard bare(TwoTurns(std::chrono::milliseconds(1)));
  Pair many(&bare, 60);
  EXPECT_TRUE(many.Gets(60));
  Pair others(&bare, 20);
  EXPECT_TRUE(others.Gets(20));
}

TEST(CallTurnsTest, AConnectionThatEndsLeavesItsPlaceInTheLine) {
  BareGuard bare(TwoTurns(std::chrono::hours(1)));
  Pair first(&bare, 3);
  EXPECT_TRUE(first.Gets(3));
  Pair second(&bare, 2);
  EXPECT_TRUE(second.Gets(1));
  { const Pair gone(&bare, 2); }
  Pair third(&bare, 2);
  EXPECT_TRUE(third.Gets(1));
  EXPECT_TRUE(Eventually([&] { return bare.guard->connections() <= 4; }));
  first.Answer(1);
  EXPECT_TRUE(second.Gets(2));
  first.Answer(2);
  // The one that is gone takes no turn, or a turn that is lost with it.
  second.Answer(1);
  EXPECT_TRUE(third.Gets(2));
}

TEST(HeldCallsTest, BytesPassUnchangedUpToTheNextCall) {
  std::string bytes = Preface();
  for (int c = 0; c < 20; ++c) bytes += Call(c) + Frame(6, 0, "12345678", 0);
  for (size_t piece = 1; piece < 200; ++piece) {
    FrameWalker walker({}, {});
    HeldCalls held;
    std::string passed;
    int begun = 0;
    for (size_t at = 0; at < bytes.size(); at += piece) {
      const auto now = absl::string_view(bytes).substr(at, piece);
      ASSERT_EQ(walker.Walk(now, {}), "");
      held.Add(now, walker);
      while (true) {
        const absl::string_view ready = held.Ready();
        passed.append(ready.data(), ready.size());
        held.Passed(ready.size());
        if (!held.waits()) break;
        // All before the call has passed, and nothing of it.
        ASSERT_EQ(passed.substr(passed.size() - 17 * (begun > 0)),
                  begun > 0 ? Frame(6, 0, "12345678", 0) : "");
        held.Begin(begun > 0);
        ++begun;
      }
    }
    EXPECT_EQ(passed, bytes) << piece;
    EXPECT_EQ(begun, 20);
    EXPECT_EQ(held.open(), 20u);
    EXPECT_FALSE(held.End(1));
    EXPECT_TRUE(held.End(3));
    EXPECT_FALSE(held.End(3));
    EXPECT_EQ(held.open(), 18u);
  }
}

}  // namespace
}  // namespace pipeloom::testing
