#include "service/plans/plan_cache.h"

#include <cmath>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/numeric.h"
#include "emulator/cluster/order_epilogues.h"
#include "ir/plan/schedule.h"
#include "planner/lower/lower_plan.h"
#include "planner/step/carried_step.h"

namespace pipeloom::service {
namespace {

// Number of the latest plans of a structure that are compared.
constexpr int kMaxCompared = 8;
// Number of a job's latest plans that are carried over, and the most plans that
// are looked at for them.
constexpr size_t kMaxCarried = 8;
constexpr int kMaxLookedAt = 64;

// Returns the sum over sub-microbatches of |log of the ratio of tokens|.
// REQUIRES: both have the same structure.
double Distance(const Microbatches& a, const Microbatches& b) {
  double sum = 0;
  for (const SubMicrobatchId s : a.sub_microbatches.ids()) {
    sum += std::abs(std::log((1 + Real(a.sub_microbatches[s].shape.tokens)) /
                             (1 + Real(b.sub_microbatches[s].shape.tokens))));
  }
  return sum;
}

RankOrders OrdersOf(const ExecutionPlan& plan) {
  RankOrders orders(plan.programs.size());
  for (const RankId r : plan.programs.ids()) {
    for (const Instruction& instruction : plan.programs[r]) {
      if (const auto* compute = std::get_if<Compute>(&instruction)) {
        orders[r].push_back(compute->task);
      }
    }
  }
  return orders;
}

bool HasCopies(const ExecutionPlan& plan) {
  for (const auto& program : plan.programs) {
    for (const Instruction& instruction : program) {
      if (std::holds_alternative<Offload>(instruction)) return true;
    }
  }
  return false;
}

// Checks that equal task ids are the same pass of the same stage and
// sub-microbatch on the same rank.
bool SameStructure(const StageGraph& a, const StageGraph& b) {
  if (a.num_ranks() != b.num_ranks() || a.num_tasks() != b.num_tasks()) {
    return false;
  }
  for (const TaskId t : a.task_ids()) {
    const Task& x = a.task(t);
    const Task& y = b.task(t);
    if (x.rank != y.rank || x.pass != y.pass || x.stage != y.stage ||
        x.microbatch != y.microbatch || x.sub_microbatch != y.sub_microbatch) {
      return false;
    }
  }
  return true;
}

}  // namespace

PlanCacheKey MakePlanCacheKey(const Fingerprint& job,
                              const Fingerprint& exactly,
                              const Microbatches& microbatches) {
  FingerprintBuilder exact;
  FingerprintBuilder similar;
  exact.Add(job).Add(exactly).Add(microbatches.num_microbatches);
  similar.Add(job).Add(microbatches.num_microbatches);
  for (const SubMicrobatch& s : microbatches.sub_microbatches) {
    for (FingerprintBuilder* builder : {&exact, &similar}) {
      builder->Add(s.module.value()).Add(s.microbatch.value()).Add(s.index);
    }
    exact.Add(s.shape.fingerprint());
  }
  return {.job = job, .exact = exact.Build(), .similar = similar.Build()};
}

PlanCache::Found PlanCache::Find(const PlanCacheKey& key,
                                 const Microbatches& microbatches) {
  const MutexLock lock(&mutex_);
  Found found;
  if (const auto equal = exact_.find(key.exact); equal != exact_.end()) {
    entries_.splice(entries_.begin(), entries_, equal->second);
    if (equal->second->end == SearchEnd::kFull) {
      ++counters_.hits;
      found.equal = equal->second->plan;
      return found;
    }
    found.cut_short = equal->second->plan;
  }
  // Equal keys are in order of insertion.
  const auto [begin, end] = similar_.equal_range(key.similar);
  double nearest = 0;
  int compared = 0;
  for (auto it = end; it != begin && compared < kMaxCompared; ++compared) {
    --it;
    const std::shared_ptr<const planner::PlanResult>& plan = it->second->plan;
    const double distance = Distance(plan->microbatches, microbatches);
    if (found.similar == nullptr || distance < nearest) {
      found.similar = plan;
      nearest = distance;
    }
  }
  int looked_at = 0;
  for (const Entry& entry : entries_) {
    if (found.carried.size() == kMaxCarried || ++looked_at > kMaxLookedAt) {
      break;
    }
    if (entry.end == SearchEnd::kFull && entry.key.job == key.job &&
        entry.plan->carried != nullptr) {
      found.carried.push_back(entry.plan->carried);
    }
  }
  ++(found.similar != nullptr ? counters_.similar_hits : counters_.misses);
  return found;
}

void PlanCache::Drop(Entries::iterator entry) {
  exact_.erase(entry->key.exact);
  const auto [begin, end] = similar_.equal_range(entry->key.similar);
  for (auto it = begin; it != end; ++it) {
    if (it->second == entry) {
      similar_.erase(it);
      break;
    }
  }
  counters_.size -= entry->size;
  --counters_.plans;
  entries_.erase(entry);
}

void PlanCache::Insert(const PlanCacheKey& key,
                       std::shared_ptr<const planner::PlanResult> plan,
                       SearchEnd end) {
  const Bytes size = SizeOf(*plan);
  const MutexLock lock(&mutex_);
  if (const auto old = exact_.find(key.exact); old != exact_.end()) {
    const Entry& known = *old->second;
    if (known.end == end
            ? known.plan->predicted.finish <= plan->predicted.finish
            : known.end == SearchEnd::kFull) {
      entries_.splice(entries_.begin(), entries_, old->second);
      return;
    }
    Drop(old->second);
  }
  if (size > capacity_) return;
  while (counters_.size + size > capacity_) {
    Drop(std::prev(entries_.end()));
    ++counters_.evictions;
  }
  entries_.push_front({key, std::move(plan), size, end});
  exact_.emplace(key.exact, entries_.begin());
  if (end == SearchEnd::kFull) {
    similar_.emplace(key.similar, entries_.begin());
  }
  counters_.size += size;
  ++counters_.plans;
}

PlanCacheCounters PlanCache::counters() const {
  const MutexLock lock(&mutex_);
  return counters_;
}

Bytes SizeOf(const planner::PlanResult& result) {
  const StageGraph& graph = result.plan.graph;
  // Adjacency lists and orders take 4 bytes for each edge and side, and 4 for
  // each task.
  size_t bytes =
      static_cast<size_t>(graph.num_tasks()) * (sizeof(Task) + 12) +
      static_cast<size_t>(graph.num_edges()) * (sizeof(Dependency) + 8);
  for (const auto& program : result.plan.programs) {
    bytes += program.capacity() * sizeof(Instruction);
  }
  bytes += result.predicted.spans.capacity() * sizeof(Span) +
           result.predicted.memory.capacity() * sizeof(MemoryStep);
  bytes += static_cast<size_t>(result.microbatches.sub_microbatches.size()) *
           sizeof(SubMicrobatch);
  for (const MemoryChoice& choice : result.memory.choices) {
    bytes += sizeof(choice) + choice.layers.size() * sizeof(LayerMemory);
  }
  bytes +=
      static_cast<size_t>(result.memory.choice_of.size()) * sizeof(int32_t);
  for (const std::vector<SampleId>& samples : result.microbatches.samples) {
    bytes += sizeof(samples) + samples.size() * sizeof(SampleId);
  }
  const Bytes carried =
      result.carried == nullptr ? Bytes(0) : planner::SizeOf(*result.carried);
  return Bytes(static_cast<int64_t>(bytes) + 4096) + carried;
}

bool ImproveFromSimilar(const planner::PlanResult& similar,
                        planner::PlanResult* plan) {
  const StageGraph& graph = plan->plan.graph;
  // Which activations leave for the host is part of the plan's memory choice.
  if (!SameStructure(similar.plan.graph, graph) || HasCopies(plan->plan)) {
    return false;
  }
  const absl::StatusOr<Schedule> schedule =
      TimeSchedule(graph, OrdersOf(similar.plan));
  if (!schedule.ok() || schedule->step_time() >= plan->predicted.step_time()) {
    return false;
  }
  absl::StatusOr<ExecutionPlan> lowered = planner::LowerPlan(graph, *schedule);
  if (!lowered.ok()) return false;
  lowered->job = plan->plan.job;
  lowered->step = plan->plan.step;
  lowered->replica = plan->plan.replica;
  lowered->schedule = plan->plan.schedule;
  lowered->links = plan->plan.links;
  lowered->lower_bound = plan->plan.lower_bound;
  lowered->model_flops = plan->plan.model_flops;
  lowered->peak_flops_per_second = plan->plan.peak_flops_per_second;
  lowered->loss_shares = plan->plan.loss_shares;
  lowered->loss_totals = plan->plan.loss_totals;
  lowered->padded_shapes = plan->plan.padded_shapes;
  // This also refuses plans that do not fit in memory.
  if (!ValidateExecutionPlan(*lowered).ok()) return false;
  absl::StatusOr<StepTrace> predicted =
      emulator::EmulateInOrder(*plan->update, {}, &*lowered);
  if (!predicted.ok() || predicted->finish >= plan->predicted.finish) {
    return false;
  }
  plan->plan = *std::move(lowered);
  plan->predicted = *std::move(predicted);
  return true;
}

}  // namespace pipeloom::service
