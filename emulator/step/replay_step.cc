#include "emulator/step/replay_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "emulator/step/step_engine_inl.h"
#include "emulator/step/trace_builder.h"

namespace pipeloom::emulator {
namespace {

bool IsTransferStart(OpCode code) {
  return code == OpCode::kSend || code == OpCode::kBlockingSend ||
         code == OpCode::kRecv;
}

// Kind and operand of an instruction.
struct InstructionKey {
  size_t kind = 0;
  int32_t id = 0;
  auto operator<=>(const InstructionKey&) const = default;
};

InstructionKey KeyOf(const Instruction& instruction) {
  InstructionKey key{.kind = instruction.index()};
  std::visit(
      [&](const auto& i) {
        if constexpr (requires { i.task; }) key.id = i.task.value();
        if constexpr (requires { i.edge; }) key.id = i.edge.value();
      },
      instruction);
  return key;
}

StepOutcome OutcomeOf(const StepTrace& trace) {
  StepOutcome outcome;
  outcome.finish = trace.finish;
  for (const MemoryPeak& peak : MemoryPeaks(trace)) {
    outcome.peaks.push_back({peak.total, peak.at});
  }
  return outcome;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReplayStep>> ReplayStep::Create(
    const ExecutionPlan& plan, const EmulateOptions& options, bool reuse) {
  PIPELOOM_ASSIGN_OR_RETURN(StepProgram program, CompileStep(plan, options));
  auto replay = std::unique_ptr<ReplayStep>(
      new ReplayStep(std::move(program), plan, options, reuse));
  PIPELOOM_RETURN_IF_ERROR(replay->RunBase());
  return replay;
}

ReplayStep::ReplayStep(StepProgram program, const ExecutionPlan& plan,
                       const EmulateOptions& options, bool reuse)
    : program_(std::move(program)),
      plan_(plan),
      options_(options),
      slot_of_task_(static_cast<size_t>(plan.graph.num_tasks()), kNoSlot),
      place_of_slot_(program_.task_of_slot.size()),
      simple_(program_.copies.empty() && program_.guards.empty()),
      reuse_(reuse && simple_ && !program_.fair_links),
      engine_(program_, TimesOf(program_, plan, options)) {
  engine_.received_.resize(program_.transfers.size());
  for (const TransferKind& kind : engine_.kinds_) lags_ &= kind.lag >= 0;
  for (size_t slot = 0; slot < program_.task_of_slot.size(); ++slot) {
    int64_t& known =
        slot_of_task_[static_cast<size_t>(program_.task_of_slot[slot].value())];
    known = known == kNoSlot ? static_cast<int64_t>(slot) : kSeveral;
  }
  // Without copies, the sites of peaks follow from the order alone.
  memory_.resize(static_cast<size_t>(program_.num_ranks));
  sites_.resize(memory_.size());
  for (const RankId r : plan.graph.rank_ids()) {
    memory_[static_cast<size_t>(r.value())].held =
        plan.graph.rank(r).memory.static_bytes().count();
    IndexMemory(r.value());
  }
  const auto all = static_cast<int64_t>(program_.ops.size());
  save_every_ = std::max<int64_t>(1, all / (kMaxCheckpoints - 8));
}

int64_t ReplayStep::Taken(const StepOp& op) const {
  if (op.code == OpCode::kCompute) {
    const StepProgram::SlotMemory& memory = program_.memory_of_slot[op.index];
    return (memory.alloc + memory.sent).count();
  }
  return op.code == OpCode::kRecv ? program_.payloads[op.index].count() : 0;
}

int64_t ReplayStep::Changed(const StepOp& op) const {
  if (op.code == OpCode::kCompute) {
    const StepProgram::SlotMemory& memory = program_.memory_of_slot[op.index];
    return (memory.alloc + memory.sent - memory.free).count();
  }
  if (op.code == OpCode::kFree || op.code == OpCode::kWaitSend)
    return -program_.payloads[op.index].count();
  return Taken(op);
}

void ReplayStep::IndexMemory(int32_t rank) {
  const absl::Span<const StepOp> ops = program_.ops_of(rank);
  RankMemory& memory = memory_[static_cast<size_t>(rank)];
  const size_t size = ops.size();
  memory.before.resize(size + 1);
  memory.first_best.resize(size + 1);
  memory.second_best.resize(size + 1);
  const auto total = [&](int32_t op) {
    return op < 0 ? memory.held
                  : memory.before[static_cast<size_t>(op)] +
                        Taken(ops[static_cast<size_t>(op)]);
  };
  memory.before[0] = memory.held;
  memory.first_best[0] = -1;
  for (size_t k = 0; k < size; ++k) {
    if (ops[k].code == OpCode::kCompute) {
      place_of_slot_[ops[k].index] = static_cast<uint32_t>(k);
    } else if (ops[k].code == OpCode::kComputeGuarded) {
      place_of_slot_[program_.guards[ops[k].index].slot] =
          static_cast<uint32_t>(k);
    }
    memory.before[k + 1] = memory.before[k] + Changed(ops[k]);
    const auto op = static_cast<int32_t>(k);
    memory.first_best[k + 1] =
        total(op) > total(memory.first_best[k]) ? op : memory.first_best[k];
  }
  memory.second_best[size] = -1;
  for (size_t k = size; k-- > 0;) {
    const auto op = static_cast<int32_t>(k);
    const int32_t later = memory.second_best[k + 1];
    memory.second_best[k] = later < 0 || total(op) >= total(later) ? op : later;
  }
  const int32_t best = memory.first_best[size];
  sites_[static_cast<size_t>(rank)] = {total(best), best};
}

ReplayStep::PeakSite ReplayStep::SiteWith(const Range& changed) const {
  const RankMemory& memory = memory_[static_cast<size_t>(changed.rank)];
  const absl::Span<const StepOp> ops = program_.ops_of(changed.rank);
  // Nothing has changed outside of the range.
  const auto total = [&](int32_t op) {
    return memory.before[static_cast<size_t>(op)] +
           Taken(ops[static_cast<size_t>(op)]);
  };
  PeakSite site{.total = memory.held, .op = memory.first_best[changed.begin]};
  if (site.op >= 0) site.total = total(site.op);
  int64_t held = memory.before[changed.begin];
  for (uint32_t k = changed.begin; k < changed.end; ++k) {
    if (held + Taken(ops[k]) > site.total) {
      site = {held + Taken(ops[k]), static_cast<int32_t>(k)};
    }
    held += Changed(ops[k]);
  }
  const int32_t later = memory.second_best[changed.end];
  if (later >= 0 && total(later) > site.total) site = {total(later), later};
  return site;
}

SimTime ReplayStep::TimeOf(int32_t rank, int32_t op) const {
  if (op < 0) return kStepStart;
  const StepOp& at = program_.ops_of(rank)[static_cast<size_t>(op)];
  return SimTime(Nanoseconds(at.code == OpCode::kRecv
                                 ? engine_.received_[at.index]
                                 : engine_.starts_[at.index]));
}

absl::Status ReplayStep::RunBase() {
  checkpoints_.clear();
  if (!reuse_) {
    PIPELOOM_ASSIGN_OR_RETURN(base_, Whole(sites_));
    return absl::OkStatus();
  }
  last_out_.assign(program_.transfers.size(), -1);
  last_in_.assign(program_.transfers.size(), -1);
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    const absl::Span<const StepOp> ops = program_.ops_of(r);
    for (size_t k = 0; k < ops.size(); ++k) {
      const auto place = static_cast<int32_t>(k);
      switch (ops[k].code) {
        case OpCode::kSend:
        case OpCode::kBlockingSend:
        case OpCode::kWaitSend:
          last_out_[ops[k].index] = place;
          break;
        case OpCode::kRecv:
        case OpCode::kWaitRecv:
          last_in_[ops[k].index] = place;
          break;
        default:
          break;
      }
    }
  }
  live_.clear();
  scanned_.assign(static_cast<size_t>(program_.num_ranks), 0);
  next_save_ = 0;
  engine_.Reset();
  engine_.in_order_ = true;
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    engine_.queue_.Push({0, r});
  }
  engine_.Loop<true, false>([this](const RankEvent& event) {
    if (engine_.ops_done_ >= next_save_) Save(event);
    return false;
  });
  PIPELOOM_RETURN_IF_ERROR(engine_.Conclude());
  base_ranks_ = engine_.ranks_;
  base_.finish = SimTime(Nanoseconds(engine_.finish()));
  base_.peaks.clear();
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    const PeakSite& site = sites_[static_cast<size_t>(r)];
    base_.peaks.push_back({Bytes(site.total), TimeOf(r, site.op)});
  }
  return absl::OkStatus();
}

void ReplayStep::Save(const RankEvent& event) {
  next_save_ = engine_.ops_done_ + save_every_;
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    const absl::Span<const StepOp> ops = program_.ops_of(r);
    const RankState& rank = engine_.ranks_[static_cast<size_t>(r)];
    uint32_t& scanned = scanned_[static_cast<size_t>(r)];
    for (; scanned < rank.next; ++scanned) {
      if (IsTransferStart(ops[scanned].code)) {
        live_.push_back(ops[scanned].index);
      }
    }
    // A blocking send is reached before it is done.
    if (rank.waits_for >= 0 && IsTransferStart(ops[rank.next].code)) {
      live_.push_back(static_cast<uint32_t>(rank.waits_for));
    }
  }
  std::sort(live_.begin(), live_.end());
  live_.erase(std::unique(live_.begin(), live_.end()), live_.end());
  std::erase_if(live_, [&](uint32_t e) {
    const auto done = [&](int32_t rank, int32_t last) {
      return last < static_cast<int64_t>(
                        engine_.ranks_[static_cast<size_t>(rank)].next);
    };
    return done(program_.route_of(e).from, last_out_[e]) &&
           done(program_.route_of(e).to, last_in_[e]);
  });
  Checkpoint& checkpoint = checkpoints_.emplace_back();
  checkpoint.ops_done = engine_.ops_done_;
  checkpoint.event = event;
  checkpoint.ranks = engine_.ranks_;
  checkpoint.links = engine_.link_free_;
  checkpoint.live.reserve(live_.size());
  for (const uint32_t e : live_) {
    const TransferState& t = engine_.transfers_[e];
    checkpoint.live.push_back({e, t.stamp - engine_.run_, t.start});
  }
}

void ReplayStep::Restore(const Checkpoint& checkpoint) {
  engine_.Reset();
  engine_.in_order_ = true;
  engine_.ranks_ = checkpoint.ranks;
  engine_.link_free_ = checkpoint.links;
  engine_.ops_done_ = checkpoint.ops_done;
  for (const Live& live : checkpoint.live) {
    TransferState& t = engine_.transfers_[live.transfer];
    t.stamp = engine_.run_ + live.phase;
    t.start = live.start;
  }
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    const RankState& rank = engine_.ranks_[static_cast<size_t>(r)];
    if (rank.waits_for < 0 && rank.next < program_.ops_of(r).size()) {
      engine_.queue_.Push({rank.now, r});
    }
  }
}

bool ReplayStep::Rejoins(const Checkpoint& checkpoint,
                         const RankEvent& event) const {
  if (event.rank != checkpoint.event.rank) return false;
  const int64_t shift = event.at - checkpoint.event.at;
  // Nothing is reached before `event.at` any more, so earlier times count as
  // equal to it.
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    const RankState& now = engine_.ranks_[static_cast<size_t>(r)];
    const RankState& then = checkpoint.ranks[static_cast<size_t>(r)];
    if (now.next != then.next || now.waits_for != then.waits_for) return false;
    if (now.next == program_.ops_of(r).size()) continue;
    if (now.now == then.now + shift) continue;
    if (now.waits_for < 0 || !lags_ || now.now > event.at ||
        then.now > checkpoint.event.at) {
      return false;
    }
  }
  for (size_t k = 0; k < checkpoint.links.size(); ++k) {
    if (std::max(engine_.link_free_[k], event.at) !=
        std::max(checkpoint.links[k], checkpoint.event.at) + shift) {
      return false;
    }
  }
  for (const Live& live : checkpoint.live) {
    const TransferState& t = engine_.transfers_[live.transfer];
    if (t.stamp != engine_.run_ + live.phase) return false;
    if (live.phase != StepEngine::kLeft || t.start == live.start + shift) {
      continue;
    }
    const TransferKind& kind = engine_.kinds_[t.kind];
    // The rank at each end is past it already, in both states.
    const auto past = [&](int32_t rank, int64_t lag) {
      const auto r = static_cast<size_t>(rank);
      return t.start + lag <= engine_.ranks_[r].now &&
             live.start + lag <= checkpoint.ranks[r].now;
    };
    if (!past(kind.from, kind.occupancy) ||
        !past(kind.to, kind.occupancy + kind.lag)) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<StepOutcome> ReplayStep::Whole(
    const std::vector<PeakSite>& sites) {
  ++counters_.whole;
  counters_.operations += static_cast<int64_t>(program_.ops.size());
  PIPELOOM_RETURN_IF_ERROR(engine_.Run(true));
  if (!simple_) {
    StepTrace trace;
    BuildTrace(plan_.graph, engine_, true, &trace);
    return OutcomeOf(trace);
  }
  StepOutcome outcome;
  outcome.finish = SimTime(Nanoseconds(engine_.finish()));
  for (int32_t r = 0; r < program_.num_ranks; ++r) {
    const PeakSite& site = sites[static_cast<size_t>(r)];
    outcome.peaks.push_back({Bytes(site.total), TimeOf(r, site.op)});
  }
  return outcome;
}

absl::StatusOr<StepOutcome> ReplayStep::Replay(
    const Range& changed, const std::vector<PeakSite>& sites) {
  ++counters_.changes;
  if (!reuse_) return Whole(sites);
  // The last checkpoint before the change.
  const auto r = static_cast<size_t>(changed.rank);
  const auto after = std::partition_point(
      checkpoints_.begin(), checkpoints_.end(), [&](const Checkpoint& c) {
        return c.ranks[r].next < changed.begin ||
               (c.ranks[r].next == changed.begin && c.ranks[r].waits_for < 0);
      });
  if (after == checkpoints_.begin()) return Whole(sites);
  const Checkpoint& start = *(after - 1);
  Restore(start);
  auto next = after;
  bool rejoined = false;
  int64_t shift = 0;
  engine_.Loop<true, false>([&](const RankEvent& event) {
    while (next != checkpoints_.end() && next->ops_done < engine_.ops_done_) {
      ++next;
    }
    if (next == checkpoints_.end() || next->ops_done != engine_.ops_done_ ||
        next->ranks[r].next < changed.end || !Rejoins(*next, event)) {
      return false;
    }
    shift = event.at - next->event.at;
    rejoined = true;
    return true;
  });
  const auto all = static_cast<int64_t>(program_.ops.size());
  counters_.prefix_hits += start.ops_done;
  counters_.operations += engine_.ops_done_ - start.ops_done;
  if (rejoined) {
    ++counters_.rejoined;
    counters_.suffix_hits += all - engine_.ops_done_;
  } else {
    PIPELOOM_RETURN_IF_ERROR(engine_.Conclude());
  }
  StepOutcome outcome;
  for (int32_t rank = 0; rank < program_.num_ranks; ++rank) {
    const auto k = static_cast<size_t>(rank);
    const RankState& state = engine_.ranks_[k];
    const bool is_over = state.next == program_.ops_of(rank).size();
    outcome.finish = std::max(
        outcome.finish,
        SimTime(Nanoseconds(is_over ? state.now : base_ranks_[k].now + shift)));
    const PeakSite& site = sites[k];
    const RankPeak& known = base_.peaks[RankId(rank)];
    const bool same = site.op == sites_[k].op;
    RankPeak peak{.total = Bytes(site.total)};
    if (site.op >= 0 && site.op < static_cast<int64_t>(start.ranks[k].next)) {
      if (!same) return Whole(sites);
      peak.at = known.at;
    } else if (site.op < static_cast<int64_t>(state.next)) {
      peak.at = TimeOf(rank, site.op);
    } else {
      if (!same) return Whole(sites);
      peak.at = known.at + Nanoseconds(shift);
    }
    outcome.peaks.push_back(peak);
  }
  return outcome;
}

absl::StatusOr<uint32_t> ReplayStep::SlotOf(TaskId task,
                                            Duration duration) const {
  if (!plan_.graph.tasks().Contains(task)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("task %d does not exist; the plan has %d tasks",
                        task.value(), plan_.graph.num_tasks()));
  }
  if (duration < kZero) {
    return absl::InvalidArgumentError(
        absl::StrFormat("task %d: duration is %d ns; it must be >= 0",
                        task.value(), duration.count()));
  }
  const int64_t slot = slot_of_task_[static_cast<size_t>(task.value())];
  if (slot < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("task %d is computed %s; it must be once", task.value(),
                        slot == kSeveral ? "more than once" : "never"));
  }
  return static_cast<uint32_t>(slot);
}

absl::StatusOr<StepOutcome> ReplayStep::WithDuration(TaskId task,
                                                     Duration duration) {
  PIPELOOM_ASSIGN_OR_RETURN(const uint32_t slot, SlotOf(task, duration));
  const uint32_t place = place_of_slot_[slot];
  int64_t& used = engine_.durations()[slot];
  const int64_t before = used;
  used = duration.count();
  absl::StatusOr<StepOutcome> outcome =
      Replay({.rank = plan_.graph.task(task).rank.value(),
              .begin = place,
              .end = place + 1},
             sites_);
  used = before;
  return outcome;
}

absl::Status ReplayStep::KeepDuration(TaskId task, Duration duration) {
  PIPELOOM_ASSIGN_OR_RETURN(const uint32_t slot, SlotOf(task, duration));
  engine_.durations()[slot] = duration.count();
  return RunBase();
}

absl::StatusOr<std::vector<StepOp>> ReplayStep::Reordered(
    RankId rank, int32_t first,
    absl::Span<const Instruction> instructions) const {
  if (!plan_.programs.Contains(rank)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rank %d does not exist; the plan has %d ranks",
                        rank.value(), plan_.programs.size()));
  }
  const std::vector<Instruction>& program = plan_.programs[rank];
  if (first < 0 ||
      static_cast<size_t>(first) + instructions.size() > program.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d: instructions %d to %d are to be changed; it has %d",
        rank.value(), first, first + static_cast<int64_t>(instructions.size()),
        program.size()));
  }
  using Entry = std::pair<InstructionKey, size_t>;
  std::vector<Entry> old;
  std::vector<Entry> now;
  std::vector<size_t> old_update;
  std::vector<size_t> new_update;
  for (size_t k = 0; k < instructions.size(); ++k) {
    const Instruction& before = program[static_cast<size_t>(first) + k];
    old.emplace_back(KeyOf(before), k);
    now.emplace_back(KeyOf(instructions[k]), k);
    const size_t update = Instruction(ReduceGradients{}).index();
    if (before.index() >= update) old_update.push_back(before.index());
    if (instructions[k].index() >= update) {
      new_update.push_back(instructions[k].index());
    }
  }
  std::sort(old.begin(), old.end());
  std::sort(now.begin(), now.end());
  std::vector<StepOp> ops(instructions.size());
  const absl::Span<const StepOp> from = program_.ops_of(rank.value());
  for (size_t k = 0; k < old.size(); ++k) {
    if (old[k].first != now[k].first) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rank %d: \"%s\" is not among its instructions %d to %d, or not as "
          "often",
          rank.value(), DescribeInstruction(instructions[now[k].second]), first,
          first + static_cast<int64_t>(instructions.size())));
    }
    ops[now[k].second] = from[static_cast<size_t>(first) + old[k].second];
  }
  if (old_update != new_update) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d: reduce_gradients and optimizer_step must keep their order",
        rank.value()));
  }
  return ops;
}

absl::StatusOr<StepOutcome> ReplayStep::OfChangedPlan(
    RankId rank, int32_t first,
    absl::Span<const Instruction> instructions) const {
  ExecutionPlan plan = plan_;
  std::copy(instructions.begin(), instructions.end(),
            plan.programs[rank].begin() + first);
  PIPELOOM_ASSIGN_OR_RETURN(const StepTrace trace, EmulateStep(plan, options_));
  return OutcomeOf(trace);
}

absl::StatusOr<StepOutcome> ReplayStep::WithOrder(
    RankId rank, int32_t first, absl::Span<const Instruction> instructions) {
  PIPELOOM_ASSIGN_OR_RETURN(std::vector<StepOp> ops,
                            Reordered(rank, first, instructions));
  if (!simple_) {
    ++counters_.changes;
    ++counters_.whole;
    counters_.operations += static_cast<int64_t>(program_.ops.size());
    return OfChangedPlan(rank, first, instructions);
  }
  const Range changed{.rank = rank.value(),
                      .begin = static_cast<uint32_t>(first),
                      .end = static_cast<uint32_t>(first) +
                             static_cast<uint32_t>(instructions.size())};
  StepOp* const slice = OpsOf(rank.value()) + first;
  std::swap_ranges(ops.begin(), ops.end(), slice);
  std::vector<PeakSite> sites = sites_;
  sites[static_cast<size_t>(rank.value())] = SiteWith(changed);
  absl::StatusOr<StepOutcome> outcome = Replay(changed, sites);
  std::swap_ranges(ops.begin(), ops.end(), slice);
  return outcome;
}

absl::Status ReplayStep::KeepOrder(RankId rank, int32_t first,
                                   absl::Span<const Instruction> instructions) {
  PIPELOOM_RETURN_IF_ERROR(WithOrder(rank, first, instructions).status());
  std::copy(instructions.begin(), instructions.end(),
            plan_.programs[rank].begin() + first);
  std::vector<int64_t> durations(slot_of_task_.size());
  for (size_t t = 0; t < durations.size(); ++t) {
    const int64_t slot = slot_of_task_[t];
    durations[t] =
        slot < 0 ? -1 : engine_.durations()[static_cast<size_t>(slot)];
  }
  PIPELOOM_ASSIGN_OR_RETURN(program_, CompileStep(plan_, options_));
  engine_.Load(program_, TimesOf(program_, plan_, options_));
  engine_.received_.resize(program_.transfers.size());
  for (size_t slot = 0; slot < program_.task_of_slot.size(); ++slot) {
    const auto t = static_cast<size_t>(program_.task_of_slot[slot].value());
    if (durations[t] < 0) continue;
    slot_of_task_[t] = static_cast<int64_t>(slot);
    engine_.durations()[slot] = durations[t];
  }
  for (int32_t r = 0; r < program_.num_ranks; ++r) IndexMemory(r);
  return RunBase();
}

}  // namespace pipeloom::emulator
