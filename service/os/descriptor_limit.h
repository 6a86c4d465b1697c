// The number of files and connections that this process may have open.
#ifndef PIPELOOM_SERVICE_OS_DESCRIPTOR_LIMIT_H_
#define PIPELOOM_SERVICE_OS_DESCRIPTOR_LIMIT_H_

#include <sys/resource.h>

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

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_OS_DESCRIPTOR_LIMIT_H_
