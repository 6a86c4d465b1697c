// Mutexes whose use clang checks (-Wthread-safety): each member names the mutex
// that guards it, each function the mutex that its caller holds.
//
//   Mutex mutex_{};
//   CondVar changed_{};
//   int64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
//
//   const MutexLock lock(&mutex_);
//   changed_.Wait(&mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
//     return done_ == 3;
//   });
//
// They are the standard library's with annotations, at the same cost. Unlike
// absl::Mutex they take deadlines of a steady clock, and the thread sanitizer
// sees them without a build of Abseil of its own. Other compilers than clang
// ignore the annotations.
#ifndef PIPELOOM_BASE_MUTEX_H_
#define PIPELOOM_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"

namespace pipeloom {

// A lock that one thread holds at a time, which must not lock it again.
// Threads: any.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_{};
};

// A scope that holds a mutex. May give it up for a while.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() {
    if (held_) mutex_->Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // REQUIRES: the scope holds the mutex.
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    held_ = false;
    mutex_->Unlock();
  }
  // REQUIRES: the scope does not hold the mutex.
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    mutex_->Lock();
    held_ = true;
  }

 private:
  Mutex* const mutex_;
  bool held_ = true;
};

// A place to wait until a condition on guarded members holds. The condition is
// evaluated with the mutex held: before the wait, after each notification and
// after the deadline. All waits of one CondVar use the same mutex. Threads:
// any.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Waits until the condition holds.
  template <typename Condition>
  void Wait(Mutex* mutex, const Condition& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(mutex->mutex_);
    changed_.wait(adopted.lock, condition);
  }
  // Waits until the condition holds or the deadline has passed. Returns whether
  // the condition holds.
  template <typename Clock, typename Duration, typename Condition>
  bool WaitUntil(Mutex* mutex,
                 const std::chrono::time_point<Clock, Duration>& deadline,
                 const Condition& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(mutex->mutex_);
    return changed_.wait_until(adopted.lock, deadline, condition);
  }
  // Waits, by the steady clock, for at most `duration`.
  template <typename Rep, typename Period, typename Condition>
  bool WaitFor(Mutex* mutex, const std::chrono::duration<Rep, Period>& duration,
               const Condition& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Adopted adopted(mutex->mutex_);
    return changed_.wait_for(adopted.lock, duration, condition);
  }

  // Lets all waits evaluate their conditions again.
  void NotifyAll() { changed_.notify_all(); }

 private:
  // The form in which the standard library takes a mutex that the caller holds,
  // and still holds afterwards, even if the condition throws.
  struct Adopted {
    explicit Adopted(std::mutex& mutex) : lock(mutex, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_{};
};

// A lock that several readers or one writer hold at a time. Threads: any.
class ABSL_LOCKABLE SharedMutex {
 public:
  SharedMutex() = default;
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void ReaderLock() ABSL_SHARED_LOCK_FUNCTION() { mutex_.lock_shared(); }
  void ReaderUnlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_{};
};

// A scope that reads what a shared mutex guards.
class ABSL_SCOPED_LOCKABLE ReaderMutexLock {
 public:
  explicit ReaderMutexLock(SharedMutex* mutex) ABSL_SHARED_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->ReaderLock();
  }
  ~ReaderMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->ReaderUnlock(); }
  ReaderMutexLock(const ReaderMutexLock&) = delete;
  ReaderMutexLock& operator=(const ReaderMutexLock&) = delete;

 private:
  SharedMutex* const mutex_;
};

// A scope that reads and writes what a shared mutex guards.
class ABSL_SCOPED_LOCKABLE WriterMutexLock {
 public:
  explicit WriterMutexLock(SharedMutex* mutex)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex)
      : mutex_(mutex) {
    mutex_->Lock();
  }
  ~WriterMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  WriterMutexLock(const WriterMutexLock&) = delete;
  WriterMutexLock& operator=(const WriterMutexLock&) = delete;

 private:
  SharedMutex* const mutex_;
};

}  // namespace pipeloom

#endif  // PIPELOOM_BASE_MUTEX_H_
