// The text form of Schedule. Lines of one kind are numbered in their order.
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/text/text_format.h"
#include "ir/text/text_line.h"

namespace pipeloom {
namespace {

constexpr int64_t kVersion = 1;

std::vector<TaskId> ReadOrder(TextReader& reader) {
  std::vector<TaskId> order;
  for (const int64_t task : reader.Ints(0)) {
    if (task > std::numeric_limits<int32_t>::max()) {
      reader.Fail("task numbers of 32 bits");
      break;
    }
    order.push_back(TaskId(static_cast<int32_t>(task)));
  }
  return order;
}

}  // namespace

std::string ToString(const Schedule& schedule) {
  const auto ns = [](SimTime time) { return time.time_since_epoch().count(); };
  std::string out =
      absl::StrFormat("schedule version %d\ntasks_finish %d finish %d\n",
                      kVersion, ns(schedule.tasks_finish), ns(schedule.finish));
  for (const std::vector<TaskId>& order : schedule.order) {
    absl::StrAppend(&out, "order");
    for (const TaskId task : order) absl::StrAppend(&out, " ", task.value());
    absl::StrAppend(&out, "\n");
  }
  for (const Bytes peak : schedule.peak) {
    absl::StrAppend(&out, "peak ", peak.count(), "\n");
  }
  for (const SimTime start : schedule.start) {
    absl::StrAppend(&out, "start ", ns(start), "\n");
  }
  absl::StrAppend(&out, "end\n");
  return out;
}

absl::StatusOr<Schedule> ParseSchedule(absl::string_view text) {
  TextReader reader(text);
  Schedule schedule;
  reader.NextLine();
  reader.Expect("schedule");
  const int64_t version = reader.Int("version");
  if (reader.status().ok() && version != kVersion) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "schedule version is %d; this program reads %d", version, kVersion));
  }
  reader.ExpectEndOfLine();
  reader.NextLine();
  schedule.tasks_finish = SimTime(Nanoseconds(reader.Int("tasks_finish")));
  schedule.finish = SimTime(Nanoseconds(reader.Int("finish")));
  reader.ExpectEndOfLine();
  bool ended = false;
  bool more = reader.NextLine();
  while (more && !ended) {
    if (reader.At("order")) {
      reader.Word();
      schedule.order.push_back(ReadOrder(reader));
    } else if (reader.At("peak")) {
      schedule.peak.push_back(Bytes(reader.Int("peak")));
    } else if (reader.At("start")) {
      schedule.start.push_back(SimTime(Nanoseconds(reader.Int("start"))));
    } else if (reader.At("end")) {
      reader.Word();
      ended = true;
    } else {
      reader.Fail("order, peak, start or end");
    }
    reader.ExpectEndOfLine();
    more = reader.NextLine();
  }
  if (!ended) reader.Fail("\"end\"");
  if (more) reader.Fail("nothing after \"end\"");
  PIPELOOM_RETURN_IF_ERROR(reader.status());
  return schedule;
}

}  // namespace pipeloom
