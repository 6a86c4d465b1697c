#include "runtime/mpi/start_watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::runtime {
namespace {

constexpr char kJob[] = "PMIX_NAMESPACE=";
constexpr char kRank[] = "PMIX_RANK=";

// Returns the value of a variable in the content of /proc/PID/environ. `name`
// includes the '='.
std::string ValueOf(const std::string& environment, const std::string& name) {
  size_t at = 0;
  while (at < environment.size()) {
    const size_t end = std::min(environment.find('\0', at), environment.size());
    if (environment.compare(at, name.size(), name) == 0) {
      return environment.substr(at + name.size(), end - at - name.size());
    }
    at = end + 1;
  }
  return "";
}

// Reads a small file; empty if it cannot be read.
std::string ReadSmall(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Returns the word after the first occurrence of `name`.
std::string WordAfter(const std::string& text, const std::string& name) {
  const size_t line = text.find(name);
  if (line == std::string::npos) return "";
  const size_t word = text.find_first_not_of(" \t", line + name.size());
  if (word == std::string::npos) return "";
  return text.substr(word, text.find_first_of(" \t\n", word) - word);
}

// Returns why the process may not come up; empty if no reason is seen.
std::string TroubleOf(const std::filesystem::path& process) {
  const std::string state = WordAfter(ReadSmall(process / "status"), "State:");
  if (state == "T" || state == "t") return "is stopped";
  const std::string limit =
      WordAfter(ReadSmall(process / "limits"), "Max address space");
  if (limit.empty() || limit == "unlimited") return "";
  return absl::StrCat("may have ", limit, " B of address space (ulimit -v)");
}

// Describes the ranks of this host and job that may not come up.
std::string RanksInTrouble() {
  const char* const job = std::getenv("PMIX_NAMESPACE");
  if (job == nullptr) return "";
  std::map<int, std::string> words;
  std::set<int> seen;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; it != end;
       it.increment(error)) {
    if (error) break;
    const std::string process = it->path().filename();
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = ReadSmall(it->path() / "environ");
    const std::string rank = ValueOf(environment, kRank);
    if (rank.empty() || ValueOf(environment, kJob) != job) continue;
    seen.insert(std::atoi(rank.c_str()));
    const std::string trouble = TroubleOf(it->path());
    if (trouble.empty()) continue;
    words.emplace(
        std::atoi(rank.c_str()),
        absl::StrFormat("rank %s (process %s) %s", rank, process, trouble));
  }
  // Open MPI tells how many ranks there are; where all are on this host, those
  // without a process have ended.
  const char* const ranks = std::getenv("OMPI_COMM_WORLD_SIZE");
  const char* const here = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  if (ranks != nullptr && here != nullptr && std::strcmp(ranks, here) == 0) {
    for (int r = 0; r < std::atoi(ranks); ++r) {
      if (seen.contains(r)) continue;
      words.emplace(r, absl::StrFormat("rank %d has ended already", r));
    }
  }
  std::string all;
  for (const auto& [rank, text] : words) {
    absl::StrAppend(&all, all.empty() ? "" : "; ", text);
  }
  return all;
}

absl::Status TooLate(WallDuration bound, const std::string& trouble) {
  return absl::DeadlineExceededError(absl::StrFormat(
      "MPI has not started within %.1f s: %s",
      std::chrono::duration<double>(bound).count(),
      trouble.empty() ? "no rank of this host is stopped or short of address "
                        "space; look at the other hosts and the network"
                      : trouble));
}

}  // namespace

std::string RankBeforeStart() {
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* const rank = std::getenv(name);
    if (rank != nullptr) return absl::StrCat("rank ", rank);
  }
  return "a rank";
}

StartWatch::StartWatch(WallDuration bound, Late late)
    : bound_(bound), late_(std::move(late)), thread_([this] { Watch(); }) {}

absl::StatusOr<std::unique_ptr<StartWatch>> StartWatch::Begin(
    WallDuration bound, Late late) {
  try {
    return std::unique_ptr<StartWatch>(new StartWatch(bound, std::move(late)));
  } catch (const std::system_error& e) {
    return absl::UnavailableError(absl::StrFormat(
        "%s does not start MPI: it can start no thread (%s); %s",
        RankBeforeStart(), e.what(), RanksInTrouble()));
  }
}

StartWatch::~StartWatch() {
  {
    const MutexLock lock(&mutex_);
    over_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void StartWatch::Watch() {
  const MutexLock lock(&mutex_);
  const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_;
  };
  // Look before the bound: the first rank to end makes the starter end all
  // others, the one in trouble among them.
  const WallDuration before = bound_ * 3 / 4;
  if (changed_.WaitFor(&mutex_, before, is_over)) return;
  try {
    const std::string trouble = RanksInTrouble();
    if (changed_.WaitFor(&mutex_, bound_ - before, is_over)) return;
    late_(TooLate(bound_, trouble));
  } catch (const std::bad_alloc&) {
    // A rank without memory for a message. The others name it.
    constexpr char kWords[] = "out of memory while MPI started\n";
    static_cast<void>(!write(STDERR_FILENO, kWords, sizeof kWords - 1));
    _exit(1);
  }
}

}  // namespace pipeloom::runtime
