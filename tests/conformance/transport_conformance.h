// What every Transport must do. A transport's test includes this and says
//   INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance,
//                            ::testing::Values(MakeInproc));
// with a TransportFactory. No claim here depends on how fast anything is;
// waits that must fail have short deadlines, all others have kLong.
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

using TransportFactory =
    std::function<std::unique_ptr<Transport>(int32_t num_ranks)>;

class TransportConformance : public ::testing::TestWithParam<TransportFactory> {
 protected:
  static constexpr auto kLong = std::chrono::seconds(60);
  static constexpr auto kShort = std::chrono::milliseconds(20);

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
};

TEST_P(TransportConformance, BytesArriveWhicheverSideComesFirst) {
  for (const bool send_first : {true, false}) {
    SCOPED_TRACE(send_first ? "send first" : "recv first");
    const auto transport = GetParam()(2);
    const Message m = MakeMessage(3, 0, 1);
    const std::vector<std::byte> data = Pattern(3, 1000);
    std::vector<std::byte> into(1000);
    const auto send = [&] {
      EXPECT_THAT(transport->PostSend(m, WallNow(), data), testing::IsOk());
    };
    if (send_first) send();
    EXPECT_THAT(transport->PostRecv(m, WallNow(), absl::MakeSpan(into)),
                testing::IsOk());
    if (!send_first) send();
    ASSERT_OK_AND_ASSIGN(const TransferTimes received,
                         transport->WaitRecv(m, WallNow() + kLong));
    ExpectInOrder(received);
    EXPECT_EQ(into, data);
    ASSERT_OK_AND_ASSIGN(const TransferTimes sent,
                         transport->WaitSend(m, WallNow() + kLong));
    ExpectInOrder(sent);
  }
}

TEST_P(TransportConformance, OrderOnlyMessagesHaveNoBytes) {
  const auto transport = GetParam()(2);
  const Message m = MakeMessage(0, 1, 0);
  EXPECT_THAT(transport->PostSend(m, WallNow(), {}), testing::IsOk());
  EXPECT_THAT(transport->PostRecv(m, WallNow(), {}), testing::IsOk());
  EXPECT_THAT(transport->WaitRecv(m, WallNow() + kLong), testing::IsOk());
  EXPECT_THAT(transport->WaitSend(m, WallNow() + kLong), testing::IsOk());
}

TEST_P(TransportConformance, MessagesOfAPairKeepTheirOrder) {
  constexpr int32_t kMessages = 300;
  const auto transport = GetParam()(2);
  const auto size = [](int32_t k) { return static_cast<size_t>(k * 37 % 500); };
  std::vector<std::vector<std::byte>> sent;
  for (int32_t k = 0; k < kMessages; ++k) sent.push_back(Pattern(k, size(k)));
  std::jthread sender([&] {
    for (int32_t k = 0; k < kMessages; ++k) {
      EXPECT_THAT(transport->PostSend(MakeMessage(k, 0, 1), WallNow(),
                                      sent[static_cast<size_t>(k)]),
                  testing::IsOk());
    }
    for (int32_t k = 0; k < kMessages; ++k) {
      EXPECT_THAT(transport->WaitSend(MakeMessage(k, 0, 1), WallNow() + kLong),
                  testing::IsOk());
    }
  });
  WallTime last{};
  for (int32_t k = 0; k < kMessages; ++k) {
    std::vector<std::byte> into(size(k));
    const Message m = MakeMessage(k, 0, 1);
    ASSERT_THAT(transport->PostRecv(m, WallNow(), absl::MakeSpan(into)),
                testing::IsOk());
    ASSERT_OK_AND_ASSIGN(const TransferTimes times,
                         transport->WaitRecv(m, WallNow() + kLong));
    EXPECT_GE(times.begin, last);
    last = times.begin;
    EXPECT_EQ(into, sent[static_cast<size_t>(k)]);
  }
}

// Several messages are posted before the first is waited for, and waited for
// in another order.
TEST_P(TransportConformance, WaitsMayComeInAnyOrder) {
  const auto transport = GetParam()(2);
  std::vector<std::vector<std::byte>> into(3, std::vector<std::byte>(8));
  std::vector<std::vector<std::byte>> data;
  for (int32_t k = 0; k < 3; ++k) {
    data.push_back(Pattern(k, 8));
    EXPECT_THAT(transport->PostRecv(MakeMessage(k, 0, 1), WallNow(),
                                    absl::MakeSpan(into[size_t(k)])),
                testing::IsOk());
  }
  for (int32_t k = 0; k < 3; ++k) {
    EXPECT_THAT(
        transport->PostSend(MakeMessage(k, 0, 1), WallNow(), data[size_t(k)]),
        testing::IsOk());
  }
  for (const int32_t k : {2, 0, 1}) {
    EXPECT_THAT(transport->WaitRecv(MakeMessage(k, 0, 1), WallNow() + kLong),
                testing::IsOk());
    EXPECT_THAT(transport->WaitSend(MakeMessage(k, 0, 1), WallNow() + kLong),
                testing::IsOk());
  }
  EXPECT_EQ(into, data);
}

TEST_P(TransportConformance, AllPairsTalkAtOnce) {
  constexpr int32_t kRanks = 4;
  constexpr int32_t kRounds = 40;
  const auto transport = GetParam()(kRanks);
  const auto edge = [](int32_t round, int32_t from, int32_t to) {
    return (round * kRanks + from) * kRanks + to;
  };
  const auto run_rank = [&](int32_t rank) {
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
  };
  std::vector<std::jthread> threads;
  for (int32_t r = 0; r < kRanks; ++r) threads.emplace_back(run_rank, r);
}

TEST_P(TransportConformance, AWaitForAnAbsentPeerEndsAtItsDeadline) {
  const auto transport = GetParam()(2);
  const Message m = MakeMessage(5, 0, 1);
  EXPECT_THAT(transport->PostSend(m, WallNow(), {}), testing::IsOk());
  EXPECT_THAT(transport->WaitSend(m, WallNow() + kShort),
              testing::FailsWith(absl::StatusCode::kDeadlineExceeded,
                                 ::testing::HasSubstr("rank 1")));
  const Message other = MakeMessage(6, 1, 0);
  EXPECT_THAT(transport->PostRecv(other, WallNow(), {}), testing::IsOk());
  EXPECT_THAT(transport->WaitRecv(other, WallNow() + kShort),
              testing::FailsWith(absl::StatusCode::kDeadlineExceeded,
                                 ::testing::HasSubstr("rank 1")));
}

// Both sides hear of it, at the post or at the wait.
TEST_P(TransportConformance, AMismatchFailsBothSides) {
  struct Case {
    const char* name;
    int32_t recv_edge;
    size_t recv_size;
  };
  for (const Case& c :
       {Case{"another edge", 8, 4}, Case{"another size", 7, 5}}) {
    SCOPED_TRACE(c.name);
    const auto transport = GetParam()(2);
    const Message send = MakeMessage(7, 0, 1);
    const Message recv = MakeMessage(c.recv_edge, 0, 1);
    const std::vector<std::byte> data(4);
    std::vector<std::byte> into(c.recv_size);
    absl::Status sender = transport->PostSend(send, WallNow(), data);
    absl::Status receiver =
        transport->PostRecv(recv, WallNow(), absl::MakeSpan(into));
    if (sender.ok()) {
      sender = transport->WaitSend(send, WallNow() + kLong).status();
    }
    if (receiver.ok()) {
      receiver = transport->WaitRecv(recv, WallNow() + kLong).status();
    }
    const auto names_both = testing::FailsWith(
        absl::StatusCode::kFailedPrecondition,
        ::testing::AllOf(::testing::HasSubstr("from rank 0 to rank 1"),
                         ::testing::HasSubstr("edge 7")));
    EXPECT_THAT(sender, names_both);
    EXPECT_THAT(receiver, names_both);
  }
}

TEST_P(TransportConformance, AbortWakesWaitersAndTheFirstReasonStays) {
  const auto transport = GetParam()(2);
  const Message m = MakeMessage(1, 0, 1);
  EXPECT_THAT(transport->PostRecv(m, WallNow(), {}), testing::IsOk());
  absl::Status waited;
  {
    std::jthread waiter(
        [&] { waited = transport->WaitRecv(m, WallNow() + kLong).status(); });
    transport->Abort(absl::UnavailableError("rank 0 is gone"));
  }
  const auto first_reason = testing::FailsWith(
      absl::StatusCode::kUnavailable, ::testing::HasSubstr("rank 0 is gone"));
  EXPECT_THAT(waited, first_reason);
  transport->Abort(absl::InternalError("later"));
  EXPECT_THAT(transport->PostSend(m, WallNow(), {}), first_reason);
  EXPECT_THAT(transport->PostRecv(m, WallNow(), {}), first_reason);
  EXPECT_THAT(transport->WaitRecv(m, WallNow() + kLong), first_reason);
}

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_TESTS_CONFORMANCE_TRANSPORT_CONFORMANCE_H_
