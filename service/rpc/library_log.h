// The messages of the gRPC library, in the service's log. By itself the library
// writes to stderr and repeats what callers sent, line breaks included, so that
// a caller could write lines that look like the service's.
#ifndef PIPELOOM_SERVICE_RPC_LIBRARY_LOG_H_
#define PIPELOOM_SERVICE_RPC_LIBRARY_LOG_H_

#include "service/os/log.h"

namespace pipeloom::service {

// Sends the library's errors to a log while the object lives; of several
// objects, to that of the newest. At most ten a second are written, as callers
// can cause any number; the next one then says how many were left out.
class LibraryLog {
 public:
  // REQUIRES: `log` outlives the object.
  explicit LibraryLog(Log* log);
  ~LibraryLog();
  LibraryLog(const LibraryLog&) = delete;
  LibraryLog& operator=(const LibraryLog&) = delete;

 private:
  Log* log_;
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_RPC_LIBRARY_LOG_H_
