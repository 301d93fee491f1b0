"""`run`, which the operations' docstrings call: an expression on tiles, in; its value on lists of numbers, out."""

import ast
import itertools
import linecache
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import cutile as ct
from cutile import api

_numbers = itertools.count()


def run(expression: Callable[..., Any], *inputs: list[float], dtype: str = "f32", unsafe: bool = False) -> list[float]:
    """Compile `lambda x, ...: expression` into a kernel with one tile block, and run it on tensors of `dtype`.

    Each parameter is a tile as long as its list; the value has the shape of the first. Of a parameter `x` the
    expression may name the tensor, `x_in`, and a pointer to its first element, `x_at`, which makes the kernel unsafe;
    `result` is the `Mut` that the value is stored to.
    """
    function = _lambda_of(expression)
    names = [argument.arg for argument in function.args.args]
    text = ast.unparse(function.body)
    pointed = [name for name in names if re.search(rf"\b{name}_at\b", text)]
    kernel = _kernel(names, pointed, text, unsafe or bool(pointed))
    tensors = [api.from_numpy(np.array(values), dtype).sync() for values in inputs]
    pointers = [tensor.device_pointer() for name, tensor in zip(names, tensors, strict=True) if name in pointed]
    result = api.zeros((len(inputs[0]),), dtype).partition((len(inputs[0]),))
    done = kernel(result, *tensors, *pointers).first().unpartition().sync()
    return done.to_numpy().sync().tolist()


def _lambda_of(expression: Callable[..., Any]) -> ast.Lambda:
    source = "".join(linecache.getlines(expression.__code__.co_filename))
    return next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda))


def _kernel(names: list[str], pointed: list[str], expression: str, unsafe: bool) -> Any:
    parameters = "".join(f", {name}_in: ct.Tensor" for name in names)
    parameters += "".join(f", {name}_at: ct.Ptr" for name in pointed)
    loads = "".join(f"    {name} = ct.load_tile_like({name}_in, result)\n" for name in names)
    text = f"def example(result: ct.Mut{parameters}):\n{loads}    result.store({expression})\n"
    name = f"<example {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"ct": ct}
    exec(compile(text, name, "exec"), namespace)
    entry: Any = ct.entry(unsafe=unsafe)
    return entry(namespace["example"])
