// Says how the operators of a device are priced.
#ifndef PIPELOOM_STUDIES_JOB_DEVICE_PRICES_H_
#define PIPELOOM_STUDIES_JOB_DEVICE_PRICES_H_

#include <string>

#include "ir/job/cluster_spec.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::studies {

// Returns the name of the prices that a profile gives: its device, or
// "roofline" for a null profile.
std::string PricesName(const DeviceProfile* profile);

// Returns a note for people if prices of the device are not those that its own
// profile has, else "". `profile` prices it; null: its rates alone do.
std::string PriceNote(const DeviceSpec& device, const DeviceProfile* profile);

}  // namespace pipeloom::studies

#endif  // PIPELOOM_STUDIES_JOB_DEVICE_PRICES_H_
