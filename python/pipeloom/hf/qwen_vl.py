"""Qwen2.5-VL and Qwen3-VL: a vision tower with images and videos of any size,
whose tokens take places in the text."""
from typing import (Any, Callable, Dict, Iterator, List, Sequence,
                    Tuple)

import torch
from torch import nn

import pipeloom
from pipeloom.hf.decoders import Decoder, TextFamily
from pipeloom.hf.family import (Chain, Sample, SampleError, Work,
                                accepts, register)
from pipeloom.hf.skeleton import Output, Run, module_at, replaced
from pipeloom.hf.state import MAIN, State

ENCODER, BACKBONE = "vision_encoder", "backbone"
VISUAL = "model.visual"
TEXT = "model.language_model"
# Fields by kind of instance: placeholder in the configuration, grid, pixels.
FIELDS = {"image": ("image_token_id", "image_grid_thw", "pixel_values"),
          "video": ("video_token_id", "video_grid_thw",
                    "pixel_values_videos")}


class Vision(Chain):
    """The vision tower. An instance is an image or a video; those of a sample
    are its images, then its videos."""
    feeds = BACKBONE

    def __init__(self, family: "QwenVL", extra: Sequence[str] = (),
                 after: Sequence[str] = ()) -> None:
        super().__init__(
            family, ENCODER, f"{VISUAL}.blocks",
            [f"{VISUAL}.patch_embed", *extra], [f"{VISUAL}.merger"], after)
        config = family.model.config.vision_config  # type: ignore[union-attr]
        self.width, self.out_width = config.hidden_size, config.out_hidden_size
        self.merge = config.spatial_merge_size ** 2
        self.extra = extra

    def instances(self, work: Work) -> List[Tuple[str, Sample, int]]:
        """Returns (kind, sample, index in the sample) of the work's
        instances."""
        every = [(kind, sample, i) for sample in work.samples
                 for kind, i in self.family.visual(sample)]  # type: ignore
        return every[work.first:work.first + work.count]

    def grid(self, work: Work) -> torch.Tensor:
        return work.here(torch.stack([
            sample[FIELDS[kind][1]][i]
            for kind, sample, i in self.instances(work)]))

    def patches(self, work: Work) -> int:
        return int(self.grid(work).prod(-1).sum())

    def pixels(self, work: Work) -> torch.Tensor:
        parts = []
        for kind, sample, i in self.instances(work):
            _, grid, pixels = FIELDS[kind]
            if pixels not in sample:
                raise SampleError(f"a sample of microbatch "
                                  f"{work.item.microbatch} has {grid} but no "
                                  f"{pixels}, which the rank of the first "
                                  "layer needs")
            counts = [int(n) for n in sample[grid].prod(-1)]
            parts.append(torch.split(sample[pixels], counts)[i])
        return work.here(torch.cat(parts))

    def values(self, work: Work) -> Dict[str, Callable[..., Any]]:
        zeros, like = self.family.skeleton.zeros, f"{self.entry[0]}.proj.weight"
        return {self.entry[0]: lambda _: zeros(like, self.patches(work),
                                               self.width),
                **{place: lambda ids: zeros(like, *ids.shape, self.width)
                   for place in self.extra}}

    def call(self, work: Work, fed: Any) -> Any:
        # Without the patch embedding nothing reads the pixels.
        run = self.family.skeleton.current
        assert run is not None
        pixels = self.pixels(work) if self.entry[0] in run.real else None
        return module_at(self.family.model, VISUAL)(
            pixels, grid_thw=self.grid(work), return_dict=True)

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        return [(MAIN, (self.patches(work), self.width))]

    def output(self, work: Work, out: Any, state: State) -> torch.Tensor:
        return out.pooler_output


class Language(Decoder):
    """The language model, with the places of visual tokens in its input."""

    def __init__(self, family: "QwenVL", taps: int = 0) -> None:
        super().__init__(family, BACKBONE, TEXT)
        self.taps = taps

    def visual_tokens(self, work: Work) -> List[Tuple[str, int]]:
        merge = self.family.model.config.vision_config.spatial_merge_size ** 2
        return [(kind, int(sample[FIELDS[kind][1]][i].prod()) // merge)
                for sample in work.samples
                for kind, i in self.family.visual(sample)]  # type: ignore

    def call(self, work: Work, fed: Any) -> Any:
        inputs = dict(work.inputs)
        tokens = self.visual_tokens(work)
        width = (1 + self.taps) * self.width
        if fed:
            features = torch.cat(list(fed[ENCODER]))
        else:
            features = self.family.skeleton.zeros(
                f"{self.entry[0]}.weight", sum(n for _, n in tokens), width)
        if features.shape != (sum(n for _, n in tokens), width):
            raise SampleError(
                f"{ENCODER} gave {tuple(features.shape)} for microbatch "
                f"{work.item.microbatch}, whose grids have "
                f"{sum(n for _, n in tokens)} tokens: do all ranks have the "
                "same samples?")
        parts = torch.split(features, [n for _, n in tokens])
        found: Dict[str, Any] = {}
        for name in FIELDS:
            own = [p for p, (kind_of, _) in zip(parts, tokens)
                   if kind_of == name]
            if own:
                found[name] = self.result(own)
                inputs[FIELDS[name][2]] = torch.zeros(0)
        inner = self.family.model.model
        with replaced(inner,
                      get_image_features=lambda *_, **__: found["image"],
                      get_video_features=lambda *_, **__: found["video"]):
            return self.family.model(**inputs, use_cache=False,
                                     return_dict=True)

    def result(self, parts: List[torch.Tensor]) -> Any:
        """Returns what the real class's get_image_features would."""
        return Output(pooler_output=tuple(parts))


class QwenVL(TextFamily):
    """The base of both."""
    seconds_per_grid = False
    arguments = (*TextFamily.arguments, "image_grid_thw", "pixel_values",
                 "video_grid_thw", "pixel_values_videos", "second_per_grid_ts")

    def describe(self) -> List[Chain]:
        return [Vision(self), Language(self)]

    def visual(self, sample: Sample) -> Iterator[Tuple[str, int]]:
        """Yields (kind, index) of the sample's instances in the encoder."""
        for kind, (_, grid, _) in FIELDS.items():
            if sample.get(grid) is not None:
                for i in range(len(sample[grid])):
                    yield kind, i

    def instances(self, chain: Chain, sample: Sample) -> int:
        return 1 if chain.name == BACKBONE else len(list(self.visual(sample)))

    def inputs(self, work: Work) -> Dict[str, Any]:
        result = self.text_inputs(work.samples)
        for _, grid, _ in FIELDS.values():
            own = [s[grid] for s in work.samples if s.get(grid) is not None]
            if own:
                result[grid] = torch.cat(own)
        seconds = [torch.as_tensor(s["second_per_grid_ts"])
                   for s in work.samples if self.seconds_per_grid and
                   s.get("video_grid_thw") is not None]
        if seconds:
            result["second_per_grid_ts"] = torch.cat(seconds)
        return result

    def check_sample(self, sample: Sample) -> None:
        super().check_sample(sample)
        config = self.model.config
        merge = config.vision_config.spatial_merge_size ** 2
        for token, grid, pixels in FIELDS.values():
            places = int((sample["input_ids"] == getattr(config, token)).sum())
            if sample.get(grid) is None:
                if places or pixels in sample:
                    raise SampleError(
                        f"{grid} is missing, but there "
                        f"{'is ' + pixels if pixels in sample else ''}"
                        f"{f'are {places} tokens of {token}' if places else ''}"
                        ": pass all fields that the processor returns")
                continue
            given = int(sample[grid].prod(-1).sum())
            if given // merge != places:
                raise SampleError(
                    f"{grid} has {given // merge} tokens, input_ids {places} "
                    f"of {token}: both must come from one call of the "
                    "processor")
            if pixels in sample and len(sample[pixels]) != given:
                raise SampleError(f"{pixels} has {len(sample[pixels])} "
                                  f"patches, {grid} {given}")
            if sample.get("mm_token_type_ids") is None and accepts(
                    self.model.model.get_rope_index, "mm_token_type_ids"):
                raise SampleError(
                    "mm_token_type_ids is missing: without it the model takes "
                    "positions of text for its images; the processor returns "
                    "it with return_mm_token_type_ids=True")
        if self.seconds_per_grid and sample.get("video_grid_thw") is not None:
            seconds = sample.get("second_per_grid_ts")
            if seconds is None or len(seconds) != len(sample["video_grid_thw"]):
                raise SampleError("second_per_grid_ts must have the seconds of "
                                  "each video's grid: the processor returns it")

    def sizes(self, sample: Sample) -> pipeloom.Sample:
        config = self.model.config
        px, frames = (config.vision_config.patch_size,
                      config.vision_config.temporal_patch_size)
        images, videos, visual = [], [], 0
        for kind, i in self.visual(sample):
            t, h, w = (int(n) for n in sample[FIELDS[kind][1]][i])
            visual += t * h * w // config.vision_config.spatial_merge_size ** 2
            if kind == "image":
                images.append((w * px, h * px))
            else:
                videos.append({"frames": t * frames, "width_px": w * px,
                               "height_px": h * px})
        return pipeloom.Sample(int(sample["input_ids"].shape[1]) - visual,
                               tuple(images), tuple(videos))


@register
class Qwen2_5VL(QwenVL):
    classes = ("Qwen2_5_VLForConditionalGeneration",)
    seconds_per_grid = True


class TappedVision(Vision):
    """A vision tower some of whose blocks also give tokens for the first layers
    of the language model."""

    def __init__(self, family: "Qwen3VL") -> None:
        self.tapped = list(
            family.model.config.vision_config.deepstack_visual_indexes)
        super().__init__(
            family, [f"{VISUAL}.pos_embed"],
            [f"{VISUAL}.deepstack_merger_list.{j}"
             for j in range(len(self.tapped))])

    def block(self, work: Work, index: int, block: nn.Module,
              state: State) -> State:
        state = super().block(work, index, block, state)
        if index in self.tapped:
            state.extras[f"tap{self.tapped.index(index)}"] = state.main
        return state

    def later(self, work: Work, index: int, module: nn.Module,
              state: State) -> State:
        state = state.with_main(state.main)
        state.extras[f"tap{index}"] = module(state.extras[f"tap{index}"])
        return state

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        result = super().layout(work, position)
        count = self.patches(work)
        for j, block in enumerate(self.tapped):
            if position > self.blocks + j:
                result.append((f"tap{j}", (count // self.merge,
                                           self.out_width)))
            elif position > block:
                result.append((f"tap{j}", (count, self.width)))
        return result

    def output(self, work: Work, out: Any, state: State) -> torch.Tensor:
        return torch.cat([out.pooler_output, *state.extras.values()], -1)


class TappedLanguage(Language):
    """A language model whose first layers add tokens of tapped vision blocks to
    their output, by the real class's own method."""

    def call(self, work: Work, fed: Any) -> Any:
        run = self.family.skeleton.current
        assert run is not None
        run.notes["taps"] = []

        def note(hidden: torch.Tensor, mask: torch.Tensor,
                 tokens: torch.Tensor) -> torch.Tensor:
            run.notes["mask"] = mask
            run.notes["taps"].append(tokens)
            return hidden

        with replaced(module_at(self.family.model, TEXT),
                      _deepstack_process=note):
            return super().call(work, fed)

    def result(self, parts: List[torch.Tensor]) -> Any:
        split = [p.split(self.width, -1) for p in parts]
        return Output(
            pooler_output=tuple(p[0] for p in split),
            deepstack_features=[tuple(p[1 + k] for p in split)
                                for k in range(self.taps)])

    def extras(self, work: Work, run: Run) -> Dict[str, torch.Tensor]:
        return {f"tap{k}": t for k, t in enumerate(run.notes["taps"])}

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        result = super().layout(work, position)
        count = sum(n for _, n in self.visual_tokens(work))
        if count:
            result += [(f"tap{k}", (count, self.width))
                       for k in range(position, self.taps)]
        return result

    def block(self, work: Work, index: int, block: nn.Module,
              state: State) -> State:
        state = super().block(work, index, block, state)
        tokens = state.extras.pop(f"tap{index}", None)
        if tokens is not None:
            state.main = module_at(self.family.model, TEXT)._deepstack_process(
                state.main, work.probe().notes["mask"], tokens)
        return state


@register
class Qwen3VL(QwenVL):
    classes = ("Qwen3VLForConditionalGeneration",)

    def check_model(self) -> None:
        super().check_model()
        config = self.model.config
        taps = list(config.vision_config.deepstack_visual_indexes)
        if taps != sorted(taps) or \
                len(taps) > config.text_config.num_hidden_layers:
            raise ValueError(
                f"deepstack_visual_indexes is {taps}: they must ascend, and be "
                "at most as many as the language model's layers")

    def describe(self) -> List[Chain]:
        vision = TappedVision(self)
        return [vision, TappedLanguage(self, len(vision.tapped))]
