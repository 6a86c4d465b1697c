#include "trace/clock_alignment.h"

#include "base/random.h"
#include "gtest/gtest.h"

namespace pipeloom::trace {
namespace {

TEST(AlignClocksTest, FindsOffsetsAndDriftsWithinTheSpreadOfLatencies) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const int32_t ranks = 5;
    std::vector<double> offset(ranks), drift(ranks);
    for (int32_t r = 1; r < ranks; ++r) {
      offset[static_cast<size_t>(r)] =
          static_cast<double>(random.Between(-1'000'000'000, 1'000'000'000));
      drift[static_cast<size_t>(r)] =
          static_cast<double>(random.Between(-100, 100)) * 1e-6;
    }
    // Returns the time that rank r's clock shows at common time t.
    const auto local = [&](int32_t r, int64_t t) {
      const auto i = static_cast<size_t>(r);
      return static_cast<int64_t>(static_cast<double>(t) * (1 + drift[i]) +
                                  offset[i]);
    };
    std::vector<TimedMessage> messages;
    for (int k = 0; k < 400; ++k) {
      const auto r = static_cast<int32_t>(random.Below(ranks - 1));
      const bool back = random.Below(2) == 1;
      const int64_t sent = random.Between(0, 2'000'000'000);
      // 20 us at least, now and then much later.
      const int64_t took =
          20'000 + (random.Below(4) == 0 ? random.Below(50'000'000)
                                         : random.Below(1'000));
      const int32_t from = back ? r + 1 : r;
      const int32_t to = back ? r : r + 1;
      messages.push_back({RankId(from), RankId(to), local(from, sent),
                          local(to, sent + took)});
    }
    const auto fits = AlignClocks(ranks, messages);
    for (int32_t r = 0; r < ranks; ++r) {
      ASSERT_TRUE(fits[RankId(r)].aligned);
      for (const int64_t t :
           {int64_t{0}, int64_t{1'000'000'000}, int64_t{2'000'000'000}}) {
        EXPECT_NEAR(static_cast<double>(fits[RankId(r)].ToCommon(local(r, t))),
                    static_cast<double>(t), 8'000)
            << "rank " << r;
      }
    }
  }
}

TEST(AlignClocksTest, SaysWhichRankNoMessageReaches) {
  const auto fits = AlignClocks(3, {{RankId(0), RankId(1), 10, 30}});
  EXPECT_TRUE(fits[RankId(1)].aligned);
  EXPECT_FALSE(fits[RankId(2)].aligned);
  // One way only: it arrives when it was sent.
  EXPECT_EQ(fits[RankId(1)].ToCommon(30), 10);
}

}  // namespace
}  // namespace pipeloom::trace
