"""The command `pipeloom-metadata`, also `python -m pipeloom.metadata`."""
import argparse
import dataclasses
import json
import math
import signal
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, TextIO

from pipeloom.metadata import api, text, workers
from pipeloom.metadata.build import Options
from pipeloom.metadata.errors import MetadataError
from pipeloom.metadata.output import Output, Progress, fingerprint
from pipeloom.metadata.reading import Batch, Task
from pipeloom.metadata.sources import find
from pipeloom.metadata.summary import Summary

_SHOWN_BROKEN = 10
_PROGRESS_SECONDS = 0.5  # Between rewritings of the line on a terminal.
_LINE_SECONDS = 5.0  # Between lines elsewhere.

_ABOUT = """\
Reads the sizes of training samples without decoding their media, and writes
them as batch metadata for `pipeloom plan --batch`. Prints a summary."""

_SOURCES = """\
sources (files or folders; braces and wildcards are expanded):
  *.tar                 WebDataset shards; a folder of them
  a folder with .nv-meta   Megatron-Energon: split.yaml, field map
  *.parquet, *.arrow    Hugging Face tables (needs pyarrow); a folder of them
  *.jsonl, *.json       records with images, videos, audios and with
                        conversations, messages, text or captions; the media
                        are looked for in the file's folder or --media-root
  a folder of media     a file a sample, captions in .txt of equal names

JPEG, PNG, WebP, GIF, BMP, MP4, MOV, WAV, FLAC, OGG and MP3 need no packages.
Others: pip install 'pipeloom[metadata]'.

exit codes: 0 done, 1 failed, 2 misused, 130 interrupted (--resume goes on).

example:
  pipeloom-metadata 'shards/{000..127}.tar' -o batch.jsonl --workers 8
  pipeloom plan dip-vlm-s --batch batch.jsonl"""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs the command and returns its exit code."""
    flags = _parser().parse_args(arguments)
    previous = signal.signal(signal.SIGTERM, _stop)
    run = _Run(flags)
    try:
        return run.run()
    except MetadataError as error:
        _note(str(error))
        kept = run.pause()
        if kept:
            _note(f"{kept:,} samples are kept: --resume goes on from there, "
                  "with --skip-broken or without")
        return 1
    except KeyboardInterrupt:
        kept = run.pause()
        _note("interrupted" + (f"; {kept:,} samples are kept: give the same "
                               "command with --resume (and without --force) to "
                               "go on" if kept else ""))
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # Nobody reads the summary.
        return 1
    finally:
        signal.signal(signal.SIGTERM, previous)


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pipeloom-metadata", description=_ABOUT, epilog=_SOURCES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("sources", nargs="+", metavar="SOURCE", help="a data set; see below")
    add("-o", "--out", metavar="FILE",
        help="the JSON Lines file to write; without it only the summary is "
        "printed")
    add("--kind", choices=find.KINDS, default="auto", metavar="KIND",
        help=f"what SOURCE is: {', '.join(find.KINDS)}; default auto: by its "
        "files")
    add("--media-root", default="", metavar="DIR",
        help="the folder of the media that records name")
    add("--split", default="train",
        help="the split of an Energon or Hugging Face folder, or all; default "
        "train")
    add("--text-field", action="append", default=[], metavar="NAME",
        help="a field to count as text, instead of known ones; repeatable")
    add("--tokenizer", metavar="FILE",
        help="counts text by a tokenizer.json of Hugging Face (needs "
        "tokenizers)")
    add("--bytes-per-token", type=_positive_float, default=None, metavar="X",
        help="the estimate without a tokenizer: bytes of UTF-8 a token; "
        f"default {text.BYTES_PER_TOKEN:g}")
    add("--orientation", choices=("apply", "ignore"), default="apply",
        help="apply: width and height as shown, after EXIF orientation and "
        "rotation of videos; ignore: as stored")
    add("--video-sound", action="store_true",
        help="gives the sound of videos as audio, too")
    add("--sample", type=_positive, metavar="N",
        help="only N samples, drawn evenly from all shards")
    add("--seed", type=int, default=1, help="of --sample; default 1")
    add("--workers", type=_positive, default=min(8, workers.available()),
        metavar="N", help="processes; the result is the same for any number; "
        "default %(default)s")
    add("--skip-broken", action="store_true",
        help="leaves samples with broken files out, and counts them")
    add("--resume", action="store_true",
        help="continues a run that was interrupted or failed, with the same "
        "sources and options")
    add("--force", action="store_true",
        help="begins anew over what an interrupted run left")
    add("--format", choices=("text", "json"), default="text",
        help="of the summary")
    add("--progress", action="store_true",
        help="shows progress on stderr even if it is no terminal")
    return parser


def _positive(value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"{value!r} is no number of at least "
                                         "1")
    return int(value)


def _positive_float(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0.01 <= number <= 1000:
        raise argparse.ArgumentTypeError(f"{value!r} is no number from 0.01 to "
                                         "1000")
    return number


class _Run:
    """One run of the command."""

    def __init__(self, flags: argparse.Namespace) -> None:
        if flags.tokenizer and flags.bytes_per_token:
            _parser().error("--bytes-per-token is for estimates, without "
                            "--tokenizer")
        for name in ("resume", "force"):
            if getattr(flags, name) and not flags.out:
                _parser().error(f"--{name} needs -o FILE")
        if flags.resume and flags.force:
            _parser().error("choose one of --resume and --force")
        if flags.out in ("-", ""):
            _parser().error(f"-o {flags.out!r}: give the name of a file")
        self._flags = flags
        self._options = Options(
            flags.media_root, flags.split, tuple(flags.text_field),
            flags.tokenizer, flags.bytes_per_token or text.BYTES_PER_TOKEN,
            flags.orientation == "apply", flags.video_sound)
        self._summary = Summary()
        self._output: Optional[Output] = None
        self._progress = Progress()
        self._total: Optional[int] = None  # Samples that there are.

    def run(self) -> int:
        flags = self._flags
        line = _ProgressLine(flags.progress, sys.stderr)
        line.show("looking for samples")
        units = find.units(flags.sources, flags.kind, flags.split)
        if flags.out:
            self._output = Output(flags.out, self._fingerprint(units),
                                  resume=flags.resume, force=flags.force,
                                  on_sample=self._summary.add)
            self._progress = self._output.progress
            if flags.resume and not self._output.resumed:
                _note("there is no interrupted run to continue; begins anew")
        tasks = [Task(unit) for unit in units]
        if flags.sample:
            line.show("counting samples")
            tasks = self._choose(units)
        begin = self._progress.task
        left = tasks[begin:]
        if left and self._progress.position:
            left[0] = dataclasses.replace(left[0],
                                          first=self._progress.position)
        results = workers.run(left, self._options, flags.skip_broken,
                              flags.workers)
        try:
            for number, batch, is_last in results:
                self._take(batch, begin + number, is_last)
                line.show(f"{self._summary.samples:,} samples, "
                          f"{begin + number + is_last:,} of {len(tasks):,} "
                          "parts")
        finally:
            results.close()  # type: ignore[attr-defined]
        line.clear()
        if not self._summary.samples:
            if self._output is not None:
                self._output.discard()
                self._output = None
            raise MetadataError("there are no samples" + (
                f"; all {self._progress.broken_count} were broken"
                if self._progress.broken_count else ""))
        if self._output is not None:
            self._output.finish()
            self._output = None
        self._print()
        return 0

    def pause(self) -> int:
        """Keeps what was written for --resume; returns the number of samples.
        Nothing is left of a run that has written none."""
        if self._output is None:
            return 0
        if self._summary.samples:
            self._output.pause()
        else:
            self._output.discard()
        return self._summary.samples

    def _fingerprint(self, units: Sequence[Any]) -> str:
        flags = self._flags
        return fingerprint(units, {
            **dataclasses.asdict(self._options), "sample": flags.sample,
            "seed": flags.seed})

    def _choose(self, units: Sequence[Any]) -> List[Task]:
        flags = self._flags
        chosen = api.choose(units, flags.sample, flags.seed, self._options,
                            flags.skip_broken, flags.workers)
        self._total = chosen.total
        if not self._progress.task and not self._progress.position:
            self._progress.add_broken(chosen.broken)
        if chosen.total <= flags.sample:
            _note(f"there are {chosen.total:,} samples; all are taken")
        return chosen.tasks

    def _take(self, batch: Batch, task: int, is_last: bool) -> None:
        for sample in batch.samples:
            self._summary.add(sample)
        progress = self._progress
        progress.add_broken(batch.broken)
        progress.texts += batch.texts
        for name, number in batch.ignored.items():
            progress.ignored[name] = progress.ignored.get(name, 0) + number
        if self._output is not None:
            self._output.add(batch.samples)
            self._output.passed(task + is_last,
                                0 if is_last else batch.position)

    def _print(self) -> None:
        how = text.describe(self._options.tokenizer,
                            self._options.bytes_per_token)
        if not self._progress.texts:  # The source says how many tokens.
            how = {"counting": "none"}
        fields: Dict[str, Any] = {
            "out": self._flags.out, **self._summary.fields(), "text": how,
            "drawn_from": self._total,
            "skipped": {"count": self._progress.broken_count,
                        "files": self._progress.broken},
            "not_read": dict(sorted(self._progress.ignored.items()))}
        if self._flags.format == "json":
            print(json.dumps(fields, indent=1))
            return
        print(self._heading(how))
        print()
        print(self._summary.text())
        for line in self._remarks():
            print(line)

    def _heading(self, how: Dict[str, Any]) -> str:
        found = f"{self._summary.samples:,} samples"
        if self._total is not None:
            found += f" of {self._total:,}, drawn with seed {self._flags.seed}"
        if self._flags.out:
            found += f", written to {self._flags.out}"
        if how["counting"] == "none":
            return f"{found}\nno text was counted"
        if how["counting"] == "estimate":
            return (f"{found}\ntext tokens are an estimate: one for "
                    f"{how['bytes_per_token']:g} bytes; --tokenizer counts "
                    "them")
        return f"{found}\ntext tokens are counted by {how['tokenizer']}"

    def _remarks(self) -> List[str]:
        found = []
        progress = self._progress
        if progress.broken_count:
            found += ["", f"skipped: {progress.broken_count:,} broken"]
            found += [f"  {n}" for n in progress.broken[:_SHOWN_BROKEN]]
            if progress.broken_count > _SHOWN_BROKEN:
                found.append("  ... (--format json names more)")
        if progress.ignored:
            shown = ", ".join(f"{name} ({number:,})" for name, number in
                              sorted(progress.ignored.items()))
            found += ["", f"not read: {shown}"]
        if self._summary.empty:
            found += ["", f"{self._summary.empty:,} samples have neither text "
                      "nor media; --text-field names fields of text"]
        return found


class _ProgressLine:
    """A line on stderr that is rewritten; separate lines if that is no
    terminal."""

    def __init__(self, wanted: bool, stream: TextIO) -> None:
        self._stream, self._terminal = stream, stream.isatty()
        self._on = wanted or self._terminal
        self._shown, self._width = -math.inf, 0

    def show(self, line: str) -> None:
        now = time.monotonic()
        pause = _PROGRESS_SECONDS if self._terminal else _LINE_SECONDS
        if not self._on or now - self._shown < pause:
            return
        self._shown = now
        if self._terminal:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._terminal and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()


def _note(line: str) -> None:
    print(f"pipeloom-metadata: {line}", file=sys.stderr)
