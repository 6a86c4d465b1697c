#include "base/mutex.h"

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pipeloom {
namespace {

struct Counter {
  Mutex mutex{};
  CondVar changed{};
  int64_t count ABSL_GUARDED_BY(mutex) = 0;
};

// Tells whether another thread could lock the mutex now. REQUIRES: no other
// thread uses the mutex.
bool IsFree(Mutex* mutex) {
  bool locked = false;
  std::thread other([&] {
    const MutexLock lock(mutex);
    locked = true;
  });
  other.join();
  return locked;
}

TEST(MutexTest, ExcludesOtherThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20'000;
  Counter counter;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kRounds; ++i) {
          const MutexLock lock(&counter.mutex);
          ++counter.count;
        }
      });
    }
  }
  const MutexLock lock(&counter.mutex);
  EXPECT_EQ(counter.count, kThreads * kRounds);
}

TEST(MutexTest, ALockGivenUpIsNotReleasedTwice) {
  Counter counter;
  {
    MutexLock lock(&counter.mutex);
    lock.Unlock();
    EXPECT_TRUE(IsFree(&counter.mutex));
  }
  {
    MutexLock lock(&counter.mutex);
    lock.Unlock();
    lock.Lock();
    ++counter.count;
  }
  EXPECT_TRUE(IsFree(&counter.mutex));
}

TEST(CondVarTest, WaitsForTheCondition) {
  Counter counter;
  const std::jthread other([&] {
    for (int i = 0; i < 5; ++i) {
      const MutexLock lock(&counter.mutex);
      ++counter.count;
      counter.changed.NotifyAll();
    }
  });
  const auto is_five = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(counter.mutex) {
    return counter.count == 5;
  };
  const MutexLock lock(&counter.mutex);
  counter.changed.Wait(&counter.mutex, is_five);
  EXPECT_EQ(counter.count, 5);
  // It holds already: the deadlines do not matter.
  EXPECT_TRUE(counter.changed.WaitUntil(
      &counter.mutex, std::chrono::steady_clock::time_point::min(), is_five));
  EXPECT_TRUE(counter.changed.WaitFor(&counter.mutex, std::chrono::seconds(0),
                                      is_five));
}

TEST(CondVarTest, ADeadlineEndsTheWaitWithTheMutexHeld) {
  Counter counter;
  const auto never = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(counter.mutex) {
    return counter.count != 0;
  };
  {
    const MutexLock lock(&counter.mutex);
    EXPECT_FALSE(counter.changed.WaitUntil(
        &counter.mutex, std::chrono::steady_clock::now(), never));
    EXPECT_FALSE(counter.changed.WaitFor(&counter.mutex,
                                         std::chrono::milliseconds(1), never));
    // The scope's end would be undefined if the waits had released the mutex.
    ++counter.count;
  }
  EXPECT_TRUE(IsFree(&counter.mutex));
}

TEST(CondVarTest, AConditionThatThrowsLeavesTheMutexToItsScope) {
  Counter counter;
  try {
    const MutexLock lock(&counter.mutex);
    counter.changed.Wait(&counter.mutex,
                         []() -> bool { throw std::runtime_error("no"); });
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "no");
  }
  EXPECT_TRUE(IsFree(&counter.mutex));
}

TEST(SharedMutexTest, ReadersShareAndWritersExclude) {
  struct {
    SharedMutex mutex{};
    int64_t low ABSL_GUARDED_BY(mutex) = 0;
    int64_t high ABSL_GUARDED_BY(mutex) = 0;
  } pair;
  {
    const ReaderMutexLock lock(&pair.mutex);
    // Returns only if a second reader can enter.
    std::thread([&] {
      const ReaderMutexLock second(&pair.mutex);
      EXPECT_EQ(pair.low, pair.high);
    }).join();
  }
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5'000; ++i) {
        const WriterMutexLock lock(&pair.mutex);
        ++pair.low;
        ++pair.high;
      }
    });
    threads.emplace_back([&] {
      for (int i = 0; i < 5'000; ++i) {
        const ReaderMutexLock lock(&pair.mutex);
        ASSERT_EQ(pair.low, pair.high);
      }
    });
  }
  threads.clear();
  const ReaderMutexLock lock(&pair.mutex);
  EXPECT_EQ(pair.low, 10'000);
}

}  // namespace
}  // namespace pipeloom
