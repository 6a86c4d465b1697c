"""LLaVA and LLaVA-OneVision: a CLIP or SigLIP tower sees tiles of one size; the
hidden states of chosen blocks become tokens, which take places in the text."""
import sys
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Sequence,
                    Tuple)

import torch
from torch import nn

import pipeloom
from pipeloom.hf.decoders import Decoder, TextFamily
from pipeloom.hf.family import Chain, Sample, SampleError, Work, register
from pipeloom.hf.skeleton import Output, module_at, replaced
from pipeloom.hf.state import MAIN, State

ENCODER, BACKBONE = "vision_encoder", "backbone"
TOWER = "model.vision_tower"
PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}


class Instance(NamedTuple):
    """An image or a video of a sample. `index` is its place among those of its
    kind, `first` that of its first tile; `tokens` is how many it has in the
    text."""
    kind: str
    index: int
    first: int
    tiles: int
    tokens: int


class Tower(Chain):
    """The vision tower and the projector. Blocks after the last one that is
    chosen by vision_feature_layer are not run, as their output is not read."""
    feeds = BACKBONE

    def __init__(self, family: "Llava", newline: Sequence[str] = ()) -> None:
        tower = module_at(family.model, TOWER)
        # Releases before 5 have one more level.
        stem = TOWER + ".vision_model" * hasattr(tower, "vision_model")
        inner = module_at(family.model, stem)
        optional = [f"{stem}.{name}" for name in ("head",)
                    if hasattr(inner, name)]
        super().__init__(
            family, ENCODER, f"{stem}.encoder.layers",
            [f"{stem}.embeddings"] + [f"{stem}.pre_layrnorm"] *
            hasattr(inner, "pre_layrnorm"),
            [f"{stem}.post_layernorm", *optional,
             "model.multi_modal_projector", *newline])
        self.width = family.model.config.vision_config.hidden_size
        self.tokens = inner.embeddings.num_positions  # type: ignore
        given = family.model.config.vision_feature_layer
        # Hidden state i is the input of block i, the last one an output.
        self.chosen = {i: i % (self.blocks + 1) for i in
                       ([given] if isinstance(given, int) else given)}
        self.last = max(self.chosen.values())
        self.taps = sorted(set(self.chosen.values()) - {self.last})

    def instances(self, work: Work) -> List[Tuple[Sample, Instance]]:
        """Returns the work's instances with their samples."""
        every = [(sample, instance) for sample in work.samples
                 for instance in self.family.visual(sample)]  # type: ignore
        return every[work.first:work.first + work.count]

    def tiles(self, work: Work) -> int:
        return sum(i.tiles for _, i in self.instances(work))

    def pixels(self, work: Work) -> torch.Tensor:
        parts = []
        for sample, instance in self.instances(work):
            name = PIXELS[instance.kind]
            if sample.get(name) is None:
                raise SampleError(
                    f"a sample of microbatch {work.item.microbatch} has "
                    f"places for {instance.kind}s but no {name}, which the "
                    "rank of the first layer needs")
            pixels = sample[name]
            parts.append(
                pixels[instance.index][:instance.tiles] if pixels.dim() == 5
                else pixels[instance.first:instance.first + instance.tiles])
        return work.here(torch.cat(parts))

    def values(self, work: Work) -> Dict[str, Callable[..., Any]]:
        inner = self.entry[0]
        return {inner: lambda *_, **__: self.family.skeleton.zeros(
            f"{inner}.patch_embedding.weight", self.tiles(work), self.tokens,
            self.width)}

    def call(self, work: Work, fed: Any) -> Any:
        run = self.family.skeleton.current
        assert run is not None
        if run.inject is not None:
            return self.features(work, run.inject)
        # Without the embeddings nothing reads the pixels.
        pixels = (self.pixels(work) if self.entry[0] in run.real else
                  torch.zeros(0))
        return module_at(self.family.model, TOWER)(pixels, return_dict=True)

    def block(self, work: Work, index: int, block: nn.Module,
              state: State) -> State:
        if index >= self.last:
            return state
        after = super().block(work, index, block, state)
        if index in self.taps:
            after.extras[f"tap{index}"] = state.main
        return after

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        shape = (self.tiles(work), self.tokens, self.width)
        return [(MAIN, shape)] + [(f"tap{t}", shape) for t in self.taps
                                  if t < position]

    def features(self, work: Work, main: torch.Tensor) -> torch.Tensor:
        """Returns the tokens of all instances, by the real class's own methods,
        whose tower gives the hidden states of one instance at a time."""
        assert work.state is not None
        hidden = {given: main if i == self.last else
                  work.state.extras[f"tap{i}"]
                  for given, i in self.chosen.items()}
        result, at = [], 0
        for sample, instance in self.instances(work):
            own = {i: t[at:at + instance.tiles] for i, t in hidden.items()}
            at += instance.tiles
            with replaced(module_at(self.family.model, TOWER),
                          forward=lambda *_, states=own, **__:
                          Output(hidden_states=states)):
                tokens = self.family.project(sample, instance)  # type: ignore
            if len(tokens) != instance.tokens:
                raise SampleError(
                    f"an {instance.kind} of microbatch {work.item.microbatch} "
                    f"gave {len(tokens)} tokens, not {instance.tokens}")
            result.append(tokens)
        return torch.cat(result)


class Language(Decoder):
    """The language model, with the places of visual tokens in its input."""

    def __init__(self, family: "Llava") -> None:
        super().__init__(family, BACKBONE, "model.language_model")

    def call(self, work: Work, fed: Any) -> Any:
        inputs = dict(work.inputs)
        family: Any = self.family
        visual = [i for s in work.samples for i in family.visual(s)]
        count = sum(i.tokens for i in visual)
        if fed:
            features = torch.cat(list(fed[ENCODER]))
        else:
            features = family.skeleton.zeros(f"{self.entry[0]}.weight", count,
                                             self.width)
        if features.shape != (count, self.width):
            raise SampleError(
                f"{ENCODER} gave {tuple(features.shape)} for microbatch "
                f"{work.item.microbatch}, whose images and videos have "
                f"{count} tokens: do all ranks have the same samples?")
        parts = torch.split(features, [i.tokens for i in visual])
        found: Dict[str, Any] = {}
        for kind, pixels in PIXELS.items():
            own = [p for p, i in zip(parts, visual) if i.kind == kind]
            if own:
                # Videos have a batch dimension, which the model takes away.
                found[kind] = Output(
                    pooler_output=own if kind == "image" else
                    torch.cat(own)[None])
                inputs[pixels] = torch.zeros(0)
        with replaced(family.model.model,
                      get_image_features=lambda *_, **__: found["image"],
                      get_video_features=lambda *_, **__: found["video"]):
            return family.model(**inputs, use_cache=False, return_dict=True)


@register
class Llava(TextFamily):
    """An image is one tile."""
    classes = ("LlavaForConditionalGeneration",)
    arguments: Tuple[str, ...] = (*TextFamily.arguments, "pixel_values")
    kinds: Tuple[str, ...] = ("image",)

    def check_model(self) -> None:
        super().check_model()
        config = self.model.config
        tower = config.vision_config.model_type
        if tower not in ("clip_vision_model", "siglip_vision_model"):
            raise ValueError(
                f"vision_config.model_type is {tower!r}: only towers of type "
                "clip_vision_model and siglip_vision_model can be split")
        given = config.vision_feature_layer
        blocks = config.vision_config.num_hidden_layers
        for i in [given] if isinstance(given, int) else given:
            if not -blocks - 1 <= i <= blocks:
                raise ValueError(f"vision_feature_layer is {given!r}; the "
                                 f"tower has {blocks} layers")

    def describe(self) -> List[Chain]:
        return [Tower(self), Language(self)]

    def tokens_of_tile(self) -> int:
        """Returns the tokens of a tile before they are packed."""
        tower: Any = self.chains[0]
        cut = self.model.config.vision_feature_select_strategy == "default"
        return tower.tokens - cut

    def places(self, sample: Sample, kind: str) -> int:
        """Returns how many tokens of the text are of images or videos."""
        token = getattr(self.model.config, f"{kind}_token_id")
        return int((sample["input_ids"] == token).sum())

    def visual(self, sample: Sample) -> Iterator[Instance]:
        """Yields the sample's images, then its videos."""
        length = self.tokens_of_tile()
        for i in range(self.places(sample, "image") // length):
            yield Instance("image", i, i, 1, length)

    def project(self, sample: Sample, instance: Instance) -> torch.Tensor:
        """Returns the tokens of an instance whose hidden states the tower
        gives."""
        return torch.cat(list(self.model.model.get_image_features(
            pixel_values=torch.zeros(0), return_dict=True).pooler_output))

    def instances(self, chain: Chain, sample: Sample) -> int:
        return 1 if chain.name == BACKBONE else len(list(self.visual(sample)))

    def check_sample(self, sample: Sample) -> None:
        super().check_sample(sample)
        for kind in self.kinds:
            own = [i for i in self.visual(sample) if i.kind == kind]
            have = self.places(sample, kind)
            if sum(i.tokens for i in own) != have:
                raise SampleError(self.wrong_places(kind, have, own))
            pixels = sample.get(PIXELS[kind])
            if pixels is None:
                continue
            tiles = sum(i.tiles for i in own)
            if len(pixels) != (len(own) if pixels.dim() == 5 else tiles):
                raise SampleError(
                    f"{PIXELS[kind]} has shape {tuple(pixels.shape)}, but the "
                    f"sample has {len(own)} {kind}s of {tiles} tiles: pass all "
                    "fields that the processor returns")

    def wrong_places(self, kind: str, have: int,
                     own: Sequence[Instance]) -> str:
        length = self.tokens_of_tile()
        return (f"input_ids has {have} tokens of {kind}_token_id; an image "
                f"has {length}: the processor's patch_size, "
                "num_additional_image_tokens and "
                "vision_feature_select_strategy must be those of the model")

    def sizes(self, sample: Sample) -> pipeloom.Sample:
        side = self.model.config.vision_config.image_size
        visual = list(self.visual(sample))
        return pipeloom.Sample(
            int(sample["input_ids"].shape[1]) - sum(i.tokens for i in visual),
            tuple((side, side) for _ in visual))


@register
class LlavaOnevision(Llava):
    """A sample with one image has it in tiles of its resolution (image_sizes);
    with several, each is one tile, as batch_num_images says. A frame of a video
    is a tile."""
    classes = ("LlavaOnevisionForConditionalGeneration",)
    # The sizes of videos are not read by the real class, either.
    arguments = (*Llava.arguments, "image_sizes", "batch_num_images",
                 "pixel_values_videos", "image_sizes_videos")
    kinds = ("image", "video")

    def describe(self) -> List[Chain]:
        self._lengths: Dict[Tuple[int, int, bool], Tuple[int, int]] = {}
        return [Tower(self, ["model.image_newline"]), Language(self)]

    def images(self, sample: Sample) -> Iterator[Tuple[int, int, bool]]:
        """Yields height, width and whether it is cut into tiles."""
        sizes = sample.get("image_sizes")
        if sizes is None:
            return
        cut = [n == 1 for n in counts(sample) for _ in range(n)]
        for (height, width), tiled in zip(sizes.tolist(), cut):
            yield int(height), int(width), tiled

    def length(self, height: int, width: int, tiled: bool) -> Tuple[int, int]:
        """Returns tiles and tokens of an image."""
        key = (height, width, tiled)
        if key not in self._lengths:
            config, model = self.model.config, self.model.model
            tiles = 1
            if tiled:
                tiles = sys.modules[type(model).__module__] \
                    .image_size_to_num_patches(
                        [height, width], config.image_grid_pinpoints,
                        config.vision_config.image_size)
            _, lengths = model.pack_image_features(
                [torch.zeros(tiles, self.tokens_of_tile(), 1)],
                [[height, width]], image_newline=torch.zeros(1),
                vision_aspect_ratio=config.vision_aspect_ratio)
            self._lengths[key] = (tiles, int(lengths[0]))
        return self._lengths[key]

    def visual(self, sample: Sample) -> Iterator[Instance]:
        first = 0
        for i, image in enumerate(self.images(sample)):
            tiles, tokens = self.length(*image)
            yield Instance("image", i, first, tiles, tokens)
            first += tiles
        videos = sample.get(PIXELS["video"])
        if videos is None:
            return
        vision = self.model.config.vision_config
        pooled = -(-(vision.image_size // vision.patch_size) // 2)
        for i, video in enumerate(videos):
            frames = len(video)
            yield Instance("video", i, i * frames, frames,
                           frames * pooled ** 2 + 1)

    def project(self, sample: Sample, instance: Instance) -> torch.Tensor:
        model = self.model.model
        vision = self.model.config.vision_config
        if instance.kind == "video":
            # Only its shape is read.
            frames = torch.zeros(1).expand(1, instance.tiles, 1, 1, 1)
            return model.get_video_features(
                frames, return_dict=True).pooler_output[0]
        height, width, tiled = list(self.images(sample))[instance.index]
        tiles = torch.zeros(1).expand(instance.tiles, 1, vision.image_size, 1)
        return model.get_image_features(
            tiles, torch.tensor([[height, width]]),
            vision_aspect_ratio=self.model.config.vision_aspect_ratio,
            batch_num_images=[1 if tiled else 2],
            return_dict=True).pooler_output[0]

    def inputs(self, work: Work) -> Dict[str, Any]:
        result = self.text_inputs(work.samples)
        own = [s for s in work.samples if s.get("image_sizes") is not None]
        if own:
            result["image_sizes"] = torch.cat([s["image_sizes"] for s in own])
            result["batch_num_images"] = torch.tensor(
                [n for s in own for n in counts(s)])
        return result

    def check_sample(self, sample: Sample) -> None:
        sizes, pixels = sample.get("image_sizes"), sample.get("pixel_values")
        if sizes is None and pixels is not None:
            raise SampleError("image_sizes is missing: pass all fields that "
                              "the processor returns")
        if sizes is not None and sum(counts(sample)) != len(sizes):
            raise SampleError(
                f"batch_num_images is {counts(sample)}, but image_sizes has "
                f"{len(sizes)} rows: both must come from one call of the "
                "processor")
        super().check_sample(sample)

    def wrong_places(self, kind: str, have: int,
                     own: Sequence[Instance]) -> str:
        fields = ("image_sizes and batch_num_images" if kind == "image" else
                  "pixel_values_videos")
        return (f"input_ids has {have} tokens of {kind}_token_id; {fields} "
                f"make {sum(i.tokens for i in own)}: all must come from one "
                "call of the processor, with the model's image_grid_pinpoints "
                "and vision_aspect_ratio")

    def sizes(self, sample: Sample) -> pipeloom.Sample:
        side = self.model.config.vision_config.image_size
        visual = list(self.visual(sample))
        images = tuple((width, height) if tiled else (side, side)
                       for height, width, tiled in self.images(sample))
        # A second a frame: model files sample videos at one frame a second.
        videos = tuple({"frames": i.tiles, "width_px": side, "height_px": side,
                        "seconds": float(i.tiles)}
                       for i in visual if i.kind == "video")
        return pipeloom.Sample(
            int(sample["input_ids"].shape[1]) - sum(i.tokens for i in visual),
            images, videos)


def counts(sample: Sample) -> List[int]:
    """Returns batch_num_images; without it each image is cut into tiles, as the
    real class does."""
    given = sample.get("batch_num_images")
    if given is None:
        return [1] * len(sample["image_sizes"])
    return [int(n) for n in given]
