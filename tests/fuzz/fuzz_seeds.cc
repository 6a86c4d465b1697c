// Writes small well-formed inputs for every fuzz target, one folder a target:
// fuzz_seeds OUTPUT_DIR. From them the fuzzers find their way much faster.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "formats/job/spec_loader.h"
#include "ir/text/text_format.h"
#include "proto/convert/serialize_plan.h"
#include "tests/support/random_plan.h"

namespace {

void Write(const std::filesystem::path& folder, uint64_t seed,
           const std::string& text) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / std::to_string(seed), std::ios::binary) << text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds OUTPUT_DIR\n");
    return 2;
  }
  const std::filesystem::path out = argv[1];
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const pipeloom::ExecutionPlan plan = pipeloom::testing::RandomPlan(seed);
    Write(out / "fuzz_plan_proto", seed,
          pipeloom::convert::SerializePlan(plan));
    Write(out / "fuzz_plan_text", seed, pipeloom::ToString(plan));
    Write(out / "fuzz_task_graph", seed,
          pipeloom::formats::PrintTaskGraph(plan.graph));
  }
  Write(out / "fuzz_plan_text", 20,
        "schedule version 1\ntasks_finish 6 finish 7\norder 0\norder 1\n"
        "peak 110\npeak 0\nstart 0\nstart 2\nend\n");
  Write(out / "fuzz_plan_text", 21,
        "trace version 1 ranks 2 finish 7\n"
        "span rank 0 compute task 0 from 0 to 1\n"
        "span rank 0 send transfer 0 from 1 to 2\n"
        "span rank 1 receive wait 0 from 0 to 2\n"
        "span rank 1 copy epilogue from 4 to 6\n"
        "memory rank 0 activations delta 10 at 0\nend\n");
  Write(out / "fuzz_batch", 0,
        "{\"text_tokens\": 3, \"images\": [[64, 32]], \"videos\": "
        "[{\"frames\": 8, \"seconds\": 1.5}], \"audio_seconds\": [2]}\n");
  // The first byte picks the file's name.
  Write(out / "fuzz_measurements", 0, "\x01m,n,k,us\n64,4096,4096,9.5\n");
  Write(out / "fuzz_measurements", 1,
        "\x02"
        "batch,seq,heads,kv_heads,head_dim,us\n4,512,8,2,128,12.5\n");
  Write(out / "fuzz_measurements", 2,
        "\x03op,dtype,num_gpus,bytes,us\nall_gather,half,8,1024,8.8\n");
  Write(out / "fuzz_measurements", 3,
        "\x05op,device,pass,tokens,width,time_us,note\n"
        "rmsnorm,h100-sxm,backward,64,4096,9,\"a \"\"b\"\"\"\n");
  Write(out / "fuzz_job", 0,
        "{\"name\": \"j\", \"model\": \"m\", \"cluster\": \"c\", \"parallel\": "
        "{\"pp\": 2}, \"training\": {\"microbatches\": 2, "
        "\"microbatch_tokens\": 64}}");
  Write(out / "fuzz_model_config", 0,
        "{\"model_type\": \"qwen2_vl\", \"hidden_size\": 1536, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 12, "
        "\"num_key_value_heads\": 2, \"intermediate_size\": 8960, "
        "\"vocab_size\": 1024, \"vision_config\": {\"depth\": 2}}");
  Write(out / "fuzz_model_config", 1,
        "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 512, "
        "\"num_hidden_layers\": 4, \"num_attention_heads\": 8, "
        "\"vocab_size\": 1024, \"intermediate_size\": 64, "
        "\"first_k_dense_replace\": 1}");
  Write(out / "fuzz_model_config", 2,
        "{\"_class_name\": \"WanTransformer3DModel\", \"num_layers\": 2}");
  Write(out / "fuzz_model_config", 3,
        "{\"model_type\": \"llava\", \"vision_feature_layer\": [-2, -5], "
        "\"text_config\": {\"hidden_size\": 512, \"num_hidden_layers\": 2, "
        "\"num_attention_heads\": 8, \"vocab_size\": 1024, "
        "\"intermediate_size\": 64}, \"vision_config\": {\"model_type\": "
        "\"clip_vision_model\", \"num_hidden_layers\": 2}}");
  Write(out / "fuzz_model_config", 4,
        "{\"model_type\": \"phi4_multimodal\", \"hidden_size\": 512, "
        "\"num_hidden_layers\": 2, \"intermediate_size\": 64, "
        "\"vision_config\": {\"num_hidden_layers\": 2}, "
        "\"audio_config\": {\"num_blocks\": 2, \"time_reduction\": 4}}");
  return 0;
}
