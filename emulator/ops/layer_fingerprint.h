// What makes two layers equal to price: everything but the name.
#ifndef PIPELOOM_EMULATOR_OPS_LAYER_FINGERPRINT_H_
#define PIPELOOM_EMULATOR_OPS_LAYER_FINGERPRINT_H_

#include "base/fingerprint.h"
#include "ir/job/model_spec.h"

namespace pipeloom::emulator {

Fingerprint FingerprintOf(const LayerSpec& layer);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_OPS_LAYER_FINGERPRINT_H_
