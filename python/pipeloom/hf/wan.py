"""The diffusion transformer of Wan, from diffusers."""
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import nn
from torch.nn import functional

import pipeloom
from pipeloom.hf.family import (Chain, Family, Sample, SampleError, Work,
                                register)
from pipeloom.hf.state import MAIN, State

CONDITIONS = "condition_embedder"
PATCHES = "patch_embedding"


class Blocks(Chain):
    """The blocks. The embeddings of time and text, which the first layer makes,
    are needed by all of them, and their gradients come back from all."""

    def __init__(self, family: "Wan") -> None:
        super().__init__(family, "generator", "blocks",
                         [PATCHES, CONDITIONS],
                         ["proj_out", "scale_shift_table"])
        config = family.model.config
        self.width = config.num_attention_heads * config.attention_head_dim
        self.patch = config.patch_size

    def grid(self, work: Work) -> List[int]:
        sizes = work.inputs["hidden_states"].shape[2:]
        return [n // p for n, p in zip(sizes, self.patch)]

    def conditions(self, work: Work) -> Tuple[Any, ...]:
        """Returns zeros in place of the embeddings of time and text."""
        inputs = work.inputs
        times = inputs["timestep"].shape
        image = inputs.get("encoder_hidden_states_image")

        def zeros(*shape: int) -> torch.Tensor:
            return self.family.skeleton.zeros(f"{PATCHES}.weight", *shape)

        return (zeros(*times, self.width), zeros(*times, 6 * self.width),
                zeros(*inputs["encoder_hidden_states"].shape[:2], self.width),
                None if image is None else
                zeros(*image.shape[:2], self.width))

    def values(self, work: Work) -> Dict[str, Callable[..., Any]]:
        def embedding(latents: torch.Tensor) -> torch.Tensor:
            return self.family.skeleton.zeros(
                f"{PATCHES}.weight", len(latents), self.width,
                *self.grid(work))

        def conditions(*_: Any, **__: Any) -> Any:
            made = self.conditions(work)
            if work.state is None:
                return made
            return (work.state.extras["time"], *made[1:])

        return {PATCHES: embedding, CONDITIONS: conditions}

    def call(self, work: Work, fed: Any) -> Any:
        return self.family.model(**work.inputs, return_dict=False)[0]

    def begin(self, work: Work, fed: Any) -> State:
        real = self.family.skeleton.real(CONDITIONS)
        times: List[torch.Tensor] = []
        noted = real.register_forward_hook(
            lambda _, __, out: times.append(out[0]))
        try:
            state = super().begin(work, fed)
        finally:
            noted.remove()
        state.extras["time"] = times[0]
        return state

    def extras(self, work: Work, run: Any) -> Dict[str, torch.Tensor]:
        (text, times, _), _ = run.arguments[0]
        return {"text": text, "times": times}

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        (text, times, _), _ = work.arguments(0)
        frames, height, width = self.grid(work)
        inputs = work.inputs
        return [(MAIN, (len(inputs["hidden_states"]), frames * height * width,
                        self.width)),
                ("text", text.shape), ("times", times.shape),
                ("time", (*inputs["timestep"].shape, self.width))]

    def block(self, work: Work, index: int, block: nn.Module,
              state: State) -> State:
        (_, _, rotary), _ = work.arguments(index)
        return state.with_main(block(state.main, state.extras["text"],
                                     state.extras["times"], rotary))


@register
class Wan(Family):
    """A sample has hidden_states (noisy latents: 1, channels, frames, height,
    width), timestep, encoder_hidden_states (1, tokens, width) and target, which
    has the latents' shape. The loss is the mean squared error."""
    classes = ("WanTransformer3DModel",)
    fields = ("hidden_states", "timestep", "encoder_hidden_states", "target")
    also = ("encoder_hidden_states_image",)
    arguments = fields + also

    def check_model(self) -> None:
        if getattr(self.model, "gradient_checkpointing", False):
            raise ValueError(
                "gradient checkpointing is on, which the model's own loop over "
                "its blocks does and a pipeline would not: call "
                "disable_gradient_checkpointing(); the plan says which layers "
                "are recomputed")

    def describe(self) -> List[Chain]:
        return [Blocks(self)]

    def check_sample(self, sample: Sample) -> None:
        self.check_arguments(sample)
        for name in self.fields:
            if name not in sample:
                raise SampleError(f"a sample has no {name!r}; it needs "
                                  f"{', '.join(self.fields)}")
        shape = tuple(sample["hidden_states"].shape)
        if len(shape) != 5 or shape[0] != 1:
            raise SampleError(f"hidden_states has shape {shape}: a sample is "
                              "one latent, of shape (1, channels, frames, "
                              "height, width)")
        if tuple(sample["target"].shape) != shape:
            raise SampleError(
                f"target has shape {tuple(sample['target'].shape)}, "
                f"hidden_states {shape}: they must be equal")

    def inputs(self, work: Work) -> Dict[str, Any]:
        result = {}
        for name in (*self.fields[:3], *self.also):
            own = [s[name] for s in work.samples if s.get(name) is not None]
            if not own:
                continue
            shapes = {tuple(t.shape[1:]) for t in own}
            if len(shapes) > 1 or len(own) != len(work.samples):
                raise SampleError(
                    f"microbatch {work.item.microbatch}: {name} has shapes "
                    f"{sorted(shapes)} in {len(work.samples)} samples, which "
                    "one call cannot take: give the generator 1 instance in "
                    "training.sub_microbatch_sizes of the job, or put samples "
                    "of one size into a microbatch (microbatch_of)")
            result[name] = torch.cat(own)
        return result

    def sizes(self, sample: Sample) -> pipeloom.Sample:
        _, _, frames, height, width = sample["hidden_states"].shape
        clip = {"frames": 4 * (frames - 1) + 1, "width_px": 8 * width,
                "height_px": 8 * height}
        return pipeloom.Sample(
            int(sample["encoder_hidden_states"].shape[1]), videos=(clip,))

    def count(self, sample: Sample) -> int:
        return int(sample["target"].numel())

    def loss(self, output: torch.Tensor, work: Work) -> torch.Tensor:
        target = work.here(torch.cat([s["target"] for s in work.samples]))
        return functional.mse_loss(output.float(), target.float(),
                                   reduction="sum")
