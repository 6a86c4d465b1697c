// Products whose operands do not begin on 16 bytes in every row.
#ifndef PIPELOOM_EMULATOR_FRAMEWORK_PRODUCT_ALIGNMENT_H_
#define PIPELOOM_EMULATOR_FRAMEWORK_PRODUCT_ALIGNMENT_H_

#include "base/units.h"
#include "emulator/ops/op_graph.h"
#include "ir/job/cluster_spec.h"

namespace pipeloom::emulator {

// Returns the least time of a 16-bit product of which a width of the weight is
// not a multiple of 8; 0 of any other. The libraries' kernels for such operands
// use the instructions and loads of Ampere on every device: on an H200 the
// products of a vocabulary of 50,257 take 7.5 (forward) and 5 times (gradients)
// as long as those of 50,304, widths that are even 2.5 to 3.3 times
// (docs/evaluation/pytorch.md). Rows are tokens, whose number determines no
// alignment. Pure; O(1).
Duration UnalignedProductTime(const GemmOp& op, const DeviceSpec& device);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_FRAMEWORK_PRODUCT_ALIGNMENT_H_
