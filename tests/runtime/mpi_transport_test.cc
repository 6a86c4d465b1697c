// The conformance suite over MPI. Every process of the run executes every test;
// `mpirun -n 4` starts them.
#include "runtime/mpi/mpi_transport.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/mpi/mpi_world.h"
#include "runtime/process/control_mesh.h"
#include "tests/conformance/transport_conformance.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

MpiWorld* world = nullptr;

class MpiTestWorld final : public TransportWorld {
 public:
  explicit MpiTestWorld(bool keep_time) : keep_time_(keep_time) {}

  void Run(int32_t num_ranks,
           const std::function<void(const RankInTest&)>& body) override {
    auto mesh =
        ControlMesh::Create({.rank = world->rank(), .size = world->size()});
    ASSERT_THAT(mesh, testing::IsOk());
    ASSERT_THAT((*mesh)->Connect(world->AllGather((*mesh)->address()),
                                 WallNow() + std::chrono::seconds(20)),
                testing::IsOk());
    ControlMesh* const others = mesh->get();
    {
      MpiTransport transport(
          world, {.keep_time = keep_time_,
                  .tell_others = [others](const absl::Status& status) {
                    others->Fail(status);
                  }});
      others->SetCallbacks(
          {.on_failure = [&](const absl::Status& reason, bool) {
            transport.Abort(reason);
          }});
      if (world->rank() < num_ranks) {
        body({.rank = world->rank(), .transport = &transport, .meet = [] {
                world->AllGather("meet");
              }});
        world->AllGather("done");
      } else {
        // Comes to the others' meetings.
        while (world->AllGather("")[0] != "done") {
        }
      }
      others->SetCallbacks({});
      // Fails where a test has made the run fail.
      static_cast<void>(others->Close(WallNow() + std::chrono::seconds(20)));
    }
  }

 private:
  bool keep_time_;
};

TransportWorldFactory MakeMpi(bool keep_time) {
  return [keep_time] { return std::make_unique<MpiTestWorld>(keep_time); };
}

INSTANTIATE_TEST_SUITE_P(Timed, TransportConformance,
                         ::testing::Values(MakeMpi(true)));
INSTANTIATE_TEST_SUITE_P(Plain, TransportConformance,
                         ::testing::Values(MakeMpi(false)));

TEST(MpiWorldTest, EveryRankHearsEveryone) {
  const std::vector<std::string> all =
      world->AllGather(std::string(static_cast<size_t>(world->rank()), 'x'));
  ASSERT_EQ(static_cast<int32_t>(all.size()), world->size());
  for (size_t r = 0; r < all.size(); ++r) EXPECT_EQ(all[r].size(), r);
}

}  // namespace
}  // namespace pipeloom::runtime

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  auto started = pipeloom::runtime::MpiWorld::Start();
  if (!started.ok()) return 1;
  pipeloom::runtime::world = started->get();
  const int code = RUN_ALL_TESTS();
  (*started)->Finalize(std::chrono::seconds(20), [] { std::_Exit(1); });
  return code;
}
