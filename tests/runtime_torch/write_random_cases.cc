// write_random_cases FOLDER FIRST COUNT: random cases with these seeds as
// SEED.pb, the plan, and SEED.json, what it is of.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/convert/serialize_plan.h"
#include "tests/runtime_torch/random_case.h"

namespace pipeloom::runtime {
namespace {

// Calls item(i) for what stands between the commas.
template <typename Item>
std::string List(int64_t size, const Item& item) {
  std::string text = "[";
  for (int64_t i = 0; i < size; ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", item(i));
  }
  return text + "]";
}

std::string LayerText(const LayerSpec& layer) {
  constexpr const char* kKinds[] = {"transformer", "embedding", "loss_head",
                                    "linear"};
  const int kind = layer.kind == LayerKind::kTransformer ? 0
                   : layer.kind == LayerKind::kEmbedding ? 1
                   : layer.kind == LayerKind::kLossHead  ? 2
                                                         : 3;
  const bool linear = !layer.linears.empty();
  return absl::StrCat(
      "{\"kind\": \"", kKinds[kind], "\", \"hidden\": ", layer.hidden,
      ", \"heads\": ", layer.attention.heads,
      ", \"kv_heads\": ", layer.attention.kv_heads,
      ", \"head_dim\": ", layer.attention.head_dim,
      ", \"inner\": ", layer.ffn.hidden,
      ", \"gated\": ", layer.ffn.gated ? "true" : "false",
      ", \"vocab\": ", layer.vocab,
      ", \"in\": ", linear ? layer.linears[0].in : 0,
      ", \"merges\": ", layer.on_output_tokens ? "true" : "false", "}");
}

std::string LayerMemoryText(const LayerMemory& layer) {
  if (layer.keeps()) return "\"KEEP\"";
  if (layer.offloads()) return "\"OFFLOAD\"";
  if (layer.recomputes_fully()) return "\"RECOMPUTE\"";
  return absl::StrCat("\"RECOMPUTE:", ToString(layer.groups), "\"");
}

std::string CaseText(const RandomCase& c) {
  const StageGraph& graph = c.plan.graph;
  const ModelSpec& model = c.job.model;
  std::string text = "{\"modules\": ";
  text += List(model.modules.size(), [&](int64_t m) {
    const ModuleSpec& module = model.modules[ModuleId(static_cast<int>(m))];
    return absl::StrCat(
        "{\"name\": \"", module.name, "\", \"frozen\": ",
        c.job.IsFrozen(ModuleId(static_cast<int>(m))) ? "true" : "false",
        ", \"layers\": ",
        List(module.layers.size(),
             [&](int64_t l) {
               return LayerText(module.layers[LayerId(static_cast<int>(l))]);
             }),
        "}");
  });
  text += ",\n\"stages\": ";
  text += List(c.partition.stages.size(), [&](int64_t s) {
    const Stage& stage = c.partition.stages[StageId(static_cast<int>(s))];
    return absl::StrCat("[", stage.module.value(), ", ",
                        stage.first_layer.value(), ", ", stage.num_layers, ", ",
                        stage.rank.value(), "]");
  });
  // Tokens and output tokens, by microbatch, module and sub-microbatch.
  text += ",\n\"work\": ";
  text += List(c.work.parts.size(), [&](int64_t mb) {
    const auto& parts = c.work.parts[MicrobatchId(static_cast<int>(mb))];
    return List(parts.size(), [&](int64_t m) {
      const auto& subs = parts[ModuleId(static_cast<int>(m))];
      return List(static_cast<int64_t>(subs.size()), [&](int64_t i) {
        int64_t tokens = 0;
        int64_t output = 0;
        for (const TorchSequence& s : subs[static_cast<size_t>(i)]) {
          tokens += s.tokens();
          output += s.output;
        }
        return absl::StrCat("[", tokens, ", ", output, "]");
      });
    });
  });
  // The layers' memory choices and the period of each forward task.
  text += ",\n\"memory\": {";
  int32_t pair = 0;
  for (const TaskId id : graph.task_ids()) {
    if (graph.task(id).pass != Pass::kForward || c.memory.empty()) continue;
    const MemoryChoice& choice = c.memory.of(StagePairId(pair));
    absl::StrAppend(
        &text, pair > 0 ? ",\n" : "", "\"", id.value(), "\": [",
        List(static_cast<int64_t>(choice.layers.size()),
             [&](int64_t l) {
               return LayerMemoryText(choice.layers[static_cast<size_t>(l)]);
             }),
        ", ", choice.period, "]");
    ++pair;
  }
  text += "},\n\"account\": ";
  text += List(graph.num_ranks(), [&](int64_t r) {
    return absl::StrCat(AccountOf(c, RankId(static_cast<int>(r))).count());
  });
  std::map<std::string, int> has;
  CountWhatItHas(c, &has);
  text += ",\n\"has\": [";
  for (const auto& [what, count] : has) {
    absl::StrAppend(&text, text.back() == '[' ? "" : ", ", "\"", what, "\"");
  }
  return text + "]}\n";
}

int Write(const std::string& folder, uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const auto c = MakeRandomCase(seed);
    if (!c.ok()) {
      std::fprintf(stderr, "seed %d: %s\n", static_cast<int>(seed),
                   c.status().ToString().c_str());
      return 1;
    }
    const std::string name = absl::StrCat(folder, "/", seed);
    std::ofstream(name + ".pb", std::ios::binary)
        << convert::SerializePlan(c->plan);
    std::ofstream(name + ".json") << CaseText(*c);
  }
  return 0;
}

}  // namespace
}  // namespace pipeloom::runtime

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: write_random_cases FOLDER FIRST COUNT\n");
    return 2;
  }
  return pipeloom::runtime::Write(argv[1], std::strtoull(argv[2], nullptr, 10),
                                  std::strtoull(argv[3], nullptr, 10));
}
