"""Samples of train_hf.py: records of a dataset, through the model's own
processor, with labels on the answers only.

A dataset is a file or a folder of files:

  *.jsonl, *.json  records of LLaVA kind: `image` or `images` (paths, relative
                   to the file or to --media-root) and `conversations` (`from`,
                   `value`) or `messages` (`role`, `content`)
  *.tar            webdataset shards: files of one key are a record; images, and
                   a .json as above or a .txt, the answer
  *.pt             the dict of one sample, as a processor returns it, with labels
"""
import dataclasses
import io
import json
import pathlib
import tarfile

import torch

OTHERS = (".mp4", ".webm", ".mkv", ".avi", ".mov", ".wav", ".mp3", ".flac")
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
ROLES = {"human": "user", "user": "user", "gpt": "assistant",
         "assistant": "assistant", "system": "system"}
PLACE = "<image>"  # Where an image is in a text; else images come first.
IGNORED = -100


class DataError(ValueError):
    """A record cannot be read, or has no answer."""


@dataclasses.dataclass
class Record:
    """`turns` are (role, text); `images` are (file, first byte, bytes), with 0
    bytes for all of a file. `sample` is set where no processor is needed."""
    where: str
    turns: list = dataclasses.field(default_factory=list)
    images: list = dataclasses.field(default_factory=list)
    sample: str = ""


def read_records(path, media_root=""):
    """Returns the records of a dataset, without their images."""
    path = pathlib.Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    result = []
    for file in files:
        root = pathlib.Path(media_root) if media_root else file.parent
        if file.suffix == ".jsonl":
            with open(file, encoding="utf-8") as text:
                result += [record_of(parsed(line, f"{file}:{i + 1}"),
                                     f"{file}:{i + 1}", root)
                           for i, line in enumerate(text) if line.strip()]
        elif file.suffix == ".json" and not path.is_dir():
            every = parsed(file.read_text(encoding="utf-8"), str(file))
            result += [record_of(r, f"{file}[{i}]", root)
                       for i, r in enumerate(every)]
        elif file.suffix == ".tar":
            result += records_of_shard(file)
        elif file.suffix == ".pt":
            result.append(Record(str(file), sample=str(file)))
    if not result:
        raise DataError(f"{path}: no .jsonl, .json, .tar or .pt file with a "
                        "record is there")
    return result


def parsed(text, where):
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def record_of(value, where, root):
    """Returns the record of a JSON object."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: a record must be an object")
    turns = []
    for turn in value.get("conversations") or value.get("messages") or []:
        role = turn.get("from", turn.get("role"))
        text = turn.get("value", turn.get("content"))
        if role not in ROLES or not isinstance(text, str):
            raise DataError(f"{where}: a turn needs `from` (human, gpt) and "
                            "`value`, or `role` and `content`, both texts; "
                            f"this has {sorted(turn)} and {role!r}")
        turns.append((ROLES[role], text))
    for name in ("video", "videos", "audio", "audios"):
        if value.get(name):
            raise DataError(f"{where}: it has {name!r}, which this example "
                            "does not read: write samples to .pt files")
    images = value.get("image") or value.get("images") or []
    images = [images] if isinstance(images, str) else images
    return Record(where, turns, [(root / name, 0, 0) for name in images])


def records_of_shard(file):
    """Returns the records of a webdataset shard, in its order."""
    records = {}
    with tarfile.open(file) as shard:
        for member in shard:
            if not member.isfile():
                continue
            folder, _, name = member.name.rpartition("/")
            key, _, kind = name.partition(".")
            key = f"{folder}/{key}"
            record = records.setdefault(key, Record(f"{file}: {key[1:]}"))
            kind = "." + kind.lower()
            if kind.endswith(IMAGES):
                record.images.append((file, member.offset_data, member.size))
            elif kind.endswith(OTHERS):
                raise DataError(f"{record.where}: it has a {kind}, which this "
                                "example does not read: write samples to .pt "
                                "files")
            elif kind in (".txt", ".caption"):
                record.turns = [("user", ""), ("assistant", shard.extractfile(
                    member).read().decode().strip())]
            elif kind == ".json":
                value = parsed(shard.extractfile(member).read(), record.where)
                record.turns = record_of(value, record.where,
                                         file.parent).turns or record.turns
    return list(records.values())


def open_image(place):
    from PIL import Image
    file, first, size = place
    try:
        if not size:
            return Image.open(file).convert("RGB")
        with open(file, "rb") as data:
            data.seek(first)
            return Image.open(io.BytesIO(data.read(size))).convert("RGB")
    except OSError as error:
        raise DataError(f"{file}: {error}; paths are relative to the file of "
                        "the records, or to --media-root") from None


class Samples:
    """Makes samples of records, with the processor of a model's folder or, for
    a model of text, its tokenizer."""

    def __init__(self, folder, placeholders):
        import transformers
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        self.tokenizer = getattr(self.processor, "tokenizer", self.processor)
        self.takes_images = self.tokenizer is not self.processor
        # Ids that stand for images: no loss is taken there.
        self.placeholders = torch.tensor(sorted(placeholders),
                                         dtype=torch.long)

    def messages(self, record):
        """Returns the turns as chat messages, each image at its place."""
        left = len(record.images)
        if left and not self.takes_images:
            raise DataError(f"{record.where}: it has images, but the model's "
                            "folder has no processor for them")
        marked = sum(t.count(PLACE) for _, t in record.turns)
        if marked and marked != left:
            raise DataError(f"{record.where}: its texts have {marked} times "
                            f"{PLACE}, but there are {left} images")
        result = []
        for role, text in record.turns:
            pieces = text.split(PLACE) if left else [text]
            content = []
            if left and not marked and role == "user":
                content, left = [{"type": "image"}] * left, 0
            for i, piece in enumerate(pieces):
                if i:
                    content.append({"type": "image"})
                if piece.strip() or len(pieces) == 1:
                    content.append({"type": "text", "text": piece.strip()})
            result.append({"role": role, "content": content
                           if self.takes_images else text})
        if left and not marked:
            raise DataError(f"{record.where}: no turn of a user can take its "
                            f"image: add a turn, or {PLACE} to a text")
        return result

    def text(self, messages, ask=False):
        """Returns the messages as one text. `ask`: up to where the answer
        begins."""
        owner = self.processor
        if not getattr(owner, "chat_template", None):
            raise DataError(
                "the model's folder has no chat template: add "
                "chat_template.jinja there, as that of an instruction-tuned "
                "model of the family")
        return owner.apply_chat_template(messages, tokenize=False,
                                         add_generation_prompt=ask)

    def encode(self, text, images):
        if not self.takes_images:
            return self.tokenizer(text, return_tensors="pt",
                                  add_special_tokens=False)
        return self.processor(text=[text], images=images or None,
                              return_tensors="pt")

    def length(self, text):
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def sample(self, record):
        """Returns the tensors of a record. DataError: it has no answer, or an
        image cannot be read."""
        if record.sample:
            return torch.load(record.sample)
        messages = self.messages(record)
        images = [open_image(place) for place in record.images]
        whole = self.text(messages)
        sample = dict(self.encode(whole, images))
        ids = sample["input_ids"]
        labels = torch.full_like(ids, IGNORED)
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin, end = (
                self.place(messages[:n], n == i, whole, images, ids.shape[1])
                for n in (i, i + 1))
            labels[:, begin:end] = ids[:, begin:end]
        labels[torch.isin(ids, self.placeholders)] = IGNORED
        if not bool((labels[:, 1:] != IGNORED).any()):
            raise DataError(f"{record.where}: it has no answer (a turn of gpt "
                            "or assistant, or a .txt)")
        sample["labels"] = labels
        return sample

    def place(self, before, ask, whole, images, count):
        """Returns at which of the `count` tokens of the whole the first
        messages end. Behind the last image, tokens are counted from the end."""
        text = self.text(before, ask)
        if not whole.startswith(text):
            raise DataError("the chat template renders the first messages "
                            "otherwise when others follow: answers cannot be "
                            "found")
        seen = sum(part["type"] == "image" for m in before
                   for part in m["content"]) if self.takes_images else 0
        if seen == len(images):
            return count - (self.length(whole) - self.length(text))
        return self.encode(text, images[:seen])["input_ids"].shape[1]
