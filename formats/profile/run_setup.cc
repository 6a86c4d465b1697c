#include "formats/profile/run_setup.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "formats/profile/run_words.h"

namespace pipeloom::formats {
namespace {

// Host time to launch a kernel on LoongForge's machines. Chosen on its two
// fine-tuning runs, Llama 2 7B in workloads/validation/loongforge.csv.
constexpr Duration kLoongForgeHost{70'000};

// Fetching, clipping, the optimizer's launches: chosen on the fit rows of
// workloads/validation/mlperf.csv.
constexpr Duration kMlperfStep{5'000'000};

bool StartsWithMlperf(absl::string_view name) {
  return absl::StartsWithIgnoreCase(name, "mlperf");
}

// Reads what is recomputed: none, selective (the core of attention), full, or
// operator groups such as "norms+moe_activations", among them "experts": whole
// layers with experts.
void ReadRecomputation(Words* words, MeasuredRun* run) {
  const std::string text = words->Text("recompute");
  TrainingSetup& s = run->setup;
  // torchtitan's selective checkpoints keep the attention.
  const bool titan = absl::StartsWithIgnoreCase(run->framework, "torchtitan");
  const bool selective = text == "selective";
  run->recompute = text == "full";
  s.recompute_attention = selective && !titan;
  s.checkpoint_operators = selective && titan;
  if (text.empty() || text == "none" || selective || run->recompute) return;
  for (const absl::string_view name : absl::StrSplit(text, '+')) {
    if (name == "experts") {
      run->recompute_experts = true;
      continue;
    }
    const auto group =
        std::find_if(kAllOperatorGroups.begin(), kAllOperatorGroups.end(),
                     [&](OperatorGroup g) { return NameOf(g) == name; });
    if (group == kAllOperatorGroups.end()) {
      words->Refuse("recompute", text,
                    "none, selective, full, or operator groups with + between: "
                    "core_attention, norms, activations, moe_activations, "
                    "projections, experts");
      return;
    }
    run->recompute_groups = OperatorGroups::FromBits(
        run->recompute_groups.bits() | OperatorGroups{*group}.bits());
  }
}

}  // namespace

TrainingSetup SetupOfFramework(absl::string_view name) {
  const TrainingSetup bridge = SetupOf(Framework::kMegatronBridge);
  if (absl::StrContains(name, "automodel")) {
    TrainingSetup setup = SetupOf(Framework::kTorchTitan);
    setup.host_per_kernel = bridge.host_per_kernel;
    setup.dispatch = bridge.dispatch;
    // It has a loss of its own, and no row has a pipeline.
    setup.fp32_loss = false;
    setup.gathered_in_pipeline = false;
    return setup;
  }
  if (absl::StartsWithIgnoreCase(name, "torchtitan")) {
    return SetupOf(Framework::kTorchTitan);
  }
  if (StartsWithMlperf(name)) {
    TrainingSetup setup = bridge;
    setup.host_per_step = kMlperfStep;
    return setup;
  }
  if (absl::StartsWithIgnoreCase(name, "megatron-bridge") ||
      absl::StartsWithIgnoreCase(name, "nemo")) {
    return bridge;
  }
  if (absl::StartsWithIgnoreCase(name, "pytorch") ||
      absl::StartsWithIgnoreCase(name, "llama32")) {
    return SetupOf(Framework::kPyTorch);
  }
  TrainingSetup setup = SetupOf(Framework::kMegatronCore);
  if (absl::StartsWithIgnoreCase(name, "loongforge")) {
    setup.host_per_kernel = kLoongForgeHost;
  } else if (absl::StartsWithIgnoreCase(name, "megatron")) {
    setup.host_per_kernel = bridge.host_per_kernel;
  }
  if (absl::StartsWithIgnoreCase(name, "megatron-swift")) {
    // Megatron-Core's own loss, and no overlap_grad_reduce, unless it is told.
    setup.fp32_loss = true;
    setup.overlap = CommunicationOverlap::kNone;
  }
  return setup;
}

absl::Status ReadRunSetup(const std::string& where, absl::string_view text,
                          MeasuredRun* run) {
  Words words(where, "setup", text);
  TrainingSetup& s = run->setup;
  s = SetupOfFramework(run->framework);
  s.attention =
      words.OneOf<AttentionKernel>("attention", s.attention,
                                   {{"fused", AttentionKernel::kFused},
                                    {"flash2", AttentionKernel::kFlash2},
                                    {"flash1", AttentionKernel::kFlash1},
                                    {"efficient", AttentionKernel::kEfficient},
                                    {"unfused", AttentionKernel::kUnfused},
                                    {"masked", AttentionKernel::kMasked}});
  enum class Pointwise { kFused, kEager, kXla };
  const auto pointwise = words.OneOf<Pointwise>("pointwise", Pointwise::kFused,
                                                {{"fused", Pointwise::kFused},
                                                 {"eager", Pointwise::kEager},
                                                 {"xla", Pointwise::kXla}});
  s.eager_pointwise = pointwise == Pointwise::kEager;
  s.xla_pointwise = pointwise == Pointwise::kXla;
  s.sequence_parallel = words.OneOf<bool>("sequence_parallel", true,
                                          {{"yes", true}, {"no", false}});
  s.scattered_sends = words.OneOf<bool>(
      "sends", s.scattered_sends, {{"scattered", true}, {"whole", false}});
  enum class Products { kSixteenBits, kFp8, kMxfp8, kNvfp4, kNvfp4Plain };
  const auto products =
      words.OneOf<Products>("precision", Products::kSixteenBits,
                            {{"bf16", Products::kSixteenBits},
                             {"fp16", Products::kSixteenBits},
                             {"fp8", Products::kFp8},
                             {"mxfp8", Products::kMxfp8},
                             {"nvfp4", Products::kNvfp4},
                             {"nvfp4-plain", Products::kNvfp4Plain}});
  s.fp8_products = products != Products::kSixteenBits;
  s.fp8_recipe = products == Products::kMxfp8        ? Fp8Recipe::kBlocks
                 : products == Products::kNvfp4      ? Fp8Recipe::kFp4
                 : products == Products::kNvfp4Plain ? Fp8Recipe::kFp4Plain
                                                     : Fp8Recipe::kTensor;
  run->sharding =
      words.OneOf<OptimizerSharding>("sharding", OptimizerSharding::kZero1,
                                     {{"none", OptimizerSharding::kNone},
                                      {"zero1", OptimizerSharding::kZero1},
                                      {"zero2", OptimizerSharding::kZero2},
                                      {"fsdp", OptimizerSharding::kZero3}});
  s.overlap =
      words.OneOf<CommunicationOverlap>("overlap", s.overlap,
                                        {{"none", CommunicationOverlap::kNone},
                                         {"data", CommunicationOverlap::kData},
                                         {"all", CommunicationOverlap::kAll}});
  ReadRecomputation(&words, run);
  s.gradient_bytes = static_cast<int32_t>(
      std::min<int64_t>(words.Int("gradient_bytes", s.gradient_bytes, 1), 8));
  s.host_per_kernel =
      Microseconds(words.Real("host_us", ToMicroseconds(s.host_per_kernel)));
  s.dispatch =
      words.OneOf<ExpertDispatch>("dispatch", s.dispatch,
                                  {{"experts", ExpertDispatch::kEachExpert},
                                   {"gpus", ExpertDispatch::kEachGpu}});
  s.graphs = words.OneOf<CudaGraphs>("graphs", s.graphs,
                                     {{"none", CudaGraphs::kNone},
                                      {"layers", CudaGraphs::kLayers},
                                      {"iteration", CudaGraphs::kIteration}});
  // Recipes that put the whole step into a graph also overlap the dispatch.
  s.overlap_dispatch = words.OneOf<bool>(
      "overlap_dispatch",
      s.overlap_dispatch || s.graphs == CudaGraphs::kIteration,
      {{"yes", true}, {"no", false}});
  s.expert_imbalance = words.Real("imbalance", 1);
  // So do they fuse the experts.
  s.fused_experts =
      words.OneOf<bool>("fused_experts", s.graphs == CudaGraphs::kIteration,
                        {{"yes", true}, {"no", false}});
  s.fp8_attention = words.OneOf<bool>("fp8_attention", s.fp8_attention,
                                      {{"yes", true}, {"no", false}});
  s.fp8_gathers = words.OneOf<bool>("fp8_gathers", s.fp8_gathers,
                                    {{"yes", true}, {"no", false}});
  s.weight_bytes = static_cast<int32_t>(
      std::min<int64_t>(words.Int("weight_bytes", s.weight_bytes, 1), 8));
  s.held_weight_bytes = static_cast<int32_t>(std::min<int64_t>(
      words.Int("held_weight_bytes", s.held_weight_bytes, 1), 2));
  s.optimizer_bytes = static_cast<int32_t>(std::min<int64_t>(
      words.Int("optimizer_bytes", s.optimizer_bytes, 0), 16));
  s.keeps_gathered = words.OneOf<bool>("keeps_gathered", s.keeps_gathered,
                                       {{"yes", true}, {"no", false}});
  s.pads_vocabulary = words.OneOf<bool>("vocabulary", s.pads_vocabulary,
                                        {{"padded", true}, {"exact", false}});
  s.fp8_activation_inputs =
      words.OneOf<bool>("fp8_activation_inputs", s.fp8_activation_inputs,
                        {{"yes", true}, {"no", false}});
  s.sum_gradients_apart =
      words.OneOf<bool>("gradient_sums", s.sum_gradients_apart,
                        {{"apart", true}, {"fused", false}});
  s.optimizer_group = static_cast<int32_t>(
      std::min<int64_t>(words.Int("optimizer_group", 0, 0), 1 << 20));
  enum class Gathers { kMissing, kOverlap, kWait, kBroadcast };
  const auto gathers =
      words.OneOf<Gathers>("weight_gathers", Gathers::kMissing,
                           {{"wait", Gathers::kWait},
                            {"overlap", Gathers::kOverlap},
                            {"broadcast", Gathers::kBroadcast}});
  if (gathers != Gathers::kMissing) {
    s.gathers_wait = gathers != Gathers::kOverlap;
    s.broadcasts_weights = gathers == Gathers::kBroadcast;
  }
  s.bucket_parameters =
      std::min(words.Int("bucket", s.bucket_parameters, 0), int64_t{1} << 40);
  s.fp32_loss = words.OneOf<bool>("loss", s.fp32_loss,
                                  {{"fp32", true}, {"fused", false}});
  s.straggle = std::min(words.Real("straggle", s.straggle), 1.0);
  s.host_per_step =
      Microseconds(words.Real("step_host_us", ToMicroseconds(s.host_per_step)));
  run->peak_kind = words.OneOf<PeakKind>("peak",
                                         s.framework == Framework::kTorchTitan
                                             ? PeakKind::kReserved
                                             : PeakKind::kAllocated,
                                         {{"allocated", PeakKind::kAllocated},
                                          {"reserved", PeakKind::kReserved},
                                          {"mean", PeakKind::kMean},
                                          {"used", PeakKind::kUsed}});
  s.update_contention =
      std::min(words.Real("contention", s.update_contention), 1.0);
  run->parallel.order =
      words.OneOf<GpuOrder>("order", run->parallel.order,
                            {{"replicas", GpuOrder::kReplicasInside},
                             {"pipeline", GpuOrder::kPipelineInside}});
  run->parallel.context = words.OneOf<ContextParallelism>(
      "context", run->parallel.context,
      {{"ring", ContextParallelism::kRing},
       {"gather", ContextParallelism::kAllGather},
       {"alltoall", ContextParallelism::kAllToAll}});
  run->recomputed_layers = static_cast<int32_t>(
      std::min<int64_t>(words.Int("recompute_layers", 0, 1), 1 << 20));
  run->recomputed_encoder_layers = static_cast<int32_t>(
      std::min<int64_t>(words.Int("encoder_recompute_layers", 0, 1), 1 << 20));
  run->recompute |= run->recomputed_layers > 0;
  enum class Order {
    kDefault,
    kGPipe,
    kOneFOneB,
    kInterleaved,
    kZeroBubbleH1,
    kZeroBubble2p,
    kZeroBubbleV,
    kVHalf,
    kVMin
  };
  static constexpr const char* kOrders[] = {
      "",      "gpipe", "1f1b",   "interleaved", "zb-h1",
      "zb-2p", "zb-v",  "v-half", "v-min"};
  run->schedule = kOrders[static_cast<int>(
      words.OneOf<Order>("schedule", Order::kDefault,
                         {{"gpipe", Order::kGPipe},
                          {"1f1b", Order::kOneFOneB},
                          {"interleaved", Order::kInterleaved},
                          {"zb-h1", Order::kZeroBubbleH1},
                          {"zb-2p", Order::kZeroBubble2p},
                          {"zb-v", Order::kZeroBubbleV},
                          {"v-half", Order::kVHalf},
                          {"v-min", Order::kVMin}}))];
  run->links_both_ways =
      words.OneOf<bool>("p2p", false, {{"batched", false}, {"single", true}});
  run->skips_optimizer = words.OneOf<bool>(
      "optimizer", false, {{"skipped", true}, {"runs", false}});
  run->relative =
      words.OneOf<bool>("time", false, {{"absolute", false}, {"ratio", true}});
  if (run->relative && !run->encoder_apart) {
    words.Refuse("time", "ratio", "absolute unless the encoder is apart");
  }
  const int64_t link = words.Int("delay_link", -1, 0);
  run->delay = Milliseconds(words.Real("delay_ms", 0));
  if (link >= 0 ? link + 1 >= run->parallel.pp : run->delay > kZero) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%scolumn \"setup\" has delay_link=%d; it must be the first rank of "
        "two neighbours, in [0, pp - 2], where delay_ms is given",
        where, link));
  }
  if (link >= 0) run->delayed_link = RankId(static_cast<int32_t>(link));
  run->scalar = words.OneOf<FittedScalar>(
      "scalar", FittedScalar::kStretch,
      {{"stretch", FittedScalar::kStretch}, {"host", FittedScalar::kHost}});
  return words.status();
}

}  // namespace pipeloom::formats
