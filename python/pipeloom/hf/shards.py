"""Files of tensors in the safetensors format, read and written tensor by tensor
without the safetensors package: an 8-byte length, a JSON header with the type,
shape and place of each tensor, and the bytes of all tensors."""
import json
import os
import struct
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import torch

_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16",
          "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
          "I8": "int8", "U8": "uint8", "BOOL": "bool",
          "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_MAX_HEADER = 100_000_000
INDEX = ".safetensors.index.json"


class WeightsError(ValueError):
    """A checkpoint cannot be read, or is not one of the model."""


class Entry(NamedTuple):
    """The place of a tensor; begin and end are bytes of the file."""
    file: str
    type: str
    shape: Tuple[int, ...]
    begin: int
    end: int


def read_header(path: str) -> Dict[str, Entry]:
    """Returns the tensors of a file. WeightsError: it is no such file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= min(_MAX_HEADER, size - 8):
            raise WeightsError(f"{path}: no file of the safetensors format, or "
                               "a part of one: copy it again")
        try:
            header = json.loads(file.read(length))
            result = {
                name: Entry(path, value["dtype"], tuple(value["shape"]),
                            *(8 + length + int(n)
                              for n in value["data_offsets"]))
                for name, value in header.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WeightsError(f"{path}: its header cannot be read "
                               f"({error}): copy it again") from None
    last = max((e.end for e in result.values()), default=0)
    if last > size:
        raise WeightsError(f"{path}: it has {size} bytes of {last}: copy it "
                           "again")
    return result


def read_tensor(name: str, entry: Entry) -> torch.Tensor:
    """Reads one tensor. WeightsError: its type is unknown, or its bytes do not
    fit its shape."""
    dtype = getattr(torch, _TYPES.get(entry.type, ""), None)
    if dtype is None:
        raise WeightsError(f"{entry.file}: {name} has type {entry.type}, which "
                           f"torch {torch.__version__} has not")
    result = torch.empty(entry.shape, dtype=dtype, device="cpu")
    size = result.numel() * result.element_size()
    if entry.begin < 0 or entry.end - entry.begin != size:
        raise WeightsError(f"{entry.file}: {name} has "
                           f"{entry.end - entry.begin} bytes; its shape "
                           f"{list(entry.shape)} needs {size}")
    if size == 0:
        return result
    with open(entry.file, "rb") as file:
        file.seek(entry.begin)
        data = bytearray(size)
        if file.readinto(data) != size:
            raise WeightsError(f"{entry.file}: it ends within {name}: copy it "
                               "again")
    return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)


def write_tensors(path: str, tensors: Mapping[str, torch.Tensor]) -> int:
    """Writes a file, which appears when it is whole. Returns the bytes of the
    tensors."""
    names = {getattr(torch, name): key for key, name in _TYPES.items()
             if hasattr(torch, name)}
    header: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype],
                        "shape": list(tensor.shape),
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = f"{path}.part"
    with open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            flat = tensor.detach().to("cpu").contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().tobytes()
                       if flat.numel() else b"")
    os.replace(part, path)
    return at


def write_index(path: str, files: Mapping[str, str], size: int) -> None:
    """Writes an index; `files` has the file of each tensor."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": size},
                   "weight_map": dict(sorted(files.items()))}, file, indent=2)


def find_tensors(path: str) -> Dict[str, Entry]:
    """Returns the tensors of a file or of a folder: those that its index names,
    or of its files. WeightsError: there are none, or the index is wrong."""
    if os.path.isfile(path):
        return read_header(path)
    if not os.path.isdir(path):
        raise WeightsError(f"{path}: no such folder; for the name of a model "
                           "in a hub, give huggingface_hub.snapshot_download("
                           "name)")
    names = sorted(os.listdir(path))
    index = [n for n in names if n.endswith(INDEX)]
    if len(index) > 1:
        raise WeightsError(f"{path}: there are several indices, "
                           f"{', '.join(index)}: leave one")
    if index:
        return _by_index(path, index[0])
    single = [n for n in ("model.safetensors",
                          "diffusion_pytorch_model.safetensors") if n in names]
    files = single or [n for n in names if n.endswith(".safetensors")]
    if not files:
        raise WeightsError(
            f"{path}: no .safetensors file is there; of weights in another "
            "format, from_pretrained(...).save_pretrained(FOLDER) makes some")
    result: Dict[str, Entry] = {}
    for file in files:
        for name, entry in read_header(os.path.join(path, file)).items():
            if name in result:
                raise WeightsError(
                    f"{path}: {name} is in {result[name].file} and in "
                    f"{entry.file}, and there is no *{INDEX}: leave the "
                    "files of one checkpoint")
            result[name] = entry
    return result


def _by_index(path: str, index: str) -> Dict[str, Entry]:
    where = os.path.join(path, index)
    try:
        with open(where, encoding="utf-8") as file:
            files: Dict[str, str] = json.load(file)["weight_map"]
        wanted: Sequence[str] = sorted(set(files.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{where}: no `weight_map` can be read ({error})"
                           ) from None
    headers = {}
    for file_name in wanted:
        shard = os.path.join(path, file_name)
        if not os.path.isfile(shard):
            raise WeightsError(f"{shard} is missing, which {index} names: copy "
                               "all files of the checkpoint")
        headers[file_name] = read_header(shard)
    lost: List[str] = [name for name, file_name in files.items()
                       if name not in headers[file_name]]
    if lost:
        raise WeightsError(
            f"{os.path.join(path, files[lost[0]])} has no tensor {lost[0]!r}, "
            f"which {index} says it has")
    return {name: headers[file_name][name]
            for name, file_name in files.items()}
