// A connection guard without a server: the test reads and writes the sockets
// that the guard hands over.
#ifndef PIPELOOM_TESTS_SERVICE_BARE_GUARD_H_
#define PIPELOOM_TESTS_SERVICE_BARE_GUARD_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "service/guard/connection_guard.h"
#include "tests/service/guarded_rpc.h"

namespace pipeloom::testing {

// Waits at most 20 s.
inline bool Eventually(const std::function<bool()>& true_one_day) {
  for (int i = 0; i < 2000; ++i) {
    if (true_one_day()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

// The sockets that a guard hands over.
struct Taken {
  Mutex mutex{};
  std::vector<int> sockets ABSL_GUARDED_BY(mutex){};

  size_t Count() {
    const MutexLock lock(&mutex);
    return sockets.size();
  }
  int Last() {
    int last = -1;
    Eventually([&] {
      const MutexLock lock(&mutex);
      if (sockets.empty()) return false;
      last = sockets.back();
      return true;
    });
    return last;
  }
};

struct BareGuard {
  explicit BareGuard(const service::GuardLimits& limits = {}) {
    auto listening =
        service::ConnectionGuard::Listen("127.0.0.1:0", limits, nullptr, &log);
    guard = *std::move(listening);
    guard->Start([this](int fd) {
      const MutexLock lock(&taken.mutex);
      taken.sockets.push_back(fd);
    });
  }
  Taken taken{};
  Lines lines{};
  service::Log log{service::LogLevel::kInfo, lines.sink()};
  std::unique_ptr<service::ConnectionGuard> guard{};
};

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SERVICE_BARE_GUARD_H_
