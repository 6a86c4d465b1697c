#include "python/native/interruptible.h"

#include <nanobind/stl/string.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/mutex.h"

namespace pipeloom::python {
namespace {

namespace nb = nanobind;

constexpr auto kPoll = std::chrono::milliseconds(50);
constexpr auto kGrace = std::chrono::milliseconds(500);

// The messages of the thread that works to the one that waits. Threads: any.
class Mailbox {
 public:
  void Print(absl::string_view text) {
    const MutexLock lock(&mutex_);
    absl::StrAppend(&printed_, text);
  }
  void Warn(absl::string_view line) {
    const MutexLock lock(&mutex_);
    notes_.emplace_back(absl::StripSuffix(line, "\n"));
  }
  void Show(absl::string_view line) {
    const MutexLock lock(&mutex_);
    progress_ = std::string(line);
  }
  void Finish(absl::Status status) {
    const MutexLock lock(&mutex_);
    status_ = std::move(status);
    finished_ = true;
    changed_.NotifyAll();
  }

  // Waits for the end, at most kPoll. Returns whether the work has ended.
  bool Wait() {
    const MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, kPoll,
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return finished_; });
  }
  // Takes the line of progress that was not taken yet; empty: none.
  std::string TakeProgress() {
    const MutexLock lock(&mutex_);
    return std::exchange(progress_, std::string());
  }
  CallResult TakeResult() {
    const MutexLock lock(&mutex_);
    return {std::move(status_), std::move(printed_), std::move(notes_)};
  }

 private:
  Mutex mutex_{};
  CondVar changed_{};
  std::string printed_ ABSL_GUARDED_BY(mutex_){};
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_){};
  std::string progress_ ABSL_GUARDED_BY(mutex_){};
  absl::Status status_ ABSL_GUARDED_BY(mutex_){};
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// The calls whose work goes on in the background. Threads: any.
class Background {
 public:
  void Begin() {
    const MutexLock lock(&mutex_);
    ++running_;
  }
  void End() {
    const MutexLock lock(&mutex_);
    --running_;
    changed_.NotifyAll();
  }
  // Returns whether nothing is running, after at most kPoll.
  bool Wait() {
    const MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kPoll,
                            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                              return running_ == 0;
                            });
  }

 private:
  Mutex mutex_{};
  CondVar changed_{};
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
};

Background& TheBackground() {
  static auto* const background = new Background;
  return *background;
}

// A call, shared by the thread that waits and the one that works.
struct Call {
  std::function<absl::Status(const cli::Context&)> work{};
  bool shows_progress = false;
  Mailbox mailbox{};
  std::stop_source stop{};
};

// Works; throws nothing.
void Work(Call* call) {
  cli::Context context;
  Mailbox& mailbox = call->mailbox;
  context.stop = call->stop.get_token();
  context.print = [&](absl::string_view text) { mailbox.Print(text); };
  context.warn = [&](absl::string_view line) { mailbox.Warn(line); };
  if (call->shows_progress) {
    context.show_progress = [&](absl::string_view line) { mailbox.Show(line); };
  }
  try {
    mailbox.Finish(call->work(context));
  } catch (const std::exception& error) {  // Only if memory is short.
    mailbox.Finish(absl::InternalError(error.what()));
  }
}

}  // namespace

CallResult RunInterruptible(
    std::function<absl::Status(const cli::Context&)> work,
    const nb::object& progress) {
  using Clock = std::chrono::steady_clock;
  const auto call = std::make_shared<Call>();
  call->work = std::move(work);
  call->shows_progress = !progress.is_none();
  TheBackground().Begin();
  std::thread([call] {
    Work(call.get());
    TheBackground().End();
  }).detach();
  std::optional<nb::python_error> raised;
  Clock::time_point give_up{};
  for (bool finished = false; !finished;) {
    {
      const nb::gil_scoped_release release;
      finished = call->mailbox.Wait();
    }
    if (raised) {
      if (Clock::now() >= give_up) break;
      continue;
    }
    try {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
      const std::string line = call->mailbox.TakeProgress();
      if (!line.empty()) progress(line);
    } catch (nb::python_error& error) {
      raised.emplace(std::move(error));
      call->stop.request_stop();
      give_up = Clock::now() + kGrace;
    }
  }
  if (raised) throw std::move(*raised);
  return call->mailbox.TakeResult();
}

void WaitForBackground() {
  for (bool idle = false; !idle;) {
    {
      const nb::gil_scoped_release release;
      idle = TheBackground().Wait();
    }
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  }
}

}  // namespace pipeloom::python
