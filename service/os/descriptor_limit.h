// The number of files and connections that this process may have open.
#ifndef PIPELOOM_SERVICE_OS_DESCRIPTOR_LIMIT_H_
#define PIPELOOM_SERVICE_OS_DESCRIPTOR_LIMIT_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace pipeloom::service {

// Raises the soft limit of open descriptors to the hard one, to 1,048,576 at
// most, as every connection takes three. Returns the limit that holds then; -1:
// not known.
inline int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return -1;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, rlim_t{1} << 20);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
      getrlimit(RLIMIT_NOFILE, &limit);
    }
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

// Has the kernel make room for so many descriptors, or as many as the limit
// allows. The kernel's table grows to twice its size whenever it is full, and
// a process with threads then waits in accept() or socketpair() until every
// core has passed through the scheduler: seconds if all are busy.
inline void ReserveDescriptors(int64_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto most =
      static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, rlim_t{1} << 20));
  const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int last =
      fcntl(any, F_DUPFD_CLOEXEC, static_cast<int>(std::min(count, most) - 1));
  if (last >= 0) close(last);
  if (any >= 0) close(any);
}

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_DESCRIPTOR_LIMIT_H_
