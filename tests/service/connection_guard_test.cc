// Clients that send what no client needs, and others at the same time.
#include "service/guard/connection_guard.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/service/bare_guard.h"
#include "tests/service/guarded_rpc.h"
#include "tests/service/service_fixture.h"
#include "tests/service/service_process.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The code ENHANCE_YOUR_CALM of the frame GOAWAY.
const std::string kCalm = Frame(7, 0, std::string("\0\0\0\0\0\0\0\x0b", 8), 0);

service::GuardLimits Short(milliseconds time) {
  service::GuardLimits limits;
  limits.times = {.handshake = time, .header = time, .close = time};
  return limits;
}

void Echo(GuardedRpc* rpc) {
  rpc->server.Add("/a.B/Echo",
                  [](const auto& call) { call->Finish(call->request()); });
}

// Sends again and again, until the connection ends or 64 MB are sent. Returns
// the bytes that came back; null if the connection did not end.
std::optional<std::string> SendUntilTheEnd(int fd, const std::string& first,
                                           const std::string& again) {
  std::string all = first;
  std::string back;
  size_t sent = 0;
  char buffer[4096];
  for (int turns = 0; turns < 200'000; ++turns) {
    pollfd ready = {fd, POLLIN, 0};
    const bool sends = sent < (size_t{64} << 20) && !all.empty();
    if (poll(&ready, 1, sends ? 0 : 20'000) > 0) {
      const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got <= 0) return back;
      back.append(buffer, static_cast<size_t>(got));
      continue;
    }
    if (!sends) return std::nullopt;
    const ssize_t done =
        send(fd, all.data(), all.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done > 0) {
      sent += static_cast<size_t>(done);
      all.erase(0, static_cast<size_t>(done));
    }
    if (all.empty()) all = again;
  }
  return std::nullopt;
}

struct Attack {
  const char* name;
  std::string first;
  std::string again;
  const char* reason;
};

std::vector<Attack> Attacks() {
  // A literal header field "x: 12345678".
  const std::string field = std::string("\0\1x\x08", 4) + "12345678";
  const std::string open = Preface() + Frame(1, 0, field);
  // The frame of a header of 15 MB, of which more and more comes.
  std::string large = Preface() + Frame(1, 4, "");
  const size_t at = Preface().size();
  large[at] = '\xe4';
  large[at + 1] = '\xe1';
  large[at + 2] = '\xc0';
  std::string calls = Preface();
  for (char stream = 1; stream < 120; stream = static_cast<char>(stream + 2)) {
    calls += BeginCall("/a.B/Echo", stream);
  }
  return {
      {"large header", large, std::string(1000, 'x'), "header that is too"},
      {"endless header of continuations", open, Frame(9, 0, field),
       "too many CONTINUATION"},
      {"empty continuations", open, Frame(9, 0, ""), "too many CONTINUATION"},
      {"long continuations", open, Frame(9, 0, std::string(9000, 'x')),
       "header that is too large"},
      {"a frame within a header", open, Frame(6, 0, "12345678", 0),
       "within a header block"},
      {"many headers", calls, "", "bytes of headers in a second"},
      {"SETTINGS", Preface(), Frame(4, 0, "", 0), "control frames"},
      {"PING", Preface(), Frame(6, 0, "12345678", 0), "control frames"},
      {"RST_STREAM", Preface(), Frame(3, 0, std::string(4, '\0')),
       "control frames"},
      {"PRIORITY", Preface(), Frame(2, 0, std::string("\0\0\0\0\1", 5)),
       "control frames"},
      {"empty DATA", Preface(), Frame(0, 0, ""), "control frames"},
      {"unknown frames", Preface(), Frame(99, 0, ""), "control frames"},
      {"another protocol", "GET / HTTP/1.1\r\n\r\n", "", "no HTTP/2"},
  };
}

TEST(ConnectionGuardTest, WhoSendsWhatNoClientNeedsIsCutOff) {
  for (const Attack& attack : Attacks()) {
    GuardedRpc rpc;
    Echo(&rpc);
    service::GuardLimits limits;
    // Floods must meet these within a second on a busy machine, too.
    if (absl::StrContains(attack.reason, "in a second")) {
      limits.frames.header_bytes = 3000;
    }
    limits.frames.control_frames = 50;
    rpc.Start(limits);
    Client before(rpc.channel, "/a.B/Echo", "x");
    EXPECT_EQ(before.answer(), "x");
    const int fd = Connect(rpc.port);
    ASSERT_GE(fd, 0);
    const std::optional<std::string> back =
        SendUntilTheEnd(fd, attack.first, attack.again);
    EXPECT_TRUE(back.has_value()) << attack.name;
    // gRPC refuses pings by itself; it may be first.
    EXPECT_THAT(
        rpc.lines.text() + back.value_or(""),
        ::testing::AnyOf(HasSubstr(attack.reason), HasSubstr("too_many_pings")))
        << attack.name;
    // Others do not notice, on the connection that they have or another.
    EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "y").answer(), "y");
    EXPECT_EQ(rpc.lines.text().find("connection_ended"),
              rpc.lines.text().rfind("connection_ended"))
        << rpc.lines.text();
    close(fd);
    EXPECT_TRUE(Eventually([&] { return rpc.guard->connections() == 1; }))
        << attack.name;
  }
}

TEST(ConnectionGuardTest, ItSaysWhyBeforeItEndsAConnection) {
  GuardedRpc rpc;
  rpc.Start();
  const int fd = Connect(rpc.port);
  ASSERT_GE(fd, 0);
  std::string wrong = Preface() + Frame(1, 0, "") + Frame(6, 0, "12345678", 0);
  const std::optional<std::string> back = SendUntilTheEnd(fd, wrong, "");
  ASSERT_TRUE(back.has_value());
  // The server's first frame is SETTINGS, whoever sent it.
  ASSERT_GE(back->size(), 9 + kCalm.size());
  EXPECT_EQ((*back)[3], 4);
  EXPECT_EQ(back->substr(back->size() - kCalm.size()), kCalm);
  close(fd);
}

TEST(ConnectionGuardTest, WhatDoesNotArriveInTimeEndsTheConnection) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "preface not complete"},
      {"PRI * HTTP", "preface not complete"},
      {Preface() + BeginCall("/a.B/Echo").substr(0, 20), "header not complete"},
      {Preface() + Frame(1, 0, "\x83\x86"), "header not complete"}};
  for (const auto& [sent, reason] : cases) {
    GuardedRpc rpc;
    Echo(&rpc);
    rpc.Start(Short(milliseconds(200)));
    const int fd = Connect(rpc.port);
    ASSERT_GE(fd, 0);
    EXPECT_TRUE(SendUntilTheEnd(fd, sent, "").has_value()) << reason;
    EXPECT_THAT(rpc.lines.text(), HasSubstr(reason));
    EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "y").answer(), "y");
    close(fd);
  }
}

TEST(ConnectionGuardTest, ManyThatTookTooLongAreEndedAFewAtATime) {
  service::GuardLimits limits;
  limits.times.header = seconds(2);
  BareGuard bare(limits);
  std::vector<int> slow;
  for (int i = 0; i < 300; ++i) {
    slow.push_back(Connect(bare.guard->port()));
    ASSERT_GT(send(slow.back(), Preface().data(), 10, MSG_NOSIGNAL), 0);
  }
  EXPECT_TRUE(Eventually([&] { return bare.guard->connections() == 300; }));
  // The time to open them spans one or two looks at the times; a few at a time,
  // it takes a second to end them.
  std::set<int64_t> counts;
  for (int i = 0; i < 20'000 && !counts.contains(0); ++i) {
    counts.insert(bare.guard->connections());
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(counts.contains(0));
  EXPECT_GE(counts.size(), 10u);
  for (const int fd : slow) close(fd);
}

TEST(ConnectionGuardTest, AHeaderByteByByteEndsTheConnection) {
  GuardedRpc rpc;
  Echo(&rpc);
  rpc.Start(Short(milliseconds(300)));
  const int fd = Connect(rpc.port);
  ASSERT_GE(fd, 0);
  const std::string begin =
      Preface() + Frame(1, 0, std::string(1000, 'x')).substr(0, 9);
  ASSERT_GT(send(fd, begin.data(), begin.size(), MSG_NOSIGNAL), 0);
  bool ended = false;
  for (int i = 0; i < 2000 && !ended; ++i) {
    if (send(fd, "\0", 1, MSG_NOSIGNAL) != 1) ended = true;
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(ended);
  EXPECT_THAT(rpc.lines.text(), HasSubstr("header not complete"));
  // A connection without a header under way may be silent for longer.
  EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "y").answer(), "y");
  std::this_thread::sleep_for(milliseconds(900));
  EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "z").answer(), "z");
  EXPECT_EQ(rpc.lines.text().find("connection_ended"),
            rpc.lines.text().rfind("connection_ended"));
  close(fd);
}

TEST(ConnectionGuardTest, AHandshakeThatDoesNotEndIsEnded) {
  const std::string hello("\x16\x03\x01\x02\x00\x01\x00", 7);
  for (const std::string& sent : {std::string(), hello}) {
    GuardedRpc rpc;
    Echo(&rpc);
    service::GuardLimits limits;
    limits.times.handshake = milliseconds(200);
    rpc.Start(limits, SelfSigned());
    const int fd = Connect(rpc.port);
    ASSERT_GE(fd, 0);
    EXPECT_TRUE(SendUntilTheEnd(fd, sent, "").has_value());
    EXPECT_THAT(rpc.lines.text(), HasSubstr("TLS handshake not complete"));
    // A handshake of a client that goes on may take the machine longer.
    close(fd);
  }
}

// Large messages there and back, in pieces that break anywhere, by several
// callers at a time.
void ExchangeLargeMessages(const service::TlsOptions& tls) {
  GuardedRpc rpc;
  Echo(&rpc);
  rpc.Start({}, tls);
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    const ChunkingProxy proxy(rpc.port, seed);
    const auto channel = GuardedRpc::NewChannel(
        absl::StrCat("127.0.0.1:", proxy.port()), tls.certificate);
    std::vector<std::string> messages;
    std::vector<std::unique_ptr<Client>> calls;
    std::mt19937 random(seed);
    for (const size_t size : {1u, 70'000u, 3'000'000u, 1'000'000u, 16'384u}) {
      std::string& message = messages.emplace_back(size, '\0');
      for (char& byte : message) byte = static_cast<char>(random());
      calls.push_back(
          std::make_unique<Client>(channel, "/a.B/Echo", message, seconds(60)));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(calls[i]->answer() == messages[i])
          << "message " << i << ": " << calls[i]->Wait().error_message();
    }
  }
  EXPECT_THAT(rpc.lines.text(), Not(HasSubstr("connection_ended")));
}

TEST(ConnectionGuardTest, MessagesPassUnchangedInAnyPieces) {
  ExchangeLargeMessages({});
}

TEST(ConnectionGuardTest, MessagesPassUnchangedInAnyPiecesWithTls) {
  ExchangeLargeMessages(SelfSigned());
}

TEST(ConnectionGuardTest, ItListensOnUnixSocketsAndIpv6) {
  const TempFolder folder;
  const std::string path = absl::StrCat("unix:", folder.path(), "/socket");
  for (int round = 0; round < 2; ++round) {
    GuardedRpc rpc;
    Echo(&rpc);
    rpc.Start({}, {}, path);
    const auto channel = GuardedRpc::NewChannel(path, "");
    EXPECT_EQ(Client(channel, "/a.B/Echo", "y").answer(), "y");
    // A second one does not take the first one's name.
    EXPECT_THAT(
        service::ConnectionGuard::Listen(path, {}, nullptr, &rpc.log),
        FailsWith(absl::StatusCode::kUnavailable, HasSubstr("cannot listen")));
  }
  EXPECT_NE(access((folder.path() + "/socket").c_str(), F_OK), 0);
  for (const char* everywhere : {"0.0.0.0:0", "localhost:0"}) {
    GuardedRpc rpc;
    Echo(&rpc);
    rpc.Start({}, {}, everywhere);
    EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "y").answer(), "y");
  }
  service::Log log(service::LogLevel::kOff, {});
  for (const char* none :
       {"", "nothing", "::1:0", "127.0.0.1:70000", "unix:"}) {
    EXPECT_THAT(service::ConnectionGuard::Listen(none, {}, nullptr, &log),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          HasSubstr("cannot listen")))
        << none;
  }
}

// Sends a frame again and again until the socket takes no more for a second.
// Returns the number of bytes sent: the sockets' buffers, and one of the guard.
size_t SendUntilFull(int fd, const std::string& frame) {
  size_t sent = 0;
  pollfd ready = {fd, POLLOUT, 0};
  while (poll(&ready, 1, 1000) > 0 && sent < (size_t{100} << 20)) {
    const ssize_t done =
        send(fd, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done <= 0) break;
    sent += static_cast<size_t>(done);
  }
  EXPECT_LT(sent, size_t{32} << 20);
  return sent;
}

TEST(ConnectionGuardTest, AClientThatDoesNotReadHoldsUpItsServer) {
  BareGuard bare;
  const int fd = Connect(bare.guard->port());
  ASSERT_GT(send(fd, Preface().data(), Preface().size(), MSG_NOSIGNAL), 0);
  const int server = bare.taken.Last();
  ASSERT_GE(server, 0);
  const size_t sent =
      SendUntilFull(server, Frame(0, 0, std::string(1000, 'x')));
  // When the client reads, all of it arrives.
  close(server);
  size_t got = 0;
  std::vector<char> buffer(1 << 20);
  while (true) {
    const ssize_t more = recv(fd, buffer.data(), buffer.size(), 0);
    if (more <= 0) break;
    got += static_cast<size_t>(more);
  }
  EXPECT_EQ(got, sent);
  close(fd);
  EXPECT_TRUE(Eventually([&] { return bare.guard->connections() == 0; }));
}

TEST(ConnectionGuardTest, AClientThatDoesNotReadIsNotRead) {
  BareGuard bare;
  const int fd = Connect(bare.guard->port());
  ASSERT_GT(send(fd, Preface().data(), Preface().size(), MSG_NOSIGNAL), 0);
  const int server = bare.taken.Last();
  ASSERT_GE(server, 0);
  pollfd ready = {server, POLLIN, 0};
  ASSERT_GT(poll(&ready, 1, 20'000), 0);
  std::vector<char> buffer(1 << 20);
  ASSERT_EQ(recv(server, buffer.data(), buffer.size(), 0),
            static_cast<ssize_t>(Preface().size()));
  ASSERT_GT(SendUntilFull(server, Frame(0, 0, std::string(1000, 'x'))), 0u);
  const std::string call = BeginCall("/a.B/Echo", 1);
  ASSERT_GT(send(fd, call.data(), call.size(), MSG_NOSIGNAL), 0);
  EXPECT_EQ(poll(&ready, 1, 300), 0) << "the guard read from the client";
  // When it reads, its call goes on.
  while (poll(&ready, 1, 0) == 0) {
    pollfd arrived = {fd, POLLIN, 0};
    ASSERT_GT(poll(&arrived, 1, 20'000), 0);
    ASSERT_GT(recv(fd, buffer.data(), buffer.size(), 0), 0);
  }
  EXPECT_EQ(recv(server, buffer.data(), buffer.size(), 0),
            static_cast<ssize_t>(call.size()));
  close(server);
  close(fd);
  EXPECT_TRUE(Eventually([&] { return bare.guard->connections() == 0; }));
}

// A client that asks for far more than buffers hold, and does not read.
int AskAndDoNotRead(GuardedRpc* rpc, std::atomic<int>* handled) {
  const int fd = Connect(rpc->port);
  std::string calls = Preface() +
                      Frame(4, 0, std::string("\0\4\x7f\xff\xff\xff", 6), 0) +
                      Frame(8, 0, std::string("\x7f\xff\0\0", 4), 0);
  for (int i = 0; i < 40; ++i) {
    const auto stream = static_cast<char>(2 * i + 1);
    calls += BeginCall("/a.B/Large", stream) + Request("x", stream);
  }
  send(fd, calls.data(), calls.size(), MSG_NOSIGNAL);
  // The connection may be cut off before the last one.
  EXPECT_TRUE(Eventually([&] { return *handled > 0; }));
  return fd;
}

void AnswerLarge(GuardedRpc* rpc, std::atomic<int>* handled) {
  rpc->server.Add("/a.B/Large", [handled](const auto& call) {
    call->Finish(Bytes(std::string(1 << 20, 'x')));
    ++*handled;
  });
}

TEST(ConnectionGuardTest, AClientThatDoesNotReadForLongIsCutOff) {
  std::atomic<int> handled = 0;
  GuardedRpc rpc;
  Echo(&rpc);
  AnswerLarge(&rpc, &handled);
  service::GuardLimits limits;
  limits.times.unread = milliseconds(300);
  rpc.Start(limits);
  const int fd = AskAndDoNotRead(&rpc, &handled);
  EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "y").answer(), "y");
  EXPECT_TRUE(Eventually([&] { return rpc.guard->connections() == 1; }));
  EXPECT_THAT(rpc.lines.text(), HasSubstr("answers not read in time"));
  close(fd);
}

TEST(ConnectionGuardTest,
     AClientThatDoesNotReadDoesNotKeepTheServerFromItsEnd) {
  std::atomic<int> handled = 0;
  GuardedRpc rpc;
  AnswerLarge(&rpc, &handled);
  rpc.Start();
  const int fd = AskAndDoNotRead(&rpc, &handled);
  rpc.guard->StopAccepting();
  rpc.guard->CloseAfter(milliseconds(100));
  rpc.server.Stop(seconds(0));
  rpc.guard->Stop(milliseconds(100));
  EXPECT_EQ(rpc.server.memory_used(), 0);
  close(fd);
}

TEST(ConnectionGuardTest, AServerThatDoesNotReadHoldsUpItsClient) {
  BareGuard bare;
  const int fd = Connect(bare.guard->port());
  ASSERT_GT(send(fd, Preface().data(), Preface().size(), MSG_NOSIGNAL), 0);
  const int server = bare.taken.Last();
  ASSERT_GE(server, 0);
  const std::string frame = Frame(0, 0, std::string(1000, 'x'));
  const size_t sent = Preface().size() + SendUntilFull(fd, frame);
  // The client ends its half; the server gets every byte, and then the end.
  shutdown(fd, SHUT_WR);
  size_t got = 0;
  std::vector<char> buffer(1 << 20);
  while (true) {
    pollfd arrived = {server, POLLIN, 0};
    ASSERT_GT(poll(&arrived, 1, 20'000), 0);
    const ssize_t more = recv(server, buffer.data(), buffer.size(), 0);
    if (more <= 0) break;
    got += static_cast<size_t>(more);
  }
  EXPECT_EQ(got, sent);
  // Its answer still arrives.
  ASSERT_EQ(send(server, frame.data(), frame.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(frame.size()));
  close(server);
  EXPECT_EQ(SendUntilTheEnd(fd, "", ""), frame);
  close(fd);
}

TEST(ConnectionGuardTest, ConnectionsAreLimitedInAllAndByAddress) {
  for (const bool by_address : {false, true}) {
    service::GuardLimits limits;
    limits.connections = by_address ? 100 : 4;
    limits.connections_of_address = by_address ? 4 : 100;
    GuardedRpc rpc;
    Echo(&rpc);
    rpc.Start(limits);
    std::vector<int> held;
    for (int i = 0; i < 4; ++i) held.push_back(Connect(rpc.port));
    EXPECT_TRUE(Eventually([&] { return rpc.guard->connections() == 4; }));
    const int fifth = Connect(rpc.port);
    EXPECT_TRUE(SendUntilTheEnd(fifth, "", "").has_value());
    EXPECT_THAT(rpc.lines.text(),
                HasSubstr(by_address ? "connections of one address"
                                     : "too many connections"));
    close(fifth);
    close(held.back());
    held.pop_back();
    EXPECT_TRUE(Eventually([&] { return rpc.guard->connections() == 3; }));
    EXPECT_EQ(Client(rpc.channel, "/a.B/Echo", "y").answer(), "y");
    for (const int fd : held) close(fd);
  }
}

TEST(ConnectionGuardTest, CallsAreCountedByConnection) {
  service::RpcLimits limits;
  limits.calls_of_connection = 3;
  GuardedRpc rpc(limits);
  struct {
    Mutex mutex{};
    std::vector<std::shared_ptr<RpcCall>> calls ABSL_GUARDED_BY(mutex){};
  } open;
  Echo(&rpc);
  rpc.server.Add("/a.B/Wait", [&](const auto& call) {
    const MutexLock lock(&open.mutex);
    open.calls.push_back(call);
  });
  rpc.Start();
  std::vector<std::unique_ptr<Client>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::make_unique<Client>(rpc.channel, "/a.B/Wait", "x"));
  }
  EXPECT_TRUE(Eventually([&] {
    const MutexLock lock(&open.mutex);
    return open.calls.size() == 3;
  }));
  Client fourth(rpc.channel, "/a.B/Echo", "x");
  EXPECT_EQ(fourth.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(fourth.Wait().error_message(), HasSubstr("on this connection"));
  const auto other =
      GuardedRpc::NewChannel(absl::StrCat("127.0.0.1:", rpc.port), "");
  EXPECT_EQ(Client(other, "/a.B/Echo", "x").answer(), "x");
  const MutexLock lock(&open.mutex);
  for (const auto& call : open.calls) call->Finish(grpc::Status::OK);
  open.calls.clear();
}

TEST(ConnectionGuardTest, CallsThatAreOpenEndAfterTheListenerIsClosed) {
  GuardedRpc rpc;
  struct {
    Mutex mutex{};
    std::shared_ptr<RpcCall> call ABSL_GUARDED_BY(mutex){};
  } open;
  Flag begun;
  rpc.server.Add("/a.B/Wait", [&](const auto& call) {
    const MutexLock lock(&open.mutex);
    open.call = call;
    begun.Set();
  });
  rpc.Start();
  Client waiting(rpc.channel, "/a.B/Wait", "x");
  ASSERT_TRUE(begun.Wait());
  rpc.guard->StopAccepting();
  EXPECT_EQ(Connect(rpc.port), -1);
  {
    const MutexLock lock(&open.mutex);
    open.call->Finish(Bytes("late"));
    open.call.reset();
  }
  EXPECT_EQ(waiting.answer(), "late");
}

TEST(ConnectionGuardTest, AfterDescriptorsRanOutItAcceptsAgain) {
  Process process("");
  ASSERT_TRUE(process.ok());
  // All descriptors, although the service believed to have more.
  rlimit few{.rlim_cur = 200, .rlim_max = 200};
  ASSERT_EQ(prlimit(process.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  rlimit mine{};
  getrlimit(RLIMIT_NOFILE, &mine);
  const rlimit before = mine;
  mine.rlim_cur = std::min<rlim_t>(mine.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &mine);
  std::vector<int> held;
  for (int i = 0; i < 1200; ++i) {
    const int fd = Connect(process.port());
    if (fd < 0) continue;
    send(fd, Preface().data(), Preface().size(), MSG_NOSIGNAL);
    held.push_back(fd);
  }
  EXPECT_GT(held.size(), 1000u);
  // Those for which there is no descriptor are closed.
  EXPECT_TRUE(SendUntilTheEnd(held.back(), "", "").has_value());
  for (const int fd : held) close(fd);
  setrlimit(RLIMIT_NOFILE, &before);
  grpc::Status status;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(2));
    context.set_wait_for_ready(true);
    v1::ListJobsRequest request;
    v1::ListJobsResponse response;
    status = process.stub().ListJobs(&context, request, &response);
    return status.ok();
  })) << status.error_message();
}

}  // namespace
}  // namespace pipeloom::testing
