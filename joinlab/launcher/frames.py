"""Messages between the processes of a run: pickled objects, each behind its length, on a stream socket.

Both ends belong to the same user and the same run.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("Q")


def frame(message: object) -> bytes:
    """A message as it is sent, for several receivers."""
    data = pickle.dumps(message, 5)
    return _LENGTH.pack(len(data)) + data


def send(link: socket.socket, message: object) -> None:
    """Send a message. OSError if nobody receives it any more."""
    link.sendall(frame(message))


def receive(link: socket.socket) -> Any:
    """The next message, once it is there. EOFError if the other end has closed."""
    (length,) = _LENGTH.unpack(_read(link, _LENGTH.size))
    return pickle.loads(_read(link, length))


def _read(link: socket.socket, length: int) -> bytes:
    try:
        data = link.recv(length)
        if len(data) == length:
            return data
        parts = [data]
        while data and (length := length - len(data)):
            data = link.recv(min(length, 1 << 20))
            parts.append(data)
    except ConnectionResetError:
        raise EOFError from None
    if not data:
        raise EOFError
    return b"".join(parts)
