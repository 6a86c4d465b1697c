"""A client of the planner that a job script names in its environment."""
import os
from typing import Any, Optional

from pipeloom.client import Client, Target, address_file

_ADDRESS = "PIPELOOM_ADDRESS_FILE"
_TOKEN = "PIPELOOM_TOKEN_FILE"
_ROOT = "PIPELOOM_TLS_ROOT"


def _content(variable: str) -> Optional[bytes]:
    """Returns the content of the file that the variable names, or None if it is
    not set or empty. ValueError: there is no such file, or it is empty."""
    path = os.environ.get(variable, "")
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ValueError(f"{variable}: {path} cannot be read: "
                         f"{error.strerror}; give a file, or unset it") from None
    if not content.strip():
        raise ValueError(f"{variable}: {path} is empty; give a file with text, "
                         "or unset it")
    return content


def connect(address: str = "", **options: Any) -> Client:
    """Returns a client (with Client's `options`) of the planner at `address`:
    HOST:PORT, or @FILE, whose first line has it and may change. Without an
    address the environment's PIPELOOM_ADDRESS_FILE names that file. Its
    PIPELOOM_TOKEN_FILE and PIPELOOM_TLS_ROOT are files with the planner's token
    and with the certificate that signed the planner's; without them there is
    no token, and no TLS. An option goes before its variable.
    ValueError: there is no address, or a file cannot be read; the message names
    the variable."""
    target: Target = address
    if address.startswith("@"):
        target = address_file(address[1:])
    elif not address:
        if not os.environ.get(_ADDRESS):
            raise ValueError("there is no address of the planner; give one, "
                             f"such as 127.0.0.1:50551, or set {_ADDRESS}")
        target = address_file(os.environ[_ADDRESS])
    if "token" not in options:
        token = _content(_TOKEN)
        if token is not None:
            # Client says which character cannot be sent.
            options["token"] = token.decode("utf-8", "replace")
    if "tls_root_certificate" not in options:
        options["tls_root_certificate"] = _content(_ROOT)
    return Client(target, **options)
