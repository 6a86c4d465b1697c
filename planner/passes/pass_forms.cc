#include "planner/passes/pass_forms.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "planner/core/fixed_order.h"
#include "planner/core/retime.h"

namespace pipeloom::planner {
namespace {

using partition::MemoryEffect;
using partition::MemorySelection;
using partition::PassForm;
using partition::StagePair;
using partition::StepMemory;

// The most pairs on the critical path that are tried one by one in a round.
constexpr size_t kMaxSingles = 48;
// Shares of its slack that a pair may use; pairs of one chain share their
// slack.
constexpr double kSlackShares[] = {1.0, 0.5, 0.25, 0.1};

// Returns whether `differ` holds for the two forms of any pair that has both,
// with everything kept.
template <typename Differ>
bool AnyTwoForms(const StepMemory& memory, const Differ& differ) {
  for (size_t list = 0; list < memory.lists.size(); ++list) {
    const int32_t other = memory.other_form[list];
    if (other < 0) continue;
    if (differ(memory.lists[list][0].effect,
               memory.lists[static_cast<size_t>(other)][0].effect)) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool HasFormChoice(const StepMemory& memory) {
  return AnyTwoForms(memory, [](const MemoryEffect& a, const MemoryEffect& b) {
    return a.backward + a.weight_grad != b.backward + b.weight_grad;
  });
}

bool HasPassChoice(const StepMemory& memory) {
  return HasFormChoice(memory) ||
         AnyTwoForms(memory, [](const MemoryEffect& a, const MemoryEffect&) {
           return a.gap > kZero;
         });
}

bool SplitHandsOnSooner(const StepMemory& memory) {
  return AnyTwoForms(memory, [](const MemoryEffect& a, const MemoryEffect& b) {
    return a.backward != b.backward;
  });
}

void SetForms(PassForm form, StepMemory* memory) {
  for (const StagePairId id : memory->pairs.ids()) {
    if (memory->has_other_form(id) && memory->form(id) != form) {
      memory->SwitchForm(id);
    }
  }
}

std::vector<int64_t> FreeRoom(const FlatGraph& graph,
                              const RankOrders& orders) {
  std::vector<int64_t> room;
  for (const RankId r : orders.ids()) {
    const int64_t capacity = graph.capacity[static_cast<size_t>(r.value())];
    if (capacity >= kNoLimit) {
      room.push_back(kNoLimit);
      continue;
    }
    int64_t held = 0;
    int64_t most = 0;
    for (const TaskId t : orders[r]) {
      held += graph.alloc[static_cast<size_t>(t.value())];
      most = std::max(most, held);
      held -= graph.free[static_cast<size_t>(t.value())];
    }
    room.push_back(capacity - most);
  }
  return room;
}

PassFormChooser::PassFormChooser(const StageGraph& graph,
                                 const StepMemory& memory)
    : flat_(graph),
      end_(static_cast<size_t>(graph.num_tasks())),
      late_(static_cast<size_t>(graph.num_tasks())) {
  for (const StagePairId id : memory.pairs.ids()) {
    if (!memory.has_other_form(id)) continue;
    const StagePair& pair = memory.pairs[id];
    pairs_.push_back(
        {.id = id,
         .backward = pair.backward.value(),
         .weight_grad = pair.weight_grad.value(),
         .stage = pair.stage.value(),
         .microbatch = graph.task(pair.backward).microbatch.value()});
  }
}

void PassFormChooser::Load(const MemorySelection& selection,
                           const StepMemory& memory, const RankOrders& orders) {
  const std::vector<int64_t> room = FreeRoom(flat_, orders);
  for (const StagePairId id : memory.pairs.ids()) {
    const StagePair& pair = memory.pairs[id];
    if (pair.backward.is_none() || memory.has_other_form(id)) continue;
    flat_.duration[static_cast<size_t>(pair.backward.value())] =
        memory.effect(id, selection[id]).backward.count();
  }
  for (Pair& pair : pairs_) {
    const MemoryEffect& now = memory.effect(pair.id, selection[pair.id]);
    const MemoryEffect& other =
        memory.effect_in_other_form(pair.id, selection[pair.id]);
    pair.fused = memory.form(pair.id) == PassForm::kFused;
    // The weight gradient, which follows at once, needs no more than that.
    pair.more = (other.backward_peak() - now.backward_peak()).count();
    pair.room = room[static_cast<size_t>(
        flat_.rank[static_cast<size_t>(pair.backward)])];
    pair.now_backward = now.backward.count();
    pair.now_weight_grad = now.weight_grad.count();
    pair.other_backward = other.backward.count();
    pair.other_weight_grad = other.weight_grad.count();
    flat_.duration[static_cast<size_t>(pair.backward)] = pair.now_backward;
    flat_.duration[static_cast<size_t>(pair.weight_grad)] =
        pair.now_weight_grad;
  }
}

// Puts the weight gradient of each fused pair right after its backward.
void PassFormChooser::Tidy(RankOrders* orders) const {
  std::vector<int32_t> follows(static_cast<size_t>(flat_.num_tasks), -1);
  std::vector<bool> moved(static_cast<size_t>(flat_.num_tasks), false);
  for (const Pair& pair : pairs_) {
    if (!pair.fused) continue;
    follows[static_cast<size_t>(pair.backward)] = pair.weight_grad;
    moved[static_cast<size_t>(pair.weight_grad)] = true;
  }
  for (std::vector<TaskId>& order : *orders) {
    std::vector<TaskId> tidy;
    tidy.reserve(order.size());
    for (const TaskId t : order) {
      const auto index = static_cast<size_t>(t.value());
      if (moved[index]) continue;
      tidy.push_back(t);
      if (follows[index] >= 0) tidy.push_back(TaskId(follows[index]));
    }
    order = std::move(tidy);
  }
}

void PassFormChooser::FindSlack(absl::Span<const int32_t> sequence,
                                int64_t step_time) {
  std::vector<int64_t> next_start;  // Indexed by rank: start of the task after.
  for (const int64_t epilogue : flat_.epilogue) {
    next_start.push_back(step_time - epilogue);
  }
  // Indexed by backward: its weight gradient.
  std::vector<int32_t> own(static_cast<size_t>(flat_.num_tasks), -1);
  for (const Pair& pair : pairs_) {
    own[static_cast<size_t>(pair.backward)] = pair.weight_grad;
  }
  std::vector<int64_t> handed(static_cast<size_t>(flat_.num_tasks), kNoLimit);
  for (size_t i = sequence.size(); i-- > 0;) {
    const auto task = static_cast<size_t>(sequence[i]);
    int64_t& after = next_start[static_cast<size_t>(flat_.rank[task])];
    int64_t handed_on = kNoLimit;  // Ignores the weight gradient and the rank.
    int64_t late = after;
    for (auto e = static_cast<size_t>(flat_.succ_offset[task]);
         e < static_cast<size_t>(flat_.succ_offset[task + 1]); ++e) {
      const auto next = static_cast<size_t>(flat_.succ[e]);
      const int64_t bound =
          late_[next] - flat_.duration[next] - flat_.succ_delay[e];
      late = std::min(late, bound);
      if (flat_.succ[e] != own[task]) handed_on = std::min(handed_on, bound);
    }
    late_[task] = late;
    handed[task] = handed_on;
    after = late - flat_.duration[task];
  }
  for (Pair& pair : pairs_) {
    const auto backward = static_cast<size_t>(pair.backward);
    pair.slack = std::min(handed[backward], kNoLimit) - end_[backward];
  }
}

std::vector<PassFormChooser::Set> PassFormChooser::Proposals(
    int32_t round) const {
  std::vector<Set> sets;
  const auto add = [&](Set set) {
    if (!set.empty()) sets.push_back(std::move(set));
  };
  const auto gains = [](const Pair& pair) {  // Time that the rank gains, in ns.
    return pair.now_backward + pair.now_weight_grad - pair.other_backward -
           pair.other_weight_grad;
  };
  const auto count = static_cast<int32_t>(pairs_.size());
  for (const double share : kSlackShares) {
    Set set;
    for (int32_t i = 0; i < count; ++i) {
      const Pair& pair = pairs_[static_cast<size_t>(i)];
      const int64_t later = pair.other_backward - pair.now_backward;
      if (!pair.fused && pair.may_change() && gains(pair) > 0 &&
          static_cast<double>(later) <=
              share * static_cast<double>(pair.slack)) {
        set.push_back(i);
      }
    }
    add(std::move(set));
  }
  if (round % 2 == 0) {
    std::map<std::pair<bool, int32_t>, Set> of_stage;
    std::map<std::pair<bool, int32_t>, Set> of_microbatch;
    std::map<bool, Set> all;
    for (int32_t i = 0; i < count; ++i) {
      const Pair& pair = pairs_[static_cast<size_t>(i)];
      if (!pair.may_change()) continue;
      of_stage[{pair.fused, pair.stage}].push_back(i);
      of_microbatch[{pair.fused, pair.microbatch}].push_back(i);
      all[pair.fused].push_back(i);
    }
    for (auto* sets_of : {&of_stage, &of_microbatch}) {
      for (auto& [key, set] : *sets_of) add(std::move(set));
    }
    for (auto& [fused, set] : all) add(std::move(set));
  }
  // Single pairs whose input gradient a task waits for, or whose rank has no
  // pause after them; the largest gains first.
  std::vector<std::pair<int64_t, int32_t>> singles;
  for (int32_t i = 0; i < count; ++i) {
    const Pair& pair = pairs_[static_cast<size_t>(i)];
    if (!pair.may_change()) continue;
    const int64_t sooner = pair.now_backward - pair.other_backward;
    const int64_t gain =
        pair.fused ? (pair.slack <= 0 ? sooner : 0)
                   : (late_[static_cast<size_t>(pair.weight_grad)] <=
                              end_[static_cast<size_t>(pair.weight_grad)]
                          ? gains(pair)
                          : 0);
    if (gain > 0) singles.push_back({-gain, i});
  }
  std::sort(singles.begin(), singles.end());
  if (singles.size() > kMaxSingles) singles.resize(kMaxSingles);
  for (const auto& [gain, i] : singles) add({i});
  return sets;
}

void PassFormChooser::Apply(const Set& set) {
  for (const int32_t i : set) {
    Pair& pair = pairs_[static_cast<size_t>(i)];
    pair.fused = !pair.fused;
    std::swap(pair.now_backward, pair.other_backward);
    std::swap(pair.now_weight_grad, pair.other_weight_grad);
    flat_.duration[static_cast<size_t>(pair.backward)] = pair.now_backward;
    flat_.duration[static_cast<size_t>(pair.weight_grad)] =
        pair.now_weight_grad;
  }
}

int64_t PassFormChooser::Choose(const MemorySelection& selection,
                                StepMemory* memory, RankOrders* orders,
                                const PassFormOptions& options) {
  batches_ = 0;
  const auto is_over = [&] {
    return batches_ >= options.max_batches ||
           (options.expired && options.expired());
  };
  Load(selection, *memory, *orders);
  Tidy(orders);
  int64_t best = kNoLimit;
  bool improved = true;
  Retimer retimer(flat_);
  FixedOrder::BatchDurations durations;
  FixedOrder::Workspace workspace;
  for (int32_t round = 0; improved && !pairs_.empty(); ++round) {
    improved = false;
    const std::vector<int32_t> sequence = Linearize(flat_, *orders);
    PIPELOOM_CHECK(sequence.size() == static_cast<size_t>(flat_.num_tasks));
    retimer.TakeDurations();
    best = retimer.Retime(sequence);
    std::copy(retimer.end().begin(), retimer.end().end(), end_.begin());
    FindSlack(sequence, best);
    const FixedOrder fixed(flat_, sequence);
    fixed.ArrangeAll(flat_.duration, durations);
    const std::vector<Set> sets = Proposals(round);
    std::vector<std::pair<int64_t, size_t>> better;
    constexpr size_t kLanes = FixedOrder::kLanes;
    for (size_t first = 0; first < sets.size(); first += kLanes) {
      if (is_over()) break;
      const size_t lanes = std::min(kLanes, sets.size() - first);
      const auto set_lanes = [&](bool applied) {
        for (size_t lane = 0; lane < lanes; ++lane) {
          const Set& set = sets[first + lane];
          if (applied) Apply(set);
          for (const int32_t i : set) {
            const Pair& pair = pairs_[static_cast<size_t>(i)];
            for (const int32_t t : {pair.backward, pair.weight_grad}) {
              fixed.Set(t, flat_.duration[static_cast<size_t>(t)],
                        static_cast<int32_t>(lane), durations);
            }
          }
          if (applied) Apply(set);  // Back again.
        }
      };
      set_lanes(true);
      const auto times = fixed.Time(durations, workspace);
      set_lanes(false);
      ++batches_;
      for (size_t lane = 0; lane < lanes; ++lane) {
        if (times[lane] < best) better.push_back({times[lane], first + lane});
      }
    }
    if (better.empty()) break;
    // The best, and on top of it every other that still gains.
    std::sort(better.begin(), better.end());
    std::vector<bool> changed(pairs_.size(), false);
    for (const auto& [time, index] : better) {
      // The first is timed already; each other takes a timing of its own.
      if (improved && options.expired && options.expired()) break;
      const Set& set = sets[index];
      if (std::any_of(set.begin(), set.end(), [&](int32_t i) {
            return changed[static_cast<size_t>(i)];
          })) {
        continue;
      }
      Apply(set);
      retimer.TakeDurations();
      const int64_t now = retimer.Retime(sequence);
      if (now >= best) {
        Apply(set);
        continue;
      }
      best = now;
      improved = true;
      for (const int32_t i : set) changed[static_cast<size_t>(i)] = true;
    }
    Tidy(orders);
    if (is_over()) break;
  }
  for (const Pair& pair : pairs_) {
    if (pair.fused != (memory->form(pair.id) == PassForm::kFused)) {
      memory->SwitchForm(pair.id);
    }
  }
  return best;
}

}  // namespace pipeloom::planner
