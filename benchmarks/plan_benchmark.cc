// The way from a packed step to a checked plan, and the files around it:
// building the step's graph, timing orders, lowering, checking, printing and
// reading plans, PlanStep as a whole, and the JSON of jobs and batches. Items
// are tasks, or samples of a batch; bytes are those of the text.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "formats/job/spec_loader.h"
#include "formats/text/json_reader.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/schedule.h"
#include "partition/batching/batch_split.h"
#include "partition/graph/build_stage_graph.h"
#include "planner/job/job_planner.h"
#include "planner/lower/lower_plan.h"
#include "planner/orders/one_f_one_b.h"
#include "planner/orders/virtual_pipeline.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "proto/convert/plan_proto.h"
#include "tests/support/random_problem.h"
#include "tests/support/small_job.h"

namespace pipeloom {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  PIPELOOM_CHECK(value.ok());
  return *std::move(value);
}

void Sizes(benchmark::internal::Benchmark* b) {
  b->Arg(1 << 10)->Arg(10 << 10)->Arg(100 << 10)->Unit(benchmark::kMillisecond);
}

// A 1F1B schedule on 64 ranks.
struct Scheduled {
  StageGraph graph{};
  Schedule schedule{};
};
Scheduled MakeScheduled(int64_t num_tasks) {
  constexpr int32_t kRanks = 64;
  Scheduled made;
  made.graph = testing::UniformGraph(
      {.ranks = kRanks,
       .microbatches = static_cast<int32_t>(num_tasks) / kRanks / 2,
       .weight_grad = kZero,
       .delay = Microseconds(20)});
  made.schedule = Must(TimeSchedule(
      made.graph,
      Must(planner::OneFOneBOrders(planner::VirtualPipeline(made.graph)))));
  return made;
}

void BM_TimeSchedule(benchmark::State& state) {
  const Scheduled made = MakeScheduled(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(TimeSchedule(made.graph, made.schedule.order));
  }
  state.SetItemsProcessed(state.iterations() * made.graph.num_tasks());
}
BENCHMARK(BM_TimeSchedule)->Apply(Sizes);

void BM_LowerPlan(benchmark::State& state) {
  const Scheduled made = MakeScheduled(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(planner::LowerPlan(made.graph, made.schedule));
  }
  state.SetItemsProcessed(state.iterations() * made.graph.num_tasks());
}
BENCHMARK(BM_LowerPlan)->Apply(Sizes);

void BM_ValidatePlan(benchmark::State& state) {
  const Scheduled made = MakeScheduled(state.range(0));
  const ExecutionPlan plan =
      Must(planner::LowerPlan(made.graph, made.schedule));
  for (auto _ : state) {
    PIPELOOM_CHECK(ValidateExecutionPlan(plan).ok());
  }
  state.SetItemsProcessed(state.iterations() * made.graph.num_tasks());
}
BENCHMARK(BM_ValidatePlan)->Apply(Sizes);

void BM_PlanToProtoAndBack(benchmark::State& state) {
  const Scheduled made = MakeScheduled(state.range(0));
  const ExecutionPlan plan =
      Must(planner::LowerPlan(made.graph, made.schedule));
  int64_t bytes = 0;
  for (auto _ : state) {
    const std::string text = convert::ToProto(plan).SerializeAsString();
    v1::ExecutionPlan message;
    PIPELOOM_CHECK(message.ParseFromString(text));
    benchmark::DoNotOptimize(Must(convert::FromProto(message)));
    bytes += static_cast<int64_t>(text.size());
  }
  state.SetBytesProcessed(bytes);
  state.SetItemsProcessed(state.iterations() * made.graph.num_tasks());
}
BENCHMARK(BM_PlanToProtoAndBack)->Apply(Sizes);

// The small vision-language job with as many microbatches as the argument.
struct Prepared {
  explicit Prepared(int64_t microbatches) {
    job.training.microbatches = static_cast<int32_t>(microbatches);
    batch = testing::RandomBatch(1, 4000, 6);
    made = Must(planner::JobPlanner::Create(job, batch));
    prepared = made->prepared();
    packed = Must(partition::PackStep(job, batch, 0));
  }
  JobSpec job = testing::SmallVlmJob();
  BatchMetadata batch{};
  std::unique_ptr<planner::JobPlanner> made{};
  planner::PreparedJob prepared{};
  partition::PackedStep packed{};
};

void BM_PackStep(benchmark::State& state) {
  const Prepared p(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(Must(partition::PackStep(p.job, p.batch, 0)));
  }
  state.SetItemsProcessed(state.iterations() * p.packed.num_samples);
}
BENCHMARK(BM_PackStep)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

// All shapes have been priced before, as from a run's second step on.
void BM_BuildStageGraph(benchmark::State& state) {
  const Prepared p(state.range(0));
  const Microbatches microbatches = Must(
      partition::SplitMicrobatches(p.job, p.packed, 0, p.prepared.partition));
  int64_t tasks = 0;
  for (auto _ : state) {
    tasks += Must(partition::BuildStageGraph(
                      *p.prepared.costs, p.prepared.partition, microbatches))
                 .graph.num_tasks();
  }
  state.SetItemsProcessed(tasks);
}
BENCHMARK(BM_BuildStageGraph)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

// Makes one evaluation for each memory choice: the cost of a step without its
// search.
void BM_PlanStep(benchmark::State& state) {
  const Prepared p(state.range(0));
  planner::PlanInput input;
  input.packed = &p.packed;
  input.budget.max_evaluations = 1;
  int64_t tasks = 0;
  for (auto _ : state) {
    tasks += Must(planner::PlanStep(p.prepared, input)).plan.graph.num_tasks();
  }
  state.SetItemsProcessed(tasks);
}
BENCHMARK(BM_PlanStep)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

void BM_ParseBatch(benchmark::State& state) {
  std::string text;
  for (int64_t i = 0; i < state.range(0); ++i) {
    absl::StrAppend(&text, "{\"text_tokens\": ", 100 + i % 900,
                    ", \"images\": [[", 300 + i % 600, ", 480]]}\n");
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Must(formats::ParseBatch(text, "batch.jsonl", nullptr)));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
}
BENCHMARK(BM_ParseBatch)->Arg(1000)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_ParseTaskGraph(benchmark::State& state) {
  const std::string text =
      formats::PrintTaskGraph(MakeScheduled(state.range(0)).graph);
  for (auto _ : state) {
    benchmark::DoNotOptimize(Must(formats::ParseTaskGraph(text, "graph.json")));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
}
BENCHMARK(BM_ParseTaskGraph)->Apply(Sizes);

}  // namespace
}  // namespace pipeloom
