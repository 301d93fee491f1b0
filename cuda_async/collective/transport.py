"""Addresses, links and files by which ranks in processes reach one another.

An address is a folder of one machine, with a Unix socket, or a host and a port. If all ranks can write one folder, data
pass through files there, which the ranks map into memory. If not, data pass through the links.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import secrets
import shutil
import socket
import tempfile
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from cuda_async.collective.board import Call
from cuda_async.collective.engine import Seat
from cuda_async.errors import ArgumentError, CollectiveError, LaunchError

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None

__all__ = (
    "Address", "Inline", "Link", "MalformedError", "Pages", "Way", "claim_folder", "connect", "listen", "new_folder",
)  # fmt: skip

_SOCKET = "hub"
"""The socket's name in the folder of the ranks."""

_LOCK = "lock"
"""The name of the locked file in that folder."""

_PREFIX = "cuda-async-"
"""The beginning of the name of each such folder."""

_SCHEME = "tcp://"

_MIN_FILE_BYTES = 1 << 16
"""The smallest file, in bytes; larger ones are powers of two."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Address:
    """The address of rank 0, and the key of the handshake.

    Attributes:
        folder: the folder with rank 0's Unix socket; None where there is a host.
        host: the host of rank 0; empty where there is a folder.
        port: the port on which rank 0 listens; 0 where there is a folder.
        key: 16 bytes; a process that knows them may join.
    """

    folder: Path | None
    host: str
    port: int
    key: bytes

    @classmethod
    def parse(cls, unique_id: str) -> Address:
        """The address in a unique id.

        Raises:
            ValueError: the text is no unique id.
        """
        if unique_id.startswith(_SCHEME):
            place, _, key = unique_id.removeprefix(_SCHEME).partition("#")
            host, _, port = place.rpartition(":")
            if host and port.isdecimal() and 0 < int(port) < 1 << 16 and _is_key(key):
                return cls(None, host.strip("[]"), int(port), bytes.fromhex(key))
        else:
            folder, _, key = unique_id.rpartition(":")
            if folder and _is_key(key):
                return cls(Path(folder), "", 0, bytes.fromhex(key))
        raise ArgumentError(
            f"unique_id: expected what Communicator.unique_id() returned, or tcp://HOST:PORT#KEY with a key of 32 "
            f"hexadecimal digits, got {unique_id!r}"
        )

    @staticmethod
    def fresh(host: str | None) -> str:
        """A new unique id: a folder of this machine, or a free port of this host.

        Raises:
            ValueError: nothing can listen at the host.
        """
        key = secrets.token_hex(16)
        if host is None:
            return f"{new_folder()}:{key}"
        try:
            with socket.create_server((host, 0), family=_family(host)) as listener:
                return f"{_SCHEME}{host}:{listener.getsockname()[1]}#{key}"
        except OSError as error:
            raise ArgumentError(
                f"unique_id: nothing can listen at {host!r} ({error}); pass a name or an address of this machine"
            ) from error

    @staticmethod
    def of_launcher(host: str, port: int, *words: str) -> str:
        """The unique id of processes that have a launcher's host and port, and no secret.

        Its key keeps the jobs of a machine apart. It keeps out nobody who knows the host, the port and the words.

        Args:
            host: the host of rank 0.
            port: the port on which rank 0 listens.
            words: other texts that the launcher gave all of them.
        """
        key = hashlib.sha256("\n".join((host, str(port), *words)).encode()).hexdigest()[:32]
        return f"{_SCHEME}{host}:{port}#{key}"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.folder is None else str(self.folder)


def _is_key(text: str) -> bool:
    return len(text) == 32 and all(digit in "0123456789abcdef" for digit in text)


def new_folder() -> str:
    """Make a folder for files that ranks map, for this user alone.

    Folders that killed processes left behind are removed first: their files take memory.
    """
    # A file system in memory where there is one: files elsewhere are written to a disk sooner or later.
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    _remove_abandoned_folders(Path(parent))
    return tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent)


def claim_folder(folder: Path) -> BinaryIO | None:
    """A locked file, whose lock says that the folder's hub lives.

    The system drops the lock with the process. None if there is no folder, or the system has no such locks.
    """
    if fcntl is None:
        return None
    path = folder / f"{_LOCK}-{os.getpid()}"
    try:
        file = open(path, "xb")  # noqa: SIM115 - the hub closes it
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Renamed when it is locked: other processes never see it unlocked while the hub lives.
        path.rename(folder / _LOCK)
    except OSError:
        return None
    return file


def _remove_abandoned_folders(parent: Path) -> None:
    """Remove this user's folders whose hubs were killed.

    A folder without a lock file stays: its hub has not begun yet.
    """
    if fcntl is None:
        return
    for folder in parent.glob(f"{_PREFIX}*"):
        # OSError: the folder has no lock file, its hub lives, it is another user's, or another process removes it.
        with contextlib.suppress(OSError), open(folder / _LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def listen(address: Address) -> socket.socket:
    """A socket on which rank 0 waits for the other ranks.

    Raises:
        CollectiveError: the address is taken, or nothing can listen there.
    """
    try:
        if address.folder is not None:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(address.folder / _SOCKET))
            listener.listen(64)
            return listener
        try:
            return socket.create_server((address.host, address.port), family=_family(address.host), backlog=64)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
                raise
            # The host is no address of this machine, but other ranks reach it by that name: it may be a service of a
            # cluster. So rank 0 listens on all addresses.
            return socket.create_server(("", address.port), backlog=64)
    except OSError as error:
        remedy = "was this unique id used before?" if address.folder else "is the port taken? choose another"
        raise CollectiveError(f"rank 0 cannot listen in {address} ({error}); {remedy}") from error


def connect(address: Address, limit_s: float | None = None) -> Link:
    """A link to the hub, after the handshake.

    Args:
        address: the hub's address.
        limit_s: seconds to wait for the host, and for the hub's challenge; None for ever.

    Raises:
        OSError: nothing listens there (yet), or it does not answer as a hub in time.
        EOFError: the hub ended amid the handshake.
    """
    if address.folder is not None:
        if not hasattr(socket, "AF_UNIX"):
            raise LaunchError("join: this system has no Unix sockets; use Communicator.unique_id(host)")
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            peer.connect(str(address.folder / _SOCKET))
        except BaseException:
            peer.close()
            raise
    else:
        peer = socket.create_connection((address.host, address.port), limit_s)
        peer.settimeout(None)
    link = Link(peer)
    try:
        if not link.poll(limit_s):
            raise TimeoutError(f"a process listens there, and has not answered within {limit_s:g} s")
        answer_challenge(link.connection, address.key)
        deliver_challenge(link.connection, address.key)
    except AuthenticationError as error:
        link.close()
        raise PermissionError(f"the process that listens there has another key ({error})") from error
    except BaseException:
        link.close()
        raise
    return link


class MalformedError(ConnectionError):
    """A message that no rank and no hub sends."""


class Link:
    """One end of a connection between a rank and the hub.

    Messages are texts, numbers, calls and bytes as JSON, not pickles: reading one runs no code. Bytes follow their
    message, in messages of their own.
    """

    def __init__(self, peer: socket.socket) -> None:
        if peer.family != getattr(socket, "AF_UNIX", None):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # messages are small, and ranks wait for them
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone closes no connection
        self.connection: Connection[Any, Any] = Connection(peer.detach())

    def greet(self, key: bytes) -> None:
        """The handshake, on the hub's side. Raises AuthenticationError or OSError."""
        deliver_challenge(self.connection, key)
        answer_challenge(self.connection, key)

    def send(self, *message: Any) -> None:
        """Send a message; waits if the other side reads slowly."""
        blobs: list[Any] = []
        self.connection.send_bytes(json.dumps([_packed(part, blobs) for part in message]).encode())
        for blob in blobs:
            self.connection.send_bytes(blob)

    def recv(self) -> list[Any]:
        """The next message.

        Raises:
            EOFError: the other side is gone.
            OSError: the same.
            MalformedError: the message is none of ours.
        """
        text = self.connection.recv_bytes()
        try:
            parts = json.loads(text)
            if not isinstance(parts, list):
                raise TypeError(f"expected a list, got {type(parts).__name__}")
            return [self._unpacked(part) for part in cast("list[Any]", parts)]
        except (TypeError, ValueError, RecursionError) as error:
            raise MalformedError(f"it sent a malformed message of {len(text)} bytes: {error}") from error

    def _unpacked(self, part: Any) -> Any:
        match part:
            case list():
                return tuple(self._unpacked(item) for item in cast("list[Any]", part))
            case {"call": words}:
                return Call(*words)
            case {"map": items}:
                return {rank: self._unpacked(item) for rank, item in items}
            case {"bytes": _}:
                return self.connection.recv_bytes()  # the bytes follow in the order of their places in the message
            case _:
                return part

    def poll(self, seconds: float | None) -> bool:
        """Whether a message has come, or comes within so many seconds; None: for ever."""
        return self.connection.poll(seconds)

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self.connection.close()


def _packed(part: Any, blobs: list[Any]) -> Any:
    match part:
        case bytes():
            blobs.append(part)
            return {"bytes": 0}  # their place in the message; the 0 has no meaning
        case Call():
            return {"call": [part.kind, part.form, part.words]}
        case dict():
            return {"map": [[rank, _packed(item, blobs)] for rank, item in cast("dict[int, Any]", part).items()]}
        case tuple():
            return [_packed(item, blobs) for item in cast("tuple[Any, ...]", part)]
        case _:
            return part


class Way(Protocol):
    """Brings a rank's elements to the other ranks.

    `take` and `give_back` are called under a lock.
    """

    def take(self, array: Array) -> str | bytes:
        """Hand elements over; return the token by which other ranks read them."""
        ...

    def read(self, token: str | bytes, seat: Seat) -> Array:
        """Another rank's elements, by their token.

        `seat` is this rank's part of the call, of the same dtype and count.
        """
        ...

    def give_back(self, token: str | bytes) -> None:
        """Allow the memory of a token to be used again: all ranks have read its elements."""
        ...

    def close(self) -> None:
        """Forget all tokens."""
        ...


class Inline:
    """Elements within messages, for ranks of several machines."""

    def take(self, array: Array) -> bytes:
        return array.tobytes()

    def read(self, token: str | bytes, seat: Seat) -> Array:
        return np.frombuffer(token, seat.dtype) if isinstance(token, bytes) else np.empty(0, seat.dtype)

    def give_back(self, token: str | bytes) -> None:
        pass

    def close(self) -> None:
        pass


class Pages:
    """Files mapped into memory: a rank writes its own, and reads the others'.

    A token is a file's name.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._file_count = 0
        self._free: dict[int, list[str]] = {}  # by size in bytes, files that no rank reads
        self._reserved: dict[str, int] = {}  # of each file, the bytes that the file system has given it
        self._maps: dict[str, mmap.mmap] = {}

    def take(self, array: Array) -> str:
        """Write elements to a file that no rank reads; return its name.

        Raises:
            OSError: the file system has no room for them.
        """
        size = max(_MIN_FILE_BYTES, 1 << (array.nbytes - 1).bit_length())
        names = self._free.setdefault(size, [])
        if not names:
            names.append(self._create(size))
        self._reserve(names[-1], array.nbytes)  # ahead of `pop`: if there is no room, the file stays free
        name = names.pop()
        self._view(name)[: array.nbytes] = array.view(np.uint8)
        return name

    def _create(self, size: int) -> str:
        name = f"{self._rank}-{self._file_count}-{size}"
        self._file_count += 1
        with open(self._folder / name, "xb") as file:
            file.truncate(size)
        return name

    def _reserve(self, name: str, nbytes: int) -> None:
        """Have the file system give a file its first bytes now.

        A write to a mapped page for which it has no room would end the process (SIGBUS).
        """
        if self._reserved.get(name, 0) >= nbytes or not hasattr(os, "posix_fallocate"):
            return
        with open(self._folder / name, "r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes)
            except OSError as error:
                remedy = f"{self._folder.parent} needs room for the elements of all ranks (docker run --shm-size=...)"
                raise OSError(error.errno, f"{error.strerror} for {nbytes} bytes; {remedy}") from error
        self._reserved[name] = nbytes

    def _view(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        pages = self._maps.get(name)
        if pages is None:
            with open(self._folder / name, "r+b") as file:
                pages = self._maps[name] = mmap.mmap(file.fileno(), 0)
        return np.frombuffer(pages, np.uint8)

    def read(self, token: str | bytes, seat: Seat) -> Array:
        if not token:
            return np.empty(0, seat.dtype)
        return self._view(str(token))[: seat.count * seat.dtype.itemsize].view(seat.dtype)

    def give_back(self, token: str | bytes) -> None:
        if token:
            name = str(token)
            self._free.setdefault(int(name.rpartition("-")[2]), []).append(name)

    def close(self) -> None:
        """Forget every file; the hub removes them."""
        self._maps.clear()
        self._free.clear()
        self._reserved.clear()
