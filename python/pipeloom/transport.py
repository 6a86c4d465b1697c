"""Transfer of tensors between the ranks of a plan, over torch.distributed."""
import inspect
from typing import (Any, Callable, Dict, Iterable, List, Mapping, Optional,
                    Sequence, Set, Tuple)

import torch
import torch.distributed as dist

from pipeloom.execution.failure import Told, finding_lost

_DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64,
           torch.int64, torch.int32, torch.bool, torch.uint8, torch.int8,
           torch.int16, torch.complex64, torch.complex128]
# Dimensions, up to six sizes, dtype, and how many of the receiver's own
# tensors have come.
_HEADER = 9
_SIZES = 6
_REASON = -1  # In place of the dimensions: bytes of text follow, not a tensor.


def global_ranks(group: Any, size: int) -> List[int]:
    if group is None:
        return list(range(size))
    if hasattr(dist, "get_global_rank"):
        return [dist.get_global_rank(group, r) for r in range(size)]
    return [dist.distributed_c10d._get_global_rank(group, r)
            for r in range(size)]


def has_local_groups() -> bool:
    """Returns whether a process group needs calls of its members only (torch
    2.1 and later), not of all processes."""
    return "use_local_synchronization" in inspect.signature(
        dist.new_group).parameters


def new_group(ranks: Iterable[int]) -> Any:
    """Returns a process group of some processes. All processes must call this
    in the same order, unless has_local_groups()."""
    members = sorted(ranks)
    options: Dict[str, Any] = {}
    if len(members) < dist.get_world_size() and has_local_groups():
        options["use_local_synchronization"] = True
    return dist.new_group(members, **options)


def _wait(work: Any) -> None:
    if work is not None:
        with finding_lost():
            work.wait()


def pair_groups(ranks: Sequence[int], me: int) -> Dict[Tuple[int, int], Any]:
    """Returns a group of two processes for each direction between rank `me` and
    the others, indexed by (source, target), so that transfers of one direction
    do not wait for those of another. `ranks` are the processes of all ranks,
    each of which must call this."""
    size = len(ranks)
    if not has_local_groups():
        return {(a, b): new_group({ranks[a], ranks[b]}) for a in range(size)
                for b in range(size) if a != b}
    # The members' name for a group depends on how many groups each has made
    # before. So all make one at a time: by rounds of a tournament, and a rank
    # that has to sit out makes a group of its own.
    groups = {}
    for up in (True, False):
        for other in _opponents(size, me):
            group = new_group({ranks[me], ranks[other]})
            if other != me:
                groups[(me, other) if (me < other) == up else
                       (other, me)] = group
    return groups


def _opponents(size: int, me: int) -> List[int]:
    """Returns whom a player meets in each round of a tournament in which each
    meets all others once; itself if it sits out."""
    last = size + size % 2 - 1  # Nobody, if the number of players is odd.
    result = []
    for r in range(last):
        other = r if me == last else (2 * r - me) % last
        if other == me:
            other = me if last == size else last
        result.append(other)
    return result


class Transport:
    """Sends and receives the tensors of edges between ranks. They are matched
    by tags (gloo) or by their order on each pair of ranks, which a plan
    guarantees (nccl).

    A tensor's shape is sent before it unless `shape_of` knows it. Without
    `shape_of`, a receive begins only when it is waited for, later than the plan
    says; so a sent tensor stays in memory until the next tensor from its
    receiver says that it has come, or the step ends."""

    def __init__(self, ranks: Sequence[int], me: int, group: Any,
                 device: torch.device, ordered: bool,
                 shape_of: Optional[Callable[[int], Tuple[Sequence[int],
                                                          torch.dtype]]],
                 channels: Mapping[Tuple[int, int], Any]) -> None:
        self._ranks = ranks
        self._me = me
        self._group = group
        self._device = device
        self._ordered = ordered
        self._shape_of = shape_of
        self._channels = channels
        self._sent: Dict[int, Tuple[List[Any], List[torch.Tensor]]] = {}
        self._posted: Dict[int, Tuple[Any, torch.Tensor, bool]] = {}
        self._queue: Dict[int, List[int]] = {}  # Receives not begun, by source.
        # Without shape_of, by the other rank: the edges that it is sent and may
        # not have; and those that it sends, in this order as well, of which so
        # many have come.
        self._to: Dict[int, List[int]] = {}
        self._from: Dict[int, List[int]] = {}
        self._come: Dict[int, int] = {}
        self._known: Dict[int, int] = {}  # To have come to it.
        self._arrived: Set[int] = set()  # Without all before them.
        self._source: Dict[int, int] = {}

    def _kwargs(self, source: int, target: int, tag: int) -> Dict[str, Any]:
        group = self._channels.get((source, target), self._group)
        if self._ordered:
            return {"group": group}
        return {"group": group, "tag": tag}

    def send(self, edge: int, tensor: torch.Tensor, to: int) -> None:
        self._check(edge, tensor)
        data = tensor.detach().contiguous()
        if self._shape_of is None:
            self._send(edge, data, to, [
                data.dim(), *data.shape, *[0] * (_SIZES - data.dim()),
                _DTYPES.index(data.dtype)])
        else:
            self._send(edge, data, to)

    def _check(self, edge: int, data: torch.Tensor) -> None:
        if data.layout != torch.strided:
            raise ValueError(f"edge {edge} carries a tensor of layout "
                             f"{data.layout}; a stage must return a dense one")
        if self._shape_of is not None:
            shape, dtype = self._shape_of(edge)
            if data.numel() > 0 and (tuple(data.shape), data.dtype) != (
                    tuple(shape), dtype):
                raise ValueError(
                    f"shape_of says that edge {edge} carries {tuple(shape)} of "
                    f"{dtype}, but it is {tuple(data.shape)} of {data.dtype}")
        elif data.dim() > _SIZES or data.dtype not in _DTYPES:
            raise ValueError(
                f"edge {edge} carries a tensor of {data.dim()} dimensions and "
                f"{data.dtype}; a stage may return up to {_SIZES} "
                "dimensions of the types "
                f"{', '.join(str(d)[len('torch.'):] for d in _DTYPES)}")

    def send_reason(self, edge: int, reason: str, to: int) -> None:
        """Sends the reason why the tensor of an edge does not come. The
        receiver knows it only where shapes are sent; else it gets zeros."""
        if self._shape_of is None:
            text = list(reason.encode())
            data = torch.tensor(text, dtype=torch.uint8, device=self._device)
            self._send(edge, data, to, [_REASON, len(text), *[0] * _SIZES])
        else:
            shape, dtype = self._shape_of(edge)
            self._send(edge, torch.zeros(tuple(shape), dtype=dtype,
                                         device=self._device), to)

    def _send(self, edge: int, data: torch.Tensor, to: int,
              words: Sequence[int] = ()) -> None:
        works, keep = [], [data]
        peer = self._ranks[to]
        if words:
            header = torch.tensor([*words, self._come.get(to, 0)],
                                  dtype=torch.int64).to(self._device)
            self._to.setdefault(to, []).append(edge)
            keep.append(header)
            with finding_lost():
                works.append(dist.isend(header, peer, **self._kwargs(
                    self._me, to, 2 * edge)))
        if data.numel() > 0:
            with finding_lost():
                works.append(dist.isend(data, peer, **self._kwargs(
                    self._me, to, 2 * edge + 1)))
        self._sent[edge] = (works, keep)

    def wait_send(self, edge: int) -> None:
        if self._shape_of is not None:
            self._await_sent(edge)

    def finish(self) -> None:
        """Waits for all sends that were not waited for."""
        for edge in list(self._sent):
            self._await_sent(edge)

    def _await_sent(self, edge: int) -> None:
        works, _ = self._sent.pop(edge)
        with finding_lost():
            for work in works:
                work.wait()

    def recv(self, edge: int, source: int) -> None:
        self._source[edge] = source
        self._from.setdefault(source, []).append(edge)
        # Matched by order, a shape must be known before any later receive is
        # posted; matched by tag, only the tensor itself waits for its shape.
        if self._ordered and self._shape_of is None:
            self._queue.setdefault(source, []).append(edge)
        else:
            self._post(edge)

    def _post(self, edge: int) -> None:
        source = self._source[edge]
        peer = self._ranks[source]
        if self._shape_of is None:
            header = torch.empty(_HEADER, dtype=torch.int64,
                                 device=self._device)
            with finding_lost():
                work = dist.irecv(header, peer, **self._kwargs(
                    source, self._me, 2 * edge))
            self._posted[edge] = (work, header, True)
            return
        shape, dtype = self._shape_of(edge)
        self._post_data(edge, tuple(shape), dtype)

    def _post_data(self, edge: int, shape: Tuple[int, ...],
                   dtype: torch.dtype) -> None:
        source = self._source[edge]
        data = torch.empty(shape, dtype=dtype, device=self._device)
        work = None
        if data.numel() > 0:
            with finding_lost():
                work = dist.irecv(data, self._ranks[source], **self._kwargs(
                    source, self._me, 2 * edge + 1))
        self._posted[edge] = (work, data, False)

    def _finish(self, edge: int) -> torch.Tensor:
        work, data, is_header = self._posted.pop(edge)
        _wait(work)
        if is_header:
            words = [int(v) for v in data.cpu()]
            self._release(self._source[edge], words[_HEADER - 1])
            told = words[0] == _REASON
            self._post_data(
                edge, tuple(words[1:2] if told else words[1:1 + words[0]]),
                torch.uint8 if told else _DTYPES[words[1 + _SIZES]])
            work, data, _ = self._posted.pop(edge)
            _wait(work)
            self._note(edge)
            if told:
                raise Told(bytes(data.cpu().tolist()).decode())
        return data

    def _note(self, edge: int) -> None:
        """Counts the tensors that have come, with all before them."""
        source = self._source[edge]
        self._arrived.add(edge)
        own, count = self._from[source], self._come.get(source, 0)
        while count < len(own) and own[count] in self._arrived:
            self._arrived.remove(own[count])
            count += 1
        self._come[source] = count

    def _release(self, peer: int, count: int) -> None:
        """Drops the tensors that have come to a rank: the first `count`."""
        for edge in self._to.get(peer, [])[self._known.get(peer, 0):count]:
            if edge in self._sent:
                self._await_sent(edge)
        self._known[peer] = max(count, self._known.get(peer, 0))

    def drop(self, edge: int) -> None:
        """Waits for an edge, and for those before it, to throw them away."""
        try:
            self.wait_recv(edge, {})
        except Told:  # Perhaps of one before it.
            self.drop(edge)

    def wait_recv(self, edge: int, arrived: Dict[int, torch.Tensor]) -> None:
        queue = self._queue.get(self._source[edge], [])
        while edge in queue:  # Begins those before it first.
            first = queue.pop(0)
            self._post(first)
            arrived[first] = self._finish(first)
        if edge in self._posted:
            arrived[edge] = self._finish(edge)
