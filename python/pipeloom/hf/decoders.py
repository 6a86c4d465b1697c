"""Language models: an embedding, decoder layers, a norm and a loss head."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

import pipeloom
from pipeloom.hf.family import (Chain, Family, Sample, SampleError, Work,
                                register)
from pipeloom.hf.state import MAIN

IGNORED = -100


class Decoder(Chain):
    """The language model of a model for causal language modelling."""

    def __init__(self, family: Family, name: str, stem: str) -> None:
        super().__init__(family, name, f"{stem}.layers",
                         [f"{stem}.embed_tokens"], [f"{stem}.norm", "lm_head"])
        self.width = text_config(family.model).hidden_size

    def values(self, work: Work) -> Dict[str, Callable[..., Any]]:
        return {self.entry[0]: lambda ids: self.family.skeleton.zeros(
            f"{self.entry[0]}.weight", *ids.shape, self.width)}

    def call(self, work: Work, fed: Any) -> Any:
        return self.family.model(**work.inputs, use_cache=False,
                                 return_dict=True)

    def layout(self, work: Work, position: int
               ) -> List[Tuple[str, Sequence[int]]]:
        ids = work.inputs["input_ids"]
        return [(MAIN, (*ids.shape, self.width))]

    def output(self, work: Work, out: Any, state: Any) -> torch.Tensor:
        return out.logits


def text_config(model: Any) -> Any:
    config = model.config
    return getattr(config, "text_config", None) or config


class TextFamily(Family):
    """The base of families with a language model. Samples are dicts of a
    tokenizer's or processor's tensors, with a batch dimension of 1."""
    # Fields that are padded at the right, and with what.
    padded = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED,
              "mm_token_type_ids": 0, "token_type_ids": 0}
    arguments: Tuple[str, ...] = tuple(padded)

    def check_model(self) -> None:
        if not hasattr(self.model, "lm_head"):
            raise ValueError(f"{type(self.model).__name__} has no lm_head: "
                             "pass the class with the language-model head")

    def tied(self) -> Optional[Tuple[str, str]]:
        embedding = self.model.get_input_embeddings()
        if self.model.lm_head.weight is not embedding.weight:
            return None
        return self.chains[-1].entry[0], "lm_head"

    def check_sample(self, sample: Sample) -> None:
        self.check_arguments(sample)
        for name in ("input_ids", "labels"):
            if name not in sample:
                raise SampleError(f"a sample has no {name!r}: add it; labels "
                                  f"are the ids, with {IGNORED} where no loss "
                                  "is taken")
        shape = tuple(sample["input_ids"].shape)
        if len(shape) != 2 or shape[0] != 1:
            raise SampleError(f"input_ids has shape {shape}: a sample is one "
                              "sequence, of shape (1, tokens)")
        for name in self.padded:
            value = sample.get(name)
            if value is not None and tuple(value.shape) != shape:
                raise SampleError(f"{name} has shape {tuple(value.shape)}, "
                                  f"input_ids {shape}: they must be equal")

    def sizes(self, sample: Sample) -> pipeloom.Sample:
        return pipeloom.Sample(int(sample["input_ids"].shape[1]))

    def inputs(self, work: Work) -> Dict[str, Any]:
        return self.text_inputs(work.samples)

    def text_inputs(self, samples: Sequence[Sample]) -> Dict[str, Any]:
        longest = max(s["input_ids"].shape[1] for s in samples)
        result = {}
        for name, filler in self.padded.items():
            if name == "labels" or not any(name in s for s in samples):
                continue
            result[name] = pad([s.get(name) for s in samples], longest, filler)
        result["attention_mask"] = pad(
            [s.get("attention_mask", torch.ones_like(s["input_ids"]))
             for s in samples], longest, 0)
        return result

    def labels(self, work: Work) -> torch.Tensor:
        longest = work.inputs["input_ids"].shape[1]
        return work.here(pad([s["labels"] for s in work.samples], longest,
                             IGNORED))

    def count(self, sample: Sample) -> int:
        # The first label has no prediction.
        return int((sample["labels"][:, 1:] != IGNORED).sum())

    def loss(self, output: torch.Tensor, work: Work) -> torch.Tensor:
        if not any(self.count(s) for s in work.samples):
            return output.sum() * 0.0
        return self.model.loss_function(
            logits=output, labels=self.labels(work),
            vocab_size=text_config(self.model).vocab_size,
            num_items_in_batch=1)


def pad(tensors: Sequence[Optional[torch.Tensor]], length: int,
        filler: int) -> torch.Tensor:
    """Returns the rows one below the other, padded at the right."""
    kind = next(t for t in tensors if t is not None)
    rows = []
    for t in tensors:
        if t is None:
            t = kind.new_full((1, 0), filler)
        rows.append(functional.pad(t, (0, length - t.shape[1]), value=filler))
    return torch.cat(rows)


@register
class Llama(TextFamily):
    classes = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
               "Qwen3ForCausalLM")

    def describe(self) -> List[Chain]:
        return [Decoder(self, "backbone", "model")]
