#include "cli/input/robust_flags.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pipeloom::cli {

void AppendRobustFlags(RobustFlags* values, std::vector<Flag>* flags) {
  flags->push_back({"robust", &values->robust, "",
                    "choose the schedule whose 90th percentile under jitter "
                    "and a slow rank is best, not the nominal one"});
  const size_t first = flags->size();
  flags->push_back({"jitter",
                    &values->jitter,
                    "RATIO",
                    "of --robust: deviation of every duration",
                    {},
                    0,
                    1});
  flags->push_back({"slow-rank",
                    &values->slow_rank,
                    "FACTOR",
                    "of --robust: how much longer a rank takes, another in "
                    "each sample",
                    {},
                    1,
                    100});
  flags->push_back({"samples",
                    &values->samples,
                    "N",
                    "of --robust: steps sampled for each schedule",
                    {},
                    1,
                    100'000});
  SetNeeds({"robust"}, first, flags);
}

std::optional<planner::Disturbances> DisturbancesOf(const RobustFlags& flags,
                                                    uint64_t seed) {
  if (!flags.robust) return std::nullopt;
  return planner::Disturbances{.jitter = flags.jitter,
                               .slow_rank = flags.slow_rank,
                               .samples = static_cast<int32_t>(flags.samples),
                               .seed = seed};
}

std::string RobustText(const planner::RobustTimes& chosen,
                       const planner::RobustTimes& nominal) {
  return absl::StrFormat(
      "under jitter and a slow rank: p50 %s, p90 %s; of the schedule best "
      "without them: p50 %s, p90 %s (nominal %s)\n",
      FormatDuration(chosen.p50), FormatDuration(chosen.p90),
      FormatDuration(nominal.p50), FormatDuration(nominal.p90),
      FormatDuration(nominal.nominal));
}

void WriteRobust(const planner::RobustTimes& chosen,
                 const planner::RobustTimes& nominal,
                 formats::JsonWriter* json) {
  json->Key("robust").BeginObject();
  json->Key("nominal_us").Micros(chosen.nominal);
  json->Key("p50_us").Micros(chosen.p50);
  json->Key("p90_us").Micros(chosen.p90);
  json->Key("best_nominal_us").Micros(nominal.nominal);
  json->Key("best_nominal_p50_us").Micros(nominal.p50);
  json->Key("best_nominal_p90_us").Micros(nominal.p90);
  json->EndObject();
}

}  // namespace pipeloom::cli
