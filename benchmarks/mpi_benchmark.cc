// A ping-pong between two processes: the mpi transport, without keeping the
// plan's time, against bare MPI calls in the same run, blocking and
// non-blocking ones. Times are one-way.
//
//   mpirun -n 2 mpi_benchmark [BYTES...]
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/mpi/mpi_transport.h"
#include "runtime/mpi/mpi_world.h"

namespace pipeloom::runtime {
namespace {

double Microseconds(WallDuration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

// Round trips run in blocks, one kind after the other in turns, so that other
// load on the machine affects all kinds. Blocks are short and many: when a rank
// loses its core to another process it loses it for milliseconds, which affects
// a few blocks but not the median.
constexpr double kBlockMicroseconds = 50;
constexpr double kAllMicroseconds = 150'000;
constexpr int kFewestBlocks = 41;
constexpr int kMaxBlocks = 1001;

double Median(std::vector<double> values) {
  const auto half = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

// Medians over the blocks of each kind.
struct OneWay {
  std::vector<double> microseconds{};
  // Ratios of a block to the first kind's in the same turn.
  std::vector<double> over_first{};
};

using RoundTrip = std::function<void()>;

OneWay Compare(const std::vector<RoundTrip>& ways) {
  const auto time = [](int rounds, const RoundTrip& round_trip) {
    const WallTime begin = WallNow();
    for (int i = 0; i < rounds; ++i) round_trip();
    return Microseconds(WallNow() - begin) / (2 * rounds);
  };
  constexpr int kTrial = 10;
  for (const RoundTrip& way : ways) time(kTrial, way);
  double quick = time(1, ways[0]);
  for (int i = 0; i < kTrial; ++i) quick = std::min(quick, time(1, ways[0]));
  int rounds =
      static_cast<int>(std::clamp(kBlockMicroseconds / (2 * quick), 1.0, 50.0));
  int blocks =
      static_cast<int>(std::clamp(kAllMicroseconds / (2 * quick * rounds),
                                  double{kFewestBlocks}, double{kMaxBlocks}));
  MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Bcast(&blocks, 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::vector<std::vector<double>> all(ways.size());
  std::vector<std::vector<double>> ratios(ways.size());
  for (int b = 0; b < blocks; ++b) {
    for (size_t w = 0; w < ways.size(); ++w) {
      all[w].push_back(time(rounds, ways[w]));
      ratios[w].push_back(all[w].back() / all[0].back());
    }
  }
  OneWay result;
  for (size_t w = 0; w < ways.size(); ++w) {
    result.microseconds.push_back(Median(all[w]));
    result.over_first.push_back(Median(ratios[w]));
  }
  return result;
}

int Main(std::vector<int> sizes) {
  if (sizes.empty()) sizes = {8, 1024, 65536, 1 << 20, 4 << 20};
  auto world = MpiWorld::Start();
  if (!world.ok() || (*world)->size() != 2) {
    std::fputs("start it with mpirun -n 2\n", stderr);
    return 2;
  }
  const int rank = (*world)->rank();
  const int peer = 1 - rank;
  {
    MpiTransport transport(world->get(), {.keep_time = false});
    if (rank == 0) {
      std::printf("%10s %13s %18s %13s %7s %12s\n", "bytes", "MPI_Send/Recv",
                  "MPI_Isend/Irecv", "transport", "ratio", "to MPI_Isend");
    }
    double worst = 0;
    for (const int size : sizes) {
      std::vector<std::byte> out(static_cast<size_t>(size));
      std::vector<std::byte> in(static_cast<size_t>(size));
      const auto bare_send = [&] {
        MPI_Send(out.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
      };
      const auto bare_recv = [&] {
        MPI_Recv(in.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
      };
      const auto bare = [&] {
        if (rank == 0) {
          bare_send();
          bare_recv();
        } else {
          bare_recv();
          bare_send();
        }
      };
      // Does what the transport does, and nothing else: receives are posted
      // early, waits poll.
      const auto await = [](MPI_Request& request) {
        int done = 0;
        while (done == 0) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      };
      const auto looking = [&] {
        MPI_Request sent = MPI_REQUEST_NULL;
        MPI_Request received = MPI_REQUEST_NULL;
        const auto send = [&] {
          MPI_Isend(out.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &sent);
        };
        MPI_Irecv(in.data(), size, MPI_BYTE, peer, 0, MPI_COMM_WORLD,
                  &received);
        if (rank == 0) send();
        await(received);
        if (rank == 1) send();
        await(sent);
      };
      const auto there =
          Message{.edge = EdgeId(1), .from = RankId(rank), .to = RankId(peer)};
      const auto back =
          Message{.edge = EdgeId(1), .from = RankId(peer), .to = RankId(rank)};
      const WallTime now = WallNow();
      const WallTime far = now + std::chrono::hours(1);
      bool ok = true;
      const auto ours = [&] {
        ok &= transport.PostRecv(back, now, absl::MakeSpan(in)).ok();
        if (rank == 0) ok &= transport.PostSend(there, now, out).ok();
        ok &= transport.WaitRecv(back, far).ok();
        if (rank == 1) ok &= transport.PostSend(there, now, out).ok();
        ok &= transport.WaitSend(there, far).ok();
      };
      const OneWay times = Compare({bare, looking, ours});
      if (!ok) return 1;
      worst = std::max(worst, times.over_first[2]);
      if (rank == 0) {
        std::printf("%10d %10.2f us %15.2f us %10.2f us %7.3f %12.3f\n", size,
                    times.microseconds[0], times.microseconds[1],
                    times.microseconds[2], times.over_first[2],
                    times.over_first[2] / times.over_first[1]);
        std::fflush(stdout);
      }
    }
    if (rank == 0) std::printf("largest ratio: %.3f\n", worst);
  }
  (*world)->Finalize(std::chrono::seconds(10), [] {});
  return 0;
}

}  // namespace
}  // namespace pipeloom::runtime

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  return pipeloom::runtime::Main(std::move(sizes));
}
