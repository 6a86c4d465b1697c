// One client's connection between its socket and the server.
//
//     client -- TCP, TLS -- GuardedConnection -- socket pair -- gRPC
//
// The server gets its end of the pair when the client's preface has arrived.
// Bytes are passed on as they come; those that one side does not take are kept,
// and nothing is read from the other side meanwhile, nor from a client that
// does not take its answers. So a connection holds at most two buffers of the
// size of the guard's, and gRPC few calls of a client that does not read.
#ifndef PIPELOOM_SERVICE_GUARD_GUARDED_CONNECTION_H_
#define PIPELOOM_SERVICE_GUARD_GUARDED_CONNECTION_H_

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "service/guard/call_turns.h"
#include "service/guard/client_wire.h"
#include "service/guard/frame_walker.h"

namespace pipeloom::service {

// How long a client may take.
struct GuardTimes {
  std::chrono::milliseconds handshake{10'000};
  std::chrono::milliseconds header{10'000};  // The preface, and each header.
  // Without taking a byte of those that wait for it. gRPC closes no connection
  // before it has sent all.
  std::chrono::milliseconds unread{20'000};
  std::chrono::milliseconds last_bytes{10'000};  // To read them at the end.
  std::chrono::milliseconds close{1000};         // To close once all is said.
};

class GuardedConnection : public CallTurns::Waiter {
 public:
  using Clock = std::chrono::steady_clock;

  // A socket of the connection in an epoll set, whose events name it.
  struct Side {
    GuardedConnection* connection = nullptr;
    int fd = -1;
    uint32_t interest = 0;  // 0: not in the set.
  };
  // The parts of a guard that its connections use.
  struct Guard {
    int epoll = -1;
    char* buffer = nullptr;  // For bytes on their way.
    size_t buffer_size = 0;
    GuardTimes times{};
    CallTurns* turns = nullptr;
    // Gives a socket, with its ownership, to the server.
    std::function<void(int fd)> hand_over{};
    // Hears why a connection was ended, with the client's address.
    std::function<void(const std::string& peer, absl::string_view reason)>
        ended{};
  };

  // Takes the socket of a client. `address` counts its connections, `peer` is
  // for people; `name` is unique in this process and becomes a part of what
  // gRPC calls the peer.
  GuardedConnection(const Guard* guard, int fd, SSL_CTX* context,
                    const FrameLimits& limits, std::string address,
                    std::string peer, std::string name);
  ~GuardedConnection() override;
  GuardedConnection(const GuardedConnection&) = delete;
  GuardedConnection& operator=(const GuardedConnection&) = delete;

  // Handles events of one side. After this and the next, the connection is
  // destroyed if it is over.
  void Handle(const Side* side, uint32_t events, Clock::time_point now);
  // The turn of a further call has come.
  void PassCall() override;
  bool IsUnread() const override;
  // Ends what has taken too long. Returns whether it did.
  bool CheckTimes(Clock::time_point now);
  bool over() const { return state_ == State::kOver; }
  // Whether bytes for the client are left, or more may come.
  bool has_answers() const {
    return state_ == State::kOpen || !to_client_.empty();
  }

  const std::string& address() const { return address_; }
  size_t index = 0;  // In the guard's list.

 private:
  enum class State {
    kHandshake,  // TLS is not ready.
    kPreface,    // The server does not know of the connection.
    kOpen,
    kClosing,  // The server's end is closed; the client reads what is left.
    kOver,
  };

  void ShakeHands(Clock::time_point now);
  void ReadClient(Clock::time_point now);
  void ReadServer(Clock::time_point now);
  void EndCall(uint32_t stream);
  // Sends the server what it may have of the client's bytes.
  void PassOn();
  // Sends bytes, or keeps what cannot be sent now.
  void SendToServer(absl::string_view bytes);
  void SendToClient(absl::string_view bytes, Clock::time_point now);
  // Connects the server. Returns false if there is no socket for that.
  bool HandOver();
  // Ends the connection of a client that did what it must not.
  void End(absl::string_view reason, Clock::time_point now);
  // Closes the server's end; the client gets the bytes that are kept.
  void CloseServer(Clock::time_point now);
  void FinishClosing(Clock::time_point now);
  bool ReadsClient() const;
  void Watch(Side* side, uint32_t interest);
  void WatchBoth();

  const Guard* const guard_;
  ClientWire wire_;
  const std::string address_;
  const std::string peer_;
  const std::string name_;
  FrameWalker walker_;
  FrameBoundary sent_{};
  HeldCalls calls_{};
  bool in_turn_ = false;  // Waits for one of `turns`.
  State state_ = State::kHandshake;
  Side client_{};
  Side server_{};
  std::string to_server_{};
  std::string to_client_{};
  bool client_ended_ = false;    // It sends no more.
  bool server_told_ = false;     // The server knows that.
  bool client_told_ = false;     // The client knows that nothing more comes.
  size_t early_ = 0;             // Bytes of the preface before its last read.
  size_t thrown_away_ = 0;       // Bytes that came while the connection closes.
  Clock::time_point taken_{};    // When the client last took bytes.
  Clock::time_point held_up_{};  // Last look at which it was not read.
  Clock::time_point until_;      // The handshake, or closing, must be over.
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_GUARDED_CONNECTION_H_
