// Tests that every Transport must pass. A transport's test includes this and
// has
//   INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance,
//                            ::testing::Values(MakeInprocWorld));
// with a TransportWorld, which runs the ranks as threads or as processes: each
// test is what the ranks do, so every process of a run executes every test. No
// claim here depends on how fast anything is; waits that must fail have short
// deadlines, all others have kLong.
#ifndef PIPELOOM_TESTS_CONFORMANCE_TRANSPORT_CONFORMANCE_H_
#define PIPELOOM_TESTS_CONFORMANCE_TRANSPORT_CONFORMANCE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/transport.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {

// The objects of one rank in a test.
struct RankInTest {
  int32_t rank = 0;
  Transport* transport = nullptr;
  std::function<void()> meet{};  // Returns when all ranks have come here.
};

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  // Runs the body for every rank, with a new transport between them. REQUIRES:
  // num_ranks <= 4.
  virtual void Run(int32_t num_ranks,
                   const std::function<void(const RankInTest&)>& body) = 0;
};
using TransportWorldFactory = std::function<std::unique_ptr<TransportWorld>()>;

class TransportConformance
    : public ::testing::TestWithParam<TransportWorldFactory> {
 protected:
  static constexpr auto kLong = std::chrono::seconds(60);
  static constexpr auto kShort = std::chrono::milliseconds(20);
  // Too much to leave before its receive is posted.
  static constexpr size_t kLarge = 4 << 20;

  static Message MakeMessage(int32_t edge, int32_t from, int32_t to) {
    return {.edge = EdgeId(edge), .from = RankId(from), .to = RankId(to)};
  }
  static std::vector<std::byte> Pattern(int32_t edge, size_t size) {
    Random random(static_cast<uint64_t>(edge));
    std::vector<std::byte> bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
    return bytes;
  }
  static void ExpectInOrder(const TransferTimes& times) {
    EXPECT_LE(times.begin, times.sent);
    EXPECT_LE(times.begin, times.arrival);
  }
  static void Run(int32_t num_ranks,
                  const std::function<void(const RankInTest&)>& body) {
    GetParam()()->Run(num_ranks, body);
  }
};

TEST_P(TransportConformance, BytesArriveWhicheverSideComesFirst) {
  for (const bool send_first : {true, false}) {
    for (const size_t size : {size_t{1000}, kLarge}) {
      SCOPED_TRACE(send_first ? "send first" : "recv first");
      Run(2, [&](const RankInTest& own) {
        const Message m = MakeMessage(3, 0, 1);
        const std::vector<std::byte> data = Pattern(3, size);
        if (own.rank == 0) {
          if (!send_first) own.meet();
          EXPECT_THAT(own.transport->PostSend(m, WallNow(), data),
                      testing::IsOk());
          if (send_first) own.meet();
          ASSERT_OK_AND_ASSIGN(const TransferTimes sent,
                               own.transport->WaitSend(m, WallNow() + kLong));
          ExpectInOrder(sent);
          return;
        }
        std::vector<std::byte> into(size);
        if (send_first) own.meet();
        EXPECT_THAT(own.transport->PostRecv(m, WallNow(), absl::MakeSpan(into)),
                    testing::IsOk());
        if (!send_first) own.meet();
        ASSERT_OK_AND_ASSIGN(const TransferTimes received,
                             own.transport->WaitRecv(m, WallNow() + kLong));
        ExpectInOrder(received);
        EXPECT_EQ(into, data);
      });
    }
  }
}

TEST_P(TransportConformance, OrderOnlyMessagesHaveNoBytes) {
  Run(2, [](const RankInTest& own) {
    const Message m = MakeMessage(0, 1, 0);
    if (own.rank == 1) {
      EXPECT_THAT(own.transport->PostSend(m, WallNow(), {}), testing::IsOk());
      EXPECT_THAT(own.transport->WaitSend(m, WallNow() + kLong),
                  testing::IsOk());
    } else {
      EXPECT_THAT(own.transport->PostRecv(m, WallNow(), {}), testing::IsOk());
      EXPECT_THAT(own.transport->WaitRecv(m, WallNow() + kLong),
                  testing::IsOk());
    }
  });
}

TEST_P(TransportConformance, MessagesOfAPairKeepTheirOrder) {
  constexpr int32_t kMessages = 300;
  const auto size = [](int32_t k) { return static_cast<size_t>(k * 37 % 500); };
  Run(2, [&](const RankInTest& own) {
    if (own.rank == 0) {
      std::vector<std::vector<std::byte>> sent;
      for (int32_t k = 0; k < kMessages; ++k) {
        sent.push_back(Pattern(k, size(k)));
      }
      for (int32_t k = 0; k < kMessages; ++k) {
        EXPECT_THAT(own.transport->PostSend(MakeMessage(k, 0, 1), WallNow(),
                                            sent[static_cast<size_t>(k)]),
                    testing::IsOk());
      }
      for (int32_t k = 0; k < kMessages; ++k) {
        EXPECT_THAT(
            own.transport->WaitSend(MakeMessage(k, 0, 1), WallNow() + kLong),
            testing::IsOk());
      }
      return;
    }
    WallTime last{};
    for (int32_t k = 0; k < kMessages; ++k) {
      std::vector<std::byte> into(size(k));
      const Message m = MakeMessage(k, 0, 1);
      ASSERT_THAT(own.transport->PostRecv(m, WallNow(), absl::MakeSpan(into)),
                  testing::IsOk());
      ASSERT_OK_AND_ASSIGN(const TransferTimes times,
                           own.transport->WaitRecv(m, WallNow() + kLong));
      EXPECT_GE(times.begin, last);
      last = times.begin;
      EXPECT_EQ(into, Pattern(k, size(k)));
    }
  });
}

// Several messages are posted before the first is waited for, and waited for
// in another order.
TEST_P(TransportConformance, WaitsMayComeInAnyOrder) {
  Run(2, [](const RankInTest& own) {
    std::vector<std::vector<std::byte>> bytes(3, std::vector<std::byte>(8));
    for (int32_t k = 0; k < 3; ++k) {
      const Message m = MakeMessage(k, 0, 1);
      std::vector<std::byte>& one = bytes[size_t(k)];
      if (own.rank == 0) {
        one = Pattern(k, 8);
        EXPECT_THAT(own.transport->PostSend(m, WallNow(), one),
                    testing::IsOk());
      } else {
        EXPECT_THAT(own.transport->PostRecv(m, WallNow(), absl::MakeSpan(one)),
                    testing::IsOk());
      }
    }
    for (const int32_t k : {2, 0, 1}) {
      const Message m = MakeMessage(k, 0, 1);
      const WallTime until = WallNow() + kLong;
      EXPECT_THAT(own.rank == 0 ? own.transport->WaitSend(m, until)
                                : own.transport->WaitRecv(m, until),
                  testing::IsOk());
    }
    for (int32_t k = 0; k < 3; ++k) EXPECT_EQ(bytes[size_t(k)], Pattern(k, 8));
  });
}

TEST_P(TransportConformance, AllPairsTalkAtOnce) {
  constexpr int32_t kRanks = 4;
  constexpr int32_t kRounds = 40;
  const auto edge = [](int32_t round, int32_t from, int32_t to) {
    return (round * kRanks + from) * kRanks + to;
  };
  Run(kRanks, [&](const RankInTest& own) {
    const int32_t rank = own.rank;
    Transport* transport = own.transport;
    for (int32_t round = 0; round < kRounds; ++round) {
      std::vector<std::vector<std::byte>> into(kRanks,
                                               std::vector<std::byte>(16));
      std::vector<std::vector<std::byte>> data(kRanks);
      for (int32_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        data[size_t(peer)] = Pattern(edge(round, rank, peer), 16);
        EXPECT_THAT(transport->PostRecv(
                        MakeMessage(edge(round, peer, rank), peer, rank),
                        WallNow(), absl::MakeSpan(into[size_t(peer)])),
                    testing::IsOk());
        EXPECT_THAT(transport->PostSend(
                        MakeMessage(edge(round, rank, peer), rank, peer),
                        WallNow(), data[size_t(peer)]),
                    testing::IsOk());
      }
      for (int32_t peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        const int32_t in = edge(round, peer, rank);
        EXPECT_THAT(
            transport->WaitRecv(MakeMessage(in, peer, rank), WallNow() + kLong),
            testing::IsOk());
        EXPECT_EQ(into[size_t(peer)], Pattern(in, 16));
        EXPECT_THAT(transport->WaitSend(
                        MakeMessage(edge(round, rank, peer), rank, peer),
                        WallNow() + kLong),
                    testing::IsOk());
      }
    }
  });
}

TEST_P(TransportConformance, AWaitForAnAbsentPeerEndsAtItsDeadline) {
  Run(2, [](const RankInTest& own) {
    const std::vector<std::byte> data(kLarge);
    if (own.rank == 0) {
      const Message m = MakeMessage(5, 0, 1);
      EXPECT_THAT(own.transport->PostSend(m, WallNow(), data), testing::IsOk());
      EXPECT_THAT(own.transport->WaitSend(m, WallNow() + kShort),
                  testing::FailsWith(absl::StatusCode::kDeadlineExceeded,
                                     ::testing::HasSubstr("rank 1")));
      const Message other = MakeMessage(6, 1, 0);
      EXPECT_THAT(own.transport->PostRecv(other, WallNow(), {}),
                  testing::IsOk());
      EXPECT_THAT(own.transport->WaitRecv(other, WallNow() + kShort),
                  testing::FailsWith(absl::StatusCode::kDeadlineExceeded,
                                     ::testing::HasSubstr("rank 1")));
    }
    own.meet();
  });
}

// Both sides hear of it: at the post, at the wait, or, as a small message may
// be away by then, at the next wait.
TEST_P(TransportConformance, AMismatchFailsBothSides) {
  struct Case {
    const char* name;
    int32_t recv_edge;
    size_t recv_size;
  };
  for (const Case& c : {Case{"another edge", 8, 4}, Case{"larger", 7, 3},
                        Case{"smaller", 7, 5}}) {
    SCOPED_TRACE(c.name);
    Run(2, [&](const RankInTest& own) {
      const Message send = MakeMessage(7, 0, 1);
      const Message recv = MakeMessage(c.recv_edge, 0, 1);
      const Message next = MakeMessage(9, 1, 0);
      const std::vector<std::byte> data(4);
      std::vector<std::byte> into(c.recv_size);
      absl::Status status;
      if (own.rank == 0) {
        status = own.transport->PostSend(send, WallNow(), data);
        if (status.ok()) {
          status = own.transport->WaitSend(send, WallNow() + kLong).status();
        }
        if (status.ok()) status = own.transport->PostRecv(next, WallNow(), {});
        if (status.ok()) {
          status = own.transport->WaitRecv(next, WallNow() + kLong).status();
        }
      } else {
        status = own.transport->PostRecv(recv, WallNow(), absl::MakeSpan(into));
        if (status.ok()) {
          status = own.transport->WaitRecv(recv, WallNow() + kLong).status();
        }
      }
      EXPECT_THAT(status, testing::FailsWith(
                              absl::StatusCode::kFailedPrecondition,
                              ::testing::AllOf(
                                  ::testing::HasSubstr("from rank 0 to rank 1"),
                                  ::testing::HasSubstr("edge 7"))));
      own.meet();
    });
  }
}

TEST_P(TransportConformance, AbortWakesWaitersAndTheFirstReasonStays) {
  Run(2, [](const RankInTest& own) {
    if (own.rank == 1) {
      const Message m = MakeMessage(1, 0, 1);
      EXPECT_THAT(own.transport->PostRecv(m, WallNow(), {}), testing::IsOk());
      const auto first_reason =
          testing::FailsWith(absl::StatusCode::kUnavailable,
                             ::testing::HasSubstr("rank 0 is gone"));
      {
        const std::jthread aborter([&] {
          own.transport->Abort(absl::UnavailableError("rank 0 is gone"));
        });
        EXPECT_THAT(own.transport->WaitRecv(m, WallNow() + kLong),
                    first_reason);
      }
      own.transport->Abort(absl::InternalError("later"));
      EXPECT_THAT(own.transport->PostSend(m, WallNow(), {}), first_reason);
      EXPECT_THAT(own.transport->PostRecv(m, WallNow(), {}), first_reason);
      EXPECT_THAT(own.transport->WaitRecv(m, WallNow() + kLong), first_reason);
    }
    own.meet();
  });
}

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_CONFORMANCE_TRANSPORT_CONFORMANCE_H_
