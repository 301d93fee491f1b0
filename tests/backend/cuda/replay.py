"""Process replay: whether a change of the CUDA backend changes what is generated for the products of the library.

    python -m tests.backend.cuda.replay before.json            # in the tree as it was
    python -m tests.backend.cuda.replay after.json --against before.json

Texts are compared but for the names of variables and for places in shared memory: the same text gives the same
machine code. Needs no GPU, and compiles nothing.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import hashlib
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from cutile.backend.registry import backend
from cutile.compile.driver import front, lower
from cutile.errors import KernelError
from cutile.passes.pipeline import run_passes
from kernels.gemm_choice import Choice
from tests.backend.cuda.chosen import SIZE, UNITS, Kind, described, kinds

PLACES = ("offset", "place")
"""Keywords whose numbers are places in shared memory."""
MIN_PLACE = 4096
"""Other numbers from here on are taken for places, too."""


class _Renamed(ast.NodeTransformer):
    """Numbers names in the order in which they occur, and leaves out places and comments."""

    def __init__(self) -> None:
        self._names = {name: name for name in dir(builtins)}

    def _numbered(self, name: str) -> str:
        return self._names.setdefault(name, f"name_{len(self._names)}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._numbered(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._numbered(node.arg))

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        value = ast.Constant(0) if node.arg in PLACES else self.visit(node.value)
        return ast.keyword(node.arg, value)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(0) if isinstance(node.value, int) and node.value >= MIN_PLACE else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def digest(text: str) -> str:
    """Of a generated text, but for names and places.

    Example:
        >>> digest("def f(x):\\n    g(x, place=8)") == digest("def h(y):\\n    k(y, place=16)  # why")
        True
    """
    renamed = _Renamed()
    statements = ast.parse(text).body
    functions = [ast.dump(renamed.generic_visit(node)) for node in statements if isinstance(node, ast.FunctionDef)]
    bound = [renamed.visit(node) for node in statements if not isinstance(node, ast.FunctionDef)]
    lines = [*(text.replace("name=", "", 1) for text in functions), *sorted(ast.dump(node) for node in bound if node)]
    lines = [line[line.index("args=") :] if line.startswith("FunctionDef") else line for line in lines]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _replayed(work: tuple[Kind, Choice, str]) -> tuple[str, str]:
    """A product's name, and the digest of what is generated for it."""
    kind, tile, arch = work
    name = f"{kind}, {tile.rows} x {tile.columns} x {tile.depth}, {tile.options}"
    request = kind.request(described(arch), SIZE, tile)
    try:
        lowered = lower(request, run_passes(front(request).function), True)
        source = backend(request.target.backend).emit(lowered, request.target, request.options)
    except KernelError as error:
        return name, str(error).splitlines()[0]
    return name, digest(source.text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write digests; return 1 where they are not those before."""
    parser = argparse.ArgumentParser(prog="python -m tests.backend.cuda.replay", description="compare generated texts")
    parser.add_argument("out", type=Path, help="the file that digests are written to")
    parser.add_argument("--against", type=Path, help="the file with those before")
    parser.add_argument("--arch", default="sm_90a", choices=sorted(UNITS), help="what for (default sm_90a)")
    parser.add_argument("--every", type=int, default=12, metavar="N", help="one of N products (default 12)")
    parser.add_argument("--processes", type=int, default=2, help="how many at a time")
    options = parser.parse_args(arguments)
    work = [(kind, tile, options.arch) for kind in kinds() for tile in kind.choices(described(options.arch))]
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        digests = dict(pool.map(_replayed, work[:: options.every], chunksize=8))
    options.out.write_text(json.dumps(digests, indent=0))
    before: dict[str, str] = json.loads(options.against.read_text()) if options.against else digests
    changed = [name for name, text in digests.items() if before.get(name, text) != text]
    print(*changed, f"{len(digests)} products, {len(changed)} of them changed", sep="\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
