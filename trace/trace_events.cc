#include "trace/trace_events.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/numeric.h"

namespace pipeloom::trace {
namespace {

constexpr int64_t kMaxTasks = 4'000'000;
constexpr int32_t kMaxRanks = 4096;

std::optional<int32_t> IntArg(const formats::ChromeEvent& event,
                              absl::string_view name) {
  const std::string* text = event.Arg(name);
  int32_t value = 0;
  if (text == nullptr || !absl::SimpleAtoi(*text, &value) || value < 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<Pass> PassNamed(absl::string_view name) {
  if (name == "forward") return Pass::kForward;
  if (name == "backward") return Pass::kBackward;
  if (name == "weight_grad") return Pass::kWeightGrad;
  return std::nullopt;
}

int32_t TakeNumber(absl::string_view* text) {
  size_t digits = 0;
  while (digits < text->size() && (*text)[digits] >= '0' &&
         (*text)[digits] <= '9') {
    ++digits;
  }
  int32_t value = -1;
  if (digits > 0 && digits < 9 &&
      absl::SimpleAtoi(text->substr(0, digits), &value)) {
    text->remove_prefix(digits);
  }
  return value;
}

// PyTorch's categories of a range's launch on the CPU and its execution on the
// GPU; both have the same name.
constexpr char kLaunch[] = "user_annotation";
constexpr char kExecution[] = "gpu_user_annotation";

// Adds the event to `file` if it is a known one, and returns whether it is.
// `rank` is the file's.
bool Take(const formats::ChromeEvent& event, int32_t rank, TraceEvents* file) {
  if (event.phase != "X" || !event.has_time) return false;
  TraceTask seen;
  seen.rank = IntArg(event, "rank").value_or(rank);
  seen.step = IntArg(event, "step").value_or(-1);
  seen.start = event.start_ns;
  seen.end = event.start_ns + event.duration_ns;
  if (event.category == "epilogue") {
    if (IntArg(event, "replica").value_or(0) != 0) return false;
    file->epilogues.push_back(seen);
    return true;
  }
  if (const std::string* pass = event.Arg("pass"); pass != nullptr) {
    const auto known = PassNamed(*pass);
    const auto stage = IntArg(event, "stage");
    const auto microbatch = IntArg(event, "microbatch");
    if (!known || !stage || !microbatch) return false;
    if (IntArg(event, "replica").value_or(0) != 0) return false;
    const std::string* module = event.Arg("module");
    seen.key = {module == nullptr ? "model" : *module, *stage, *known,
                *microbatch, IntArg(event, "sub_microbatch").value_or(0)};
    seen.id = IntArg(event, "task").value_or(-1);
    seen.recomputes = event.Arg("recomputes") != nullptr;
    seen.overlaps = event.Arg("overlaps") != nullptr;
    if (const std::string* inputs = event.Arg("inputs"); inputs != nullptr) {
      seen.has_inputs = true;
      for (const absl::string_view part :
           absl::StrSplit(*inputs, ',', absl::SkipEmpty())) {
        int64_t id = 0;
        if (absl::SimpleAtoi(part, &id)) seen.inputs.push_back(id);
      }
    }
    file->tasks.push_back(std::move(seen));
    return true;
  }
  absl::string_view name = event.name;
  seen.key.module = "model";
  for (const auto& [word, pass] : {std::pair("Forward ", Pass::kForward),
                                   std::pair("Backward ", Pass::kBackward)}) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, word)) continue;
    const int32_t microbatch = TakeNumber(&rest);
    if (microbatch < 0 || !rest.empty()) return false;
    seen.key.stage = seen.rank;
    seen.key.pass = pass;
    seen.key.microbatch = microbatch;
    file->tasks.push_back(std::move(seen));
    return true;
  }
  absl::ConsumePrefix(&name, "PP:");
  seen.key.stage = TakeNumber(&name);
  if (seen.key.stage < 0) return false;
  const bool send = absl::ConsumePrefix(&name, "SEND_");
  const bool receive = !send && absl::ConsumePrefix(&name, "RECV_");
  if (name.empty()) return false;
  const char action = name[0];
  name.remove_prefix(1);
  seen.key.microbatch = TakeNumber(&name);
  if (seen.key.microbatch < 0 || !name.empty()) return false;
  if (action == 'F') {
    seen.key.pass = Pass::kForward;
  } else if (action == 'B' || action == 'I') {
    seen.key.pass = Pass::kBackward;
    seen.only_input_grad = action == 'I';
  } else if (action == 'W') {
    seen.key.pass = Pass::kWeightGrad;
  } else {
    return false;
  }
  if (send || receive) {
    file->moved.push_back({send, seen.key.pass, seen.key.stage,
                           seen.key.microbatch, seen.start, seen.end});
  } else {
    file->tasks.push_back(std::move(seen));
  }
  return true;
}

// Returns the number in a file name, 3 for "pp_rank_3.json"; -1 if there is
// none.
int32_t NumberOf(absl::string_view file_name) {
  if (const size_t slash = file_name.rfind('/');
      slash != absl::string_view::npos) {
    file_name.remove_prefix(slash + 1);
  }
  size_t end = file_name.size();
  while (end > 0 && (file_name[end - 1] < '0' || file_name[end - 1] > '9')) {
    --end;
  }
  size_t begin = end;
  while (begin > 0 && file_name[begin - 1] >= '0' &&
         file_name[begin - 1] <= '9') {
    --begin;
  }
  int32_t number = -1;
  if (!absl::SimpleAtoi(file_name.substr(begin, end - begin), &number)) {
    return -1;
  }
  return number;
}

}  // namespace

absl::StatusOr<TraceEvents> ReadTraceEvents(
    const std::vector<TraceSource>& sources) {
  TraceEvents all;
  std::set<int32_t> file_ranks;
  for (size_t f = 0; f < sources.size(); ++f) {
    TraceEvents file;
    TraceEvents launches;  // Those of kLaunch.
    bool executions = false;
    int32_t rank = NumberOf(sources[f].name);
    if (rank < 0 || file_ranks.count(rank) > 0) rank = static_cast<int32_t>(f);
    absl::StatusOr<formats::ChromeTraceInfo> info = formats::ReadChromeTrace(
        sources[f].name, sources[f].read,
        [&](const formats::ChromeEvent& event) -> absl::Status {
          const bool is_launch = event.category == kLaunch;
          const bool known = Take(event, -1, is_launch ? &launches : &file);
          if (known && event.duration_ns < 0) {
            return absl::InvalidArgumentError(
                absl::StrFormat("\"dur\" of %s is %g us; it must be >= 0",
                                event.name, 1e-3 * Real(event.duration_ns)));
          }
          executions = executions || (known && event.category == kExecution);
          if (static_cast<int64_t>(all.tasks.size() + file.tasks.size() +
                                   launches.tasks.size()) <= kMaxTasks) {
            return absl::OkStatus();
          }
          return absl::ResourceExhaustedError(
              absl::StrCat("more than ", kMaxTasks,
                           " tasks: cut the trace to some "
                           "iterations"));
        });
    if (!info.ok()) return info.status();
    if (!executions) {
      file.tasks.insert(file.tasks.end(), launches.tasks.begin(),
                        launches.tasks.end());
      file.moved.insert(file.moved.end(), launches.moved.begin(),
                        launches.moved.end());
    }
    all.count += info->events;
    if (info->rank >= 0) rank = static_cast<int32_t>(info->rank);
    if (!file_ranks.insert(rank).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is rank %d, and so is an earlier file", sources[f].name, rank));
    }
    for (std::vector<TraceTask>* list : {&file.tasks, &file.epilogues}) {
      for (TraceTask& seen : *list) {
        // "Forward 3" comes from runs with one stage per rank, so the stage is
        // the rank.
        if (seen.rank < 0 && seen.key.stage < 0) seen.key.stage = rank;
        if (seen.rank < 0) seen.rank = rank;
        if (seen.rank >= kMaxRanks) {
          return absl::InvalidArgumentError(
              absl::StrFormat("%s has a task of rank %d; at most %d are read",
                              sources[f].name, seen.rank, kMaxRanks - 1));
        }
      }
    }
    all.tasks.insert(all.tasks.end(), file.tasks.begin(), file.tasks.end());
    all.moved.insert(all.moved.end(), file.moved.begin(), file.moved.end());
    all.epilogues.insert(all.epilogues.end(), file.epilogues.begin(),
                         file.epilogues.end());
  }
  return all;
}

}  // namespace pipeloom::trace
