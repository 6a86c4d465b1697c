#include "proto/convert/carried_step_proto.h"

#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace pipeloom::convert {
namespace {

constexpr int kPasses = 3;

absl::Status CheckShare(double value, const std::string& field) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g; it must be a number >= 0", field, value));
}

absl::Status CheckNotNegative(int64_t value, const std::string& field) {
  if (value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; it must be >= 0", field, value));
}

absl::Status AddSegments(const v1::CarriedStep::Microbatch& proto,
                         const std::string& field, CarriedStep* carried) {
  auto& segments = carried->microbatches.emplace_back();
  for (int i = 0; i < proto.segments_size(); ++i) {
    const v1::CarriedStep::Segment& segment = proto.segments(i);
    const std::string name = absl::StrFormat("%s.segments[%d]", field, i);
    PIPELOOM_RETURN_IF_ERROR(
        CheckNotNegative(segment.module(), name + ".module"));
    PIPELOOM_RETURN_IF_ERROR(CheckShare(segment.start(), name + ".start"));
    segments.push_back({.module = ModuleId(segment.module()),
                        .backward = segment.backward(),
                        .start = segment.start()});
  }
  return absl::OkStatus();
}

absl::Status AddPlaces(const v1::CarriedStep::Microbatch& proto,
                       const std::string& field, CarriedStep* carried) {
  const int number = proto.stage_size();
  for (const auto& [name, size] :
       {std::pair("pass", proto.pass_size()),
        std::pair("sub_microbatch", proto.sub_microbatch_size()),
        std::pair("start", proto.start_size()),
        std::pair("held", proto.held_size())}) {
    if (size == number) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s.%s has %d entries; it must have %d, as stage",
                        field, name, size, number));
  }
  std::vector<CarriedStep::Place>& places = carried->places.emplace_back();
  places.reserve(static_cast<size_t>(number));
  for (int i = 0; i < number; ++i) {
    const auto at = [&](const char* name) {
      return absl::StrFormat("%s.%s[%d]", field, name, i);
    };
    PIPELOOM_RETURN_IF_ERROR(CheckNotNegative(proto.stage(i), at("stage")));
    PIPELOOM_RETURN_IF_ERROR(
        CheckNotNegative(proto.sub_microbatch(i), at("sub_microbatch")));
    if (proto.pass(i) < 0 || proto.pass(i) >= kPasses) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is %d; it must be in [0, %d)", at("pass"),
                          proto.pass(i), kPasses));
    }
    PIPELOOM_RETURN_IF_ERROR(CheckShare(proto.start(i), at("start")));
    PIPELOOM_RETURN_IF_ERROR(CheckShare(proto.held(i), at("held")));
    places.push_back({.stage = StageId(proto.stage(i)),
                      .pass = static_cast<Pass>(proto.pass(i)),
                      .sub_microbatch = proto.sub_microbatch(i),
                      .start = proto.start(i),
                      .held = proto.held(i)});
    const auto place = [&](size_t p) {
      return std::tuple(places[p].stage, places[p].pass,
                        places[p].sub_microbatch);
    };
    const auto last = static_cast<size_t>(i);
    if (i > 0 && !(place(last - 1) < place(last))) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is %d; tasks must be sorted by stage, pass and sub-microbatch",
          at("stage"), proto.stage(i)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

v1::CarriedStep ToProto(const CarriedStep& carried) {
  v1::CarriedStep proto;
  for (size_t m = 0; m < carried.microbatches.size(); ++m) {
    v1::CarriedStep::Microbatch& microbatch = *proto.add_microbatches();
    microbatch.set_work_ns(carried.work[m].count());
    for (const CarriedStep::Segment& segment : carried.microbatches[m]) {
      v1::CarriedStep::Segment& s = *microbatch.add_segments();
      s.set_module(segment.module.value());
      s.set_backward(segment.backward);
      s.set_start(segment.start);
    }
    for (const CarriedStep::Place& place : carried.places[m]) {
      microbatch.add_stage(place.stage.value());
      microbatch.add_pass(static_cast<int>(place.pass));
      microbatch.add_sub_microbatch(place.sub_microbatch);
      microbatch.add_start(place.start);
      microbatch.add_held(place.held);
    }
  }
  for (const Bytes room : carried.room) proto.add_room_bytes(room.count());
  proto.set_quick_ratio(carried.quick_ratio);
  proto.set_refined_ratio(carried.refined_ratio);
  return proto;
}

v1::CarriedSteps ToProto(
    const std::vector<std::shared_ptr<const CarriedStep>>& steps) {
  v1::CarriedSteps proto;
  for (const auto& step : steps) *proto.add_steps() = ToProto(*step);
  return proto;
}

absl::StatusOr<CarriedStep> FromProto(const v1::CarriedStep& proto) {
  CarriedStep carried;
  for (int m = 0; m < proto.microbatches_size(); ++m) {
    const v1::CarriedStep::Microbatch& microbatch = proto.microbatches(m);
    const std::string field = absl::StrFormat("microbatches[%d]", m);
    PIPELOOM_RETURN_IF_ERROR(
        CheckNotNegative(microbatch.work_ns(), field + ".work_ns"));
    carried.work.push_back(Nanoseconds(microbatch.work_ns()));
    PIPELOOM_RETURN_IF_ERROR(AddSegments(microbatch, field, &carried));
    PIPELOOM_RETURN_IF_ERROR(AddPlaces(microbatch, field, &carried));
  }
  for (int r = 0; r < proto.room_bytes_size(); ++r) {
    PIPELOOM_RETURN_IF_ERROR(CheckNotNegative(
        proto.room_bytes(r), absl::StrFormat("room_bytes[%d]", r)));
    carried.room.push_back(Bytes(proto.room_bytes(r)));
  }
  PIPELOOM_RETURN_IF_ERROR(CheckShare(proto.quick_ratio(), "quick_ratio"));
  carried.quick_ratio = proto.quick_ratio();
  PIPELOOM_RETURN_IF_ERROR(CheckShare(proto.refined_ratio(), "refined_ratio"));
  carried.refined_ratio = proto.refined_ratio();
  return carried;
}

absl::StatusOr<std::vector<std::shared_ptr<const CarriedStep>>> FromProto(
    const v1::CarriedSteps& proto) {
  std::vector<std::shared_ptr<const CarriedStep>> steps;
  for (const v1::CarriedStep& one : proto.steps()) {
    PIPELOOM_ASSIGN_OR_RETURN(CarriedStep step, FromProto(one));
    steps.push_back(std::make_shared<const CarriedStep>(std::move(step)));
  }
  return steps;
}

}  // namespace pipeloom::convert
