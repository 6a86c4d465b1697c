#include "studies/job/device_prices.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "emulator/cost/profile_cost.h"
#include "formats/job/spec_loader.h"

namespace pipeloom::studies {

std::string PricesName(const DeviceProfile* profile) {
  return profile == nullptr ? "roofline" : profile->device;
}

std::string PriceNote(const DeviceSpec& device, const DeviceProfile* profile) {
  if (profile == nullptr) {
    return absl::StrCat(
        "note: there is no measured profile of device \"", device.name,
        "\": its peak rates and efficiencies price its operators; --profile "
        "FILE gives one (docs/calibration.md); profiles ship for ",
        absl::StrJoin(formats::ShippedProfileNames(), ", "));
  }
  const std::string change = emulator::RateChange(device, *profile);
  if (device.name != profile->device) {
    return absl::StrCat(
        "note: there is no measured profile of device \"", device.name,
        "\": that of ", profile->device, " prices its operators",
        change.empty() ? "" : absl::StrCat(", at other rates (", change, ")"));
  }
  if (change.empty()) return "";
  return absl::StrCat("note: ", device.name, " has other rates than its ",
                      "profile was measured at (", change,
                      "): measured prices follow their ratio");
}

}  // namespace pipeloom::studies
