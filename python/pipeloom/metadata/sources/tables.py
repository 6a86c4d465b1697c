"""Tables of Hugging Face datasets: Parquet files, and Arrow files as
`save_to_disk` writes them. Needs pyarrow.

A column of structures with `bytes` and `path`, or of bytes, is media, whatever
its name; columns of text are known by their names (records.py).
"""
import os
from typing import Any, Iterator, List

from pipeloom.metadata import packages
from pipeloom.metadata.build import Builder
from pipeloom.metadata.errors import BrokenFileError, MetadataError
from pipeloom.metadata.records import (MEDIA_FIELDS, TURN_FIELDS, TEXT_FIELDS,
                                       parts_of)
from pipeloom.metadata.sources.units import Entry, Unit
from pipeloom.sample import Sample

_ROWS = 16  # Rows that are held at a time.


def units(path: str, root: str) -> List[Unit]:
    """Returns a unit a row group of a Parquet file, or one for an Arrow file.
    BrokenFileError: it is damaged. MetadataError: pyarrow is missing."""
    if path.endswith(".arrow"):
        packages.required("pyarrow", "pyarrow", f"reading {path}")
        return [Unit("arrow", path, root=root)]
    file = _parquet(path)
    return [Unit("parquet", path, g, g + 1, root)
            for g in range(file.metadata.num_row_groups)]


def count(unit: Unit) -> int:
    """Returns the number of rows, from the file's description."""
    if unit.kind == "parquet":
        return int(_parquet(unit.path).metadata.row_group(unit.first).num_rows)
    return sum(int(batch.num_rows) for batch in _arrow_batches(unit.path))


def entries(unit: Unit, builder: Builder) -> Iterator[Entry]:
    """Yields the rows. BrokenFileError: the file is cut off or damaged."""
    row = 0
    batches = (_parquet_batches(unit, builder) if unit.kind == "parquet" else
               _sliced(unit, builder))
    while True:
        try:
            rows = next(batches, None)
        except (MetadataError, StopIteration):
            raise
        except Exception as error:  # pylint: disable=broad-except
            raise BrokenFileError(unit.path, f"row {row}", "pyarrow cannot "
                                  f"read it: {_short(error)}") from None
        if rows is None:
            return
        for record in rows:
            name = f"row {row}"
            if unit.kind == "parquet":
                name = f"row group {unit.first}, row {row}"
            yield Entry(name, _build(unit, name, record, builder))
            row += 1


def _build(unit: Unit, name: str, record: Any, builder: Builder) -> Any:
    def build() -> Sample:
        parts = parts_of(record, builder.options.text_fields)
        roots = ([builder.options.media_root] if builder.options.media_root
                 else [unit.root, os.path.dirname(unit.path)])
        return builder.record(parts, roots, unit.path, name)

    return build


def _parquet(path: str) -> Any:
    parquet = packages.required("pyarrow.parquet", "pyarrow",
                                f"reading {path}")
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pylint: disable=broad-except
        raise BrokenFileError(path, "", f"is no whole Parquet file: "
                              f"{_short(error)}") from None


def _parquet_batches(unit: Unit, builder: Builder) -> Iterator[List[Any]]:
    file = _parquet(unit.path)
    columns = _columns(file.schema_arrow, unit.path, builder)
    for batch in file.iter_batches(batch_size=_ROWS, row_groups=[unit.first],
                                   columns=columns, use_threads=False):
        yield batch.to_pylist()


def _sliced(unit: Unit, builder: Builder) -> Iterator[List[Any]]:
    for batch in _arrow_batches(unit.path):
        columns = _columns(batch.schema, unit.path, builder)
        keep = [batch.schema.get_field_index(c) for c in columns]
        for at in range(0, batch.num_rows, _ROWS):
            part = batch.slice(at, _ROWS)
            values = [part.column(i).to_pylist() for i in keep]
            yield [dict(zip(columns, row)) for row in zip(*values)]


def _arrow_batches(path: str) -> Iterator[Any]:
    pyarrow = packages.required("pyarrow", "pyarrow", f"reading {path}")
    packages.required("pyarrow.ipc", "pyarrow", f"reading {path}")
    with pyarrow.memory_map(path) as source:
        try:
            reader = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            source.seek(0)
            reader = pyarrow.ipc.open_file(source)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
            return
        yield from reader


def _columns(schema: Any, path: str, builder: Builder) -> List[str]:
    """Returns the columns that hold text or media. MetadataError: none."""
    wanted = {name.split(".")[0] for name in builder.options.text_fields}
    for name in wanted:
        if schema.get_field_index(name) < 0:
            raise MetadataError(f"{path}: there is no column {name!r}; "
                                f"--text-field takes {', '.join(schema.names)}")
    known = (wanted or set(TEXT_FIELDS)) | set(TURN_FIELDS) | set(MEDIA_FIELDS)
    found = [field.name for field in schema
             if field.name in known or _holds_bytes(field.type)]
    if not found:
        raise MetadataError(f"{path}: no column is known to hold text or "
                            f"media; name those of text with --text-field: "
                            f"{', '.join(schema.names)}")
    for name in schema.names:
        if name not in found:
            builder.ignored[f"column {name}"] = 1
    return found


def _holds_bytes(kind: Any) -> bool:
    types = packages.required("pyarrow.types", "pyarrow", "reading tables")
    if types.is_list(kind) or types.is_large_list(kind):
        return _holds_bytes(kind.value_type)
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes"
                   for i in range(kind.num_fields))
    return types.is_binary(kind) or types.is_large_binary(kind)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
