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

LayerSpec& LastLayer(ModuleSpec& module) {
  return module.layers[LayerId(module.layers.size() - 1)];
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

// Returns a model whose vision module ends in a product to `width`.
ModelSpec WithProjector(int64_t in, int64_t out) {
  ModelSpec model = TextModel();
  ModuleSpec language = model.modules[ModuleId(0)];
  ModuleSpec vision;
  vision.name = "vision";
  vision.role = ModuleRole::kEncoder;
  LayerSpec block = language.layers[LayerId(1)];
  block.hidden = 256;
  vision.layers.push_back(block);
  LayerSpec projector;
  projector.kind = LayerKind::kLinears;
  projector.name = "projector";
  projector.hidden = out;
  projector.linears = {{.in = in, .out = out}};
  vision.layers.push_back(projector);
  model.modules = {};
  model.modules.push_back(vision);
  model.modules.push_back(language);
  model.edges = {{ModuleId(0), ModuleId(1), false}};
  return model;
}

TEST(ModelNotesTest, AWholeModelHasNone) {
  EXPECT_THAT(ModelNotes(TextModel()), IsEmpty());
  EXPECT_THAT(ModelNotes(WithProjector(1024, 512)), IsEmpty())
      << "a product may join tokens";
}

TEST(ModelNotesTest, MissingPartsAreSaid) {
  ModelSpec model = TextModel();
  model.missing = {"experts", "norms"};
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(AllOf(HasSubstr("model is incomplete"),
                                HasSubstr("out of missing: experts; norms"))));
}

TEST(ModelNotesTest, AGatedPartWithoutAWidthIsNamed) {
  ModelSpec model = TextModel();
  model.modules[ModuleId(0)].layers[LayerId(1)].ffn = {.gated = true};
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("layer 1 (block) has ffn.gated, but")));
}

TEST(ModelNotesTest, EmbeddingsTakeTokensOfTheirOwnWidthOnly) {
  EXPECT_THAT(
      ModelNotes(WithProjector(1024, 128)),
      ElementsAre(AllOf(HasSubstr("\"vision\" hands on tokens of width 128"),
                        HasSubstr("\"language\" takes 512"))));
}

TEST(ModelNotesTest, LatentsAreHalfAsWideAsTheirMeansAndVariances) {
  ModelSpec model = WithProjector(256, 512);
  LayerSpec& last = LastLayer(model.modules[ModuleId(0)]);
  last.kind = LayerKind::kConvolutions;
  last.linears.clear();
  last.convolutions = {{.in = 256, .out = 8}};
  last.hidden = 8;
  LayerSpec& first = model.modules[ModuleId(1)].layers[LayerId(0)];
  first.kind = LayerKind::kConvolutions;
  first.vocab = 0;
  first.convolutions = {{.in = 4, .out = 512}};
  EXPECT_THAT(ModelNotes(model), IsEmpty());
  first.convolutions[0].in = 5;
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("tokens of width 8, but \"language\" takes "
                                    "5")));
}

TEST(ModelNotesTest, ProjectorsTakeTheWidthBeforeThem) {
  EXPECT_THAT(ModelNotes(WithProjector(1000, 512)),
              ElementsAre(AllOf(HasSubstr("layer 1 (projector) begins with a "
                                          "product of width 1000"),
                                HasSubstr("of width 256"))));
}

TEST(ModelNotesTest, BlocksAndHeadsOfAnotherWidthAreNamed) {
  ModelSpec model = TextModel();
  ModuleSpec& module = model.modules[ModuleId(0)];
  module.layers[LayerId(1)].hidden = 256;
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(AllOf(HasSubstr("layer 1 (block) has hidden 256"),
                                HasSubstr("(embedding) gives tokens of width "
                                          "512"))));
  module.layers[LayerId(1)].hidden = 512;
  LastLayer(module).hidden = 256;
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("layer 2 (head) has hidden 256")));
  module.layers[LayerId(1)].downsample = 2;
  EXPECT_THAT(ModelNotes(model), IsEmpty()) << "another grid has its own width";
}

TEST(ModelNotesTest, TiedHeadsNeedAnEmbeddingOfTheirShape) {
  ModelSpec model = TextModel();
  ModuleSpec& module = model.modules[ModuleId(0)];
  LastLayer(module).tied = true;
  EXPECT_THAT(ModelNotes(model), IsEmpty());
  LastLayer(module).vocab = 2000;
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(AllOf(HasSubstr("its table of 2000 x 512"),
                                HasSubstr("the model has 1000 x 512"))));
  ModelSpec headless = TextModel();
  ModuleSpec& alone = headless.modules[ModuleId(0)];
  LayerSpec head = LastLayer(alone);
  head.tied = true;
  const LayerSpec block = alone.layers[LayerId(1)];
  alone.layers = {};
  alone.layers.push_back(block);
  alone.layers.push_back(head);
  EXPECT_THAT(ModelNotes(headless),
              ElementsAre(HasSubstr("but the model has none")));
}

TEST(ModelNotesTest, CrossAttentionNeedsAContext) {
  ModelSpec model = WithProjector(256, 512);
  LayerSpec& block = model.modules[ModuleId(1)].layers[LayerId(1)];
  block.cross_attention = {.heads = 4, .head_dim = 128, .context_width = 512};
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("layer 1 (block) has cross_attention, but "
                                    "no edge into its module is as_context")));
  block.cross_attention.context_tokens = 77;
  EXPECT_THAT(ModelNotes(model), IsEmpty());
  block.cross_attention.context_tokens = 0;
  model.edges[0].as_context = true;
  EXPECT_THAT(ModelNotes(model), IsEmpty());
}

TEST(ModelNotesTest, FieldsOfAnotherKindAreNamed) {
  ModelSpec model = TextModel();
  ModuleSpec& module = model.modules[ModuleId(0)];
  module.layers[LayerId(1)].linears = {{.in = 512, .out = 512}};
  module.layers[LayerId(1)].vocab = 10;
  EXPECT_THAT(ModelNotes(model),
              ElementsAre(HasSubstr("layer 1 (block) has vocab and linears, "
                                    "which a layer of its kind does not use")));
}

}  // namespace
}  // namespace pipeloom
