#include "cli/run/plan_follower.h"

#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cli/console/build_id.h"
#include "proto/convert/batch_proto.h"
#include "proto/convert/job_proto.h"

namespace pipeloom::cli {
namespace {

constexpr uint64_t kMaxFrame = uint64_t{1} << 30;
constexpr std::chrono::seconds kFarewell{1};
constexpr int kProbe = 10;  // A silent planner costs 1 wait in the time of 10.

struct Header {
  char kind = 0;
  char unused[7]{};
  int64_t step = 0;
  uint64_t size = 0;
};

// Writes all bytes. With MSG_NOSIGNAL, a closed socket does not end this
// process.
bool WriteAll(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = read(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool WriteFrame(int fd, char kind, int64_t step, absl::string_view payload) {
  Header header;
  header.kind = kind;
  header.step = step;
  header.size = payload.size();
  return WriteAll(fd, reinterpret_cast<const char*>(&header), sizeof(header)) &&
         WriteAll(fd, payload.data(), payload.size());
}

bool ReadFrame(int fd, char* kind, int64_t* step, std::string* payload) {
  Header header;
  if (!ReadAll(fd, reinterpret_cast<char*>(&header), sizeof(header)) ||
      header.size > kMaxFrame) {
    return false;
  }
  *kind = header.kind;
  *step = header.step;
  payload->resize(header.size);
  return ReadAll(fd, payload->data(), payload->size());
}

std::string FollowedJob(const JobSpec& job, const Partition& partition) {
  std::string text =
      absl::StrCat(partition.num_ranks, " ", partition.num_segments, " ",
                   partition.stages.size(), " ",
                   partition.sub_microbatch_instances.size(), "\n");
  for (const Stage& s : partition.stages) {
    absl::StrAppend(&text, job.model.modules[s.module].name, " ",
                    s.first_layer.value(), " ", s.num_layers, " ",
                    s.rank.value(), " ", s.segment.value(), "\n");
  }
  for (const ModuleId m : partition.sub_microbatch_instances.ids()) {
    absl::StrAppend(&text, job.model.modules[m].name, " ",
                    partition.sub_microbatch_instances[m], "\n");
  }
  return absl::StrCat(text, convert::ToProto(job).SerializeAsString());
}

std::string FollowedBatch(const partition::PackedStep& packed) {
  BatchMetadata batch;
  std::string places;
  const auto& microbatches = packed.packed.front();
  for (size_t m = 0; m < microbatches.size(); ++m) {
    for (const SampleId s : microbatches[m]) {
      batch.samples.push_back(packed.samples.samples[s]);
      absl::StrAppend(&places, m, " ");
    }
  }
  return absl::StrCat(places, "\n",
                      convert::ToProto(batch).SerializeAsString());
}

absl::StatusOr<std::unique_ptr<PlanFollower>> PlanFollower::Start(
    const FollowOptions& options, const JobSpec& job,
    const Partition& partition) {
  std::error_code error;
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() /
       "pipeloom-service")
          .string();
  PIPELOOM_RETURN_IF_ERROR(CheckSameBuild(program));
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no socket pair: ", strerror(errno)));
  }
  std::vector<std::string> words = {program, "follow", "--target",
                                    options.target};
  if (!options.token_file.empty()) {
    words.insert(words.end(), {"--token-file", options.token_file});
  }
  if (!options.tls_ca.empty()) {
    words.insert(words.end(), {"--tls-ca", options.tls_ca});
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
  pid_t process = 0;
  const int failed = posix_spawn(&process, program.c_str(), &actions, nullptr,
                                 arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    return absl::UnavailableError(
        absl::StrCat("cannot start ", program, ": ", strerror(failed)));
  }
  std::unique_ptr<PlanFollower> follower(
      new PlanFollower(process, ends[0], options.wait));
  follower->Send('J', 0, FollowedJob(job, partition));
  return follower;
}

PlanFollower::PlanFollower(pid_t process, int socket,
                           std::chrono::nanoseconds wait)
    : process_(process), socket_(socket), wait_(wait) {
  reader_ = std::thread([this] { Read(); });
}

PlanFollower::~PlanFollower() {
  shutdown(socket_, SHUT_RDWR);
  reader_.join();
  close(socket_);
  // The other process closes the job, if the planner is there, and ends.
  const Clock::time_point end = Clock::now() + kFarewell;
  while (waitpid(process_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > end) {
      kill(process_, SIGKILL);
      waitpid(process_, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void PlanFollower::Send(char kind, int64_t step, absl::string_view payload) {
  if (WriteFrame(socket_, kind, step, payload)) return;
  const MutexLock lock(&mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

void PlanFollower::Submit(int64_t step, const partition::PackedStep& packed) {
  Send('S', step, FollowedBatch(packed));
}

std::optional<std::string> PlanFollower::Wait(int64_t step) {
  std::optional<std::string> plan;
  {
    const MutexLock lock(&mutex_);
    const Clock::time_point begin = Clock::now();
    // Wait in full again: otherwise steps that are shorter than planning would
    // never get a plan again.
    if (silent_since_.has_value() && begin >= *silent_since_ + kProbe * wait_) {
      silent_since_ = begin;
    }
    const Clock::time_point end =
        std::min(begin, silent_since_.value_or(begin)) + wait_;
    changed_.WaitUntil(&mutex_, end,
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return plans_.contains(step) || ended_ ||
                                (silent_since_.has_value() &&
                                 *silent_since_ + wait_ <= Clock::now());
                       });
    if (const auto found = plans_.find(step); found != plans_.end()) {
      plan = std::move(found->second);
    } else if (!silent_since_.has_value()) {
      silent_since_ = begin;
    }
    plans_.erase(plans_.begin(), plans_.upper_bound(step));
  }
  Send('F', step, "");
  return plan;
}

void PlanFollower::Read() {
  char kind = 0;
  int64_t step = 0;
  std::string payload;
  while (ReadFrame(socket_, &kind, &step, &payload)) {
    const MutexLock lock(&mutex_);
    if (kind == 'P') {
      plans_[step] = std::move(payload);
      silent_since_.reset();
    } else if (kind == 'T' && !silent_since_.has_value()) {
      silent_since_ = Clock::now();
    }
    changed_.NotifyAll();
  }
  const MutexLock lock(&mutex_);
  ended_ = true;
  changed_.NotifyAll();
}

}  // namespace pipeloom::cli
