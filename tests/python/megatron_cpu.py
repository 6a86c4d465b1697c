"""Megatron-Core on CPUs over gloo: its CUDA functions replaced, and an
attention with context parallelism, which Megatron-Core itself has in Transformer Engine
only."""
import torch
import torch.distributed as dist


class _Stream:
    """A stream, all of whose work is done."""

    def wait_stream(self, _):
        pass


def use_cpu():
    """Replaces the CUDA functions that Megatron's schedules, recomputation and
    random numbers call."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: _Stream()
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda *_: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    zeros = torch.zeros

    def cpu_zeros(*args, **kwargs):
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return zeros(*args, **kwargs)

    torch.zeros = cpu_zeros
    from megatron.core.tensor_parallel import random
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = (
        lambda state, *_, **__: torch.set_rng_state(state))


class Norm:
    """A norm for sequence parallelism, which Megatron-Core has in Transformer
    Engine and Apex only."""

    def __new__(cls, config, hidden_size, eps=1e-5, **_):
        norm = torch.nn.LayerNorm(hidden_size, eps)
        for p in norm.parameters():
            p.sequence_parallel = config.sequence_parallel
        return norm


class _Gather(torch.autograd.Function):
    """All parts of a sequence, one after another."""

    @staticmethod
    def forward(ctx, part, group):
        ctx.group, ctx.rows = group, part.shape[0]
        parts = [torch.empty_like(part)
                 for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        rank = dist.get_rank(ctx.group)
        return grad[rank * ctx.rows:(rank + 1) * ctx.rows], None


class Attention(torch.nn.Module):
    """Causal attention of a rank's part of the sequence to all of it, in place
    of DotProductAttention."""

    def __init__(self, config, **_):
        super().__init__()
        self.scale = (config.hidden_size // config.num_attention_heads) ** -0.5

    def forward(self, query, key, value, attention_mask, **_):
        from megatron.core import parallel_state
        group = parallel_state.get_context_parallel_group()
        key, value = _Gather.apply(key, group), _Gather.apply(value, group)
        rows = query.shape[0]
        first = rows * dist.get_rank(group)
        later = (torch.arange(key.shape[0])[None, :] >
                 first + torch.arange(rows)[:, None])
        q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
        scores = (q @ k.transpose(2, 3) * self.scale).masked_fill(
            later, float("-inf"))
        out = (scores.softmax(-1) @ v).permute(2, 0, 1, 3)
        return out.reshape(*out.shape[:2], -1)
