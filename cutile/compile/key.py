"""The cache key: a SHA-256 digest of all that decides text and machine code.

    the program as IR after the neutral passes (helpers inlined, captured values in it, dtypes, layouts, generics)
    the source lines and the file name, which generated code quotes
    compile options, target, the backend's and toolchain's versions, and cutile's own source text

Never Python's `hash()`, which changes from process to process.
"""

from __future__ import annotations

import hashlib

from cutile.backend.interface import CompileOptions, Target
from cutile.compile.fingerprint import own_digest
from cutile.ir.core import Function
from cutile.ir.text import print_function


def cache_key(function: Function, options: CompileOptions, target: Target, version: str) -> str:
    """The key of a kernel: 64 hexadecimal digits.

    Args:
        function: the IR after the target-neutral passes.
        options: the compile options.
        target: what it is compiled for.
        version: the backend's `version()`.
    """
    digest = hashlib.sha256()
    lines = "\n".join(f"{number} {text}" for number, text in sorted(function.source.items()))
    for part in (print_function(function), function.file, lines, repr(options), repr(target), version, own_digest()):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))  # no two lists of parts run together into the same bytes
        digest.update(data)
    return digest.hexdigest()
