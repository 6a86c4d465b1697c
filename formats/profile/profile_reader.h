// Device profiles as JSON, workloads/profiles/*.json:
//
//   {"version": 1, "device": "h100-sxm", "derived_from": "",
//    "rates": {"bf16_flops_per_second": 989e12, "fp8_flops_per_second": ...,
//              "bytes_per_second": 3.35e12, "multiprocessors": 132},
//    "launch_us": 4,
//    "sources": [{"section", "repository", "commit", "licence", "changes"}],
//    "collectives": {...},                          // collective_reader.h
//    "gemm": [{"pass": "forward", "dtype": "bf16", "fit": [...],
//              "m": [128, 256], "sites": [[n, k, groups, us, us], ...]}],
//    "attention": [{"pass", "dtype", "mask": "causal", "fit": [...],
//                   "batch": [1, 1], "seq": [512, 1024],
//                   "sites": [[heads, kv_heads, head_dim, value_dim, window,
//                              us, us], ...]}],
//    "stream": [{"op": "rmsnorm", "pass", "dtype", "tokens": [...],
//                "sites": [[width, us, ...], ...]}],
//    "moe": [{"pass", "dtype", "tokens": [...],
//             "sites": [[width, ffn, experts, top_k, us, ...], ...]}]}
//
// The lists next to "sites" are the columns of a grid; a site is a row of its
// sizes and then a time (us) for each grid point, 0 where there is none.
#ifndef PIPELOOM_FORMATS_PROFILE_PROFILE_READER_H_
#define PIPELOOM_FORMATS_PROFILE_PROFILE_READER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/job/spec_loader.h"
#include "ir/profile/device_profile.h"

namespace pipeloom::formats {

// Parses a profile. The result is sorted as by Canonicalize(), and valid.
// InvalidArgument: "FILE:LINE: field ...". Linear in the text.
absl::StatusOr<DeviceProfile> ParseDeviceProfile(absl::string_view text,
                                                 absl::string_view file);

// Loads data_dir/profiles/NAME.json, or the file `name` if the name has a slash
// or ends in ".json". NotFound: there is no such file.
absl::StatusOr<DeviceProfile> LoadDeviceProfile(const std::string& name,
                                                const std::string& data_dir,
                                                const FileReader& read);

// Prints a canonical profile as text that reads back equal, one site per line.
std::string PrintDeviceProfile(const DeviceProfile& profile);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_PROFILE_PROFILE_READER_H_
