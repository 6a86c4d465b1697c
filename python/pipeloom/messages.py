"""The messages of pipeloom.v1 as protobuf classes: `messages.Job()`.

They are made at import from the schema that ships with the package, by the
installed protobuf runtime (3.20 to the newest), so that there is no generated
code whose version has to match.
"""
import base64
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pipeloom import _schema

PACKAGE = "pipeloom.v1"
_pool = descriptor_pool.DescriptorPool()


def _load() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        base64.b64decode(_schema.FILE_DESCRIPTOR_SET))
    for file in files.file:
        _pool.AddSerializedFile(file.SerializeToString())


_load()


def _message_class(descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):  # protobuf >= 4.22.
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_pool).GetPrototype(descriptor)


_classes: dict = {}


def __getattr__(name: str) -> Any:
    """Returns a message class by its name."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _classes:
        return _classes[name]
    try:
        found = _message_class(
            _pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    except KeyError:
        raise AttributeError(f"pipeloom.v1 has no message {name}") from None
    _classes[name] = found
    return found


def enum_value(enum: str, value: str) -> int:
    """Returns the number of an enum's value: enum_value("TaskKind",
    "FORWARD")."""
    descriptor = _pool.FindEnumTypeByName(f"{PACKAGE}.{enum}")
    return int(descriptor.values_by_name[value].number)


def enum_name(enum: str, number: int) -> str:
    """Returns the name of an enum's value: "PLAN_QUALITY_FULL" for
    enum_name("PlanQuality", 1)."""
    descriptor = _pool.FindEnumTypeByName(f"{PACKAGE}.{enum}")
    return str(descriptor.values_by_number[number].name)
