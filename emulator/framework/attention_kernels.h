// Kernels of the core of attention that a framework runs in place of those made
// for the device, and fp8 attention.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_ATTENTION_KERNELS_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_ATTENTION_KERNELS_H_

#include "base/units.h"
#include "emulator/ops/op_cost.h"
#include "emulator/ops/op_graph.h"
#include "ir/job/cluster_spec.h"
#include "ir/job/training_setup.h"

namespace pipeloom::emulator {

// Returns whether fused attention takes fp8 on a device, which is faster from
// Blackwell on.
bool RunsFp8Attention(const TrainingSetup& setup, const DeviceSpec& device);
// Returns the rate of fp8 attention relative to 16 bits.
double Fp8AttentionGain(const AttentionOp& op, Fp8Recipe recipe);

// The time of the kernel that is made for the device, and an upper limit of the
// time of a trainer's kernel when it runs again and again at full power.
struct FusedTime {
  Duration alone{};
  Duration most = Duration::max();
};
// Returns the time of fused attention. Profiles may have the forward of an
// inference engine's kernel, which reads keys by pages: on Hopper it takes 1.1
// to 4.5 times as long as a trainer's for sequences up to 2,048 tokens. Pure;
// O(1).
FusedTime FusedAttention(const AttentionOp& op, const DeviceSpec& device,
                         const OpCostModel& costs);

// Returns the time of a kernel that is not made for the device. REQUIRES:
// `attention` is neither kFused nor kUnfused. `costs` prices the device's own.
// Pure; O(1).
Duration ForeignAttention(const AttentionOp& op, AttentionKernel attention,
                          const DeviceSpec& device, const OpCostModel& costs);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_ATTENTION_KERNELS_H_
