"""Optional packages, imported when first needed."""
import importlib
import os
from typing import Any, Dict, Optional

from pipeloom.metadata.errors import MetadataError

_found: Dict[str, Any] = {}


def optional(module: str) -> Optional[Any]:
    """Returns a module, or None if it is not installed or named in the
    environment variable PIPELOOM_METADATA_WITHOUT ("PIL,av")."""
    if module not in _found:
        without = os.environ.get("PIPELOOM_METADATA_WITHOUT", "").split(",")
        try:
            if module.split(".")[0] in without:
                raise ImportError(module)
            _found[module] = importlib.import_module(module)
        except ImportError:
            _found[module] = None
    return _found[module]


def required(module: str, package: str, purpose: str) -> Any:
    """Returns a module. MetadataError: it is not installed."""
    found = optional(module)
    if found is None:
        raise MetadataError(f"{purpose} needs the package {package}; "
                            f"install it: pip install {package}")
    return found
