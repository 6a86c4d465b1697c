// Work of a device's multiprocessors in a cycle, by the peaks of its data
// sheet.
#ifndef PIPELOOM_EMULATOR_COST_DEVICE_CYCLES_H_
#define PIPELOOM_EMULATOR_COST_DEVICE_CYCLES_H_

#include <algorithm>

#include "ir/job/cluster_spec.h"
#include "ir/job/device_generation.h"

namespace pipeloom::emulator {

// Those of an H100.
inline constexpr double kHopperOperations = 4096;

// Returns the 16-bit operations of products of a multiprocessor in a cycle:
// Blackwell 8192, Hopper 4096, Ampere 2048; devices with fp8 units and less
// than half of Hopper's rate (L40S, H20) 1024.
inline double OperationsPerCycle(const DeviceSpec& device) {
  constexpr double kHopperRate = 5e14;
  if (IsBlackwell(device)) return 8192;
  if (device.fp8.flops_per_second <= 0) return 2048;
  return device.bf16.flops_per_second >= kHopperRate ? kHopperOperations : 1024;
}

// Returns the cycles a second of all multiprocessors together.
inline double CyclesPerSecond(const DeviceSpec& device) {
  return device.bf16.flops_per_second / OperationsPerCycle(device);
}

// Returns the rate of 16-bit products by the instructions of Ampere, which
// later devices run too.
inline double AmpereRate(const DeviceSpec& device) {
  constexpr double kAmpere = 2048;  // Operations a cycle.
  return CyclesPerSecond(device) *
         std::min(kAmpere, OperationsPerCycle(device));
}

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_DEVICE_CYCLES_H_
