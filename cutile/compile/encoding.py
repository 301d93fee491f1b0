"""A compiled kernel as files, and back.

Plain data under one digest, read strictly, evaluated nowhere.

The first line of `meta.json` is the digest of everything: the key, the image, the generated text, and all lines after
it. A byte that differs anywhere makes the entry a damaged one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

from cutile.backend.interface import Executable, Parameter, ParameterKind, Target
from cutile.dtypes import BY_NAME

IMAGE, SOURCE, META = "image", "source.py", "meta.json"
FILES = (IMAGE, SOURCE, META)

T = TypeVar("T")


class DamagedEntryError(ValueError):
    """Files that are no entry, or not as they were written."""


def encode(key: str, executable: Executable) -> dict[str, bytes]:
    """The files of an entry, by their names."""
    target = executable.target
    fields = {
        "target": [target.backend, target.arch, target.units],
        "entry": executable.entry,
        "parameters": [_parameter(each) for each in executable.parameters],
        "facts": dict(executable.facts),
        "log": executable.log,
    }
    source = executable.source.encode()
    body = json.dumps(fields, indent=1).removeprefix("{\n").encode()
    head = _head(key, executable.image, source, body)
    return {IMAGE: executable.image, SOURCE: source, META: head + body}


def decode(key: str, files: Mapping[str, bytes]) -> Executable:
    """What was encoded under a key.

    Raises:
        DamagedEntryError: the files are others than those that were written.
    """
    image, source, meta = (files[name] for name in FILES)
    head, end, body = meta.partition(b"\n")
    if head + end != _head(key, image, source, body):
        raise DamagedEntryError("the digest is another one")
    try:
        fields: dict[str, Any] = json.loads(b"{" + body)
        backend, arch, units = _listed(fields["target"])
        return Executable(
            Target(_checked(backend, str), _checked(arch, str), _checked(units, int)),
            image,
            _checked(fields["entry"], str),
            tuple(_read_parameter(*_listed(each)) for each in _listed(fields["parameters"])),
            _mapped(fields["facts"]),
            source.decode(),
            _checked(fields["log"], str),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedEntryError(f"no entry: {error}") from error


def read_fields(meta: bytes) -> dict[str, Any]:
    """The fields of `meta.json`, unchecked, for people to look at.

    Raises ValueError where it is no JSON.
    """
    return json.loads(meta)


def _head(key: str, *parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in (key.encode(), *parts):
        digest.update(len(part).to_bytes(8, "little"))  # no two lists of parts run together into the same bytes
        digest.update(part)
    return f'{{"digest": "{digest.hexdigest()}",\n'.encode()


def _parameter(parameter: Parameter) -> list[Any]:
    form = parameter.map
    plain = [parameter.name, parameter.kind, parameter.argument, parameter.axis, parameter.dtype.name]
    return plain if form is None else [*plain, list(form)]


def _read_parameter(name: Any, kind: Any, argument: Any, axis: Any, dtype: Any, form: Any = None) -> Parameter:
    kind, data = _one_of(kind, ParameterKind), None if form is None else _plain(_listed(form))
    return Parameter(_checked(name, str), kind, _checked(argument, int), _checked(axis, int), BY_NAME[dtype], data)


def _checked(value: Any, kind: type[T]) -> T:
    if type(value) is not (get_origin(kind) or kind):  # a bool is no int here
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _listed(value: Any) -> list[Any]:
    return _checked(value, list[Any])


def _mapped(value: Any) -> dict[str, Any]:
    return _checked(value, dict[str, Any])


def _plain(value: Any) -> Any:
    """Numbers, words and tuples of them, of which a backend knows the meaning."""
    if isinstance(value, list):
        return tuple(_plain(item) for item in value)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, bool | int | float | str):
        raise TypeError(f"{value!r:.80} is no plain data")
    return value


def _one_of(value: Any, choices: Any) -> Any:
    if value not in get_args(choices) or isinstance(value, bool):
        raise ValueError(f"{value!r:.80} is none of {get_args(choices)}")
    return value
