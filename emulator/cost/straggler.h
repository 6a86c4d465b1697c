// Waiting for the slowest of many GPUs.
//
// The speeds of GPUs of one type differ. Where all of a job wait for each other
// every step, the slowest decides: if speeds are normally distributed with a
// relative deviation d, that of n GPUs is expected at 1 + d * M(n) times the
// mean time, with M(n) the expected maximum of n standard normal values.
#ifndef PIPELOOM_EMULATOR_COST_STRAGGLER_H_
#define PIPELOOM_EMULATOR_COST_STRAGGLER_H_

#include <cstdint>

namespace pipeloom::emulator {

// Returns an approximation of the expected maximum of n independent standard
// normal values: within 0.03 of the exact one for every n >= 1.
double ExpectedMaximum(int64_t n);

// Returns the time of the slowest of `gpus`, relative to the mean. 1 if
// `deviation` is 0 or there is one GPU.
double SlowestOf(double deviation, int64_t gpus);

}  // namespace pipeloom::emulator

#endif  // PIPELOOM_EMULATOR_COST_STRAGGLER_H_
