#include "emulator/stage/step_update.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace pipeloom::emulator {
namespace {

// Returns the longest time of passes along the data flow before each stage: the
// earliest start of its first forward, or how long before the end of the step
// its last backward ends at the latest.
IdVector<StageId, int64_t> TimesBefore(
    const JobSpec& job, const Partition& partition,
    const IdVector<StageId, PassTimes>& passes, Duration PassTimes::*pass) {
  const ModelSpec& model = job.model;
  IdVector<ModuleId, int64_t> ends(model.modules.size(), 0);
  IdVector<StageId, int64_t> before(partition.stages.size(), 0);
  for (const ModuleId m : model.modules.ids()) {
    int64_t now = 0;
    for (const ModuleEdge& edge : model.edges) {
      if (edge.to == m) now = std::max(now, ends[edge.from]);
    }
    for (const StageId s : partition.stages.ids()) {
      if (partition.stages[s].module != m) continue;
      before[s] = now;
      now += (passes[s].*pass).count();
    }
    ends[m] = now;
  }
  return before;
}

IdVector<RankId, Duration> WaitsOf(const JobSpec& job,
                                   const Partition& partition,
                                   const IdVector<RankId, RankUpdate>& updates,
                                   const IdVector<StageId, PassTimes>& passes) {
  const IdVector<StageId, int64_t> starts =
      TimesBefore(job, partition, passes, &PassTimes::forward);
  IdVector<RankId, Duration> waits(updates.size());
  for (const RankId r : updates.ids()) {
    const RankUpdate& update = updates[r];
    PartSpans first(update.parts.size());
    for (size_t p = 0; p < first.size(); ++p) {
      const StageId stage = update.parts[p].stage;
      if (passes[stage].backward == kZero) continue;
      first[p] = {starts[stage], starts[stage] + passes[stage].forward.count()};
    }
    const PartSpans* const forwards = &first;
    waits[r] = job.setup.gathers_wait
                   ? update.gather
                   : Nanoseconds(WaitForWeights(update, {&forwards, 1}));
  }
  return waits;
}

// Returns the last passes as StepUpdate::expected takes them, counted from the
// end of the step backwards, as a rank runs one pass at a time.
IdVector<RankId, RankPasses> ExpectedPasses(
    const JobSpec& job, const Partition& partition,
    const IdVector<RankId, RankUpdate>& updates,
    const IdVector<StageId, PassTimes>& passes) {
  const IdVector<StageId, int64_t> left =
      TimesBefore(job, partition, passes, &PassTimes::backward);
  int64_t step = 0;  // At least as long as any chain of backwards.
  for (const PassTimes& times : passes) step += times.backward.count();
  IdVector<RankId, RankPasses> expected(updates.size());
  for (const RankId r : updates.ids()) {
    PartSpans& last = expected[r].last;
    last.resize(updates[r].parts.size());
    int64_t begin = step;
    for (size_t p = 0; p < last.size(); ++p) {
      const StageId stage = updates[r].parts[p].stage;
      const Duration backward = passes[stage].backward;
      if (backward == kZero) continue;
      last[p].end = std::min(begin, step - left[stage]);
      last[p].begin = begin = last[p].end - backward.count();
      expected[r].end = std::max(expected[r].end, last[p].end);
    }
  }
  return expected;
}

// Returns the least time that the reductions of a rank can go on after its
// passes. Its last pass is one that adds to gradients if all of its stages are
// trained, and the reductions of that pass's stage begin no earlier than it.
Duration LeastLeft(const RankUpdate& update,
                   const IdVector<StageId, Duration>& longest_pass) {
  int64_t parameters = 0;
  for (const RankUpdate::Part& part : update.parts) {
    parameters += part.parameters;
  }
  std::optional<Duration> least;
  for (const RankUpdate::Part& part : update.parts) {
    const int64_t longest = longest_pass[part.stage].count();
    if (longest == 0) continue;
    const double own = static_cast<double>(update.reduce.count()) *
                       static_cast<double>(part.parameters) /
                       static_cast<double>(parameters);
    // Each bucket's time is rounded.
    const int64_t rounding = part.buckets + 1;
    const RankUpdate alone = {.reduce = Nanoseconds(std::max<int64_t>(
                                  0, static_cast<int64_t>(own) - rounding)),
                              .parts = {part}};
    const PartSpans span = {{.begin = 0, .end = longest}};
    const PartSpans* const backward = &span;
    const Duration left = std::max(
        kZero, Nanoseconds(ReducedAt(alone, {&backward, 1}) - longest));
    least = std::min(least.value_or(left), left);
  }
  return least.value_or(kZero);
}

// Returns the epilogues with so much of each rank's reduction left.
IdVector<RankId, Duration> WithLeft(const StepUpdate& update,
                                    const IdVector<RankId, Duration>& left) {
  Duration optimizer = kZero;
  Duration wait = kZero;
  for (const RankId r : update.ranks.ids()) {
    optimizer = std::max(optimizer, update.ranks[r].optimizer);
    if (update.overlaps) wait = std::max(wait, update.waits[r]);
  }
  IdVector<RankId, Duration> epilogues(update.ranks.size());
  for (const RankId r : update.ranks.ids()) {
    const RankUpdate& rank = update.ranks[r];
    if (rank.parts.empty()) continue;
    if (!update.overlaps) {
      epilogues[r] = rank.reduce + rank.gather + optimizer;
      continue;
    }
    const Duration hidden = rank.reduce - std::min(rank.reduce, left[r]) +
                            std::max(kZero, rank.gather - update.waits[r]);
    epilogues[r] = left[r] + Seconds(update.contention * ToSeconds(hidden)) +
                   optimizer + wait;
  }
  return epilogues;
}

}  // namespace

IdVector<RankId, Duration> EpiloguesOf(
    const StepUpdate& update, const IdVector<RankId, RankPasses>& passes) {
  IdVector<RankId, Duration> left(update.ranks.size());
  if (update.overlaps) {
    for (const RankId r : update.ranks.ids()) {
      const PartSpans* const last = &passes[r].last;
      left[r] = Nanoseconds(std::max<int64_t>(
          0, ReducedAt(update.ranks[r], {&last, 1}) - passes[r].end));
    }
  }
  return WithLeft(update, left);
}

namespace {

void SetLeast(StepUpdate* update) {
  IdVector<RankId, Duration> left(update->ranks.size());
  if (update->overlaps) {
    for (const RankId r : left.ids()) {
      if (!update->trained[r]) continue;
      left[r] = LeastLeft(update->ranks[r], update->longest);
    }
  }
  update->least = WithLeft(*update, left);
}

}  // namespace

StepUpdate MakeStepUpdate(const JobSpec& job, const Partition& partition,
                          IdVector<RankId, RankUpdate> updates,
                          const IdVector<StageId, PassTimes>& passes) {
  StepUpdate update{
      .ranks = std::move(updates),
      .overlaps = job.setup.overlap != CommunicationOverlap::kNone,
      .contention = job.setup.update_contention};
  const IdVector<RankId, RankUpdate>& ranks = update.ranks;
  if (update.overlaps) {
    update.waits = WaitsOf(job, partition, ranks, passes);
  }
  update.expected =
      EpiloguesOf(update, ExpectedPasses(job, partition, ranks, passes));
  update.trained = IdVector<RankId, bool>(ranks.size(), true);
  for (const StageId s : partition.stages.ids()) {
    update.longest.push_back(passes[s].longest);
    const RankId r = partition.stages[s].rank;
    const auto& parts = ranks[r].parts;
    const auto is_it = [&](const auto& part) { return part.stage == s; };
    if (passes[s].forward > kZero &&
        std::none_of(parts.begin(), parts.end(), is_it)) {
      update.trained[r] = false;
    }
  }
  SetLeast(&update);
  return update;
}

StepUpdate OnStages(StepUpdate update, const IdVector<StageId, StageId>& now) {
  for (RankUpdate& rank : update.ranks) {
    for (RankUpdate::Part& part : rank.parts) part.stage = now[part.stage];
  }
  IdVector<StageId, Duration> longest;
  for (const StageId s : now.ids()) {
    longest.resize(std::max(longest.size(), now[s].value() + 1));
    longest[now[s]] += update.longest[s];
  }
  update.longest = std::move(longest);
  SetLeast(&update);
  return update;
}

}  // namespace pipeloom::emulator
