#include "runtime/process/control_mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace pipeloom::runtime {
namespace {

// A frame: its payload's size, its kind, its payload.
constexpr size_t kHeader = sizeof(uint32_t) + 1;
// After a failure, how long the others are given to hear of it and to end as
// well: when one process has ended, mpirun kills those that have not.
constexpr WallDuration kLinger = std::chrono::milliseconds(300);

template <typename T>
void Put(T value, std::string* into) {
  into->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Takes a value off the front; zero if there are too few bytes.
template <typename T>
T Take(absl::string_view* from) {
  T value{};
  if (from->size() >= sizeof value) {
    std::memcpy(&value, from->data(), sizeof value);
    from->remove_prefix(sizeof value);
  }
  return value;
}

WallDuration BeatInterval(WallDuration failure_timeout) {
  return std::clamp<WallDuration>(failure_timeout / 20,
                                  std::chrono::milliseconds(2),
                                  std::chrono::milliseconds(250));
}

double Seconds(WallDuration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlMesh>> ControlMesh::Create(
    const Options& options) {
  PIPELOOM_CHECK(options.size > 0 && options.rank >= 0 &&
                 options.rank < options.size);
  auto mesh = std::unique_ptr<ControlMesh>(new ControlMesh(options));
  PIPELOOM_ASSIGN_OR_RETURN(mesh->board_, PositionBoard::Create());
  PIPELOOM_ASSIGN_OR_RETURN(mesh->listener_, Listen(options.single_host));
  PIPELOOM_ASSIGN_OR_RETURN(const int32_t port, PortOf(mesh->listener_));
  int ends[2];
  if (pipe(ends) != 0) {
    return absl::UnavailableError(
        absl::StrFormat("no pipe: %s", std::strerror(errno)));
  }
  mesh->wake_read_ = Socket(ends[0]);
  mesh->wake_write_ = Socket(ends[1]);
  for (const int end : ends) {
    fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
    fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  const std::vector<std::string> hosts =
      options.single_host ? std::vector<std::string>{"127.0.0.1"}
                          : HostAddresses();
  mesh->address_ = absl::StrFormat("%d,%s,%s", port, mesh->board_->address(),
                                   absl::StrJoin(hosts, ","));
  {
    const MutexLock lock(&mesh->mutex_);
    mesh->peers_ = std::vector<Peer>(static_cast<size_t>(options.size));
  }
  return mesh;
}

absl::Status ControlMesh::Connect(absl::Span<const std::string> addresses,
                                  WallTime deadline) {
  PIPELOOM_CHECK(static_cast<int32_t>(addresses.size()) == options_.size);
  // Every connection begins with the run's name and the caller's rank.
  const std::string run = addresses[0];
  const auto hello = [&](int32_t rank) {
    std::string text = run;
    Put(rank, &text);
    return text;
  };
  std::vector<Peer> peers(static_cast<size_t>(options_.size));
  for (int32_t r = 0; r < options_.rank; ++r) {
    Peer& peer = peers[static_cast<size_t>(r)];
    PIPELOOM_ASSIGN_OR_RETURN(
        peer.socket,
        ConnectPeer(r, addresses[static_cast<size_t>(r)], deadline));
    PIPELOOM_RETURN_IF_ERROR(
        WriteAll(peer.socket, hello(options_.rank), deadline));
  }
  for (int32_t missing = options_.size - 1 - options_.rank; missing > 0;) {
    PIPELOOM_ASSIGN_OR_RETURN(Socket socket, Accept(listener_, deadline));
    const absl::StatusOr<std::string> text =
        ReadExactly(socket, run.size() + sizeof(int32_t),
                    std::min(deadline, WallNow() + std::chrono::seconds(2)));
    if (!text.ok() || text->compare(0, run.size(), run) != 0) continue;
    absl::string_view rest = absl::string_view(*text).substr(run.size());
    const auto rank = Take<int32_t>(&rest);
    if (rank <= options_.rank || rank >= options_.size) continue;
    Peer& peer = peers[static_cast<size_t>(rank)];
    if (peer.socket.is_open()) continue;
    peer.socket = std::move(socket);
    --missing;
  }
  listener_.Close();
  for (int32_t r = 0; r < options_.size; ++r) {
    if (r == options_.rank) continue;
    Peer& peer = peers[static_cast<size_t>(r)];
    peer.heard = WallNow();
    const std::vector<std::string> parts =
        absl::StrSplit(addresses[static_cast<size_t>(r)], ',');
    absl::StatusOr<std::unique_ptr<PositionBoard>> board =
        PositionBoard::Open(parts.size() > 1 ? parts[1] : "");
    if (board.ok()) peer.board = *std::move(board);
  }
  {
    const MutexLock lock(&mutex_);
    peers_ = std::move(peers);
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::StatusOr<Socket> ControlMesh::ConnectPeer(int32_t rank,
                                                const std::string& address,
                                                WallTime deadline) {
  const std::vector<std::string> parts = absl::StrSplit(address, ',');
  int32_t port = 0;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[0], &port)) {
    return absl::UnavailableError(absl::StrFormat(
        "rank %d: its address \"%s\" cannot be read", rank, address));
  }
  absl::Status last;
  for (size_t i = 2; i < parts.size(); ++i) {
    absl::StatusOr<Socket> socket = ConnectTo(parts[i], port, deadline);
    if (socket.ok()) return socket;
    last = socket.status();
  }
  return absl::UnavailableError(absl::StrFormat(
      "rank %d cannot be reached: %s", rank, std::string(last.message())));
}

ControlMesh::~ControlMesh() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    ending_at_ = WallNow();
  }
  Wake();
  thread_.join();
}

void ControlMesh::SetCallbacks(Callbacks callbacks) {
  const MutexLock lock(&mutex_);
  changed_.Wait(&mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !calling_;
  });
  callbacks_ = std::move(callbacks);
}

void ControlMesh::Wake() {
  const char byte = 0;
  // A full pipe wakes the thread as well.
  [[maybe_unused]] const ssize_t n = write(wake_write_.file(), &byte, 1);
}

void ControlMesh::Queue(int32_t to, Kind kind, absl::string_view payload) {
  Peer& peer = peers_[static_cast<size_t>(to)];
  if (peer.gone || !peer.socket.is_open()) return;
  Put(static_cast<uint32_t>(payload.size()), &peer.out);
  Put(kind, &peer.out);
  peer.out.append(payload.data(), payload.size());
}

void ControlMesh::QueueAll(Kind kind, absl::string_view payload) {
  for (int32_t r = 0; r < options_.size; ++r) {
    if (r != options_.rank) Queue(r, kind, payload);
  }
}

void ControlMesh::Send(int32_t to, uint64_t topic, std::string bytes) {
  const MutexLock lock(&mutex_);
  if (to == options_.rank) {
    received_[{to, topic}] = std::move(bytes);
    changed_.NotifyAll();
    return;
  }
  std::string payload;
  payload.reserve(bytes.size() + sizeof topic);
  Put(topic, &payload);
  payload += bytes;
  Queue(to, Kind::kBytes, payload);
  Wake();
}

absl::StatusOr<std::string> ControlMesh::Receive(int32_t from, uint64_t topic,
                                                 WallTime deadline) {
  const MutexLock lock(&mutex_);
  const std::tuple key(from, topic);
  changed_.WaitUntil(&mutex_, deadline,
                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return received_.contains(key) || !failure_.ok();
                     });
  const auto found = received_.find(key);
  if (found != received_.end()) {
    std::string bytes = std::move(found->second);
    received_.erase(found);
    return bytes;
  }
  if (!failure_.ok()) return failure_;
  return absl::DeadlineExceededError(
      absl::StrFormat("rank %d has not answered in time", from));
}

absl::StatusOr<std::string> ControlMesh::Broadcast(uint64_t topic,
                                                   std::string bytes,
                                                   WallTime deadline) {
  if (options_.rank != 0) return Receive(0, topic, deadline);
  for (int32_t r = 1; r < options_.size; ++r) Send(r, topic, bytes);
  return bytes;
}

absl::StatusOr<std::vector<std::string>> ControlMesh::Gather(
    uint64_t topic, std::string bytes, WallTime deadline) {
  std::vector<std::string> all;
  Send(0, topic, std::move(bytes));
  if (options_.rank != 0) return all;
  for (int32_t r = 0; r < options_.size; ++r) {
    PIPELOOM_ASSIGN_OR_RETURN(std::string one, Receive(r, topic, deadline));
    all.push_back(std::move(one));
  }
  return all;
}

void ControlMesh::BeginCommit() {
  const MutexLock lock(&mutex_);
  ++commit_;
  arrived_ = false;
  commits_.reset();
}

void ControlMesh::Arrive() {
  const MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  arrived_ = true;
  std::string payload;
  Put(commit_, &payload);
  QueueAll(Kind::kArrived, payload);
  Wake();
}

absl::Status ControlMesh::Wait(WallTime deadline) {
  const MutexLock lock(&mutex_);
  if (!arrived_) return failure_;
  const auto is_decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return commits_.has_value();
  };
  if (!changed_.WaitUntil(&mutex_, deadline, is_decided)) {
    return absl::DeadlineExceededError(
        "some ranks have not come to their optimizer step in time");
  }
  return *commits_ ? absl::OkStatus() : failure_;
}

void ControlMesh::Fail(const absl::Status& reason) {
  const MutexLock lock(&mutex_);
  FailLocked(reason);
  Wake();
}

absl::Status ControlMesh::failure() const {
  const MutexLock lock(&mutex_);
  return failure_;
}

absl::Status ControlMesh::AwaitFailure(WallTime deadline) const {
  const MutexLock lock(&mutex_);
  changed_.WaitUntil(&mutex_, deadline,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return !failure_.ok();
                     });
  return failure_;
}

absl::Status ControlMesh::Close(WallTime deadline) {
  const MutexLock lock(&mutex_);
  QueueAll(Kind::kGoodbye, "");
  Wake();
  const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!failure_.ok()) return true;
    for (int32_t r = 0; r < options_.size; ++r) {
      const Peer& peer = peers_[static_cast<size_t>(r)];
      if (r != options_.rank && !(peer.said_goodbye && peer.out.empty())) {
        return false;
      }
    }
    return true;
  };
  const bool done = changed_.WaitUntil(&mutex_, deadline, is_over);
  if (!failure_.ok()) return failure_;
  if (!done) {
    return absl::DeadlineExceededError("some ranks have not ended in time");
  }
  return absl::OkStatus();
}

void ControlMesh::Run() {
  const WallDuration interval = BeatInterval(options_.failure_timeout);
  const WallDuration lost_after = options_.failure_timeout / 2;
  WallTime last_pass = WallNow();
  WallTime next_beat = last_pass;
  std::vector<pollfd> files;
  std::vector<int32_t> ranks;
  bool shut = false;  // All sockets are shut down for writing.
  MutexLock lock(&mutex_);
  while (true) {
    files.assign(1, {.fd = wake_read_.file(), .events = POLLIN, .revents = 0});
    ranks.clear();
    for (int32_t r = 0; r < options_.size && !cut_; ++r) {
      const Peer& peer = peers_[static_cast<size_t>(r)];
      if (!peer.socket.is_open() || peer.gone) continue;
      files.push_back({.fd = peer.socket.file(),
                       .events = static_cast<short>(
                           peer.out.empty() ? POLLIN : POLLIN | POLLOUT),
                       .revents = 0});
      ranks.push_back(r);
    }
    lock.Unlock();
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(
        next_beat - WallNow());
    poll(files.data(), files.size(),
         shut ? 5 : static_cast<int>(std::max<int64_t>(wait.count(), 0) + 1));
    char drained[256];
    while (read(wake_read_.file(), drained, sizeof drained) > 0) {
    }
    lock.Lock();
    const WallTime now = WallNow();
    // This check comes first: the others may know long since of all that
    // follows.
    if (now - last_pass > lost_after && options_.size > 1) {
      FailLocked(absl::UnavailableError(absl::StrFormat(
          "%s: this process did not run for %.3f s, so the others have given "
          "it up",
          Describe(options_.rank), Seconds(now - last_pass))));
    }
    last_pass = now;
    if (!cut_) {
      for (const int32_t r : ranks) ReadPeer(r);
    }
    CheckSilence(now);
    CheckStall(now);
    Decide(now);
    if (now >= next_beat) {
      Beat();
      next_beat = now + interval;
    }
    bool flushed = true;
    for (const int32_t r : ranks) {
      Peer& peer = peers_[static_cast<size_t>(r)];
      if (peer.gone || peer.out.empty() || cut_) continue;
      if (WriteSome(peer.socket, &peer.out) == ReadResult::kClosed) {
        // Its last messages are read in the next pass.
        peer.out.clear();
      }
      flushed &= peer.out.empty();
    }
    if (flushed) changed_.NotifyAll();
    if (!failure_.ok() && !told_failure_ && callbacks_.on_failure) {
      told_failure_ = true;
      const auto tell = callbacks_.on_failure;
      const absl::Status reason = failure_;
      const bool arrived = arrived_;
      calling_ = true;
      lock.Unlock();
      tell(reason, arrived);
      lock.Lock();
      calling_ = false;
      changed_.NotifyAll();
    }
    if (told_failure_ && !told_stuck_ && !ending_ && callbacks_.on_stuck &&
        now - failed_at_ > options_.failure_timeout / 4) {
      told_stuck_ = true;
      const auto tell = callbacks_.on_stuck;
      const absl::Status reason = failure_;
      calling_ = true;
      lock.Unlock();
      tell(reason);
      lock.Lock();
      calling_ = false;
      changed_.NotifyAll();
    }
    if (!ending_) continue;
    if (failure_.ok() || cut_ || now - ending_at_ > kLinger) {
      if (flushed || !failure_.ok()) return;
    } else if (flushed && !shut) {
      // Closing a socket with unread bytes could discard what was sent, so wait
      // a moment for the others to close theirs.
      shut = true;
      for (const Peer& peer : peers_) {
        if (peer.socket.is_open()) shutdown(peer.socket.file(), SHUT_WR);
      }
    } else if (shut &&
               std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) {
                 return p.gone || !p.socket.is_open();
               })) {
      return;
    }
  }
}

void ControlMesh::ReadPeer(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const size_t before = peer.in.size();
  const ReadResult result = ReadSome(peer.socket, &peer.in);
  if (peer.in.size() > before) peer.heard = WallNow();
  absl::string_view rest = peer.in;
  while (rest.size() >= kHeader) {
    absl::string_view frame = rest;
    const size_t size = Take<uint32_t>(&frame);
    const auto kind = static_cast<Kind>(Take<uint8_t>(&frame));
    if (frame.size() < size) break;
    Handle(rank, kind, frame.substr(0, size));
    rest = frame.substr(size);
  }
  peer.in.erase(0, peer.in.size() - rest.size());
  if (result == ReadResult::kOpen) return;
  // Its end stays open: the other side waits for us before it ends.
  peer.gone = true;
  if (!peer.said_goodbye && !peer.verdict.has_value()) {
    Lose(rank, "its process is gone (killed, or crashed)");
  }
}

void ControlMesh::Handle(int32_t from, Kind kind, absl::string_view payload) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  switch (kind) {
    case Kind::kBeat:
      peer.progress.step = Take<int64_t>(&payload);
      peer.progress.position = Take<uint64_t>(&payload);
      peer.progress.blocked = Take<uint8_t>(&payload) != 0;
      return;
    case Kind::kBytes: {
      const auto topic = Take<uint64_t>(&payload);
      received_[{from, topic}] = std::string(payload);
      changed_.NotifyAll();
      return;
    }
    case Kind::kArrived:
      peer.arrived = Take<int64_t>(&payload);
      return;
    case Kind::kFailed: {
      peer.verdict = Take<int64_t>(&payload);
      const auto code = static_cast<absl::StatusCode>(Take<int32_t>(&payload));
      FailLocked(absl::Status(
          code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
          payload));
      return;
    }
    case Kind::kGoodbye:
      peer.said_goodbye = true;
      changed_.NotifyAll();
      return;
  }
  Lose(from, "it said what cannot be understood");
}

void ControlMesh::Lose(int32_t rank, const std::string& cause) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.gone = true;
  FailLocked(
      absl::UnavailableError(absl::StrFormat("%s: %s", Describe(rank), cause)));
}

void ControlMesh::FailLocked(const absl::Status& reason) {
  if (!failure_.ok()) return;
  PIPELOOM_CHECK(!reason.ok());
  failure_ = reason;
  failed_at_ = WallNow();
  std::string payload;
  Put(last_commit_, &payload);
  Put(static_cast<int32_t>(reason.code()), &payload);
  payload += std::string(reason.message());
  QueueAll(Kind::kFailed, payload);
  changed_.NotifyAll();
}

void ControlMesh::CheckSilence(WallTime now) {
  if (!failure_.ok()) return;
  for (int32_t r = 0; r < options_.size; ++r) {
    const Peer& peer = peers_[static_cast<size_t>(r)];
    if (r == options_.rank || peer.gone || peer.said_goodbye) continue;
    if (now - peer.heard > options_.failure_timeout / 2) {
      Lose(r, absl::StrFormat("nothing was heard of it for %.3f s (stopped, "
                              "or cut off)",
                              Seconds(now - peer.heard)));
      return;
    }
  }
}

// Rank 0 checks for all ranks.
void ControlMesh::CheckStall(WallTime now) {
  if (!failure_.ok() || options_.rank != 0 || options_.size == 1) return;
  uint64_t at = 1;
  for (int32_t r = 0; r < options_.size; ++r) {
    const RankProgress& progress =
        r == 0 ? *board_->progress() : peers_[static_cast<size_t>(r)].progress;
    if (!progress.blocked) at = 0;
    if (at == 0) break;
    at += progress.position + (static_cast<uint64_t>(progress.step) << 32);
  }
  if (at == 0 || at != stalled_at_) {
    stalled_at_ = at;
    stalled_since_ = now;
    return;
  }
  if (now - stalled_since_ < options_.failure_timeout / 2) return;
  std::string where;
  for (int32_t r = 0; r < options_.size; ++r) {
    absl::StrAppendFormat(&where, "; %s", Describe(r));
  }
  FailLocked(absl::DeadlineExceededError(absl::StrFormat(
      "all ranks wait for each other and none has come any further for %.3f "
      "s%s",
      Seconds(now - stalled_since_), where)));
}

void ControlMesh::Beat() {
  const RankProgress& own = *board_->progress();
  std::string payload;
  Put(own.step.load(), &payload);
  Put(own.position.load(), &payload);
  Put(static_cast<uint8_t>(own.blocked.load()), &payload);
  QueueAll(Kind::kBeat, payload);
}

// Called only after all messages that are there have been read: a rank must not
// decide by some of them.
void ControlMesh::Decide(WallTime now) {
  if (commits_.has_value()) return;
  if (failure_.ok()) {
    if (!arrived_) return;
    for (int32_t r = 0; r < options_.size; ++r) {
      const Peer& peer = peers_[static_cast<size_t>(r)];
      if (r != options_.rank && peer.arrived < commit_) return;
    }
    commits_ = true;
    last_commit_ = commit_;
    changed_.NotifyAll();
    return;
  }
  // The failure's notice said that this rank has not committed. After it, this
  // rank commits only if another one has, and that one must have heard from it.
  bool complete = true;
  bool any = false;
  for (int32_t r = 0; r < options_.size; ++r) {
    const Peer& peer = peers_[static_cast<size_t>(r)];
    if (r == options_.rank) continue;
    any |= peer.verdict.value_or(0) >= commit_ && arrived_;
    complete &= peer.gone || peer.verdict.has_value();
  }
  if (any || complete || !arrived_ ||
      now - failed_at_ > options_.failure_timeout / 4) {
    commits_ = any;
    if (any) last_commit_ = commit_;
    changed_.NotifyAll();
  }
}

std::string ControlMesh::Describe(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  const RankProgress& progress = rank == options_.rank ? *board_->progress()
                                 : peer.board != nullptr
                                     ? *peer.board->progress()
                                     : peer.progress;
  if (callbacks_.describe) return callbacks_.describe(rank, progress);
  return absl::StrFormat("rank %d, step %d, instruction %d", rank,
                         progress.step.load(), progress.position.load());
}

}  // namespace pipeloom::runtime
