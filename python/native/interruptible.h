// Long calls from Python: without the interpreter's lock, with progress, and
// ended by Ctrl-C.
#ifndef PIPELOOM_PYTHON_NATIVE_INTERRUPTIBLE_H_
#define PIPELOOM_PYTHON_NATIVE_INTERRUPTIBLE_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/console/command.h"

namespace pipeloom::python {

// The result of a call.
struct CallResult {
  absl::Status status{};
  std::string printed{};             // To stdout, by a command.
  std::vector<std::string> notes{};  // Lines for people, such as "note: ...".
};

// Runs `work` on a thread of its own and waits for it without the
// interpreter's lock. Calls `progress` (may be None) on this thread with lines
// such as "planning: 3 of 10, 12 s" while the work takes longer than a moment.
//
// A signal that Python has a handler for, such as Ctrl-C, and an exception of
// `progress` request a stop of the work. The exception is raised when the work
// has ended, or half a second later: a part of the work that cannot be stopped,
// such as the choice of a partition, then ends in the background. REQUIRES:
// holds the interpreter's lock; `work` owns what it uses, and uses no Python.
CallResult RunInterruptible(
    std::function<absl::Status(const cli::Context&)> work,
    const nanobind::object& progress);

// Waits, without the interpreter's lock, until no work is in the background.
// Python calls this at its exit, before the memory of the libraries is freed.
void WaitForBackground();

}  // namespace pipeloom::python

#endif  // PIPELOOM_PYTHON_NATIVE_INTERRUPTIBLE_H_
