// The server of one thread, without the planner: calls that come too late, that
// leave, that are too many or too large, and its end while they are open.
#include "service/rpc/rpc_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "service/os/worker_pool.h"
#include "tests/service/rpc_by_hand.h"

namespace pipeloom::testing {
namespace {

using ::testing::HasSubstr;

TEST(RpcServerTest, EveryOneOfManyCallsAtATimeGetsItsOwnAnswer) {
  service::WorkerPool pool(3, 100'000);
  Rpc rpc;
  // Answered now, or later by another thread.
  rpc.server.Add("/a.B/Now",
                 [](const auto& call) { call->Finish(call->request()); });
  rpc.server.Add("/a.B/Later", [&](const auto& call) {
    pool.Post([call] { call->Finish(call->request()); });
  });
  rpc.Start();
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        const auto channel = rpc.NewChannel();
        for (int round = 0; round < 20; ++round) {
          std::map<std::string, std::unique_ptr<Client>> calls;
          for (int c = 0; c < 8; ++c) {
            const std::string text = absl::StrCat(t, "/", round, "/", c);
            calls[text] = std::make_unique<Client>(
                channel, c % 2 == 0 ? "/a.B/Now" : "/a.B/Later", text);
          }
          for (const auto& [text, call] : calls) {
            if (call->answer() != text) ++wrong;
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(RpcServerTest, AMethodThatIsNotThereIsNamed) {
  Rpc rpc;
  rpc.server.Add("/a.B/C",
                 [](const auto& call) { call->Finish(call->request()); });
  rpc.Start();
  for (const char* method : {"/a.B/c", "/a.B/C/", "/a.B", "/"}) {
    Client call(rpc.channel, method, "x");
    EXPECT_EQ(call.Wait().error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(call.Wait().error_message(), HasSubstr(method));
  }
}

// Its time runs from when the server hears of it, so both come at once.
TEST(RpcServerTest, ACallThatComesTooLateIsNotHandled) {
  struct {
    Mutex mutex{};
    std::vector<std::string> requests ABSL_GUARDED_BY(mutex){};
  } handled;
  Flag begun;
  Flag go_on;
  Rpc rpc;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    const std::string text = Text(call->request());
    {
      const MutexLock lock(&handled.mutex);
      handled.requests.push_back(text);
    }
    if (text == "slow") {  // The server's only thread.
      begun.Set();
      EXPECT_TRUE(go_on.Wait());
    }
    call->Finish(call->request());
  });
  rpc.Start();
  const int fd = Connect(rpc.port);
  ASSERT_GE(fd, 0);
  const std::string calls =
      Preface() + BeginCall("/a.B/C", 1) + Request("slow", 1) +
      BeginCall("/a.B/C", 3, /*timeout=*/"50m") + Request("late", 3) +
      BeginCall("/a.B/C", 5, "20S") + Request("in time", 5);
  ASSERT_EQ(send(fd, calls.data(), calls.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(calls.size()));
  ASSERT_TRUE(begun.Wait());
  std::this_thread::sleep_for(milliseconds(200));
  go_on.Set();
  EXPECT_EQ(Client(rpc.channel, "/a.B/C", "next").answer(), "next");
  rpc.server.Stop(milliseconds(0));
  close(fd);
  const MutexLock lock(&handled.mutex);
  EXPECT_THAT(handled.requests,
              ::testing::UnorderedElementsAre("slow", "in time", "next"));
}

TEST(RpcServerTest, WhoLeavesIsToldOfOnceAndNeverAfterTheAnswer) {
  struct {
    Mutex mutex{};
    std::deque<std::shared_ptr<RpcCall>> calls ABSL_GUARDED_BY(mutex){};
  } open;
  std::atomic<int> left = 0;
  Rpc rpc;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    call->OnCancel([&] { ++left; });
    const MutexLock lock(&open.mutex);
    open.calls.push_back(call);
  });
  rpc.Start();
  const auto take = [&] {
    while (true) {
      {
        const MutexLock lock(&open.mutex);
        if (!open.calls.empty()) {
          auto call = open.calls.front();
          open.calls.pop_front();
          return call;
        }
      }
      std::this_thread::yield();
    }
  };
  const auto is_told = [&](int times) {
    for (int i = 0; i < 2000 && left < times; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return left == times;
  };
  {
    Client answered(rpc.channel, "/a.B/C", "");
    take()->Finish(Bytes("yes"));
    EXPECT_EQ(answered.answer(), "yes");
  }
  Client cancelled(rpc.channel, "/a.B/C", "");
  const auto gone = take();
  EXPECT_EQ(left, 0);
  cancelled.context().TryCancel();
  EXPECT_TRUE(is_told(1));
  Client expired(rpc.channel, "/a.B/C", "", seconds(1));
  const auto over = take();
  EXPECT_TRUE(is_told(2));
  // Methods of a call that is over do nothing.
  bool again = false;
  gone->OnCancel([&] { again = true; });
  EXPECT_TRUE(again);
  for (const auto& call : {gone, over}) {
    EXPECT_EQ(call->Send(Bytes("x")), 0u);
    call->SendHeaders();
    call->AddTrailing("a", "b");
    bool ok = true;
    call->Read([&](bool read, const grpc::ByteBuffer&) { ok = read; });
    EXPECT_FALSE(ok);
    call->Finish(Bytes("x"));
    call->Finish(grpc::Status::OK);
  }
  EXPECT_EQ(left, 2);
}

TEST(RpcServerTest, OnlyTheFirstOfTwoAnswersIsSent) {
  Rpc rpc;
  rpc.server.Add("/a.B/C", [](const auto& call) {
    call->AddTrailing("name", "value");
    call->Finish(Bytes("first"));
    call->AddTrailing("name", "other");
    call->Finish(Bytes("second"));
    call->Finish(grpc::Status(grpc::StatusCode::INTERNAL, "third"));
    call->OnCancel([] { ADD_FAILURE() << "after the answer"; });
  });
  rpc.Start();
  Client call(rpc.channel, "/a.B/C", "");
  EXPECT_EQ(call.answer(), "first");
  const auto& trailers = call.context().GetServerTrailingMetadata();
  EXPECT_EQ(trailers.count("name"), 1u);
}

TEST(RpcServerTest, AStreamIsAnsweredInOrderToItsEnd) {
  struct Echo {
    static void Next(const std::shared_ptr<RpcCall>& call) {
      call->Read([call](bool ok, const grpc::ByteBuffer& bytes) {
        if (!ok) {
          call->Finish(grpc::Status(grpc::StatusCode::ABORTED, "the end"));
          return;
        }
        call->Send(bytes);
        Next(call);
      });
    }
  };
  Rpc rpc;
  rpc.server.AddStream("/a.B/C", Echo::Next);
  rpc.Start();
  Stream stream(rpc.channel, "/a.B/C");
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(stream.Write(absl::StrCat(i)));
    if (i % 2 == 0) continue;  // Two wait.
    ASSERT_EQ(stream.Read(), absl::StrCat(i - 1));
    ASSERT_EQ(stream.Read(), absl::StrCat(i));
  }
  ASSERT_TRUE(stream.WritesDone());
  EXPECT_EQ(stream.Read(), std::nullopt);
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "the end");
}

TEST(RpcServerTest, OfWhatASlowReaderLeavesTheNewestIsKept) {
  constexpr int kAll = 5000;
  size_t most = 0;
  Flag sent;
  Rpc rpc;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    for (int i = 1; i <= kAll; ++i) {
      most = std::max(
          most, call->Send(Bytes(absl::StrCat(i, std::string(1000, ' ')))));
    }
    call->Finish(grpc::Status::OK);
    sent.Set();
  });
  rpc.Start();
  Stream stream(rpc.channel, "/a.B/C");
  ASSERT_TRUE(stream.Write("x"));
  ASSERT_TRUE(stream.WritesDone());
  ASSERT_TRUE(sent.Wait());
  EXPECT_EQ(most, 1024u);
  int read = 0;
  int last = 0;
  while (const auto text = stream.Read()) {
    const int number = std::atoi(text->c_str());
    EXPECT_GT(number, last);
    last = number;
    ++read;
  }
  EXPECT_EQ(last, kAll);
  EXPECT_LT(read, kAll);
  EXPECT_GE(read, 1024);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(RpcServerTest, CallsBeyondTheLimitAreToldWhenToComeAgain) {
  struct {
    Mutex mutex{};
    std::vector<std::shared_ptr<RpcCall>> calls ABSL_GUARDED_BY(mutex){};
  } open;
  Rpc rpc(4);
  rpc.server.Add("/a.B/Wait", [&](const auto& call) {
    const MutexLock lock(&open.mutex);
    open.calls.push_back(call);
  });
  rpc.server.Add("/a.B/C",
                 [](const auto& call) { call->Finish(call->request()); });
  rpc.Start();
  std::vector<std::unique_ptr<Client>> calls;
  for (size_t i = 1; i <= 4; ++i) {
    calls.push_back(std::make_unique<Client>(rpc.channel, "/a.B/Wait", ""));
    size_t have = 0;
    while (have < i) {
      const MutexLock lock(&open.mutex);
      have = open.calls.size();
    }
  }
  Client fifth(rpc.channel, "/a.B/C", "x");
  EXPECT_EQ(fifth.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(fifth.Wait().error_message(), HasSubstr("4 calls are open"));
  EXPECT_EQ(fifth.context().GetServerTrailingMetadata().count("retry-after-ms"),
            1u);
  {
    const MutexLock lock(&open.mutex);
    for (const auto& call : open.calls) call->Finish(Bytes("done"));
    open.calls.clear();
  }
  for (const auto& call : calls) EXPECT_EQ(call->answer(), "done");
  // A moment later the server has heard that all of them are over.
  bool free = false;
  for (int i = 0; i < 200 && !free; ++i) {
    free = Client(rpc.channel, "/a.B/C", "x").answer() == "x";
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(free);
}

TEST(RpcServerTest, AMessageThatIsTooLargeReachesNoHandler) {
  std::atomic<int> handled = 0;
  Rpc rpc;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    ++handled;
    call->Finish(call->request());
  });
  rpc.Start(/*max_message=*/10'000);
  // Four gigabytes are announced and never sent.
  const int fd = Connect(rpc.port);
  ASSERT_GE(fd, 0);
  const std::string call =
      Preface() + BeginCall("/a.B/C") +
      Frame(0, 0, std::string(1, '\0') + std::string(4, '\xff'));
  ASSERT_EQ(send(fd, call.data(), call.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(call.size()));
  for (const size_t bytes : {10'001, 1'000'000}) {
    Client large(rpc.channel, "/a.B/C", std::string(bytes, 'x'));
    EXPECT_EQ(large.Wait().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  EXPECT_EQ(handled, 0);
  EXPECT_EQ(
      Client(rpc.channel, "/a.B/C", std::string(10'000, 'x')).answer().size(),
      10'000u);
  rpc.server.Stop(milliseconds(0));
  close(fd);
}

TEST(RpcServerTest, ACallWithoutItsRequestIsRefusedOrWaitsForIt) {
  std::atomic<int> handled = 0;
  Rpc rpc;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    ++handled;
    call->Finish(call->request());
  });
  rpc.Start();
  Stream empty(rpc.channel, "/a.B/C");
  ASSERT_TRUE(empty.WritesDone());
  EXPECT_EQ(empty.Read(), std::nullopt);
  const grpc::Status status = empty.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("no request"));
  Stream waiting(rpc.channel, "/a.B/C");
  EXPECT_EQ(Client(rpc.channel, "/a.B/C", "x").answer(), "x");
  ASSERT_TRUE(waiting.Write("late"));
  EXPECT_EQ(waiting.Read(), "late");
  EXPECT_EQ(handled, 2);
}

TEST(RpcServerTest, HalfOpenConnectionsDelayNeitherCallsNorTheEnd) {
  Rpc rpc;
  rpc.server.Add("/a.B/C",
                 [](const auto& call) { call->Finish(call->request()); });
  rpc.Start();
  const std::string whole = Preface() + BeginCall("/a.B/C");
  std::vector<int> silent;
  for (size_t i = 0; i < 60; ++i) {
    const int fd = Connect(rpc.port);
    ASSERT_GE(fd, 0);
    // Nothing, or a call that breaks off somewhere, or lacks its request.
    const size_t bytes = i * whole.size() / 59;
    ASSERT_EQ(send(fd, whole.data(), bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
    silent.push_back(fd);
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Client(rpc.channel, "/a.B/C", "x").answer(), "x");
  }
  rpc.server.Stop(milliseconds(50));
  for (const int fd : silent) close(fd);
}

TEST(RpcServerTest, TheEndWaitsForItsGraceAndForWhoHoldsACall) {
  struct {
    Mutex mutex{};
    std::map<std::string, std::shared_ptr<RpcCall>> calls
        ABSL_GUARDED_BY(mutex){};
  } open;
  std::atomic<int> begun = 0;
  Flag cut;
  Rpc rpc;
  rpc.server.Add("/a.B/C", [&](const auto& call) {
    const std::string text = Text(call->request());
    if (text == "cut") call->OnCancel([&] { cut.Set(); });
    const MutexLock lock(&open.mutex);
    open.calls[text] = call;
    ++begun;
  });
  rpc.Start();
  Client ends(rpc.channel, "/a.B/C", "ends");
  Client is_cut(rpc.channel, "/a.B/C", "cut");
  Stream silent(rpc.channel, "/a.B/C");  // Its request never comes.
  while (begun < 2) std::this_thread::sleep_for(milliseconds(1));
  Flag stopped;
  std::jthread stop([&] {
    rpc.server.Stop(seconds(2));
    stopped.Set();
  });
  std::this_thread::sleep_for(milliseconds(50));
  // No new call, on this connection or another.
  EXPECT_EQ(Client(rpc.NewChannel(), "/a.B/C", "new", milliseconds(2000))
                .Wait()
                .error_code(),
            grpc::StatusCode::UNAVAILABLE);
  {
    const MutexLock lock(&open.mutex);
    open.calls.at("ends")->Finish(Bytes("within its grace"));
    open.calls.erase("ends");
  }
  EXPECT_EQ(ends.answer(), "within its grace");
  EXPECT_TRUE(cut.Wait());
  EXPECT_FALSE(is_cut.Wait().ok());
  // Somebody still works for a call that is over.
  EXPECT_FALSE(stopped.Wait(milliseconds(100)));
  {
    const MutexLock lock(&open.mutex);
    open.calls.clear();
  }
  EXPECT_TRUE(stopped.Wait());
  rpc.server.Stop(milliseconds(0));  // Again: nothing to do.
}

TEST(RpcServerTest, CallsThatComeWhileItEndsAreAnsweredOrRefused) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> odd = 0;
    service::WorkerPool pool(2, 100'000);
    Rpc rpc;
    rpc.server.Add("/a.B/C", [&](const auto& call) {
      pool.Post([call] { call->Finish(call->request()); });
    });
    rpc.Start();
    std::vector<std::jthread> threads;
    std::atomic<bool> over = false;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        const auto channel = rpc.NewChannel();
        while (!over) {
          Client call(channel, "/a.B/C", "x", seconds(10));
          const grpc::Status& status = call.Wait();
          const bool expected =
              status.ok() ||
              status.error_code() == grpc::StatusCode::UNAVAILABLE ||
              status.error_code() == grpc::StatusCode::CANCELLED;
          if (!expected) ++odd;
        }
      });
    }
    std::this_thread::sleep_for(milliseconds(round));
    rpc.server.Stop(milliseconds(round % 2 == 0 ? 0 : 20));
    over = true;
    threads.clear();
    EXPECT_EQ(odd, 0) << "round " << round;
  }
}

TEST(RpcServerTest, AServerThatCannotListenOrNeverStartedGoesInPeace) {
  Rpc first;
  first.Start();
  RpcServer second;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", first.port),
                           grpc::InsecureServerCredentials());
  EXPECT_FALSE(second.Start(&builder));
  RpcServer third;
  third.Stop(milliseconds(0));
}

}  // namespace
}  // namespace pipeloom::testing
