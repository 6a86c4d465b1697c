// Walks the frames that an HTTP/2 client sends (RFC 9113) and tells when it
// sends more than a client needs: a header block that is too large, or too many
// frames that cost the server more than the client.
//
//     preface | SETTINGS | HEADERS CONTINUATION CONTINUATION | DATA | ...
//                          \______ one header block ______/
//
// Contents of frames are not looked at: gRPC decodes them, and what it is given
// is bounded by then. Threads: one at a time. Cost: O(frames) for any number of
// bytes.
#ifndef PIPELOOM_SERVICE_GUARD_FRAME_WALKER_H_
#define PIPELOOM_SERVICE_GUARD_FRAME_WALKER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"

namespace pipeloom::service {

// Limits for one connection.
struct FrameLimits {
  int64_t header_block = int64_t{16} << 10;  // Bytes, as they are packed.
  int64_t continuations = 8;                 // Frames of one header block.
  int64_t header_bytes = int64_t{1} << 20;   // All blocks in a second.
  // SETTINGS, PING, RST_STREAM, PRIORITY, GOAWAY, frames of unknown types and
  // DATA without content, together in a second. Of WINDOW_UPDATE, which a fast
  // reader sends often, 20 times as many.
  int64_t control_frames = 1000;
  int64_t control_frame_size = int64_t{16} << 10;
};

class FrameWalker {
 public:
  using Clock = std::chrono::steady_clock;

  // Begins at a connection's preface.
  FrameWalker(const FrameLimits& limits, Clock::time_point now)
      : limits_(limits), since_(now), second_(now) {}

  // Walks the bytes that follow. Returns why the connection must end; empty if
  // it may go on. After a reason, the same one is returned.
  absl::string_view Walk(absl::string_view bytes, Clock::time_point now);

  // Counts the time for the preface from now on. REQUIRES: no bytes came yet.
  void Restart(Clock::time_point now) { since_ = second_ = now; }

  // A call's first frame.
  struct Call {
    int64_t at = 0;  // Where its frame begins in the bytes of the last `Walk`;
                     // less than 0: in those before.
    uint32_t stream = 0;
  };
  // Those of the last `Walk`: HEADERS of streams that are new.
  const std::vector<Call>& calls() const { return calls_; }
  // Streams that the client ended with RST_STREAM in the last `Walk`.
  const std::vector<uint32_t>& resets() const { return resets_; }
  // Bytes of a frame's header at the end of what was walked.
  size_t incomplete_bytes() const { return have_; }

  bool has_preface() const { return preface_ == kPreface.size(); }
  // Since when the preface or a header block has been incomplete.
  std::optional<Clock::time_point> incomplete_since() const {
    if (!has_preface() || in_block_) return since_;
    return std::nullopt;
  }

  static constexpr absl::string_view kPreface =
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  static constexpr size_t kHeaderSize = 9;

 private:
  absl::string_view BeginFrame(Clock::time_point now);
  absl::string_view CountHeaders(int64_t length);
  absl::string_view CountControl(int64_t frames);

  const FrameLimits limits_;
  size_t preface_ = 0;  // Bytes of it that have come.
  std::array<unsigned char, kHeaderSize> header_{};
  size_t have_ = 0;      // Bytes of `header_`.
  int64_t payload_ = 0;  // Bytes of the frame that are still to come.
  absl::string_view reason_{};
  std::vector<Call> calls_{};
  std::vector<uint32_t> resets_{};
  uint32_t newest_stream_ = 0;

  // The header block that is under way.
  bool in_block_ = false;
  bool last_of_block_ = false;  // This frame ends it.
  uint32_t block_stream_ = 0;
  int64_t block_bytes_ = 0;
  int64_t block_frames_ = 0;
  Clock::time_point since_;

  // Counts of the second that began at `second_`.
  Clock::time_point second_;
  int64_t header_bytes_ = 0;
  int64_t control_ = 0;  // A window update counts 1, the others 20.
};

// Finds where frames end in what a server sends.
class FrameBoundary {
 public:
  // Walks the bytes that follow.
  void Walk(absl::string_view bytes);
  // Streams whose last frame begins in the bytes of the last `Walk`.
  const std::vector<uint32_t>& ended() const { return ended_; }
  bool at_boundary() const { return have_ == 0 && payload_ == 0; }
  bool at_start() const { return !started_; }

 private:
  std::array<unsigned char, FrameWalker::kHeaderSize> header_{};
  size_t have_ = 0;
  size_t payload_ = 0;
  bool started_ = false;
  std::vector<uint32_t> ended_{};
};

}  // namespace pipeloom::service

#endif  // PIPELOOM_SERVICE_GUARD_FRAME_WALKER_H_
