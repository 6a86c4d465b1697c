// Jobs and plans for the emulator's tests.
#ifndef PIPELOOM_TESTS_EMULATOR_HELPERS_H_
#define PIPELOOM_TESTS_EMULATOR_HELPERS_H_

#include <vector>

#include "ir/job/job_spec.h"
#include "ir/plan/execution_plan.h"
#include "ir/plan/microbatches.h"
#include "ir/plan/partition.h"
#include "ir/plan/schedule.h"

namespace pipeloom::emulator {

// 8 nodes of 8 H800.
ClusterSpec H800Cluster();

// One module ("m0", "m1", ...) for each list of layers, in a chain; on enough
// H800 nodes. Passes ValidateJobSpec.
JobSpec JobOf(std::vector<std::vector<LayerSpec>> modules,
              const ParallelLayout& parallel);

LayerSpec Llama3Block();   // 4096 wide, 14336, 32/8 heads of 128, causal.
LayerSpec Qwen32bBlock();  // 5120 wide, 27648, 40/8 heads of 128, causal.
LayerSpec Vit5bBlock();    // 1792 wide, 15360 plain, 16 heads of 112, full.
LayerSpec MoeBlock();
// DeepSeek-V3's attention with its dense feed-forward part.
LayerSpec MlaBlock();
// The state space of Nemotron 3 Nano, a layer of its own: 2688 wide, 64 heads
// of 64 with states of 128, 8 groups, chunks of 128.
LayerSpec StateSpaceLayer();
// Qwen3.5-27B's delta net with its feed-forward part: 5120 wide, 17408, 16 and
// 48 heads of 128, chunks of 64; and its gated attention.
LayerSpec DeltaNetBlock();
LayerSpec GatedAttentionBlock();
// The experts of Nemotron 3 Super, a layer of their own: 4096 wide, 512 experts
// of 2688 on rows of 1024, 22 a token.
LayerSpec LatentExpertsLayer();
// Adaptive norms of its own, plain feed-forward.
LayerSpec DitBlock();
// One residual block of a U-Net on half the grid.
LayerSpec ConvolutionLayer();     // 2048 wide, 128 experts of 768, 8 a token.
LayerSpec CrossAttentionBlock();  // 3072 wide, 24 heads, context of 4096.
LayerSpec EmbeddingLayer();
LayerSpec LossHeadLayer();
LayerSpec ProjectorLayer();  // On output tokens.
LayerSpec FixedLayer();
// One of each kind, and each attention kind.
std::vector<LayerSpec> EveryLayerKind();

// `sequences` of `length` tokens each, with 64 context tokens a sequence.
WorkShape Sequences(int64_t sequences, int64_t length);

// So many layers of a module from `first` on, on rank 0.
Stage StageOf(int32_t num_layers, int32_t module = 0, int32_t first = 0);

// The plan that runs these orders: every receive posted at the start, sends
// right after their producer, each input waited for before its consumer and
// freed after it. Memory is not economised.
ExecutionPlan LowerNaively(const StageGraph& graph, const RankOrders& orders);

// Orders of a graph made by testing::UniformGraph with one chunk.
RankOrders GPipeOrders(const StageGraph& graph);
RankOrders OneFOneBOrders(const StageGraph& graph);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_TESTS_EMULATOR_HELPERS_H_
