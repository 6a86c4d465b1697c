#include "runtime/inproc_transport.h"

#include <barrier>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/transport_conformance.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::IsOk;

class InprocWorld final : public TransportWorld {
 public:
  explicit InprocWorld(double time_scale) : time_scale_(time_scale) {}

  void Run(int32_t num_ranks,
           const std::function<void(const RankInTest&)>& body) override {
    InprocTransport transport(num_ranks, time_scale_);
    std::barrier meeting(num_ranks);
    std::vector<std::jthread> threads;
    for (int32_t r = 0; r < num_ranks; ++r) {
      threads.emplace_back([&, r] {
        body({.rank = r, .transport = &transport, .meet = [&meeting] {
                meeting.arrive_and_wait();
              }});
        meeting.arrive_and_drop();
      });
    }
  }

 private:
  double time_scale_;
};

TransportWorldFactory MakeInproc(double time_scale) {
  return [time_scale] { return std::make_unique<InprocWorld>(time_scale); };
}

INSTANTIATE_TEST_SUITE_P(Inproc, TransportConformance,
                         ::testing::Values(MakeInproc(1), MakeInproc(0.01)));

constexpr auto kLong = std::chrono::seconds(60);

// Times are stamps, not sleeps, so they can be checked exactly.
TEST(InprocTransportTest, ATransferBeginsWhenBothSidesAndTheChannelAreReady) {
  InprocTransport transport(2, /*time_scale=*/2);
  const WallTime t0 = WallNow();
  const auto ms = [](int64_t n) { return std::chrono::milliseconds(n); };
  struct Case {
    const char* name;
    WallDuration sent_at, received_at;
    WallDuration begin, sent, arrival;
  };
  // Occupancy 3 ms and delay 5 ms of plan time, doubled by the scale.
  const Case cases[] = {
      {"the receiver is last", ms(0), ms(4), ms(4), ms(10), ms(14)},
      {"the channel is busy", ms(5), ms(5), ms(10), ms(16), ms(20)},
      {"the sender is last", ms(30), ms(20), ms(30), ms(36), ms(40)},
  };
  int32_t edge = 0;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Message m{.edge = EdgeId(edge++),
                    .from = RankId(0),
                    .to = RankId(1),
                    .delay = Milliseconds(5),
                    .occupancy = Milliseconds(3)};
    ASSERT_THAT(transport.PostSend(m, t0 + c.sent_at, {}), IsOk());
    ASSERT_THAT(transport.PostRecv(m, t0 + c.received_at, {}), IsOk());
    ASSERT_OK_AND_ASSIGN(const TransferTimes sent,
                         transport.WaitSend(m, WallNow() + kLong));
    ASSERT_OK_AND_ASSIGN(const TransferTimes received,
                         transport.WaitRecv(m, WallNow() + kLong));
    for (const TransferTimes& t : {sent, received}) {
      EXPECT_EQ(t.begin - t0, c.begin);
      EXPECT_EQ(t.sent - t0, c.sent);
      EXPECT_EQ(t.arrival - t0, c.arrival);
    }
  }
}

TEST(InprocTransportTest, OppositeDirectionsDoNotShareAChannel) {
  InprocTransport transport(2, 1);
  const WallTime t0 = WallNow();
  for (const int32_t from : {0, 1}) {
    const Message m{.edge = EdgeId(from),
                    .from = RankId(from),
                    .to = RankId(1 - from),
                    .delay = Milliseconds(5),
                    .occupancy = Milliseconds(5)};
    ASSERT_THAT(transport.PostSend(m, t0, {}), IsOk());
    ASSERT_THAT(transport.PostRecv(m, t0, {}), IsOk());
    ASSERT_OK_AND_ASSIGN(const TransferTimes times,
                         transport.WaitRecv(m, WallNow() + kLong));
    EXPECT_EQ(times.begin, t0);
  }
}

}  // namespace
}  // namespace pipeloom::runtime
