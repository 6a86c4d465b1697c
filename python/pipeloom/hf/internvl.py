"""InternVL: images are cut into tiles of one size, whose tokens take places in
the text."""
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch

import pipeloom
from pipeloom.hf.decoders import Decoder, TextFamily
from pipeloom.hf.family import Chain, Sample, SampleError, Work, register
from pipeloom.hf.skeleton import Output, replaced
from pipeloom.hf.state import MAIN, State

ENCODER, BACKBONE = "vision_encoder", "backbone"
TOWER = "model.vision_tower"


class Tiles(Chain):
    """The vision tower and the projector. An instance is an image: as many
    tiles as the sample's image_num_patches says, or all tiles of a sample
    without that field."""
    feeds = BACKBONE

    def __init__(self, family: "InternVL") -> None:
        super().__init__(
            family, ENCODER, f"{TOWER}.encoder.layer", [f"{TOWER}.embeddings"],
            [f"{TOWER}.layernorm", "model.multi_modal_projector"])
        config = family.model.config.vision_config  # type: ignore[union-attr]
        self.width = config.hidden_size
        self.patches = 1
        for size, patch in zip(config.image_size, config.patch_size):
            self.patches *= size // patch

    def instances(self, work: Work) -> List[Tuple[Sample, int, int]]:
        """Returns (sample, first tile, number of tiles) of the instances."""
        every = [(sample, first, count) for sample in work.samples
                 for first, count in self.family.images(sample)]  # type: ignore
        return every[work.first:work.first + work.count]

    def tiles(self, work: Work) -> int:
        return sum(count for _, _, count in self.instances(work))

    def values(self, work: Work) -> Dict[str, Callable[..., Any]]:
        return {self.entry[0]: lambda *_, **__: self.family.skeleton.zeros(
            f"{self.entry[0]}.cls_token", self.tiles(work), 1 + self.patches,
            self.width)}

    def call(self, work: Work, fed: Any) -> Any:
        run = self.family.skeleton.current
        assert run is not None
        # Without the embeddings nothing reads the pixels.
        pixels = torch.zeros(0)
        if self.entry[0] in run.real:
            parts = []
            for sample, first, count in self.instances(work):
                if "pixel_values" not in sample:
                    raise SampleError(
                        f"a sample of microbatch {work.item.microbatch} has "
                        "images but no pixel_values, which the rank of the "
                        "first layer needs")
                parts.append(sample["pixel_values"][first:first + count])
            pixels = work.here(torch.cat(parts))
        return self.family.model.model.get_image_features(  # type: ignore
            pixel_values=pixels, return_dict=True)

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        return [(MAIN, (self.tiles(work), 1 + self.patches, self.width))]

    def output(self, work: Work, out: Any, state: State) -> torch.Tensor:
        return out.pooler_output.flatten(0, 1)


class Language(Decoder):
    """The language model, with the places of tiles in its input."""

    def __init__(self, family: "InternVL") -> None:
        super().__init__(family, BACKBONE, "model.language_model")

    def call(self, work: Work, fed: Any) -> Any:
        inputs = dict(work.inputs)
        family: Any = self.family
        tiles = sum(n for s in work.samples for _, n in family.images(s))
        length = family.model.config.image_seq_length
        if fed:
            features = torch.cat(list(fed[ENCODER]))
        else:
            features = family.skeleton.zeros(
                f"{self.entry[0]}.weight", tiles * length, self.width)
        if len(features) != tiles * length:
            raise SampleError(
                f"{ENCODER} gave {len(features)} tokens for microbatch "
                f"{work.item.microbatch}, whose {tiles} tiles have "
                f"{tiles * length}: do all ranks have the same samples?")
        if tiles:
            inputs["pixel_values"] = torch.zeros(0)
        result = Output(
            pooler_output=features.reshape(tiles, length, self.width))
        with replaced(family.model.model,
                      get_image_features=lambda *_, **__: result):
            return family.model(**inputs, use_cache=False, return_dict=True)


@register
class InternVL(TextFamily):
    classes = ("InternVLForConditionalGeneration",)
    arguments = (*TextFamily.arguments, "pixel_values")

    def check_model(self) -> None:
        super().check_model()
        config = self.model.config
        if config.vision_feature_layer != -1 or \
                config.vision_feature_select_strategy != "default":
            raise ValueError(
                "vision_feature_layer is "
                f"{config.vision_feature_layer!r} and "
                "vision_feature_select_strategy "
                f"{config.vision_feature_select_strategy!r}: only -1 and "
                "'default' can be split")

    def describe(self) -> List[Chain]:
        return [Tiles(self), Language(self)]

    def images(self, sample: Sample) -> Iterator[Tuple[int, int]]:
        """Yields (first tile, number of tiles) of the sample's images."""
        counts = sample.get("image_num_patches")
        if counts is None:
            places = int((sample["input_ids"] ==
                          self.model.config.image_token_id).sum())
            tiles = places // self.model.config.image_seq_length
            counts = [tiles] if tiles else []
        first = 0
        for count in counts:
            yield first, int(count)
            first += int(count)

    def instances(self, chain: Chain, sample: Sample) -> int:
        return 1 if chain.name == BACKBONE else len(list(self.images(sample)))

    def check_sample(self, sample: Sample) -> None:
        super().check_sample(sample)
        length = self.model.config.image_seq_length
        places = int((sample["input_ids"] ==
                      self.model.config.image_token_id).sum())
        tiles = sum(n for _, n in self.images(sample))
        if tiles * length != places:
            raise SampleError(
                f"image_num_patches has {tiles} tiles of {length} tokens, "
                f"input_ids {places} tokens of image_token_id: both must come "
                "from one call of the processor")
        pixels = sample.get("pixel_values")
        if pixels is not None and len(pixels) != tiles:
            raise SampleError(f"pixel_values has {len(pixels)} tiles, "
                              f"input_ids has places for {tiles}")

    def sizes(self, sample: Sample) -> pipeloom.Sample:
        height, width = self.model.config.vision_config.image_size
        images = tuple((width * n, height) for _, n in self.images(sample))
        tiles = sum(n for _, n in self.images(sample))
        return pipeloom.Sample(
            int(sample["input_ids"].shape[1]) -
            tiles * self.model.config.image_seq_length, images)
