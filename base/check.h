// Aborts on what only our own bug can cause. What a user, peer or device can
// cause is an absl::Status instead.
#ifndef PIPELOOM_BASE_CHECK_H_
#define PIPELOOM_BASE_CHECK_H_

namespace pipeloom::internal {

// Prints "file:line: check failed: condition" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line,
                              const char* condition);

}  // namespace pipeloom::internal

#define PIPELOOM_CHECK(condition)                                        \
  do {                                                                   \
    if (!(condition)) [[unlikely]]                                       \
      ::pipeloom::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

// As PIPELOOM_CHECK in debug builds, nothing in optimised ones: for inner
// loops.
#ifdef NDEBUG
#define PIPELOOM_DCHECK(condition) \
  do {                             \
    if (false) (void)(condition);  \
  } while (false)
#else
#define PIPELOOM_DCHECK(condition) PIPELOOM_CHECK(condition)
#endif

#endif  // PIPELOOM_BASE_CHECK_H_
