"""The checksum of a plan's content, as the planner computes it: that of a
message that was changed on its way differs from the stored one."""
import struct
from typing import Any, Iterable, Iterator, Tuple

from pipeloom.check import InvalidPlan

_MASK = (1 << 64) - 1
# In the order of the planner's numbers (ir/plan/execution_plan.h).
_OPS = ("compute", "send", "recv", "wait_recv", "wait_send", "free", "offload",
        "fetch", "reduce_gradients", "optimizer_step")
_NUMBER_OF = {op: i for i, op in enumerate(_OPS)}


def _finish(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9 & _MASK
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb & _MASK
    return z ^ (z >> 31)


def fingerprint(values: Iterable[int]) -> Tuple[int, int]:
    """Returns 128 bits over whole numbers: base/fingerprint.h."""
    a, b = 0x243f6a8885a308d3, 0x13198a2e03707344
    for value in values:
        value &= _MASK
        a = ((((a << 29) | (a >> 35)) & _MASK) ^ value) * \
            0x9e3779b97f4a7c15 & _MASK
        b = ((((b << 41) | (b >> 23)) & _MASK) +
             (value ^ 0xc2b2ae3d27d4eb4f)) * 0xff51afd7ed558ccd & _MASK
        b ^= a >> 32
    return _finish(a), _finish(b ^ a)


def _text(text: str) -> Iterator[int]:
    data = text.encode()
    yield len(data)
    yield from data


def _real(value: float) -> int:
    # Both zeros count as one.
    return int(struct.unpack("<Q", struct.pack("<d", value or 0.0))[0])


def _graph(graph: Any) -> Iterator[int]:
    yield from _text(graph.name)
    yield len(graph.ranks)
    for rank in graph.ranks:
        m = rank.memory
        yield from (m.limit_bytes, m.weights_bytes, m.gradients_bytes,
                    m.optimizer_bytes, m.overhead_bytes, rank.epilogue_ns)
    yield len(graph.module_names)
    for name in graph.module_names:
        yield from _text(name)
    yield len(graph.tasks)
    for t in graph.tasks:
        yield from (t.rank, t.kind - 1, t.module, t.stage, t.microbatch,
                    t.sub_microbatch, t.duration_ns, t.alloc_bytes,
                    t.free_bytes, t.recomputes,
                    t.overlaps if t.HasField("overlaps") else -1)
    yield len(graph.edges)
    for e in graph.edges:
        yield from (getattr(e, "from"), e.to, e.delay_ns, e.occupancy_ns,
                    e.payload_bytes, e.rows, e.width)


def _program(program: Any, rank: int) -> Iterator[int]:
    yield len(program.instructions)
    for n, i in enumerate(program.instructions):
        op = i.WhichOneof("instruction")
        if op is None:
            raise InvalidPlan(f"rank {rank}: instruction {n} is not set, or of "
                              "a newer version")
        yield _NUMBER_OF[op]
        if op in ("offload", "fetch"):
            copy = getattr(i, op)
            yield from (copy.task, copy.payload_bytes)
        elif op not in ("reduce_gradients", "optimizer_step"):
            yield getattr(i, op)


def _links(links: Any) -> Iterator[int]:
    # The first two kinds of sharing have each other's number there.
    yield {0: 1, 1: 0}.get(links.sharing, links.sharing)
    yield from (links.blocking_sends,
                _real(links.host_bandwidth_bytes_per_second),
                links.ring_hops, links.ring_nodes)
    for by_rank in (links.nic_of_rank, links.node_of_rank,
                    links.host_link_of_rank):
        yield len(by_rank)
        yield from by_rank


def _plan(proto: Any) -> Iterator[int]:
    yield proto.version
    yield from _text(proto.job)
    yield from (proto.step, proto.replica)
    yield from _text(proto.schedule)
    yield from _graph(proto.graph)
    yield len(proto.programs)
    for rank, program in enumerate(proto.programs):
        yield from _program(program, rank)
    yield from (proto.predicted_step_time_ns, proto.lower_bound_ns,
                _real(proto.model_flops), _real(proto.peak_flops_per_second))
    if proto.loss_shares or proto.loss_totals:
        yield len(proto.loss_shares)
        for s in proto.loss_shares:
            yield from (s.module, s.microbatch, s.sub_microbatch, s.tokens,
                        s.instances)
        yield len(proto.loss_totals)
        for t in proto.loss_totals:
            yield from (t.module, t.tokens, t.instances)
    if proto.links.ByteSize():
        yield from _links(proto.links)
    for p in proto.padded_shapes:
        yield from (p.module, p.microbatch, p.sub_microbatch, p.tokens,
                    p.bucket_tokens)


def check_checksum(proto: Any) -> None:
    """Compares the stored checksum of an ExecutionPlan message with that of
    its content. InvalidPlan: they differ. O(tasks + edges + instructions)."""
    stored = (proto.checksum.high, proto.checksum.low)
    actual = fingerprint(_plan(proto))
    if stored != actual:
        raise InvalidPlan("checksum is {:016x}{:016x}; it must be {:016x}{:016x}"
                          ": the content was changed".format(*stored, *actual))
