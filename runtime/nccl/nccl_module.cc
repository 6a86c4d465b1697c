// The entry point of the shared module; see runtime/nccl/device_links.h.
#include "runtime/nccl/nccl_links.h"

extern "C" __attribute__((visibility("default")))
const pipeloom::runtime::NcclModule*
PipeloomNcclModule() {
  static const pipeloom::runtime::NcclModule module{
      .count_devices = pipeloom::runtime::CountCudaDevices,
      .make_links = pipeloom::runtime::MakeNcclLinks};
  return &module;
}
