"""Lines through measured values."""
from typing import List, Sequence, Tuple

Line = Tuple[float, float]  # Of tokens and of instances.


def fit(sizes: Sequence[Tuple[int, int]],
        values: Sequence[float]) -> Tuple[Line, float]:
    """Returns a and b, neither negative, of value = a x tokens + b x instances
    with the least sum of squared relative errors, and the largest relative
    error. Where tokens alone explain the values as well, b is 0."""
    best: Tuple[Line, float] = ((0.0, 0.0), 0.0)
    points = [(t / v, n / v) for (t, n), v in zip(sizes, values) if v > 0]
    if not points:
        return best
    # Least squares of a x t + b x n = 1.
    tt = sum(t * t for t, _ in points)
    tn = sum(t * n for t, n in points)
    nn = sum(n * n for _, n in points)
    t1, n1 = sum(t for t, _ in points), sum(n for _, n in points)
    lines: List[Line] = [(t1 / tt, 0.0), (0.0, n1 / nn)]
    determinant = tt * nn - tn * tn
    if determinant > 1e-9 * tt * nn:
        both = ((t1 * nn - n1 * tn) / determinant,
                (n1 * tt - t1 * tn) / determinant)
        if min(both) >= 0:
            lines.append(both)

    def squares(line: Line) -> float:
        return sum((line[0] * t + line[1] * n - 1) ** 2 for t, n in points)

    least = min(squares(line) for line in lines)
    line = next((_rounded(one[0]), _rounded(one[1])) for one in lines
                if squares(one) <= least + 1e-12 * len(points))
    return line, max(abs(line[0] * t + line[1] * n - v) / v if v > 0 else
                     float(line[0] * t + line[1] * n > 0)
                     for (t, n), v in zip(sizes, values))


def _rounded(value: float) -> float:
    """Counts are whole; least squares are not."""
    return float(f"{value:.9g}")
