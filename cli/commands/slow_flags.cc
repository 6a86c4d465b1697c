#include "cli/commands/slow_flags.h"

#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cli/input/learned_file.h"

namespace pipeloom::cli {

absl::StatusOr<SlowRankLink> ParseSlowLink(const std::string& text) {
  SlowRankLink link;
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::vector<std::string> ranks = absl::StrSplit(parts[0], '-');
  int32_t from = 0;
  int32_t to = 0;
  bool good = parts.size() == 2 && ranks.size() == 2 &&
              absl::SimpleAtoi(ranks[0], &from) &&
              absl::SimpleAtoi(ranks[1], &to);
  if (good && absl::StartsWith(parts[1], "+")) {
    const absl::StatusOr<Duration> added =
        ParseDuration(absl::string_view(parts[1]).substr(1));
    good = added.ok();
    if (good) link.added = *added;
  } else if (good) {
    good = absl::SimpleAtod(parts[1], &link.factor);
  }
  if (!good) {
    return UsageError(absl::StrFormat(
        "--slow-link %s: give FROM-TO=FACTOR or FROM-TO=+TIME, such as 0-1=2 "
        "or 0-1=+5ms",
        text));
  }
  link.from = RankId(from);
  link.to = RankId(to);
  return link;
}

absl::Status NameOnce(absl::string_view option, absl::string_view text,
                      const std::string& name, std::set<std::string>* named) {
  if (named->insert(name).second) return absl::OkStatus();
  return UsageError(absl::StrFormat("%s %s: %s is named twice; give it once",
                                    option, text, name));
}

void AppendSlowFlags(SlowFlags* values, std::vector<Flag>* flags) {
  flags->push_back(
      {"slow", &values->ranks, "RANK=FACTOR",
       "plan for ranks that take so many times as long, several "
       "divided by commas; the partition is the one chosen without the "
       "slowdown"});
  flags->push_back({"slow-link", &values->links, "FROM-TO=FACTOR|+TIME",
                    "plan for links in this direction whose transfers take so "
                    "many times as long, or arrive so much later (those on "
                    "their way overlap), such as 6-7=+60ms,7-6=+60ms"});
}

absl::Status ApplySlow(const SlowFlags& flags, JobSpec* job) {
  const ParallelLayout& parallel = job->parallel;
  std::set<std::string> named;
  for (const std::string& text : flags.ranks) {
    const std::vector<std::string> parts = absl::StrSplit(text, '=');
    int32_t rank = 0;
    double factor = 0;
    if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &rank) ||
        !absl::SimpleAtod(parts[1], &factor)) {
      return UsageError(
          absl::StrFormat("--slow %s: give RANK=FACTOR, such as 3=1.2", text));
    }
    if (rank < 0 || rank >= parallel.pp) {
      return UsageError(
          absl::StrFormat("--slow %s: there is no rank %d; ranks are 0 to %d",
                          text, rank, parallel.pp - 1));
    }
    if (!(factor >= 1 && factor <= 1e6)) {
      return UsageError(absl::StrFormat(
          "--slow %s: the factor is %g; it must be in [1, 1e6]", text, factor));
    }
    PIPELOOM_RETURN_IF_ERROR(
        NameOnce("--slow", text, absl::StrCat("rank ", rank), &named));
    for (int32_t replica = 0; replica < parallel.dp; ++replica) {
      job->cluster.slow_gpus.push_back(
          {.gpu = parallel.FirstGpu(replica, RankId(rank)), .factor = factor});
    }
  }
  for (const std::string& text : flags.links) {
    PIPELOOM_ASSIGN_OR_RETURN(const SlowRankLink slow, ParseSlowLink(text));
    PIPELOOM_RETURN_IF_ERROR(NameOnce(
        "--slow-link", text,
        absl::StrFormat("link %d-%d", slow.from.value(), slow.to.value()),
        &named));
    job->slow_rank_links.push_back(slow);
    const absl::Status valid = ValidateJobSpec(*job);
    if (!valid.ok()) {
      return UsageError(
          absl::StrCat("--slow-link ", text, ": ", valid.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSlow(const SlowFlags& flags, const MeasuredFlags& measured) {
  if (!flags.given() || measured.traces.empty()) return absl::OkStatus();
  return UsageError(
      "--slow or --slow-link with --costs-from: the traces already show what "
      "was slow; use one of the two");
}

absl::StatusOr<std::unique_ptr<emulator::StageCostModel>> SlowCosts(
    JobSpec slow_job, const std::string& learned, studies::JobInput* input) {
  input->job = std::move(slow_job);
  auto costs = std::make_unique<emulator::StageCostModel>(
      input->job, studies::CostsOf(*input));
  PIPELOOM_RETURN_IF_ERROR(ApplyLearned(learned, costs.get()));
  return costs;
}

}  // namespace pipeloom::cli
