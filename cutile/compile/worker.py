"""A process that builds.

Generated text in, machine code out, until its input ends. Started by `Builders` alone.

Messages are a length of eight bytes and a pickle: `(target, source)` in; `(executable, "")` or `(None, reason)` out.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any, BinaryIO

from cutile.backend.registry import backend


def send(stream: BinaryIO, message: object) -> None:
    """Write a message."""
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message. Raises EOFError where there is none any more."""
    head = stream.read(8)
    data = stream.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
    if not data:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Build until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a toolchain prints is no answer
    while True:
        try:
            target, source = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            send(answers, (backend(target.backend).build(source, target), ""))
        except Exception as error:
            send(answers, (None, str(error) or type(error).__name__))
