"""The weight of each sub-microbatch's loss in the loss of the step."""
from __future__ import annotations

import dataclasses
from typing import (TYPE_CHECKING, Dict, Iterable, List, Mapping, NamedTuple,
                    Optional, Sequence, Set, Tuple, Union)

if TYPE_CHECKING:
    from pipeloom.plan import Microbatch, Plan

# Module, microbatch and sub-microbatch.
Place = Tuple[int, int, int]
# The things that a mean loss is over: for all modules, or by module name.
LossOver = Union[str, Mapping[str, str]]
_OVER = ("tokens", "instances", "text")


class LossShare(NamedTuple):
    """The work of a module with a loss: in a sub-microbatch (Plan.loss_shares),
    or in the step (Plan.loss_totals). Counts; of the tokens that the module
    works on, and of the samples, images or clips."""
    tokens: int = 0
    instances: int = 0


def check_over(over: LossOver) -> None:
    """ValueError: `over` is none of "tokens", "instances" and "text"."""
    for value in over.values() if isinstance(over, Mapping) else (over,):
        if value not in _OVER:
            raise ValueError(f"loss_over is {value!r}; it must be one of "
                             f"{', '.join(_OVER)}")


def weigh(plan: Plan, over: LossOver = "tokens") -> Dict[Place, float]:
    """Returns the weight of the mean loss of each sub-microbatch that has one
    by the plan's loss_shares. `over` says what the means are over:

    tokens     all tokens of the sub-microbatch, so that the weight is its share
               of the module's total; instances if the module has no tokens
    instances  likewise, the other way round
    text       the text of the microbatch: the weight is the microbatch's
               loss_weight, divided among the sub-microbatches of the module by
               their tokens

    A plan without loss_totals has the weights of its trainer, in loss_weight:
    all modules are weighed as with "text". ValueError: `over` names a module
    that the plan has not."""
    unknown = (set(over) - set(plan.module_names)
               if isinstance(over, Mapping) else None)
    if unknown:
        raise ValueError(f"loss_over names {', '.join(sorted(unknown))}; the "
                         f"plan has {', '.join(plan.module_names)}")
    in_microbatch: Dict[Tuple[int, int], List[LossShare]] = {}
    for (module, m, _), share in plan.loss_shares.items():
        in_microbatch.setdefault((module, m), []).append(share)
    weights: Dict[Place, float] = {}
    for place, share in plan.loss_shares.items():
        module, m, _ = place
        wanted = (over.get(plan.module_names[module], "tokens")
                  if isinstance(over, Mapping) else over)
        total = plan.loss_totals.get(module)
        if total is None or wanted == "text":
            own = (plan.microbatches[m].loss_weight
                   if m < len(plan.microbatches) else 1.0)
            weight = own * _part(share, in_microbatch[module, m])
            if weight > 0:  # The mean over nothing is no number.
                weights[place] = weight
            continue
        counts = (share.tokens, total.tokens), (share.instances,
                                                total.instances)
        if wanted == "instances":
            counts = counts[1], counts[0]
        mine, all_of_it = counts[0] if counts[0][1] > 0 else counts[1]
        if mine > 0:
            weights[place] = mine / all_of_it
    return weights


def without_weights(plan: Plan, over: LossOver = "tokens") -> Optional[str]:
    """Returns why the losses of a plan cannot be weighed, as it has no
    microbatches, or None."""
    if plan.microbatches or plan.num_microbatches < 2:
        return None
    modules = {place[0] for place in plan.loss_shares}
    for module in sorted(modules) or [-1]:
        name = plan.module_names[module] if modules else ""
        wanted = (over.get(name, "tokens") if isinstance(over, Mapping)
                  else over)
        if module not in plan.loss_totals or wanted == "text":
            return (f"the plan has {plan.num_microbatches} microbatches whose "
                    "loss_weight is not known, as a plan file has no samples: "
                    "give them by plan.with_microbatches(step, microbatches), "
                    "or say loss_over=\"tokens\" if the means of the losses "
                    "are over all tokens and the plan has loss_totals")
    return None


def with_losses(plan: Plan, names: Iterable[str],
                over: LossOver = "tokens") -> Plan:
    """Returns the plan with loss_shares of the named modules and of no others.
    Those that it lacks are made of its microbatches' sizes, and are weighed by
    loss_weight, as with "text". ValueError: a module is not one of the plan's;
    such sizes are needed and unknown; or `over` wants a total that is unknown.
    """
    names = set(names)
    unknown = names - set(plan.module_names)
    if unknown:
        raise ValueError(f"losses names {', '.join(sorted(unknown))}; the plan "
                         f"has {', '.join(plan.module_names)}")
    wanted = {m for m, name in enumerate(plan.module_names) if name in names}
    shares = {place: share for place, share in plan.loss_shares.items()
              if place[0] in wanted}
    lacking = wanted - {place[0] for place in plan.loss_shares}
    added = {(t.module, t.microbatch, t.sub): LossShare()
             for t in plan.tasks.values()
             if t.kind == "F" and t.module in lacking}
    if added:
        added.update({(s.module, m, s.index): LossShare(s.tokens, s.instances)
                      for m, micro in enumerate(plan.microbatches)
                      for s in micro.subs if s.module in lacking})
    for module in {place[0] for place in added} if plan.loss_totals else ():
        name = plan.module_names[module]
        its = over.get(name, "tokens") if isinstance(over, Mapping) else over
        if its != "text":
            raise ValueError(
                f"the loss of {name} is to be a mean over {its}, but the plan "
                f"has no loss_total of {name}, which feeds other modules and "
                "has no loss head in the job's model: say \"text\" in "
                "loss_over, or put loss_shares and a loss_total of "
                f"{name} into the plan")
    why = unknown_sizes(added, plan.microbatches)
    if why is not None:
        raise ValueError(why)
    return dataclasses.replace(
        plan, loss_shares={**shares, **added},
        loss_totals={m: total for m, total in plan.loss_totals.items()
                     if m in wanted})


def part_of_microbatch(plan: Plan, place: Place) -> float:
    """Returns the part that a sub-microbatch has in its module's work in its
    microbatch, by tokens, or instances, or, if neither is known, their number.
    """
    module, m, sub = place
    if m >= len(plan.microbatches):
        return 1.0
    own = {s.index: LossShare(s.tokens, s.instances)
           for s in plan.microbatches[m].subs if s.module == module}
    return _part(own[sub], tuple(own.values())) if sub in own else 1.0


def _part(share: LossShare, of: Sequence[LossShare]) -> float:
    """Returns the part that a sub-microbatch has in a module's work in a
    microbatch."""
    if len(of) == 1:
        return 1.0
    for count in ("tokens", "instances"):
        total = sum(getattr(s, count) for s in of)
        if total > 0:
            return float(getattr(share, count) / total)
    return 1.0 / len(of)


def resized(shares: Mapping[Place, LossShare],
            microbatches: Sequence[Microbatch]) -> Dict[Place, LossShare]:
    """Returns the shares of the same sub-microbatches with the sizes that they
    have in `microbatches`. ValueError: unknown_sizes."""
    unknown = unknown_sizes(shares, microbatches)
    if unknown is not None:
        raise ValueError(unknown)
    known = {(s.module, m, s.index): LossShare(s.tokens, s.instances)
             for m, micro in enumerate(microbatches) for s in micro.subs}
    return {place: known.get(place, LossShare()) for place in shares}


def unknown_sizes(shares: Iterable[Place],
                  microbatches: Sequence[Microbatch]) -> Optional[str]:
    """Returns why the losses of several sub-microbatches cannot be weighed with
    the sizes that they have in `microbatches`, or None."""
    known = {(s.module, m, s.index): s
             for m, micro in enumerate(microbatches) for s in micro.subs}
    subs: Dict[Tuple[int, int], List[int]] = {}
    for module, m, j in shares:
        subs.setdefault((module, m), []).append(j)
    for (module, m), own in subs.items():
        sizes = [known.get((module, m, j)) for j in own]
        if len(own) > 1 and not any(
                all(s is not None and getattr(s, count) > 0 for s in sizes)
                for count in ("tokens", "instances")):
            return (f"microbatch {m} has {len(own)} sub-microbatches of module "
                    f"{module}, which has a loss; their losses are weighed by "
                    "SubMicrobatch.tokens or SubMicrobatch.instances, one of "
                    "which must be > 0 in all of them")
    return None


def final_shares(feeds: Iterable[Tuple[int, int]],
                 microbatches: Sequence[Microbatch]) -> Dict[Place, LossShare]:
    """Returns the shares of modules that feed no other, if one of them has
    several sub-microbatches in a microbatch and their sizes are known; else
    none, as then the microbatches' weights say all that is known."""
    feeding = {source for source, _ in feeds}
    shares = {(s.module, m, s.index): LossShare(s.tokens, s.instances)
              for m, micro in enumerate(microbatches) for s in micro.subs
              if s.module not in feeding}
    several = len(shares) > len({place[:2] for place in shares})
    return (shares if several and unknown_sizes(shares, microbatches) is None
            else {})


def wrong_shares(plan: Plan, ranks: Iterable[int]) -> Optional[str]:
    """Returns which loss share or total is missing or impossible for the
    forwards of `ranks`, or None."""
    sums: Dict[int, List[int]] = {}
    for place, share in plan.loss_shares.items():
        if min(share) < 0:
            return (f"the loss_share of {_named(place)} is {tuple(share)}; "
                    "tokens and instances must be >= 0")
        total = sums.setdefault(place[0], [0, 0])
        total[0] += share.tokens
        total[1] += share.instances
    if plan.loss_totals and sums.keys() - plan.loss_totals.keys():
        return (f"module {min(sums.keys() - plan.loss_totals.keys())} has "
                "loss_shares and no loss_total")
    for module, whole in plan.loss_totals.items():
        own = sums.get(module, [0, 0])
        if max(whole) <= 0 or own[0] > whole.tokens or own[1] > whole.instances:
            return (f"the loss_total of module {module} is {tuple(whole)} "
                    f"tokens and instances; one must be > 0, and its "
                    f"loss_shares are {tuple(own)}")
    modules = plan.loss_totals.keys() | sums.keys()
    mine: Set[int] = set(ranks)
    for t in plan.tasks.values():
        place = (t.module, t.microbatch, t.sub)
        if (t.kind == "F" and t.rank in mine and t.module in modules and
                place not in plan.loss_shares):
            return f"{_named(place)} has no loss_share, but its module has"
    return None


def _named(place: Place) -> str:
    return (f"module {place[0]}, microbatch {place[1]}, sub-microbatch "
            f"{place[2]}")
