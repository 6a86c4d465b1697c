// The names of the files that come with the program; a test compares them
// with the folders.
#include <algorithm>

#include "formats/job/spec_loader.h"

namespace pipeloom::formats {

std::vector<std::string> ShippedJobNames() {
  return {
      "deepseek-v2",     "dip-t2v-l",      "dip-t2v-s",    "dip-t2v-xl",
      "dip-vlm-l",       "dip-vlm-m",      "dip-vlm-s",    "dip-vlm-xl",
      "disttrain-15b",   "disttrain-72b",  "disttrain-9b", "internvl3-38b",
      "llama3-70b",      "llama3-8b",      "nextstep-1",   "qwen2.5-omni-7b",
      "qwen2.5-vl-72b",  "qwen2.5-vl-7b",  "rlhf-33b-13b", "step-3",
      "step-audio-130b", "step-video-t2v", "step1x-edit"};
}

std::vector<std::string> ShippedModelNames() {
  std::vector<std::string> names = ShippedJobNames();
  names.insert(names.end(),
               {"deepseek-v3", "llama-13b-critic", "llama-33b-actor",
                "llama3-405b", "llava-1.5-13b", "llava-1.5-7b",
                "stable-diffusion-2", "stable-diffusion-2-online", "vit-g-14"});
  // From published configurations (scripts/make_models.py).
  names.insert(names.end(), {"flux.1-dev",
                             "flux.1-schnell",
                             "gpt-oss-120b",
                             "gpt-oss-20b",
                             "hunyuan-video",
                             "internvl3.5-30b-a3b",
                             "internvl3.5-8b",
                             "llama3.2-1b",
                             "llava-onevision-7b",
                             "nemotron-3-nano-30b-a3b",
                             "nemotron-3-nano-4b",
                             "nemotron-3-super-120b-a12b",
                             "nemotron-h-56b",
                             "qwen3-14b",
                             "qwen3-235b-a22b",
                             "qwen3-30b-a3b",
                             "qwen3-8b",
                             "qwen3-next-80b-a3b",
                             "qwen3-omni-30b-a3b-thinker",
                             "qwen3-vl-30b-a3b",
                             "qwen3-vl-8b",
                             "qwen3.5-27b",
                             "qwen3.6-35b-a3b",
                             "wan2.1-t2v-14b",
                             "wan2.2-ti2v-5b"});
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> ShippedClusterNames() {
  return {"a100-sxm",
          "a800-sxm",
          "b200-sxm",
          "dip-h100-16384",
          "dip-h20-16",
          "dip-h800-64",
          "disttrain-a800-1296",
          "gb200-nvl72",
          "gb300-nvl72",
          "h100-sxm",
          "h20",
          "h200-sxm",
          "h800-sxm",
          "l40s"};
}

std::vector<std::string> ShippedProfileNames() {
  return {"a100-sxm", "a800-sxm", "b200-sxm", "h100-sxm",
          "h20",      "h200-sxm", "h800-sxm", "l40s"};
}

}  // namespace pipeloom::formats
