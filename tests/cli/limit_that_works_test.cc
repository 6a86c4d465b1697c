// The memory limit that an error names works when it is asked for.
#include <regex>

#include "absl/strings/str_cat.h"
#include "tests/cli/run_command.h"

namespace pipeloom::cli {
namespace {

// Returns the limit that the error names, as an option takes it; empty if it
// names none.
std::string LimitIn(const std::string& error) {
  std::smatch found;
  return std::regex_search(
             error, found,
             std::regex(
                 "a plan was found for a limit of ([0-9.]+) ([A-Za-z]+)"))
             ? found[1].str() + found[2].str()
             : "";
}

TEST(LimitThatWorksTest, IsNamedAndWorksForEveryStrategy) {
  const struct {
    const char* job;
    const char* batch;
    const char* strategy;
    const char* limit;
  } cases[] = {
      {"llama3-8b", "text", "pipeloom", "1GiB"},
      {"llama3-8b", "text", "pipeloom", "20GiB"},
      {"llama3-8b", "text", "zb-2p", "20GiB"},
      {"qwen2.5-vl-7b", "image_text", "pipeloom", "10GiB"},
      {"dip-vlm-s", "image_text", "pipeloom", "15GiB"},
      {"dip-vlm-s", "image_text", "dip", "15GiB"},
      {"dip-vlm-s", "image_text", "1f1b", "15GiB"},
      {"dip-vlm-s", "image_text", "zb-v", "15GiB"},
      {"dip-vlm-s", "image_text", "megatron-tuned", "15GiB"},
      {"dip-t2v-s", "video", "pipeloom", "12GiB"},
      {"dip-t2v-s", "video", "optimus", "20GiB"},
      {"disttrain-9b", "image_text", "disttrain", "12GiB"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.job, " ", one.strategy, " ", one.limit));
    const auto plan = [&](const std::string& limit) {
      return Pipeloom({"plan", one.job, "--batch", one.batch, "--strategy",
                       one.strategy, "--microbatches", "6", "--replicas", "1",
                       "--evaluations", "20", "--partition", "rule",
                       "--memory-limit", limit});
    };
    const Outcome refused = plan(one.limit);
    ASSERT_EQ(refused.code, 1) << refused.out;
    const std::string limit = LimitIn(refused.err);
    ASSERT_NE(limit, "") << refused.err;
    const Outcome planned = plan(limit);
    EXPECT_EQ(planned.code, 0)
        << limit << ": " << planned.err << "\nafter: " << refused.err;
  }
}

}  // namespace
}  // namespace pipeloom::cli
