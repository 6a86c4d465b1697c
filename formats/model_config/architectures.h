// The table of architectures: which function reads the configurations of a
// `model_type` (transformers) or `_class_name` (diffusers). Adding one takes a
// file with its reader, the declaration below and its line in the table of
// architectures.cc; a language model takes those of decoders.cc.
#ifndef PIPELOOM_FORMATS_MODEL_CONFIG_ARCHITECTURES_H_
#define PIPELOOM_FORMATS_MODEL_CONFIG_ARCHITECTURES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "formats/model_config/config_node.h"
#include "formats/model_config/draft.h"

namespace pipeloom::formats {

// Readers fill in modules and edges of the draft. What is missing or assumed is
// in its notes.
using ArchitectureReader = void (*)(const ConfigNode& config, Draft* draft);

// Returns the reader of a type, or null.
ArchitectureReader FindArchitecture(absl::string_view type);
// Returns all types, sorted.
std::vector<std::string> ArchitectureTypes();

// multimodal/
void ReadGemma3(const ConfigNode& config, Draft* draft);
void ReadGlm46v(const ConfigNode& config, Draft* draft);
void ReadGlm4v(const ConfigNode& config, Draft* draft);
void ReadGlm4vMoe(const ConfigNode& config, Draft* draft);
void ReadKimiVl(const ConfigNode& config, Draft* draft);
void ReadLlama4(const ConfigNode& config, Draft* draft);
void ReadMistral3(const ConfigNode& config, Draft* draft);
void ReadPaliGemma(const ConfigNode& config, Draft* draft);
void ReadQwen2Audio(const ConfigNode& config, Draft* draft);
void ReadQwen25Omni(const ConfigNode& config, Draft* draft);
void ReadQwen3Omni(const ConfigNode& config, Draft* draft);
void ReadSmolVlm(const ConfigNode& config, Draft* draft);
void ReadWhisper(const ConfigNode& config, Draft* draft);
void ReadQwen2Vl(const ConfigNode& config, Draft* draft);
void ReadQwen25Vl(const ConfigNode& config, Draft* draft);
void ReadQwen3Vl(const ConfigNode& config, Draft* draft);
void ReadQwen3VlMoe(const ConfigNode& config, Draft* draft);
void ReadQwen35Vl(const ConfigNode& config, Draft* draft);
void ReadQwen35VlMoe(const ConfigNode& config, Draft* draft);
void ReadInternVl(const ConfigNode& config, Draft* draft);
void ReadInternVlChat(const ConfigNode& config, Draft* draft);
void ReadLlava(const ConfigNode& config, Draft* draft);
void ReadPhi4Checkpoint(const ConfigNode& config, Draft* draft);
void ReadPhi4Multimodal(const ConfigNode& config, Draft* draft);
void ReadLlavaOneVision(const ConfigNode& config, Draft* draft);
// diffusion/
void ReadCogVideoX(const ConfigNode& config, Draft* draft);
void ReadFlux(const ConfigNode& config, Draft* draft);
void ReadHunyuanVideo(const ConfigNode& config, Draft* draft);
void ReadLtx(const ConfigNode& config, Draft* draft);
void ReadQwenImage(const ConfigNode& config, Draft* draft);
void ReadStableDiffusion3(const ConfigNode& config, Draft* draft);
void ReadWan(const ConfigNode& config, Draft* draft);

}  // namespace pipeloom::formats

#endif  // PIPELOOM_FORMATS_MODEL_CONFIG_ARCHITECTURES_H_
