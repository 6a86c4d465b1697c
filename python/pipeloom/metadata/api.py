"""`read` and the choice of samples."""
import random
from typing import Iterator, List, NamedTuple, Optional, Sequence, Union

from pipeloom.metadata import workers as processes
from pipeloom.metadata.sources import find
from pipeloom.metadata.build import Options
from pipeloom.metadata.errors import MetadataError
from pipeloom.metadata.reading import Task
from pipeloom.metadata.text import BYTES_PER_TOKEN, Tokenizer
from pipeloom.metadata.sources.units import Unit
from pipeloom.sample import Sample


def read(path: Union[str, Sequence[str]], *, kind: str = "auto",
         media_root: str = "", split: str = "train",
         text_fields: Sequence[str] = (), tokenizer: Tokenizer = None,
         bytes_per_token: float = BYTES_PER_TOKEN, oriented: bool = True,
         video_sound: bool = False, sample: Optional[int] = None, seed: int = 1,
         workers: int = 1, skip_broken: bool = False) -> Iterator[Sample]:
    """Yields the samples of one or several data sets, in their order.

    path: files or folders; braces and wildcards are expanded.
    kind: one of find.KINDS; "auto" looks at the files.
    media_root: the folder of the media that records name.
    split: the split of an Energon or Hugging Face folder, or "all".
    text_fields: fields or columns to count as text, instead of known ones.
    tokenizer: a function from text to its number of tokens, the path of a
        tokenizer.json, or None: one token for `bytes_per_token` of UTF-8.
    oriented: width and height as shown (EXIF, rotation of videos) instead of
        as stored.
    video_sound: gives the sound of videos as audio, too.
    sample, seed: only this many samples, drawn evenly from all.
    workers: processes; the result is the same for any number. With several,
        `tokenizer` must be a path or a function of a module.
    skip_broken: leaves samples out whose files are broken.

    BrokenFileError: a file is broken. MetadataError: a path does not exist, or
    a format needs a package that is not installed."""
    options = Options(media_root, split, tuple(text_fields), tokenizer,
                      bytes_per_token, oriented, video_sound)
    paths = [path] if isinstance(path, str) else list(path)
    units = find.units(paths, kind, split)
    tasks = [Task(unit) for unit in units]
    if sample is not None:
        tasks = choose(units, sample, seed, options, skip_broken,
                       workers).tasks
    for _, batch, _ in processes.run(tasks, options, skip_broken, workers):
        yield from batch.samples


class Choice(NamedTuple):
    """Tasks that read drawn samples."""
    tasks: List[Task]
    total: int  # Samples that there are.
    broken: List[str]  # Names of files that end in damage.


def choose(units: Sequence[Unit], number: int, seed: int, options: Options,
           skip_broken: bool, workers: int) -> Choice:
    """Draws `number` samples evenly from all samples, without replacement.
    Cost: headers of tar members, lines of JSON; no sizes.

    BrokenFileError: a shard is broken and not to be skipped."""
    if number < 1:
        raise MetadataError(f"a sample of {number}: at least 1 is needed")
    counts = [0] * len(units)
    broken: List[str] = []
    tasks = [Task(unit, counting=True) for unit in units]
    for i, batch, _ in processes.run(tasks, options, skip_broken, workers):
        counts[i] = batch.position
        broken += batch.broken
    total = sum(counts)
    if number >= total:
        return Choice([Task(unit) for unit in units], total, broken)
    drawn = sorted(random.Random(seed).sample(range(total), number))
    found, begin, at = [], 0, 0
    for unit, count in zip(units, counts):
        chosen = []
        while at < len(drawn) and drawn[at] < begin + count:
            chosen.append(drawn[at] - begin)
            at += 1
        begin += count
        if chosen:
            found.append(Task(unit, chosen=tuple(chosen)))
    return Choice(found, total, broken)
