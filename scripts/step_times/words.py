"""Parts of rows that several sources make."""

import hashlib


def shape(**values):
    return " ".join(f"{k}={v}" for k, v in values.items() if v)


def number(text):
    """The leading number of a published cell, 1 if there is none. "64 (0)" has
    what the second precision of its row takes in brackets."""
    return int(text.split()[0]) if text[:1].isdigit() else 1


def half_of(key):
    """The half of the configurations that the one with this key is in."""
    odd = int(hashlib.md5(key.encode()).hexdigest(), 16) % 2
    return "fit" if odd else "held-out"


def halved(row):
    """Marks the half of the configurations that constants were chosen on.

    Words that were added later and say more of a model do not count."""
    setup = " ".join(word for word in row["setup"].split()
                     if "dispatch=" not in word)
    known = " ".join(word for word in row["shape"].split()
                     if not word.startswith(
                         ("expert_biases=", "clamped=", "query_key_norms=",
                          "scaled_rotary=")))
    key = "|".join([row["cluster"], known, row["layout"], setup,
                    str(row["microbatch"]), str(row["sequence"])])
    return {**row, "split": half_of(key)}
