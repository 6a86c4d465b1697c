// A transport between processes over MPI point-to-point messages.
//
// An edge's tensor is one message whose tag is the edge's number. A receive
// takes whatever the peer sent next, so a mismatch is detected instead of
// blocking. Nothing blocks inside MPI: waits poll, and see deadlines and aborts
// whatever the peer does. They poll without pause at first, then ever more
// seldom, so that more ranks than cores make progress.
//
// With `keep_time`, transfers take the time that the plan says, as those of
// InprocTransport do: the sender's progress travels before the data, and the
// time at which the transfer began travels back. Without it, they take the time
// that MPI needs, and a small message may leave before its receive is posted.
//
// Each object has its own communicator: all ranks must make theirs in the same
// order. Threads: that of the rank only, except Abort.
#ifndef PIPELOOM_RUNTIME_MPI_MPI_TRANSPORT_H_
#define PIPELOOM_RUNTIME_MPI_MPI_TRANSPORT_H_

#include <functional>
#include <memory>

#include "runtime/mpi/mpi_world.h"
#include "runtime/transport.h"

namespace pipeloom::runtime {

// See the top of the file.
class MpiTransport final : public Transport {
 public:
  struct Options {
    bool keep_time = true;
    double time_scale = 1;  // Used with keep_time only.
    // Tells the other ranks of an error that only this rank has seen.
    std::function<void(const absl::Status&)> tell_others{};
  };
  // REQUIRES: `world` outlives the transport.
  MpiTransport(const MpiWorld* world, Options options);
  ~MpiTransport() override;

  absl::Status PostSend(const Message& message, WallTime at,
                        absl::Span<const std::byte> data) override;
  absl::Status PostRecv(const Message& message, WallTime at,
                        absl::Span<std::byte> into) override;
  absl::StatusOr<TransferTimes> WaitSend(const Message& message,
                                         WallTime deadline) override;
  absl::StatusOr<TransferTimes> WaitRecv(const Message& message,
                                         WallTime deadline) override;
  void Abort(absl::Status reason) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pipeloom::runtime

#endif  // PIPELOOM_RUNTIME_MPI_MPI_TRANSPORT_H_
