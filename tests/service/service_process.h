// `pipeloom serve` as a process of its own, to be killed.
#ifndef PIPELOOM_TESTS_SERVICE_SERVICE_PROCESS_H_
#define PIPELOOM_TESTS_SERVICE_SERVICE_PROCESS_H_

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/service/service_fixture.h"

namespace pipeloom::testing {

// A service on a free port, with a state folder. PIPELOOM_SERVICE_BINARY of the
// environment names another program than the one that was built, to see how an
// earlier one does.
class Process {
 public:
  explicit Process(const std::string& state,
                   const std::vector<std::string>& more = {}) {
    int out[2];
    if (pipe(out) != 0) return;
    const char* other = getenv("PIPELOOM_SERVICE_BINARY");
    const std::string program = other ? other : PIPELOOM_SERVICE_BINARY;
    std::vector<std::string> words = {
        "pipeloom",    "serve",
        "--listen",    "127.0.0.1:0",
        "--data-dir",  absl::StrCat(PIPELOOM_SOURCE_DIR, "/workloads"),
        "--threads",   "2",
        "--log-level", "error"};
    if (!state.empty()) words.insert(words.end(), {"--state", state});
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      execv(program.c_str(), arguments.data());
      _exit(127);
    }
    close(out[1]);
    std::string line;
    for (char c = 0; read(out[0], &c, 1) == 1 && c != '\n';) line += c;
    close(out[0]);
    const size_t colon = line.rfind(':');
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(line.substr(colon + 1), &port_)) {
      return;
    }
    grpc::ChannelArguments arguments_of_channel;
    arguments_of_channel.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = v1::PlannerService::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(),
        arguments_of_channel));
  }
  ~Process() { End(SIGKILL); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Returns the exit status.
  int End(int signal_number) {
    if (pid_ <= 0) return -1;
    kill(pid_, signal_number);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  bool ok() const { return stub_ != nullptr; }
  pid_t pid() const { return pid_; }
  int port() const { return port_; }
  v1::PlannerService::Stub& stub() { return *stub_; }

 private:
  pid_t pid_ = -1;
  int port_ = 0;
  std::unique_ptr<v1::PlannerService::Stub> stub_{};
};

// Returns the number of rounds that an environment variable asks for.
inline int Rounds(const char* variable, int usual) {
  const char* text = getenv(variable);
  int rounds = usual;
  return text != nullptr && absl::SimpleAtoi(text, &rounds) ? rounds : usual;
}

}  // namespace pipeloom::testing

#endif  // PIPELOOM_TESTS_SERVICE_SERVICE_PROCESS_H_
