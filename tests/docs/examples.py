"""`run`, which the operations' docstrings call: an expression on tiles, in; its value on lists of numbers, out."""

import ast
import itertools
import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

import cutile as ct
from cutile import api

_numbers = itertools.count()


def run(expression: Callable[..., Any], *inputs: list[float], dtype: str = "f32") -> list[float]:
    """Compile `lambda x, ...: expression` into a kernel with one tile block, and run it on tensors of `dtype`.

    Each parameter is a tile as long as its list; the value has the shape of the first.
    """
    function = _lambda_of(expression)
    names = [argument.arg for argument in function.args.args]
    kernel = _kernel(names, ast.unparse(function.body))
    tensors = [api.from_numpy(np.array(values), dtype).sync() for values in inputs]
    result = api.zeros((len(inputs[0]),), dtype).partition((len(inputs[0]),))
    done = kernel(result, *tensors).first().unpartition().sync()
    return done.to_numpy().sync().tolist()


def _lambda_of(expression: Callable[..., Any]) -> ast.Lambda:
    source = "".join(linecache.getlines(expression.__code__.co_filename))
    return next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda))


def _kernel(names: list[str], expression: str) -> Any:
    parameters = "".join(f", {name}_in: ct.Tensor" for name in names)
    loads = "".join(f"    {name} = ct.load_tile_like({name}_in, result)\n" for name in names)
    text = f"def example(result: ct.Mut{parameters}):\n{loads}    result.store({expression})\n"
    name = f"<example {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"ct": ct}
    exec(compile(text, name, "exec"), namespace)
    return ct.entry(namespace["example"])
