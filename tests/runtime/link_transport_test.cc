// The conformance suite over links that are copies between threads: everything
// of the nccl transport but NCCL.
#include "runtime/nccl/link_transport.h"

#include <barrier>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/transport_conformance.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;
using ::testing::HasSubstr;

// The objects that all ranks share: notices, and both ends of the links.
struct Wire {
  struct Link {
    int ends = 0;
    std::optional<DeviceLinks::Transfer> out{};
    std::optional<DeviceLinks::Transfer> into{};
    bool told_out = false;  // After a copy, the end that has not asked yet.
    bool told_into = false;
  };
  Mutex mutex{};
  std::map<std::tuple<int32_t, int32_t, uint64_t>, std::string> notices
      ABSL_GUARDED_BY(mutex){};
  std::map<std::string, Link> links ABSL_GUARDED_BY(mutex){};
  int64_t names ABSL_GUARDED_BY(mutex) = 0;
};

class CopyLinks final : public DeviceLinks {
 public:
  explicit CopyLinks(Wire* wire) : wire_(*wire) {}
  ~CopyLinks() override { Abort(); }

  absl::StatusOr<std::string> NewName() override {
    const MutexLock lock(&wire_.mutex);
    return absl::StrCat("link ", wire_.names++);
  }
  absl::StatusOr<int32_t> Open(const std::string& name, bool sends) override {
    const MutexLock lock(&wire_.mutex);
    ++wire_.links[name].ends;
    mine_.push_back({&wire_.links[name], sends});
    return static_cast<int32_t>(mine_.size()) - 1;
  }
  absl::StatusOr<bool> Ready(int32_t link) override {
    const MutexLock lock(&wire_.mutex);
    return At(link).wire->ends == 2;
  }
  absl::Status Start(absl::Span<const Transfer> transfers) override {
    const MutexLock lock(&wire_.mutex);
    for (const Transfer& t : transfers) {
      Mine& mine = At(t.link);
      auto& side = mine.sends ? mine.wire->out : mine.wire->into;
      if (side.has_value()) return absl::InternalError("the link is busy");
      side = t;
    }
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Done(int32_t index) override {
    const MutexLock lock(&wire_.mutex);
    const Mine& mine = At(index);
    Wire::Link& link = *mine.wire;
    auto& side = mine.sends ? link.out : link.into;
    if (!side.has_value()) return absl::InternalError("nothing was started");
    bool& told = mine.sends ? link.told_out : link.told_into;
    if (!told) {
      if (!link.out.has_value() || !link.into.has_value()) return false;
      if (link.told_out || link.told_into) return false;  // The one before.
      if (link.out->out.size() != link.into->into.size()) {
        return absl::InternalError("the ends differ in size");
      }
      std::memcpy(link.into->into.data(), link.out->out.data(),
                  link.out->out.size());
      link.told_out = link.told_into = true;
    }
    told = false;
    side.reset();
    return true;
  }
  void Abort() override {
    const MutexLock lock(&wire_.mutex);
    for (Mine& mine : mine_) {
      (mine.sends ? mine.wire->out : mine.wire->into).reset();
    }
  }

 private:
  struct Mine {
    Wire::Link* wire = nullptr;  // Guarded by the wire's mutex.
    bool sends = false;
  };
  Mine& At(int32_t link) { return mine_.at(static_cast<size_t>(link)); }

  Wire& wire_;
  std::vector<Mine> mine_{};
};

LinkTransport::Notices NoticesOf(Wire* wire, int32_t rank) {
  return {.send =
              [wire, rank](int32_t to, uint64_t topic, std::string bytes) {
                const MutexLock lock(&wire->mutex);
                wire->notices[{rank, to, topic}] = std::move(bytes);
              },
          .receive = [wire, rank](int32_t from, uint64_t topic)
              -> absl::StatusOr<std::optional<std::string>> {
            const MutexLock lock(&wire->mutex);
            const auto found = wire->notices.find({from, rank, topic});
            if (found == wire->notices.end()) return std::nullopt;
            std::string bytes = std::move(found->second);
            wire->notices.erase(found);
            return bytes;
          }};
}

class CopyWorld final : public TransportWorld {
 public:
  void Run(int32_t num_ranks,
           const std::function<void(const RankInTest&)>& body) override {
    Wire wire;
    std::barrier meeting(num_ranks);
    std::vector<std::jthread> threads;
    for (int32_t r = 0; r < num_ranks; ++r) {
      threads.emplace_back([&, r] {
        LinkTransport transport(r, num_ranks,
                                std::make_unique<CopyLinks>(&wire),
                                NoticesOf(&wire, r));
        body({.rank = r, .transport = &transport, .meet = [&meeting] {
                meeting.arrive_and_wait();
              }});
        meeting.arrive_and_drop();
      });
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Links, TransportConformance,
                         ::testing::Values(TransportWorldFactory([] {
                           return std::make_unique<CopyWorld>();
                         })));

TEST(DeviceOfRankTest, OneRankADevice) {
  for (int32_t r = 0; r < 4; ++r) {
    const auto device = DeviceOfRank(r, 4, 8, false);
    ASSERT_THAT(device, IsOk());
    EXPECT_EQ(*device, r);
  }
  EXPECT_THAT(DeviceOfRank(0, 4, 1, false),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("4 ranks on a host with 1 CUDA device: NCCL "
                                  "takes one rank a device")));
  EXPECT_THAT(DeviceOfRank(0, 1, 0, false),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        HasSubstr("there is none")));
  const auto shared = DeviceOfRank(3, 4, 2, true);
  ASSERT_THAT(shared, IsOk());
  EXPECT_EQ(*shared, 1);
}

}  // namespace
}  // namespace pipeloom::runtime
