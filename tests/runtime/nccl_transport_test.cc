// The conformance suite over NCCL, one GPU a rank. Every process of the run
// executes every test; `mpirun -n 4` starts them. Tests that need more ranks
// than there are GPUs are skipped.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/mpi/mpi_world.h"
#include "runtime/nccl/link_transport.h"
#include "runtime/nccl/nccl_links.h"
#include "runtime/process/control_mesh.h"
#include "tests/conformance/transport_conformance.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::runtime {
namespace {

MpiWorld* world = nullptr;
int32_t num_devices = 0;

class NcclTestWorld final : public TransportWorld {
 public:
  void Run(int32_t num_ranks,
           const std::function<void(const RankInTest&)>& body) override {
    if (num_ranks > num_devices) {
      GTEST_SKIP() << "skipped: " << num_ranks << " GPUs are needed; there are "
                   << num_devices;
    }
    auto mesh =
        ControlMesh::Create({.rank = world->rank(), .size = world->size()});
    ASSERT_THAT(mesh, testing::IsOk());
    ASSERT_THAT((*mesh)->Connect(world->AllGather((*mesh)->address()),
                                 WallNow() + std::chrono::seconds(20)),
                testing::IsOk());
    ControlMesh* const others = mesh->get();
    if (world->rank() < num_ranks) {
      auto links = MakeNcclLinks(world->host_rank());
      ASSERT_THAT(links, testing::IsOk());
      LinkTransport transport(
          world->rank(), num_ranks, *std::move(links),
          {.send =
               [others](int32_t to, uint64_t topic, std::string bytes) {
                 others->Send(to, topic, std::move(bytes));
               },
           .receive = [others](int32_t from, uint64_t topic)
               -> absl::StatusOr<std::optional<std::string>> {
             auto bytes = others->Receive(from, topic, WallNow());
             if (bytes.ok()) return *std::move(bytes);
             if (absl::IsDeadlineExceeded(bytes.status())) return std::nullopt;
             return bytes.status();
           }});
      body({.rank = world->rank(), .transport = &transport, .meet = [] {
              world->AllGather("meet");
            }});
      world->AllGather("done");
    } else {
      // Comes to the others' meetings.
      while (world->AllGather("")[0] != "done") {
      }
    }
    static_cast<void>(others->Close(WallNow() + std::chrono::seconds(20)));
  }
};

INSTANTIATE_TEST_SUITE_P(Nccl, TransportConformance,
                         ::testing::Values(TransportWorldFactory([] {
                           return std::make_unique<NcclTestWorld>();
                         })));

}  // namespace
}  // namespace pipeloom::runtime

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto devices = pipeloom::runtime::CountCudaDevices();
  pipeloom::runtime::num_devices = devices.ok() ? *devices : 0;
  if (pipeloom::runtime::num_devices < 2) {
    std::printf("skipped: NCCL takes one rank a GPU; there are %d GPUs\n",
                pipeloom::runtime::num_devices);
    return 0;
  }
  auto started = pipeloom::runtime::MpiWorld::Start();
  if (!started.ok()) return 1;
  pipeloom::runtime::world = started->get();
  const int code = RUN_ALL_TESTS();
  (*started)->Finalize(std::chrono::seconds(20), [] { std::_Exit(1); });
  return code;
}
