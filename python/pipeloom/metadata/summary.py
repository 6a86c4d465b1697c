"""The contents of a data set in figures: counts, percentiles and histograms of its sizes.

Values are counted rounded to three digits, so that memory does not grow with
the number of samples; percentiles are exact to 0.5 %.
"""
import collections
import math
from typing import Any, Counter, Dict, List, Tuple

from pipeloom.sample import Sample

PERCENTILES = (1, 10, 25, 50, 75, 90, 99)

# Name, unit and heading of what is counted.
_QUANTITIES = (
    ("text_tokens", "text tokens a sample"),
    ("images_per_sample", "images a sample"),
    ("image_width_px", "image width, px"),
    ("image_height_px", "image height, px"),
    ("image_pixels", "image size, pixels"),
    ("videos_per_sample", "videos a sample"),
    ("video_frames", "video frames"),
    ("video_pixels", "video frame size, pixels"),
    ("video_seconds", "video seconds"),
    ("audio_clips_per_sample", "audio clips a sample"),
    ("audio_seconds", "audio seconds"),
)
_DRAWN = ("text_tokens", "images_per_sample", "image_pixels", "video_seconds",
          "audio_seconds")
_BAR = 40  # Characters of the longest bar.
_MAX_ROWS = 12


class Quantity:
    """The distribution of one number."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self.least, self.most = math.inf, -math.inf
        self._values: Counter[float] = collections.Counter()

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        self._values[float(f"{value:.3g}")] += 1

    def percentiles(self) -> Dict[int, float]:
        """Returns the least values that have so many percent at or below."""
        found, seen = {}, 0
        wanted = [(p, math.ceil(self.count * p / 100)) for p in PERCENTILES]
        for value in sorted(self._values):
            seen += self._values[value]
            while wanted and seen >= wanted[0][1]:
                found[wanted.pop(0)[0]] = min(max(value, self.least), self.most)
        return found

    def histogram(self) -> List[Tuple[float, float, int]]:
        """Returns (first value, end, count): zero, and then powers of two."""
        counts: Counter[int] = collections.Counter()
        for value, number in self._values.items():
            if value > 0:
                counts[math.frexp(value)[1]] += number
        rows = [(0.0, 0.0, self._values[0.0])] if self._values[0.0] else []
        if not counts:
            return rows
        low, high, step = min(counts), max(counts), 1
        while (high - low) // step + 1 > _MAX_ROWS:
            step += 1
        for power in range(low, high + 1, step):
            number = sum(counts[p] for p in range(power, power + step))
            rows.append((math.ldexp(0.5, power), math.ldexp(0.5, power + step),
                         number))
        return rows

    def is_whole(self) -> bool:
        """Returns whether all values are integers."""
        return all(v == int(v) for v in self._values)


class Summary:
    """Sums up samples as they come."""

    def __init__(self) -> None:
        self.samples = 0
        self.empty = 0  # Samples without text, images, videos or sound.
        self.quantities = {name: Quantity() for name, _ in _QUANTITIES}

    def add(self, sample: Sample) -> None:
        self.samples += 1
        q = self.quantities
        q["text_tokens"].add(sample.text_tokens)
        q["images_per_sample"].add(len(sample.images))
        q["videos_per_sample"].add(len(sample.videos))
        q["audio_clips_per_sample"].add(len(sample.audio_seconds))
        for width, height in sample.images:
            q["image_width_px"].add(width)
            q["image_height_px"].add(height)
            q["image_pixels"].add(width * height)
        for clip in sample.videos:
            for name, value in (("video_frames", clip["frames"]),
                                ("video_pixels",
                                 clip["width_px"] * clip["height_px"]),
                                ("video_seconds", clip["seconds"])):
                if value:  # 0 is what is not known.
                    q[name].add(value)
        for seconds in sample.audio_seconds:
            q["audio_seconds"].add(seconds)
        if sample == Sample():
            self.empty += 1

    def fields(self) -> Dict[str, Any]:
        """Returns the summary for JSON; quantities without values are left
        out."""
        found: Dict[str, Any] = {"samples": self.samples,
                                 "empty_samples": self.empty}
        for name, _ in self._shown():
            q = self.quantities[name]
            found[name] = {
                "count": q.count, "total": _number(q.total),
                "mean": float(f"{q.total / q.count:.6g}"),
                "min": _number(q.least), "max": _number(q.most),
                **{f"p{p}": _number(v) for p, v in q.percentiles().items()},
                "histogram": [{"from": _number(a), "to": _number(b), "count": n}
                              for a, b, n in q.histogram()],
            }
        return found

    def text(self) -> str:
        """Returns the summary as tables for people."""
        head = ["", "count", "min", *(f"p{p}" for p in PERCENTILES), "max",
                "mean"]
        rows = [head]
        for name, title in self._shown():
            q = self.quantities[name]
            rows.append([title, f"{q.count:,}",
                         *(_brief(v) for v in (q.least,
                                               *q.percentiles().values(),
                                               q.most, q.total / q.count))])
        widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
        lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in
                           enumerate(zip(r, widths))).rstrip() for r in rows]
        for name, title in self._shown():
            if name in _DRAWN and self.quantities[name].most > 0:
                lines += ["", title, *self._bars(name)]
        return "\n".join(lines)

    def _bars(self, name: str) -> List[str]:
        rows = self.quantities[name].histogram()
        most = max(n for _, _, n in rows)
        whole = self.quantities[name].is_whole()
        labels = [_label(a, b, whole) for a, b, _ in rows]
        width = max(map(len, labels))
        numbers = max(len(f"{n:,}") for _, _, n in rows)
        return [f"  {label.rjust(width)}  {f'{n:,}'.rjust(numbers)}  "
                f"{'#' * math.ceil(_BAR * n / most)}".rstrip()
                for label, (_, _, n) in zip(labels, rows)]

    def _shown(self) -> List[Tuple[str, str]]:
        return [(name, title) for name, title in _QUANTITIES
                if self.quantities[name].count and
                (self.quantities[name].most > 0 or name == "text_tokens")]


def _label(first: float, end: float, whole: bool) -> str:
    if first == end or (whole and end == first + 1):
        return _brief(first)
    last = end - 1 if whole and end < 1e6 else end
    return f"{_brief(first)} to {_brief(last)}"


def _number(value: float) -> float:
    return int(value) if value == int(value) else round(value, 6)


def _brief(value: float) -> str:
    if value >= 1e6:
        for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if value >= size:
                return f"{value / size:.3g}{letter}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
