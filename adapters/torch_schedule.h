// The schedule files of torch.distributed.pipelining ("IR"): CSV without
// header, a row a rank, a cell an action: `2F5` is the forward of stage 2 on
// microbatch 5. An empty cell is an idle slot.
//
// The letter B changed its meaning between versions, so reading needs a
// dialect:
//
//   dialect   torch     whole backward  input gradient  weight gradient
//   2.5       2.5       B, if the stage has no W there   B   W
//   bw        nightlies BW                              B   W
//   2.6       >= 2.6    B                               I   W
//
// and, in 2.6, `(0F7;7B3)OVERLAP_F_B` (>= 2.9) and, with transfers, a
// WAIT_SEND_F or WAIT_SEND_B for every send (2.15 demands them). torch's own
// reader takes prefixes (`0FOO` as `0F`); this one takes whole cells only.
//
// What the format cannot say: docs/integration.md.
#ifndef PIPELOOM_ADAPTERS_TORCH_SCHEDULE_H_
#define PIPELOOM_ADAPTERS_TORCH_SCHEDULE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "adapters/action.h"

namespace pipeloom::adapters {

enum class TorchDialect : uint8_t { k25, kBw, k26 };

// "3SEND_B2"; of a pair "(0F7;7B3)OVERLAP_F_B"; of an idle cell "". Dialect
// 2.6.
std::string TorchName(const Action& action);
std::string TorchName(const Cell& cell);

// InvalidArgument says what a cell may be. Actions on parameters (UNSHARD,
// RESHARD, REDUCE_GRAD and its wait) are read as idle: a plan leaves them to
// the trainer.
absl::StatusOr<Cell> ParseTorchName(absl::string_view text,
                                    TorchDialect dialect);

std::string PrintTorchCsv(const ActionTable& table);

// InvalidArgument names line and cell. The table is not checked further:
// CheckTable.
absl::StatusOr<ActionTable> ParseTorchCsv(absl::string_view text,
                                          TorchDialect dialect);

}  // namespace pipeloom::adapters

#endif  // PIPELOOM_ADAPTERS_TORCH_SCHEDULE_H_
