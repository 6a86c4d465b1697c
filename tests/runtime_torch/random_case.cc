#include "tests/runtime_torch/random_case.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "emulator/stage/stage_cost.h"
#include "ir/plan/pass_pairs.h"
#include "partition/batching/batch_split.h"
#include "partition/batching/step_instances.h"
#include "partition/graph/build_stage_graph.h"
#include "partition/graph/memory_candidates.h"
#include "planner/lower/lower_plan.h"
#include "planner/passes/drop_fused.h"
#include "planner/passes/pair_passes.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "planner/strategy.h"
#include "tests/runtime_torch/pair_neighbours.h"
#include "tests/support/small_job.h"

namespace pipeloom::runtime {
namespace {

JobSpec RandomJob(Random& random) {
  JobSpec job = testing::SmallVlmJob();
  job.parallel.pp = static_cast<int32_t>(random.Between(1, 4));
  job.model = ScaleModel(job.model, 16, 1);
  for (ModuleSpec& module : job.model.modules) {
    module.precision = Precision::kFp32;
    const bool gated = random.Below(2) == 0;
    for (LayerSpec& layer : module.layers) {
      layer.vocab = layer.vocab > 0 ? 96 : 0;
      if (layer.ffn.hidden > 0) layer.ffn.gated = gated;
    }
  }
  for (LayerSpec& layer : job.model.modules[ModuleId(1)].layers) {
    if (layer.attention.heads >= 4 && random.Below(2) == 0) {
      layer.attention.kv_heads = layer.attention.heads / 2;
    }
  }
  // 64 tokens an image.
  job.model.modules[ModuleId(0)].token_rules[0].side = 112;
  job.cluster.device.host_bandwidth = {1e13};
  job.training.microbatches = static_cast<int32_t>(random.Between(2, 5));
  job.training.microbatch_tokens = 500;
  job.training.microbatch_images = 6;
  if (random.Below(5) == 0) job.training.frozen_modules = {"encoder"};
  if (random.Below(2) == 0) {
    job.training.sub_microbatch_sizes = {
        {.module = "encoder", .instances = random.Between(1, 3)},
        {.module = "backbone", .instances = random.Between(1, 2)}};
  }
  return job;
}

OperatorGroups RandomGroups(Random& random) {
  return OperatorGroups::FromBits(
      static_cast<uint32_t>(random.Between(1, OperatorGroups::kAllBits)));
}

MemoryChoice RandomChoice(Random& random, int32_t layers) {
  switch (random.Below(6)) {
    case 0:
      return RecomputeUniform(layers,
                              static_cast<int32_t>(random.Between(1, layers)));
    case 1:
      return RecomputeBlock(layers,
                            static_cast<int32_t>(random.Between(1, layers)));
    case 2:
      return RecomputeGroups(layers, RandomGroups(random));
    case 3: {
      MemoryChoice choice;
      for (int32_t l = 0; l < layers; ++l) {
        choice.layers.emplace_back(random.Below(2) == 0
                                       ? MemoryStrategy::kOffload
                                       : MemoryStrategy::kKeep);
      }
      return choice;
    }
    default: {
      MemoryChoice choice{
          .period = static_cast<int32_t>(random.Between(1, layers + 1))};
      for (int32_t l = 0; l < layers; ++l) {
        LayerMemory layer(static_cast<MemoryStrategy>(random.Below(3)));
        if (layer.recomputes_fully() && random.Below(2) == 0) {
          layer.groups = RandomGroups(random);
        }
        choice.layers.push_back(layer);
      }
      return choice;
    }
  }
}

// Weight gradients said to be done, in no time, in a later backward's gaps.
std::vector<planner::PairedPass> RandomPairs(Random& random,
                                             const StageGraph& graph,
                                             const Schedule& schedule) {
  std::vector<planner::PairedPass> pairs;
  for (const std::vector<TaskId>& order : schedule.order) {
    std::vector<TaskId> backwards;
    std::set<TaskId> taken;
    for (const TaskId id : order) {
      const Task& task = graph.task(id);
      if (task.pass == Pass::kBackward) backwards.push_back(id);
      if (task.pass != Pass::kWeightGrad || random.Below(2) == 0) continue;
      const auto own =
          std::find_if(backwards.begin(), backwards.end(), [&](TaskId b) {
            const Task& t = graph.task(b);
            return t.stage == task.stage && t.microbatch == task.microbatch &&
                   t.sub_microbatch == task.sub_microbatch;
          });
      if (own == backwards.end() || own + 1 == backwards.end()) continue;
      if (!taken.insert(*(own + 1)).second) continue;
      pairs.push_back(
          {.weight_grad = id, .backward = *(own + 1), .rest = task.duration});
    }
  }
  return pairs;
}

// A plan with memory choices and forms drawn at random.
absl::Status PlanAtRandom(const planner::PreparedJob& prepared,
                          const Microbatches& microbatches, Random& random,
                          RandomCase* c) {
  const bool split = prepared.strategy->split_backward();
  const Partition& partition = prepared.partition;
  PIPELOOM_ASSIGN_OR_RETURN(
      const partition::BuiltGraph built,
      partition::BuildStageGraph(*prepared.costs, partition, microbatches,
                                 {.split_backward = split}));
  IdVector<StageId, std::vector<MemoryChoice>> choices;
  for (const Stage& stage : partition.stages) {
    std::vector<MemoryChoice> of_stage;
    for (int i = 0; i < 4; ++i) {
      of_stage.push_back(RandomChoice(random, stage.num_layers));
    }
    choices.push_back(std::move(of_stage));
  }
  partition::StepMemory memory = partition::MakeStepMemory(
      *prepared.costs, partition, microbatches, built.pairs, choices);
  partition::FormSelection forms = memory.forms();
  if (random.Below(3) > 0) {
    for (partition::PassForm& form : forms) {
      form = random.Below(2) == 0 ? partition::PassForm::kFused
                                  : partition::PassForm::kSplit;
    }
    memory.SetForms(forms);
  }
  partition::MemorySelection selection(memory.pairs.size(), 0);
  for (const StagePairId pair : memory.pairs.ids()) {
    selection[pair] = static_cast<int32_t>(
        random.Below(static_cast<int64_t>(memory.candidates(pair).size())));
  }
  const bool apart = random.Below(2) == 0;  // Copies as instructions.
  PIPELOOM_ASSIGN_OR_RETURN(
      StageGraph graph,
      apart
          ? partition::ApplyMemoryWithCopyTasks(built.graph, memory, selection)
          : partition::ApplyMemory(built.graph, memory, selection));
  PIPELOOM_ASSIGN_OR_RETURN(const planner::SearchResult found,
                            prepared.strategy->MakeSchedule(
                                graph, partition, 1, {.max_evaluations = 5}));
  PIPELOOM_ASSIGN_OR_RETURN(
      planner::PlanProblem problem,
      planner::DropFusedWeightGrads(std::move(graph), memory, found.schedule));
  std::vector<planner::HostCopy> copies;
  for (const StagePairId id : memory.pairs.ids()) {
    if (!apart || memory.pairs[id].backward.is_none()) continue;
    const partition::MemoryEffect& effect = memory.effect(id, selection[id]);
    if (effect.offloaded == Bytes(0)) continue;
    copies.push_back({.task = problem.task_now[memory.pairs[id].forward],
                      .payload = effect.offloaded,
                      .time = effect.copy});
  }
  const auto pairs = RandomPairs(random, problem.graph, problem.schedule);
  if (!pairs.empty()) {
    PIPELOOM_ASSIGN_OR_RETURN(problem.graph,
                              planner::ApplyPairs(problem.graph, pairs));
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      c->plan,
      planner::LowerPlan(std::move(problem.graph), problem.schedule, copies));
  if (random.Below(2) == 0) {
    PIPELOOM_ASSIGN_OR_RETURN(c->plan,
                              testing::PairNeighbours(c->plan, random));
  }
  c->memory = partition::PolicyOf(memory, selection);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RandomCase> MakeRandomCase(uint64_t seed) {
  Random random(seed);
  RandomCase c;
  c.job = RandomJob(random);
  constexpr const char* kSchedules[] = {"1f1b", "interleaved", "zb-h1",
                                        "zb-v", "dip",         "pipeloom"};
  c.schedule = kSchedules[random.Below(6)];
  const BatchMetadata batch = testing::RandomBatch(seed, 40, 3);
  PIPELOOM_ASSIGN_OR_RETURN(const auto strategy,
                            planner::MakeStrategy(c.schedule));
  const emulator::StageCostModel costs(c.job);
  PIPELOOM_ASSIGN_OR_RETURN(planner::PreparedJob prepared,
                            planner::PrepareJob(*strategy, costs, batch));
  PIPELOOM_ASSIGN_OR_RETURN(const partition::PackedStep packed,
                            partition::PackStep(c.job, batch, 0));
  planner::PlanInput input{.packed = &packed};
  input.budget.max_evaluations = 5;
  PIPELOOM_ASSIGN_OR_RETURN(planner::PlanResult planned,
                            planner::PlanStep(prepared, input));
  c.partition = prepared.partition;
  if (seed % 2 == 1) {
    PIPELOOM_RETURN_IF_ERROR(
        PlanAtRandom(prepared, planned.microbatches, random, &c));
  } else {
    // The same within less memory, as far as that can be.
    const int64_t percent = random.Between(30, 110);
    Bytes limit;
    for (const RankId r : planned.plan.graph.rank_ids()) {
      const Bytes fixed = planned.plan.graph.rank(r).memory.static_bytes();
      const Bytes rest = planner::PlanPeaks(planned.plan)[r] - fixed;
      limit = std::max(limit, fixed + Bytes(rest.count() * percent / 100));
    }
    JobSpec less = c.job;
    less.training.memory_limit = limit;
    const emulator::StageCostModel within(less);
    planner::PreparedJob tight = prepared;
    tight.costs = &within;
    absl::StatusOr<planner::PlanResult> again = planner::PlanStep(tight, input);
    if (again.ok()) planned = *std::move(again);
    c.plan = std::move(planned.plan);
    c.memory = std::move(planned.memory);
  }
  PIPELOOM_ASSIGN_OR_RETURN(
      c.work,
      MakeTorchWork(c.job.model, partition::InstancesOf(c.job.model, packed, 0),
                    planned.microbatches, /*token_divisor=*/1, seed));
  return c;
}

Bytes AccountOf(const RandomCase& c, RankId rank) {
  const StageGraph& graph = c.plan.graph;
  const RankMemory& memory = graph.rank(rank).memory;
  const emulator::StageCostModel costs(c.job);
  return planner::PlanPeaks(c.plan)[rank] - memory.static_bytes() +
         memory.gradients +
         costs.Overhead(c.partition, rank).unused_gradients * 2;
}

void CountWhatItHas(const RandomCase& c, std::map<std::string, int>* counts) {
  std::set<std::string> has;
  const StageGraph& graph = c.plan.graph;
  has.insert(absl::StrCat("ranks ", graph.num_ranks()));
  has.insert(c.schedule);
  if (!c.job.training.frozen_modules.empty()) has.insert("frozen");
  std::set<TaskId> split;
  for (const TaskId id : graph.task_ids()) {
    const Task& task = graph.task(id);
    if (task.sub_microbatch > 0) has.insert("sub-microbatches");
    if (IsSecondOfPair(task)) has.insert("paired forward");
    if (task.pass != Pass::kWeightGrad) continue;
    has.insert("split backward");
    if (!task.overlaps.is_none()) has.insert("paired backward");
    for (const EdgeId e : graph.incoming(id)) {
      split.insert(graph.edge(e).from);
    }
  }
  for (const TaskId id : graph.task_ids()) {
    if (graph.task(id).pass == Pass::kBackward && !split.contains(id)) {
      has.insert("fused backward");
    }
  }
  for (const std::vector<Instruction>& program : c.plan.programs) {
    for (const Instruction& i : program) {
      if (std::holds_alternative<Offload>(i)) has.insert("offload instruction");
    }
  }
  for (const int32_t used : c.memory.choice_of) {
    const MemoryChoice& choice = c.memory.choices[static_cast<size_t>(used)];
    const auto n = static_cast<int32_t>(choice.layers.size());
    if (choice.keeps_everything()) has.insert("keep");
    int32_t full = 0;
    for (const LayerMemory& layer : choice.layers) {
      if (layer.offloads()) has.insert("offload");
      if (layer.recomputes_fully()) {
        ++full;
        has.insert("full");
      }
      for (const OperatorGroup g : kAllOperatorGroups) {
        if (layer.groups.Has(g)) has.insert(std::string(NameOf(g)));
      }
    }
    if (full == n && choice.period > 1 && n > 1) has.insert("uniform, period");
    if (full > 0 && full < n && choice == RecomputeBlock(n, full)) {
      has.insert("block, count");
    }
  }
  for (const std::string& what : has) ++(*counts)[what];
}

}  // namespace pipeloom::runtime
