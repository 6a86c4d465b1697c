"""Real models of transformers and diffusers as pipelines.

    model = AutoModelForCausalLM.from_pretrained(folder)
    pipe = pipeloom.hf.Pipeline(model, job, rank=rank)
    optimizer = torch.optim.AdamW(pipe.parameters())
    for step, samples in ...:
        result = pipe.step(provider.get(step), samples)

The model is split by a description of its family (`Family`): where its layers
are, and what surrounds them. Masks, positions and the place of images in the
text are computed by the real class's own forward.
"""
from pipeloom.hf import (decoders, internvl, llava,  # noqa: F401
                         qwen_vl, wan)
from pipeloom.hf.family import (Chain, Family, SampleError, Work, register,
                                supported)
from pipeloom.hf.partition import (Partition, PartitionError, even_partition,
                                   read_partition)
from pipeloom.hf.pipeline import Pipeline, pipeline
from pipeloom.hf.replicas import Grid, grid
from pipeloom.hf.shards import WeightsError
from pipeloom.hf.state import MAIN, State

__all__ = ["MAIN", "Chain", "Family", "Grid", "Partition", "PartitionError",
           "Pipeline", "SampleError", "State", "WeightsError", "Work",
           "even_partition", "grid", "pipeline", "read_partition", "register",
           "supported"]
