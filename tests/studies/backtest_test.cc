// A backtest: measured runs go the planner's way, to the nanosecond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "emulator/cluster/emulate_cluster.h"
#include "emulator/step/emulate_step.h"
#include "formats/job/spec_loader.h"
#include "partition/batching/batch_split.h"
#include "planner/lower/lower_plan.h"
#include "planner/step/plan_step.h"
#include "planner/strategies/registry.h"
#include "studies/backtest/emulate_against.h"
#include "studies/backtest/table_set.h"
#include "tests/formats/data_dir.h"
#include "tests/support/status_matchers.h"

namespace pipeloom::studies {
namespace {

using ::pipeloom::testing::FailsWith;
using ::pipeloom::testing::IsOk;

constexpr char kHeader[] =
    "framework,run,cluster,shape,layout,setup,microbatch,global_batch,sequence,"
    "step_ms,peak_gib,split\n";

// A row with a random model, layout and way of running.
std::string RandomRow(uint64_t seed, bool recompute) {
  Random random(seed);
  const auto one_of = [&](std::initializer_list<const char*> words) {
    return std::string(words.begin()[random.Between(
        0, static_cast<int64_t>(words.size()) - 1)]);
  };
  const int64_t tp = int64_t{1} << random.Between(0, 3);
  const int64_t pp = int64_t{1} << random.Between(0, 2);
  const int64_t chunks = pp > 1 ? random.Between(1, 2) : 1;
  const int64_t dp = int64_t{1} << random.Between(0, 4);
  const int64_t layers = pp * chunks * random.Between(1, 3);
  const int64_t heads = 8 * random.Between(1, 4);
  const int64_t micro = random.Between(1, 4);
  const int64_t batch = micro * dp * pp * random.Between(1, 3);
  return absl::StrFormat(
      "f,run%d,h800-sxm,layers=%d hidden=%d heads=%d ffn=%d vocab=%d,"
      "tp=%d pp=%d dp=%d vp=%d,attention=%s pointwise=%s sequence_parallel=%s "
      "overlap=%s sharding=%s gradient_bytes=%s recompute=%s host_us=%d,"
      "%d,%d,%d,1,,\n",
      seed, layers, heads * 64, heads, heads * 256, random.Between(1000, 4001),
      tp, pp, dp, chunks, one_of({"fused", "flash2", "flash1", "unfused"}),
      one_of({"fused", "eager"}), one_of({"yes", "no"}),
      one_of({"none", "data", "all"}), one_of({"none", "zero1", "fsdp"}),
      one_of({"2", "4"}),
      recompute ? std::string("full") : one_of({"none", "selective"}),
      random.Between(0, 40), micro, batch, 256 * random.Between(1, 8));
}

ClusterSpec Cluster() {
  const auto cluster = formats::LoadCluster(
      "h800-sxm", PIPELOOM_SOURCE_DIR "/workloads",
      [](const std::string& path) { return formats::ReadFile(path); });
  EXPECT_THAT(cluster.status(), IsOk());
  return *cluster;
}

formats::MeasuredRun RunOf(const std::string& row) {
  const auto runs = formats::ParseMeasuredRuns(kHeader + row, "t.csv");
  EXPECT_THAT(runs.status(), IsOk()) << row;
  return runs.value()[0];
}

TEST(Against, ARowTakesWhatThePlanOfItsJobTakesToTheNanosecond) {
  const ClusterSpec cluster = Cluster();
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::string row = RandomRow(seed, /*recompute=*/false);
    SCOPED_TRACE(row);
    const formats::MeasuredRun run = RunOf(row);
    ASSERT_OK_AND_ASSIGN(const EmulatedRun emulated,
                         EmulateMeasuredRun(run, cluster));
    ASSERT_OK_AND_ASSIGN(const PlannedRun planned,
                         PlanMeasuredRun(run, cluster));
    // The job as anybody plans it.
    const JobSpec job = formats::JobOf(run, cluster);
    const emulator::StageCostModel costs(job);
    ASSERT_OK_AND_ASSIGN(const auto strategy,
                         planner::MakeStrategy(planned.schedule));
    ASSERT_OK_AND_ASSIGN(const auto packed,
                         partition::PackStep(job, formats::BatchOf(run), 0));
    planner::PlanInput input{.packed = &packed};
    input.budget.max_evaluations = 1;
    ASSERT_OK_AND_ASSIGN(const planner::PlanResult result,
                         planner::PlanStep({.strategy = strategy.get(),
                                            .costs = &costs,
                                            .partition = planned.partition},
                                           input));
    EXPECT_EQ(emulated.step_time, result.predicted.step_time());
    ASSERT_OK_AND_ASSIGN(const StepTrace trace,
                         emulator::EmulateStep(result.plan));
    EXPECT_EQ(emulated.step_time, trace.step_time());
    Bytes peak;
    for (const Bytes bytes : planner::PlanPeaks(result.plan)) {
      peak = std::max(peak, bytes);
    }
    EXPECT_EQ(emulated.peak_allocated + Bytes(int64_t{1} << 30), peak);
  }
}

// Two images a sample of a vision-language model, whose encoder is ahead of the
// backbone's first stage, by layers a stage.
TEST(Against, ARunOfASizedModelHasItsEncoderAheadOfTheFirstStage) {
  const ClusterSpec cluster = Cluster();
  formats::MeasuredRun run = RunOf(
      "loongforge,a,h800-sxm,model=qwen2.5-vl-7b images=2 image=448x448,"
      "tp=4 pp=2 vp=2 stages=6+8+6+8,recompute=full,1,8,100,1,,");
  ASSERT_OK_AND_ASSIGN(
      run.model,
      formats::LoadModel(
          run.model_name, PIPELOOM_SOURCE_DIR "/workloads",
          [](const std::string& path) { return formats::ReadFile(path); }));
  ASSERT_OK_AND_ASSIGN(const PlannedRun planned, PlanMeasuredRun(run, cluster));
  ASSERT_EQ(planned.partition.stages.size(), 5);
  EXPECT_EQ(planned.partition.stages[StageId(0)].module, ModuleId(0));
  EXPECT_EQ(planned.partition.stages[StageId(0)].rank, RankId(0));
  // The embedding and six layers; eight; six; eight and the loss head.
  std::vector<int32_t> layers;
  for (int32_t s = 1; s < 5; ++s) {
    layers.push_back(planned.partition.stages[StageId(s)].num_layers);
  }
  EXPECT_EQ(layers, (std::vector<int32_t>{7, 8, 6, 9}));
  int32_t microbatches = 0;
  for (const Task& task : planned.plan.graph.tasks()) {
    microbatches = std::max(microbatches, task.microbatch.value() + 1);
  }
  EXPECT_EQ(microbatches, 8);
  ASSERT_OK_AND_ASSIGN(const EmulatedRun few, EmulateMeasuredRun(run, cluster));
  // A host as slow as LoongForge's keeps a step of 612 tokens a microbatch from
  // being any faster than its launches.
  EXPECT_GT(few.step_time, 8 * 28 * 2 * 25 * run.setup.host_per_kernel / 2);
  run.stage_layers = {6, 8, 6, 9};
  EXPECT_THAT(PlanMeasuredRun(run, cluster).status(),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        ::testing::HasSubstr("28 layers between")));
}

TEST(Against, ARecomputedRunTakesTheForwardOfItsTransformerLayersMore) {
  const ClusterSpec cluster = Cluster();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    formats::MeasuredRun run = RunOf(RandomRow(seed, /*recompute=*/true));
    run.parallel.pp = 1;
    run.chunks = 1;
    ASSERT_OK_AND_ASSIGN(const EmulatedRun again,
                         EmulateMeasuredRun(run, cluster));
    ASSERT_OK_AND_ASSIGN(const PlannedRun planned,
                         PlanMeasuredRun(run, cluster));
    run.recompute = false;
    ASSERT_OK_AND_ASSIGN(const EmulatedRun kept,
                         EmulateMeasuredRun(run, cluster));
    Duration forward{};
    const ModuleSpec& module = planned.job.model.modules[ModuleId(0)];
    const auto tokens = static_cast<double>(run.sequence);
    const WorkShape shape{
        .instances = run.microbatch,
        .tokens = run.microbatch * run.sequence,
        .output_tokens = run.microbatch * run.sequence,
        .squared_tokens =
            static_cast<double>(run.microbatch) * tokens * tokens};
    for (const LayerId id : module.layers.ids()) {
      if (module.layers[id].kind != LayerKind::kTransformer) continue;
      forward += planned.costs
                     ->Cost({.module = ModuleId(0),
                             .first_layer = id,
                             .num_layers = 1,
                             .rank = RankId(0),
                             .segment = SegmentId(0)},
                            shape, true)
                     .forward_again;
    }
    EXPECT_EQ(again.step_time - kept.step_time, forward * run.microbatches());
    EXPECT_LT(again.peak_allocated, kept.peak_allocated);
  }
}

absl::StatusOr<Comparison> Backtest(const std::string& table) {
  const std::string dir = PIPELOOM_SOURCE_DIR "/workloads";
  StudyContext context;
  context.read = [](const std::string& path) {
    return formats::ReadFile(path);
  };
  PIPELOOM_ASSIGN_OR_RETURN(
      const std::vector<MeasuredTable> tables,
      LoadTables({dir + "/validation/" + table + ".csv"}, dir, context.read));
  PIPELOOM_ASSIGN_OR_RETURN(
      std::vector<TableComparison> compared,
      CompareTables(tables, {.profiles = {dir, context.read}}, context));
  return std::move(compared[0].comparison);
}

// PipeMorph's runs: healthy, zero bubble is faster; with 60 ms more on a link
// its transfers, which share one queue of the pair, make it slower.
TEST(Against, ZeroBubbleLosesToOneFOneBOnADelayedLink) {
  ASSERT_OK_AND_ASSIGN(const Comparison compared, Backtest("pipemorph"));
  std::map<std::string, double> ms;
  std::map<std::string, std::vector<double>> errors;
  for (const ComparedRun& run : compared.runs) {
    ms[run.run.schedule + run.run.name] =
        ToMilliseconds(run.emulated.step_time);
    if (run.run.delay > kZero) {
      errors[run.run.schedule].push_back(run.step_error());
    }
  }
  EXPECT_LT(ms.at("zb-2p14B healthy"), ms.at("1f1b14B healthy"));
  EXPECT_GT(ms.at("zb-2p14B 60 ms"), 1.3 * ms.at("1f1b14B 60 ms"));
  for (const auto& [schedule, of] : errors) {
    EXPECT_EQ(of.size(), 6u);
    EXPECT_LT(SummarizeErrors(of).mean, 0.075) << schedule;
    EXPECT_LT(SummarizeErrors(of).worst, 0.12) << schedule;
  }
}

// Returns the errors of the rows that `chosen` takes.
template <typename Chosen>
std::vector<double> ErrorsOf(const std::string& table, const Chosen& chosen) {
  const absl::StatusOr<Comparison> compared = Backtest(table);
  EXPECT_THAT(compared.status(), IsOk());
  std::vector<double> errors;
  for (const ComparedRun& run : compared->runs) {
    if (chosen(run.run)) errors.push_back(run.step_error());
  }
  return errors;
}

// 16 to 256 GPUs: frozen encoders, eager convolutions, what the host launches
// for each microbatch and once a step.
TEST(Against, StableDiffusionTakesWhatItsKernelsTakeOnAnyNumberOfGpus) {
  const auto errors =
      ErrorsOf("mosaic", [](const formats::MeasuredRun&) { return true; });
  EXPECT_EQ(errors.size(), 5u);
  EXPECT_LT(SummarizeErrors(errors).worst, 0.05);
}

// 8,192 to a million tokens.
TEST(Against, LongSequencesAreAsFastAsMeasuredOnB200) {
  const auto errors =
      ErrorsOf("long_text", [](const formats::MeasuredRun& run) {
        return run.cluster == "b200-sxm";
      });
  EXPECT_EQ(errors.size(), 6u);
  EXPECT_LT(SummarizeErrors(errors).mean, 0.05);
  EXPECT_LT(SummarizeErrors(errors).worst, 0.09);
}

// 16 to 1,024 GPUs, packs of samples of 2,048 tokens.
TEST(Against, OptimizersInGroupsTakeWhatTheirNetworkTakes) {
  const auto errors =
      ErrorsOf("internevo", [](const formats::MeasuredRun& run) {
        return run.setup.optimizer_group > 0 && run.sequence == 2048;
      });
  EXPECT_EQ(errors.size(), 19u);
  EXPECT_LT(SummarizeErrors(errors).mean, 0.04);
}

// State over all of 32 to 1,024 GPUs, whose owners broadcast their weights.
TEST(Against, BroadcastsOfOwnersTakeLongerWithEachNode) {
  const auto errors =
      ErrorsOf("internevo", [](const formats::MeasuredRun& run) {
        return run.setup.broadcasts_weights && run.setup.optimizer_group == 0 &&
               run.parallel.dp > 8;
      });
  EXPECT_EQ(errors.size(), 4u);
  EXPECT_LT(SummarizeErrors(errors).worst, 0.03);
}

// Megatron-LM of 2022, 8 to 512 GPUs, pipelines of up to 64 ranks.
TEST(Against, RecomputationOfAllOrOfAttentionTakesWhatWasMeasured) {
  const auto errors = ErrorsOf(
      "recomputation", [](const formats::MeasuredRun&) { return true; });
  EXPECT_EQ(errors.size(), 8u);
  EXPECT_LT(SummarizeErrors(errors).mean, 0.04);
  EXPECT_LT(SummarizeErrors(errors).worst, 0.07);
}

// Weights of 96 and 128 replicas that are gathered in a node.
TEST(Against, HybridShardingKeepsItsWeightsInTheNode) {
  const auto errors = ErrorsOf("fms_fsdp", [](const formats::MeasuredRun& run) {
    return run.setup.optimizer_group > 0 && run.setup.eager_pointwise;
  });
  EXPECT_EQ(errors.size(), 2u);
  EXPECT_LT(SummarizeErrors(errors).worst, 0.04);
}

// Errors of one model on one GPU do not depend on how it is divided.
TEST(Against, TheA800IsAsFastWithTensorsAsWithPipelines) {
  const auto errors = ErrorsOf("flagperf", [](const formats::MeasuredRun& run) {
    return run.cluster == "a800-sxm" && run.model_name.empty();
  });
  ASSERT_EQ(errors.size(), 7u);
  const auto [least, most] = std::minmax_element(errors.begin(), errors.end());
  EXPECT_LT(*most - *least, 0.04);
  EXPECT_LT(SummarizeErrors(errors).worst, 0.09);
}

// Primus' runs: the batch is not known, so ratios to 1F1B count.
TEST(Against, RatiosBetweenSchedulesAreThoseOfPrimus) {
  ASSERT_OK_AND_ASSIGN(const Comparison compared, Backtest("primus"));
  ASSERT_EQ(compared.runs.size(), 6u);
  ASSERT_EQ(compared.runs[0].run.schedule, "1f1b");
  const double base = 1 + compared.runs[0].step_error();
  for (const ComparedRun& run : compared.runs) {
    const double error = base / (1 + run.step_error()) - 1;
    EXPECT_LT(std::abs(error), run.run.schedule == "v-min" ? 0.07 : 0.03)
        << run.run.schedule;
  }
}

constexpr char kAdapterRow[] =
    "mlperf,a,h800-sxm,layers=8 hidden=8192 heads=64 ffn=28672 vocab=4000%s,"
    "tp=2 dp=8,overlap=all%s,1,32,4096,1,,\n";

Duration StepOf(const char* shape, const char* setup) {
  const auto emulated = EmulateMeasuredRun(
      RunOf(absl::StrFormat(kAdapterRow, shape, setup)), Cluster());
  EXPECT_THAT(emulated.status(), IsOk());
  return emulated->step_time;
}

// The update of a rank's weights: 30 to 60 bytes a parameter, of which
// gradients are still searched for infinities and cleared: 16 of 40.
TEST(Against, ASkippedOptimizerOnlyLooksAtTheGradients) {
  const auto step = [](const char* setup) {
    return ToSeconds(StepOf("", setup));
  };
  const double skipped = step(" sharding=none optimizer=skipped");
  const double runs = step(" sharding=none optimizer=runs");
  EXPECT_EQ(runs, step(" sharding=none"));
  // Attention and feed-forward of 8 layers, embedding and loss head, halved.
  const double parameters =
      (8 * (4.0 * 8192 * 8192 + 2.0 * 8192 * 28672) + 2 * 4000.0 * 8192) / 2;
  const double rate = Cluster().device.memory_bandwidth.bytes_per_second *
                      Cluster().device.memory_efficiency;
  EXPECT_GT(runs - skipped, 0.6 * 30 * parameters / rate);
  EXPECT_LT(runs - skipped, 0.6 * 60 * parameters / rate);
}

TEST(Against, RecomputedLayersAreAsManyAsTheRowSays) {
  const Duration none = StepOf("", "");
  const Duration three = StepOf("", " recompute_layers=3");
  const Duration six = StepOf("", " recompute_layers=6");
  EXPECT_GT(three, none);
  // Each recomputed layer takes as long as any other.
  EXPECT_NEAR(ToSeconds(six - none), 2 * ToSeconds(three - none),
              0.01 * ToSeconds(three - none));
  EXPECT_EQ(StepOf("", " recompute_layers=8"), StepOf("", " recompute=full"));
}

TEST(Against, ReservedMemoryIsMoreThanWhatIsAllocated) {
  const auto peak_of = [](const char* setup) {
    const auto emulated = EmulateMeasuredRun(
        RunOf(absl::StrFormat(kAdapterRow, "", setup)), Cluster());
    EXPECT_THAT(emulated.status(), IsOk());
    return static_cast<double>(emulated->peak_allocated.count());
  };
  EXPECT_EQ(peak_of(" peak=allocated"), peak_of(""));
  EXPECT_NEAR(peak_of(" peak=reserved") / peak_of(""), 1.051, 1e-6);
  // The context and buffers that each GPU is assumed to have.
  EXPECT_EQ(peak_of(" peak=used") - peak_of(" peak=reserved"), 1 << 30);
}

// Encoder and backbone of qwen2.5-vl-7b on two ranks.
TEST(Against, AnEncoderMayHaveLayersTensorsAndRecomputationOfItsOwn) {
  const ClusterSpec cluster = Cluster();
  const auto emulated = [&](const char* layout, const char* setup) {
    formats::MeasuredRun run = RunOf(absl::StrFormat(
        "f,a,h800-sxm,model=qwen2.5-vl-7b images=2 image=448x448,"
        "tp=4 pp=2%s,recompute=full%s,1,8,100,1,,",
        layout, setup));
    const auto model = formats::LoadModel(
        run.model_name, PIPELOOM_SOURCE_DIR "/workloads",
        [](const std::string& path) { return formats::ReadFile(path); });
    EXPECT_THAT(model.status(), IsOk());
    run.model = *model;
    const auto result = EmulateMeasuredRun(run, cluster);
    EXPECT_THAT(result.status(), IsOk());
    return *result;
  };
  const EmulatedRun all = emulated("", "");
  const EmulatedRun some = emulated("", " encoder_recompute_layers=12");
  EXPECT_LT(some.step_time, all.step_time);
  EXPECT_GT(some.peak_allocated, all.peak_allocated);
  // The encoder has 32 layers.
  EXPECT_EQ(emulated("", " encoder_recompute_layers=32").peak_allocated,
            all.peak_allocated);
  // Half as many GPUs a copy, each of which does all of it.
  const EmulatedRun pairs = emulated(" encoder_tp=2", "");
  EXPECT_GT(pairs.peak_allocated, all.peak_allocated);
  EXPECT_LT(emulated("", " peak=mean").peak_allocated, all.peak_allocated);
}

// Qwen2.5-VL 7B with its encoder on a GPU of its own.
TEST(Against, AnEncoderApartWorksForAllReplicasAheadOfThePipeline) {
  const ClusterSpec cluster = Cluster();
  const auto run_with = [&](int replicas, const char* layout,
                            const char* setup) {
    formats::MeasuredRun run = RunOf(absl::StrFormat(
        "f,a,h800-sxm,model=qwen2.5-vl-7b images=1 image=896x896,"
        "tp=2 pp=2 dp=%d%s,host_us=0%s,1,%d,100,1,,",
        replicas, layout, setup, 8 * replicas));
    const auto model = formats::LoadModel(
        run.model_name, PIPELOOM_SOURCE_DIR "/workloads",
        [](const std::string& path) { return formats::ReadFile(path); });
    EXPECT_THAT(model.status(), IsOk());
    run.model = *model;
    return run;
  };
  const auto seconds = [&](const formats::MeasuredRun& run) {
    const auto result = EmulateMeasuredRun(run, cluster);
    EXPECT_THAT(result.status(), IsOk());
    return ToSeconds(result->step_time);
  };
  ASSERT_OK_AND_ASSIGN(
      const PlannedRun planned,
      PlanMeasuredRun(run_with(2, " encoder=apart", ""), cluster));
  ASSERT_EQ(planned.partition.stages.size(), 3);
  for (int32_t s = 0; s < 3; ++s) {
    EXPECT_EQ(planned.partition.stages[StageId(s)].rank, RankId(s));
  }
  // Each task of the encoder has the images of two replicas.
  const auto longest_forward = [](const PlannedRun& run) {
    Duration longest = kZero;
    for (const Task& task : run.plan.graph.tasks()) {
      if (task.stage != StageId(0) || task.pass != Pass::kForward) continue;
      longest = std::max(longest, task.duration);
    }
    return longest;
  };
  ASSERT_OK_AND_ASSIGN(
      const PlannedRun alone,
      PlanMeasuredRun(run_with(1, " encoder=apart", ""), cluster));
  EXPECT_GT(longest_forward(planned), 1.8 * longest_forward(alone));
  // With one replica the encoder's GPU only takes work from the first stage.
  // With many, all pipelines wait for it.
  const double inside = seconds(run_with(1, "", ""));
  const double apart = seconds(run_with(1, " encoder=apart", ""));
  EXPECT_LT(apart, inside);
  EXPECT_GT(seconds(run_with(8, " encoder=apart", "")), inside);
  EXPECT_NEAR(seconds(run_with(1, " encoder=apart", " time=ratio")),
              apart / inside, 1e-6);
}

// 8 layers, 32 heads on a GPU, 5 bytes a score.
TEST(Against, TheScoresOfARecomputedCoreAreNotKept) {
  const auto peak_of = [](const char* setup) {
    const auto emulated = EmulateMeasuredRun(
        RunOf(absl::StrFormat(kAdapterRow, "", setup)), Cluster());
    EXPECT_THAT(emulated.status(), IsOk());
    return emulated->peak_allocated.count();
  };
  constexpr int64_t kScores = int64_t{8} * 32 * 4096 * 4096 * 5;
  EXPECT_GT(peak_of(" attention=unfused") -
                peak_of(" attention=unfused recompute=core_attention"),
            kScores * 3 / 4);
}

TEST(Against, AdaptersTakeLessThanTrainingAllWeights) {
  EXPECT_LT(StepOf(" adapter_rank=16", ""), StepOf("", ""));
}

// A plan's epilogues are made before its order is known. The emulation of a
// cluster takes updates and passes as they really follow one another.
TEST(Against, APlanTakesWhatTheEmulationOfItsUpdatesTakes) {
  for (const char* layout : {"tp=2 dp=8", "tp=2 pp=4 dp=4",
                             "tp=2 pp=4 vp=2 dp=4", "tp=1 pp=2 vp=4 dp=8"}) {
    for (const char* contention : {"0", "0.5"}) {
      const formats::MeasuredRun run = RunOf(absl::StrFormat(
          "megatron,a,h800-sxm,layers=16 hidden=4096 heads=32 ffn=14336 "
          "vocab=32000,%s,overlap=all contention=%s,1,128,4096,1,,\n",
          layout, contention));
      ASSERT_OK_AND_ASSIGN(const PlannedRun planned,
                           PlanMeasuredRun(run, Cluster()));
      ASSERT_OK_AND_ASSIGN(const StepTrace plan,
                           emulator::EmulateStep(planned.plan));
      const std::vector<const ExecutionPlan*> replicas(2, &planned.plan);
      ASSERT_OK_AND_ASSIGN(
          const emulator::ClusterResult cluster,
          emulator::EmulateCluster(replicas,
                                   planned.costs->Updates(planned.partition),
                                   {.gather_in_forwards = true,
                                    .contention = run.setup.update_contention,
                                    .clip_gradients = true}));
      EXPECT_NEAR(ToSeconds(plan.step_time()),
                  ToSeconds(cluster.step.step_time()),
                  0.005 * ToSeconds(plan.step_time()))
          << layout << ", contention " << contention;
    }
  }
}

TEST(Against, UpdatesDuringPassesShowWhatPassesCannotHide) {
  // With contention, what is hidden costs too.
  EXPECT_LT(StepOf("", " contention=0"), StepOf("", " contention=0.5"));
  // The host's part of a step is added to it.
  EXPECT_EQ(StepOf("", " contention=0 step_host_us=9000") -
                StepOf("", " contention=0 step_host_us=1000"),
            Microseconds(8000));
}

}  // namespace
}  // namespace pipeloom::studies
