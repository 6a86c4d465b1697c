// Fingerprint of a layer for caches of prices: covers everything but its name.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_FINGERPRINT_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_FINGERPRINT_H_

#include "base/fingerprint.h"
#include "ir/job/model_spec.h"

namespace pipeloom::emulator {

// Returns equal fingerprints for layers of equal price.
Fingerprint FingerprintOf(const LayerSpec& layer);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_FINGERPRINT_H_
