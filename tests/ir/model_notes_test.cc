#include "ir/job/model_notes.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/small_job.h"

namespace pipeloom {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ModuleId kEncoder(0);
constexpr ModuleId kBackbone(1);

TEST(ModelNotesTest, AnEncoderThatFeedsNobodyIsNamedWithItsEdge) {
  JobSpec job = testing::SmallVlmJob();
  job.model.edges.clear();
  EXPECT_THAT(ModelNotes(job.model),
              ElementsAre(HasSubstr("{\"from\": \"encoder\", \"to\": ")));
}

TEST(ModelNotesTest, ALayerThatEndsInAnotherWidthIsNamed) {
  JobSpec job = testing::SmallVlmJob();
  LayerSpec layer;
  layer.kind = LayerKind::kLinears;
  layer.name = "odd";
  layer.hidden = 512;
  layer.linears = {{.in = layer.hidden, .out = 100}};
  job.model.modules[kEncoder].layers.push_back(layer);
  EXPECT_THAT(
      ModelNotes(job.model),
      ElementsAre(AllOf(HasSubstr("(odd) ends in a product of width 100"),
                        HasSubstr("make them equal"))));
}

TEST(ModelNotesTest, ModulesOfWidthsThatDoNotFitAreNamed) {
  JobSpec job = testing::SmallVlmJob();
  for (LayerSpec& layer : job.model.modules[kBackbone].layers) {
    layer.hidden = 768;
  }
  EXPECT_THAT(ModelNotes(job.model),
              ElementsAre(AllOf(HasSubstr("\"encoder\" hands on"),
                                HasSubstr("\"backbone\" takes 768"),
                                HasSubstr("LAYER_KIND_LINEARS"))));
  job.model.edges[0].as_context = true;
  EXPECT_THAT(ModelNotes(job.model), IsEmpty());
}

TEST(ModelNotesTest, ATotalFarFromThePublishedOneIsNamed) {
  ModelSpec model = testing::SmallVlmJob().model;
  model.published_parameters = Parameters(model) * 103 / 100;
  EXPECT_THAT(ModelNotes(model), IsEmpty());
  model.published_parameters = 2 * Parameters(model);
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("published_parameters is")));
}

// Returns an embedding, a block and a loss head of one width.
ModelSpec TextModel() {
  ModelSpec model;
  model.name = "text";
  ModuleSpec module;
  module.name = "language";
  LayerSpec layer;
  layer.kind = LayerKind::kEmbedding;
  layer.name = "embedding";
  layer.hidden = 512;
  layer.vocab = 1000;
  module.layers.push_back(layer);
  layer = {};
  layer.name = "block";
  layer.hidden = 512;
  layer.attention = {.kind = AttentionKind::kCausal,
                     .heads = 4,
                     .kv_heads = 4,
                     .head_dim = 128};
  layer.ffn = {.hidden = 2048, .gated = true};
  module.layers.push_back(layer);
  layer = {};
  layer.kind = LayerKind::kLossHead;
  layer.name = "head";
  layer.hidden = 512;
  layer.vocab = 1000;
  module.layers.push_back(layer);
  model.modules.push_back(module);
  return model;
}

TEST(ModelNotesTest, AWholeModelHasNone) {
  EXPECT_THAT(ModelNotes(TextModel()), IsEmpty());
}

TEST(ModelNotesTest, MissingPartsAreSaid) {
  ModelSpec model = TextModel();
  model.missing = {"experts"};
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(AllOf(HasSubstr("model is incomplete"),
                                HasSubstr("missing: experts"))));
}

TEST(ModelNotesTest, AGatedPartWithoutAWidthIsNamed) {
  ModelSpec model = TextModel();
  model.modules[ModuleId(0)].layers[LayerId(1)].ffn = {.gated = true};
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("layer 1 (block) has ffn.gated, but")));
}

}  // namespace
}  // namespace pipeloom
