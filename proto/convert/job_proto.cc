#include "proto/convert/job_proto.h"

namespace pipeloom::convert {
namespace {

// Converts an enum of ours to that of the messages, which has one value more, 0
// for unspecified, in front.
template <typename Proto, typename Ours>
Proto Shifted(Ours value) {
  return static_cast<Proto>(static_cast<int>(value) + 1);
}
static_assert(static_cast<int>(MemoryStrategy::kOffload) + 1 ==
              v1::MEMORY_STRATEGY_OFFLOAD);
static_assert(static_cast<int>(OptimizerSharding::kZero3) + 1 ==
              v1::OPTIMIZER_SHARDING_ZERO3);
static_assert(static_cast<int>(SequenceBatching::kPadded) + 1 ==
              v1::SEQUENCE_BATCHING_PADDED);
static_assert(static_cast<int>(SampleAssignment::kBalanced) + 1 ==
              v1::SAMPLE_ASSIGNMENT_BALANCED);
static_assert(static_cast<int>(ContextParallelism::kAllToAll) + 1 ==
              v1::CONTEXT_PARALLELISM_ALL_TO_ALL);
static_assert(static_cast<int>(GpuOrder::kReplicasInside) + 1 ==
              v1::GPU_ORDER_REPLICAS_INSIDE);
static_assert(static_cast<int>(Framework::kMegatronBridge) + 1 ==
              v1::FRAMEWORK_MEGATRON_BRIDGE);
static_assert(static_cast<int>(Fp8Recipe::kFp4Plain) + 1 ==
              v1::FP8_RECIPE_FP4_PLAIN);
static_assert(static_cast<int>(ExpertDispatch::kEachGpu) + 1 ==
              v1::EXPERT_DISPATCH_EACH_GPU);
static_assert(static_cast<int>(CudaGraphs::kIteration) + 1 ==
              v1::CUDA_GRAPHS_ITERATION);
static_assert(static_cast<int>(AttentionKernel::kUnfused) + 1 ==
              v1::ATTENTION_KERNEL_UNFUSED);
static_assert(static_cast<int>(CommunicationOverlap::kAll) + 1 ==
              v1::COMMUNICATION_OVERLAP_ALL);
static_assert(static_cast<int>(DomainKind::kHopRing) + 1 ==
              v1::DOMAIN_KIND_HOP_RING);
static_assert(static_cast<int>(NicSharing::kFair) + 1 == v1::NIC_SHARING_FAIR);
static_assert(static_cast<int>(Precision::kFp32) + 1 == v1::PRECISION_FP32);

void SetLink(const LinkSpec& link, v1::LinkSpec* proto) {
  proto->set_latency_us(ToMicroseconds(link.latency));
  proto->set_bandwidth_bytes_per_second(link.bandwidth.bytes_per_second);
}

void SetTraining(const TrainingSpec& training, v1::TrainingSpec* proto) {
  proto->set_microbatches(training.microbatches);
  proto->set_microbatch_tokens(training.microbatch_tokens);
  proto->set_microbatch_samples(training.microbatch_samples);
  proto->set_microbatch_images(training.microbatch_images);
  proto->set_microbatch_seconds(training.microbatch_seconds);
  proto->set_optimizer_sharding(
      Shifted<v1::OptimizerSharding>(training.optimizer_sharding));
  proto->set_batching(Shifted<v1::SequenceBatching>(training.batching));
  proto->set_assignment(Shifted<v1::SampleAssignment>(training.assignment));
  for (const MemoryStrategy strategy : training.memory_strategies) {
    proto->add_memory_strategies(Shifted<v1::MemoryStrategy>(strategy));
  }
  for (const std::string& name : training.frozen_modules) {
    proto->add_frozen_modules(name);
  }
  proto->set_memory_limit_bytes(training.memory_limit.count());
  proto->set_memory_reserve(training.memory_reserve);
  for (const auto& size : training.sub_microbatch_sizes) {
    v1::SubMicrobatchSize& s = *proto->add_sub_microbatch_sizes();
    s.set_module(size.module);
    s.set_instances(size.instances);
  }
  for (const auto& buckets : training.shape_buckets) {
    v1::ShapeBuckets& b = *proto->add_shape_buckets();
    b.set_module(buckets.module);
    for (const int64_t tokens : buckets.tokens) b.add_tokens(tokens);
  }
}

void SetSetup(const TrainingSetup& setup, v1::TrainingSetup* proto) {
  proto->set_framework(Shifted<v1::Framework>(setup.framework));
  proto->set_attention(Shifted<v1::AttentionKernel>(setup.attention));
  proto->set_eager_pointwise(setup.eager_pointwise);
  proto->set_xla_pointwise(setup.xla_pointwise);
  proto->set_sequence_parallel(setup.sequence_parallel);
  proto->set_fp8_products(setup.fp8_products);
  proto->set_recompute_attention(setup.recompute_attention);
  proto->set_overlap(Shifted<v1::CommunicationOverlap>(setup.overlap));
  proto->set_gradient_bytes(setup.gradient_bytes);
  proto->set_host_per_kernel_us(ToMicroseconds(setup.host_per_kernel));
  proto->set_stretch(setup.stretch);
  proto->set_fp8_recipe(Shifted<v1::Fp8Recipe>(setup.fp8_recipe));
  proto->set_dispatch(Shifted<v1::ExpertDispatch>(setup.dispatch));
  proto->set_overlap_dispatch(setup.overlap_dispatch);
  proto->set_expert_imbalance(setup.expert_imbalance);
  proto->set_graphs(Shifted<v1::CudaGraphs>(setup.graphs));
  proto->set_fp32_loss(setup.fp32_loss);
  proto->set_checkpoint_operators(setup.checkpoint_operators);
  proto->set_gathered_in_pipeline(setup.gathered_in_pipeline);
  proto->set_fused_experts(setup.fused_experts);
  proto->set_fp8_attention(setup.fp8_attention);
  proto->set_fp8_gathers(setup.fp8_gathers);
  proto->set_weight_bytes(setup.weight_bytes);
  proto->set_straggle(setup.straggle);
  proto->set_host_per_step_us(ToMicroseconds(setup.host_per_step));
  proto->set_update_contention(setup.update_contention);
  proto->set_fp32_shards(setup.fp32_shards);
  proto->set_sum_gradients_apart(setup.sum_gradients_apart);
  proto->set_held_weight_bytes(setup.held_weight_bytes);
  proto->set_fp8_activation_inputs(setup.fp8_activation_inputs);
  proto->set_keeps_gathered(setup.keeps_gathered);
  proto->set_paired_forwards(setup.paired_forwards);
  proto->set_optimizer_group(setup.optimizer_group);
  proto->set_gathers_wait(setup.gathers_wait);
  proto->set_broadcasts_weights(setup.broadcasts_weights);
  proto->set_optimizer_bytes(setup.optimizer_bytes);
  proto->set_bucket_parameters(setup.bucket_parameters);
  proto->set_pads_vocabulary(setup.pads_vocabulary);
  proto->set_scattered_sends(setup.scattered_sends);
}

void SetRules(const PartitionRules& rules, v1::PartitionRules* proto) {
  for (const PartitionRules::Together& together : rules.together) {
    v1::PartitionRules::Together& t = *proto->add_together();
    for (const PartitionRules::Layers& layers : together.layers) {
      v1::PartitionRules::Layers& l = *t.add_layers();
      l.set_module(layers.module);
      l.set_first(layers.first);
      l.set_count(layers.count);
    }
    if (together.rank.has_value()) t.set_rank(*together.rank);
  }
  for (const PartitionRules::OwnRanks& own : rules.own_ranks) {
    v1::PartitionRules::OwnRanks& o = *proto->add_own_ranks();
    o.set_module(own.module);
    o.set_first_rank(own.first_rank);
    o.set_num_ranks(own.num_ranks);
  }
}

void SetDevice(const DeviceSpec& device, v1::DeviceSpec* proto) {
  v1::DeviceSpec& d = *proto;
  d.set_name(device.name);
  d.set_bf16_flops_per_second(device.bf16.flops_per_second);
  d.set_fp8_flops_per_second(device.fp8.flops_per_second);
  d.set_memory_bytes(device.memory.count());
  d.set_memory_bandwidth_bytes_per_second(
      device.memory_bandwidth.bytes_per_second);
  d.set_gemm_efficiency(device.gemm_efficiency);
  d.set_attention_efficiency(device.attention_efficiency);
  d.set_memory_efficiency(device.memory_efficiency);
  d.set_sustained_bf16(device.sustained_bf16);
  d.set_sustained_fp8(device.sustained_fp8);
  d.set_sustained_attention(device.sustained_attention);
  d.set_kernel_overhead_us(ToMicroseconds(device.kernel_overhead));
  d.set_host_bandwidth_bytes_per_second(device.host_bandwidth.bytes_per_second);
  d.set_source(device.source);
}

// Sets the fields of network and node groups that differ from their defaults.
void SetNetwork(const ClusterSpec& cluster, v1::ClusterSpec* proto) {
  if (cluster.domain != DomainSpec{}) {
    v1::DomainSpec& domain = *proto->mutable_domain();
    domain.set_kind(Shifted<v1::DomainKind>(cluster.domain.kind));
    domain.set_gpus(cluster.domain.gpus);
    domain.set_hops(cluster.domain.hops);
  }
  proto->set_nics_per_node(cluster.nics_per_node);
  if (cluster.nic_sharing != NicSharing::kNone) {
    proto->set_nic_sharing(Shifted<v1::NicSharing>(cluster.nic_sharing));
  }
  for (const NodeGroup& group : cluster.node_groups) {
    v1::NodeGroup& g = *proto->add_node_groups();
    g.set_first_node(group.first_node);
    g.set_num_nodes(group.num_nodes);
    g.set_every(group.every);
    SetDevice(group.device, g.mutable_device());
    if (group.precision) {
      g.set_precision(Shifted<v1::Precision>(*group.precision));
    }
  }
  for (const SlowGpu& slow : cluster.slow_gpus) {
    v1::SlowGpu& g = *proto->add_slow_gpus();
    g.set_gpu(slow.gpu);
    g.set_factor(slow.factor);
  }
  for (const SlowNodeLink& slow : cluster.slow_links) {
    v1::SlowNodeLink& l = *proto->add_slow_links();
    l.set_from_node(slow.from_node);
    l.set_to_node(slow.to_node);
    l.set_factor(slow.factor);
  }
  if (cluster.jitter != JitterSpec{}) {
    v1::JitterSpec& jitter = *proto->mutable_jitter();
    jitter.set_compute(cluster.jitter.compute);
    jitter.set_links(cluster.jitter.links);
  }
}

}  // namespace

v1::ClusterSpec ToProto(const ClusterSpec& cluster) {
  v1::ClusterSpec proto;
  proto.set_name(cluster.name);
  SetDevice(cluster.device, proto.mutable_device());
  proto.set_num_nodes(cluster.num_nodes);
  proto.set_gpus_per_node(cluster.gpus_per_node);
  SetLink(cluster.intra_node, proto.mutable_intra_node());
  SetLink(cluster.inter_node, proto.mutable_inter_node());
  proto.set_source(cluster.source);
  SetNetwork(cluster, &proto);
  return proto;
}

v1::Job ToProto(const JobSpec& job) {
  v1::Job proto;
  proto.set_name(job.name);
  *proto.mutable_model_spec() = ToProto(job.model);
  *proto.mutable_cluster_spec() = ToProto(job.cluster);
  v1::ParallelLayout& layout = *proto.mutable_parallel();
  layout.set_tp(job.parallel.tp);
  layout.set_cp(job.parallel.cp);
  layout.set_ep(job.parallel.ep);
  layout.set_pp(job.parallel.pp);
  layout.set_dp(job.parallel.dp);
  layout.set_expert_tp(job.parallel.expert_tp);
  layout.set_context_parallelism(
      Shifted<v1::ContextParallelism>(job.parallel.context));
  if (job.parallel.order != GpuOrder::kPipelineInside) {
    layout.set_gpu_order(Shifted<v1::GpuOrder>(job.parallel.order));
  }
  for (const ModuleParallelism& own : job.module_parallelism) {
    v1::ModuleParallelism& m = *layout.add_modules();
    m.set_module(own.module);
    m.set_tp(own.tp);
    m.set_cp(own.cp);
    m.set_repeats(own.repeats);
  }
  SetTraining(job.training, proto.mutable_training());
  if (job.setup != TrainingSetup{}) SetSetup(job.setup, proto.mutable_setup());
  if (!job.partition.empty()) {
    SetRules(job.partition, proto.mutable_partition());
  }
  v1::SearchSpec& search = *proto.mutable_search();
  search.set_schedule(job.search.schedule);
  search.set_deadline_us(ToMicroseconds(job.search.deadline));
  search.set_evaluations(job.search.evaluations);
  search.set_seed(job.search.seed);
  search.set_workers(job.search.workers);
  proto.set_source(job.source);
  return proto;
}

}  // namespace pipeloom::convert
