#include "service/jobs/ready_plan.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numeric.h"
#include "base/status_macros.h"
#include "emulator/cluster/meeting_replicas.h"
#include "ir/plan/memory_policy.h"
#include "partition/batching/balance_step.h"
#include "partition/batching/defer_surplus.h"
#include "planner/core/timed_budget.h"
#include "planner/job/plan_deferred.h"
#include "proto/convert/plan_proto.h"
#include "proto/convert/stage_graph_proto.h"
#include "service/jobs/shared_order.h"

namespace pipeloom::service {
namespace {

using Clock = std::chrono::steady_clock;

planner::SearchBudget StartBudget(const SearchSpec& search,
                                  const SearchEffort& effort,
                                  const std::stop_token& stop) {
  planner::SearchBudget budget;
  budget.stop = stop;
  budget.threads = effort.threads;
  budget.workers = search.workers > 0 ? search.workers : effort.workers;
  // With evaluations there is no deadline, so that plans do not depend on the
  // machine.
  if (search.evaluations > 0) {
    budget.max_evaluations = search.evaluations;
    return budget;
  }
  const std::chrono::nanoseconds whole(
      std::clamp<int64_t>(search.deadline.count(), 1, effort.most.count()));
  planner::EndAfter(
      Clock::now(),
      std::chrono::nanoseconds(std::llround(Real(whole.count()) * effort.part)),
      &budget);
  return budget;
}

v1::MemoryStrategy ToProto(MemoryStrategy strategy) {
  return static_cast<v1::MemoryStrategy>(static_cast<int>(strategy) + 1);
}

// Returns the activation choices of all pairs that do not keep everything.
// Stage pairs are numbered in the order of their forward tasks.
std::vector<v1::ActivationChoice> ActivationsOf(
    const planner::PlanResult& result) {
  std::vector<v1::ActivationChoice> choices;
  int32_t pair = 0;
  for (const TaskId t : result.plan.graph.task_ids()) {
    const Task& task = result.plan.graph.task(t);
    if (task.pass != Pass::kForward) continue;
    const StagePairId id(pair++);
    v1::ActivationChoice choice;
    choice.set_task(t.value());
    if (result.memory.empty()) continue;
    const MemoryChoice& memory = result.memory.of(id);
    if (memory.keeps_everything()) continue;
    bool in_part = false;
    for (const LayerMemory& layer : memory.layers) {
      choice.add_layers(ToProto(layer.strategy));
      in_part = in_part || layer.recomputes_partly();
    }
    if (in_part) {
      for (const LayerMemory& layer : memory.layers) {
        choice.add_operator_groups(layer.groups.bits());
      }
    }
    if (memory.period > 1) choice.set_period(memory.period);
    choices.push_back(std::move(choice));
  }
  return choices;
}

struct Found {
  std::shared_ptr<const planner::PlanResult> result{};
  bool cache_hit = false;
  bool from_similar = false;
  bool cut_short = false;
  // Samples, if they were dealt anew: indexed by replica, then microbatch.
  std::vector<std::vector<std::vector<SampleId>>> packed{};
};

absl::StatusOr<Found> PlanDeferred(const StepBatch& batch,
                                   const planner::PlanInput& input,
                                   bool shortened) {
  const planner::PreparedJob& prepared = batch.epoch->planner->prepared();
  const JobSpec& job = prepared.costs->job();
  PIPELOOM_ASSIGN_OR_RETURN(const partition::SampleCosts costs,
                            partition::SampleCosts::Create(
                                job, *prepared.costs, batch.packed.samples));
  PIPELOOM_ASSIGN_OR_RETURN(planner::DeferredPlan result,
                            planner::PlanDeferred(prepared, input, costs));
  Found found;
  if (result.deferred) {
    found.packed = partition::DeferSurplus(job, costs, batch.packed).packed;
  }
  found.cut_short = (input.budget.stop.stop_requested() || shortened) &&
                    !result.plan.proven_optimal;
  found.result =
      std::make_shared<const planner::PlanResult>(std::move(result.plan));
  return found;
}

// Returns the first replica with the same devices, speeds and links.
int32_t FirstReplicaLike(const StepBatch& batch, int32_t replica) {
  const emulator::StageCostModel& costs = batch.epoch->planner->costs();
  int32_t first = 0;
  while (&costs.ForReplica(first) != &costs.ForReplica(replica)) ++first;
  return first;
}

PlanCacheKey KeyOf(const StepBatch& batch, int32_t replica,
                   const Microbatches& microbatches) {
  return MakePlanCacheKey(batch.epoch->context,
                          FingerprintBuilder()
                              .Add(batch.samples_print)
                              .Add(FirstReplicaLike(batch, replica))
                              .Build(),
                          microbatches);
}

absl::StatusOr<Found> PlanOrFind(const ServedJob& job, const StepBatch& batch,
                                 int32_t replica, const SearchEffort& effort,
                                 const std::stop_token& stop,
                                 PlanCache* cache) {
  const SearchSpec& search = job.spec().search;
  planner::PlanInput input;
  input.packed = &batch.packed;
  input.step = batch.step;
  input.replica = replica;
  input.seed = search.seed;
  if (SharesOrder(batch)) {
    input.budget.threads = effort.threads;
    input.budget.workers = search.workers > 0 ? search.workers : effort.workers;
    PIPELOOM_ASSIGN_OR_RETURN(PlanInSharedOrder shared,
                              FindInSharedOrder(job, batch, input, cache));
    return Found{.result = std::make_shared<const planner::PlanResult>(
                     std::move(shared.plan)),
                 .cache_hit = shared.order_was_known};
  }
  // A search by evaluations gives the same plan on every machine, whatever was
  // planned before; so only searches by time use earlier plans.
  const bool by_time = search.evaluations == 0;
  const bool shortened = by_time && effort.part < 1;
  if (PlansAnew(job, batch)) {
    input.budget = StartBudget(search, effort, stop);
    return PlanDeferred(batch, input, shortened);
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      const Microbatches microbatches,
      partition::SplitMicrobatches(job.spec(), batch.packed, replica,
                                   job.partition()));
  const PlanCacheKey key = KeyOf(batch, replica, microbatches);
  PlanCache::Found known = cache->Find(key, microbatches);
  if (known.equal != nullptr) {
    return Found{.result = std::move(known.equal), .cache_hit = true};
  }
  if (known.cut_short != nullptr && (stop.stop_requested() || shortened)) {
    return Found{.result = std::move(known.cut_short),
                 .cache_hit = true,
                 .cut_short = true};
  }
  input.budget = StartBudget(search, effort, stop);
  if (by_time) {
    input.carried = std::move(known.carried);
    input.carried.insert(input.carried.end(), job.warm_up().begin(),
                         job.warm_up().end());
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PlanResult result,
      planner::PlanStep(batch.epoch->planner->prepared(), input));
  Found found;
  found.cut_short =
      (stop.stop_requested() || shortened) && !result.proven_optimal;
  if (known.similar != nullptr && by_time) {
    found.from_similar = ImproveFromSimilar(*known.similar, &result);
  }
  found.result = std::make_shared<const planner::PlanResult>(std::move(result));
  if (known.cut_short != nullptr && by_time &&
      known.cut_short->predicted.finish < found.result->predicted.finish) {
    found.result = std::move(known.cut_short);
  }
  cache->Insert(key, found.result,
                found.cut_short ? SearchEnd::kCutShort : SearchEnd::kFull);
  return found;
}

v1::Checksum ToProto(const Fingerprint& print) {
  v1::Checksum proto;
  proto.set_high(print.high);
  proto.set_low(print.low);
  return proto;
}

Fingerprint FromProto(const v1::Checksum& proto) {
  return {proto.high(), proto.low()};
}

// Fills in the fields that are the same for all ranks.
void FillCommon(const ReadyPlan& ready, v1::RankPlan* share) {
  const ExecutionPlan& plan = ready.plan;
  const StageGraph& graph = plan.graph;
  share->set_job_id(ready.job_id);
  share->set_step(plan.step);
  share->set_replica(plan.replica);
  share->set_num_ranks(graph.num_ranks());
  *share->mutable_plan_checksum() = ToProto(ready.checksum);
  *share->mutable_step_checksum() = ToProto(ready.step_checksum);
  share->set_quality(ready.quality);
  share->set_schedule(plan.schedule);
  share->set_predicted_step_time_ns(plan.predicted_step_time.count());
  share->set_lower_bound_ns(plan.lower_bound.count());
  for (const std::string& name : graph.module_names()) {
    share->add_module_names(name);
  }
  for (const v1::PlannedMicrobatch& microbatch : ready.microbatches) {
    *share->add_microbatches() = microbatch;
  }
  share->set_durable(ready.durable);
  share->set_attempt(ready.origin.attempt);
  for (const LossShare& loss : plan.loss_shares) {
    *share->add_loss_shares() = convert::ToProto(loss);
  }
  for (const LossTotal& loss : plan.loss_totals) {
    *share->add_loss_totals() = convert::ToProto(loss);
  }
  for (const PaddedShape& shape : plan.padded_shapes) {
    *share->add_padded_shapes() = convert::ToProto(shape);
  }
  share->set_replicas_that_meet(ready.replicas_that_meet);
}

void FillOwn(const ExecutionPlan& plan, RankId rank, v1::RankPlan* share) {
  const StageGraph& graph = plan.graph;
  share->set_rank(rank.value());
  *share->mutable_rank_spec() = convert::ToProto(graph.rank(rank));
  *share->mutable_program() = convert::ToProto(plan.programs[rank]);
  std::vector<EdgeId> edges;
  for (const TaskId t : graph.tasks_of(rank)) {
    v1::IndexedTask& task = *share->add_tasks();
    task.set_index(t.value());
    *task.mutable_task() = convert::ToProto(graph.task(t));
    for (const EdgeId e : graph.incoming(t)) edges.push_back(e);
    for (const EdgeId e : graph.outgoing(t)) {
      // An edge inside the rank is listed with its consumer.
      if (graph.task(graph.edge(e).to).rank != rank) edges.push_back(e);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::set<TaskId> far;
  for (const EdgeId e : edges) {
    const Dependency& edge = graph.edge(e);
    for (const TaskId end : {edge.from, edge.to}) {
      if (graph.task(end).rank != rank) far.insert(end);
    }
    v1::IndexedEdge& i = *share->add_edges();
    i.set_index(e.value());
    i.set_from_rank(graph.task(edge.from).rank.value());
    i.set_to_rank(graph.task(edge.to).rank.value());
    *i.mutable_edge() = convert::ToProto(edge);
  }
  for (const TaskId t : far) {
    v1::IndexedTask& task = *share->add_neighbours();
    task.set_index(t.value());
    *task.mutable_task() = convert::ToProto(graph.task(t));
    task.mutable_task()->clear_duration_ns();
    task.mutable_task()->clear_alloc_bytes();
    task.mutable_task()->clear_free_bytes();
    task.mutable_task()->clear_recomputes();
  }
}

Bytes SizeOf(const ReadyPlan& ready) {
  const ExecutionPlan& plan = ready.plan;
  const StageGraph& graph = plan.graph;
  size_t bytes = 4096;
  bytes += static_cast<size_t>(graph.num_tasks()) * (sizeof(Task) + 12);
  bytes += static_cast<size_t>(graph.num_edges()) * (sizeof(Dependency) + 8);
  for (const auto& program : plan.programs) {
    bytes += program.size() * (sizeof(Instruction) + 6);
  }
  if (ready.common_share != nullptr) bytes += ready.common_share->size();
  for (const auto& share : ready.shares) bytes += share->size();
  for (const v1::PlannedMicrobatch& microbatch : ready.microbatches) {
    bytes += microbatch.SpaceUsedLong();
  }
  for (const v1::ActivationChoice& activation : ready.activations) {
    bytes += activation.SpaceUsedLong();
  }
  bytes += plan.loss_shares.size() * sizeof(LossShare);
  bytes += plan.padded_shapes.size() * sizeof(PaddedShape);
  return Bytes(static_cast<int64_t>(bytes));
}

}  // namespace

Fingerprint SearchOf(const ServedJob& job, const StepBatch& batch,
                     int32_t replica) {
  if (PlansAnew(job, batch)) return {};
  if (SharesOrder(batch)) return SharedOrderOf(job, batch, replica);
  const absl::StatusOr<Microbatches> microbatches =
      partition::SplitMicrobatches(job.spec(), batch.packed, replica,
                                   job.partition());
  return microbatches.ok() ? KeyOf(batch, replica, *microbatches).exact
                           : Fingerprint();
}

PlanOrigin OriginOf(const StepBatch& batch) {
  return {.job = batch.job,
          .batch = batch.content,
          .costs = batch.epoch->context,
          .attempt = batch.attempt};
}

void MakeShares(ReadyPlan* ready) {
  const StageGraph& graph = ready->plan.graph;
  IdVector<RankId, std::vector<const v1::ActivationChoice*>> activations(
      graph.num_ranks());
  for (const v1::ActivationChoice& choice : ready->activations) {
    activations[graph.task(TaskId(choice.task())).rank].push_back(&choice);
  }
  v1::RankPlan common;
  FillCommon(*ready, &common);
  ready->common_share =
      std::make_shared<const std::string>(common.SerializeAsString());
  ready->shares.assign(graph.num_ranks(), {});
  google::protobuf::Arena arena;
  for (const RankId rank : graph.rank_ids()) {
    auto* own = google::protobuf::Arena::CreateMessage<v1::RankPlan>(&arena);
    FillOwn(ready->plan, rank, own);
    for (const auto* choice : activations[rank]) {
      *own->add_activations() = *choice;
    }
    ready->shares[rank] =
        std::make_shared<const std::string>(own->SerializeAsString());
    arena.Reset();
  }
  ready->size = SizeOf(*ready);
}

absl::StatusOr<ReadyPlan> MakeReadyPlan(const ServedJob& job,
                                        const StepBatch& batch, int32_t replica,
                                        const SearchEffort& effort,
                                        const std::stop_token& stop,
                                        PlanCache* cache) {
  const Clock::time_point begin = Clock::now();
  absl::StatusOr<Found> found =
      PlanOrFind(job, batch, replica, effort, stop, cache);
  if (!found.ok()) {
    // ResourceExhausted would say that the service is exhausted.
    if (absl::IsResourceExhausted(found.status())) {
      return absl::FailedPreconditionError(found.status().message());
    }
    return found.status();
  }
  const planner::PlanResult& result = *found->result;
  ReadyPlan ready;
  ready.job_id = job.id();
  ready.origin = OriginOf(batch);
  ready.plan = result.plan;
  ready.plan.step = batch.step;
  ready.plan.replica = replica;
  ready.plan.lower_bound = result.lower_bound;
  // Plans from the cache are checked again, too: no plan leaves unchecked.
  if (const absl::Status valid = ValidateExecutionPlan(ready.plan);
      !valid.ok()) {
    return absl::InternalError(
        absl::StrCat("the check refused the plan: ", valid.message()));
  }
  ready.checksum = Checksum(ready.plan);
  if (SharesOrder(batch)) {
    ready.replicas_that_meet = emulator::ReplicasThatMeet(job.spec());
  }
  FingerprintBuilder step;
  step.Add(batch.epoch->context).Add(job.id()).Add(batch.step);
  if (batch.attempt > 0) step.Add(batch.attempt);
  ready.step_checksum = step.Build();
  ready.quality = result.proven_optimal ? v1::PLAN_QUALITY_OPTIMAL
                  : found->cut_short    ? v1::PLAN_QUALITY_BEST_SO_FAR
                                        : v1::PLAN_QUALITY_FULL;
  const auto& packed =
      found->packed.empty() ? batch.packed.packed : found->packed;
  ready.microbatches = PlannedMicrobatches(
      batch, packed[static_cast<size_t>(replica)], result.microbatches);
  ready.activations = ActivationsOf(result);
  v1::PlanStatistics& s = ready.statistics;
  s.set_job_id(job.id());
  s.set_step(batch.step);
  s.set_replica(replica);
  s.set_quality(ready.quality);
  s.set_step_time_ns(ready.plan.predicted_step_time.count());
  s.set_lower_bound_ns(result.lower_bound.count());
  s.set_evaluations(found->cache_hit ? 0 : result.evaluations);
  s.set_search_ns(found->cache_hit
                      ? 0
                      : std::chrono::nanoseconds(Clock::now() - begin).count());
  s.set_cache_hit(found->cache_hit);
  s.set_from_similar(found->from_similar);
  s.set_tasks(ready.plan.graph.num_tasks());
  return ready;
}

v1::GetPlanResponse WholePlan(const ReadyPlan& ready) {
  v1::GetPlanResponse whole;
  *whole.mutable_plan() = convert::ToProto(ready.plan);
  whole.set_quality(ready.quality);
  for (const v1::PlannedMicrobatch& microbatch : ready.microbatches) {
    *whole.add_microbatches() = microbatch;
  }
  for (const v1::ActivationChoice& choice : ready.activations) {
    *whole.add_activations() = choice;
  }
  *whole.mutable_step_checksum() = ToProto(ready.step_checksum);
  whole.set_evaluations(ready.statistics.evaluations());
  whole.set_search_ns(ready.statistics.search_ns());
  whole.set_replicas_that_meet(ready.replicas_that_meet);
  return whole;
}

v1::StoredPlan ToStored(const ReadyPlan& ready) {
  v1::StoredPlan stored;
  stored.set_job_id(ready.job_id);
  *stored.mutable_plan() = WholePlan(ready);
  *stored.mutable_statistics() = ready.statistics;
  *stored.mutable_job() = ToProto(ready.origin.job);
  *stored.mutable_batch() = ToProto(ready.origin.batch);
  *stored.mutable_costs() = ToProto(ready.origin.costs);
  stored.set_attempt(ready.origin.attempt);
  *stored.mutable_plan_checksum() = ToProto(ready.checksum);
  return stored;
}

PlanOrigin OriginOf(const v1::StoredPlanHead& head) {
  return {.job = FromProto(head.job()),
          .batch = FromProto(head.batch()),
          .costs = FromProto(head.costs()),
          .attempt = head.attempt()};
}

absl::StatusOr<ReadyPlan> FromStored(const v1::StoredPlan& stored) {
  ReadyPlan ready;
  const v1::GetPlanResponse& whole = stored.plan();
  ready.job_id = stored.job_id();
  ready.origin = {.job = FromProto(stored.job()),
                  .batch = FromProto(stored.batch()),
                  .costs = FromProto(stored.costs()),
                  .attempt = stored.attempt()};
  PIPELOOM_ASSIGN_OR_RETURN(ready.plan, convert::FromProto(whole.plan()));
  PIPELOOM_RETURN_IF_ERROR(ValidateExecutionPlan(ready.plan));
  ready.checksum = Checksum(ready.plan);
  ready.step_checksum = FromProto(whole.step_checksum());
  ready.quality = whole.quality();
  ready.replicas_that_meet = whole.replicas_that_meet();
  ready.microbatches.assign(whole.microbatches().begin(),
                            whole.microbatches().end());
  ready.activations.assign(whole.activations().begin(),
                           whole.activations().end());
  ready.statistics = stored.statistics();
  ready.durable = true;
  return ready;
}

}  // namespace pipeloom::service
