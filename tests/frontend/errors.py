"""Kernels that do not compile, one per mistake: the body, what it teaches. Data for `test_errors.py`, no tests."""

HEAD = "def kernel(y: Mut, a: f32, n: i32, x: Tensor, *, BK: Const = 8):\n"

BODIES: dict[str, str] = {
    # names
    "unknown_name": "t = y.load() + undefined_name",
    "misspelt_name": "tile = y.load()\ny.store(til)",
    "name_after_loop": "for i in range(n):\n    t = y.load()\ny.store(t)",
    "loop_variable_after_loop": "for i in range(n):\n    pass\ny.store(y.load() + ct.convert_tile(i, f32))",
    "name_in_one_branch": "if n > 0:\n    t = y.load()\ny.store(t)",
    "unknown_operation": "y.store(ct.exponential(y.load()))",
    "unknown_method": "y.store(y.load().sum(0))",
    "captured_array": "y.store(y.load() + table)",
    # syntax
    "dict": "t = {1: 2}",
    "try": "try:\n    y.store(y.load())\nexcept ValueError:\n    pass",
    "with": "with ct:\n    y.store(y.load())",
    "raise": "raise ValueError('no')",
    "import": "import math",
    "global": "global table",
    "assert": "assert n > 0",
    "assign_to_element": "t = y.load()\nt[0] = 1.0",
    "return_value": "return y.load()",
    # types
    "dtypes_that_differ": "y.store(y.load() + ct.convert_tile(y.load(), ct.f16))",
    "shapes_that_differ": "y.store(y.load() + ct.constant(0.0, (3,), f32))",
    "float_beside_integers": "t = ct.iota((8,)) + 1.5",
    "number_too_large": "t = ct.iota((8,), ct.u8) + 300",
    "divide_integers": "t = ct.iota((8,)) / 2",
    "bits_of_floats": "t = y.load() & 1",
    "power_of_a_tile": "t = y.load() ** a",
    "matrix_product_operator": "t = y.load() @ y.load()",
    "tile_as_condition": "if y.load() > 0.0:\n    y.store(y.load())",
    "store_wrong_dtype": "y.store(ct.convert_tile(y.load(), ct.f16))",
    "store_wrong_shape": "y.store(ct.reshape(y.load(), (4, 2)))",
    "mma_shapes": "t = y.load().reshape((2, 4))\nct.mma(t, t, ct.constant(0.0, (2, 4), f32))",
    "mma_accumulator": "t = y.load().reshape((2, 4))\nct.mma(t, t.transpose(), ct.constant(0.0, (2, 2), ct.f64))",
    "reduce_axis": "t = ct.reduce_sum(y.load(), 1)",
    "reshape_count": "t = y.load().reshape((3, 3))",
    "broadcast_shape": "t = y.load().broadcast((9,))",
    "dynamic_shape": "t = ct.constant(0.0, (n,), f32)",
    "dynamic_axis": "t = ct.reduce_sum(y.load(), n)",
    "math_of_integers": "t = ct.exp(ct.iota((8,)))",
    "load_rank": "t = x.partition((4, 4)).load((0, 0))",
    "index_is_a_float": "t = x.partition((4,)).load(a)",
    "num_tiles_of_a_tensor": "t = ct.num_tiles(x, 0)",
    "tile_indexed": "t = y.load()[0]",
    "too_many_arguments": "t = ct.exp(y.load(), 1)",
    "missing_argument": "t = ct.select(y.load() > 0.0, 1.0)",
    "loop_over_a_number": "for i in n:\n    pass",
    "loop_changes_type": "t = y.load()\nfor i in range(n):\n    t = ct.reduce_sum(t, 0)",
    "branches_of_two_types": "t = y.load()\nif n > 0:\n    t = ct.reduce_sum(t, 0)\ny.store(y.load() + t)",
    "endless_loop": "while True:\n    y.store(y.load())",
    "float_of_a_tile": "t = float(y.load())",
    "unpack_a_tile": "t, u = y.load()",
    "unpack_too_many": "t, u = (1, 2, 3)",
    "call_of_a_number": "t = BK(1)",
    # helpers
    "mistake_in_a_helper": "y.store(half(y.load()))",
    "helper_arguments": "y.store(half(y.load(), 3))",
    "recursion": "y.store(forever(y.load()))",
}

HELPERS = """
def half(t):
    return t / 2 & 1

def forever(t):
    return forever(t)

"""

SIGNATURES: dict[str, str] = {
    "no_annotation": "def kernel(y: Mut, x):\n    y.store(y.load())",
    "unknown_annotation": "def kernel(y: Mut, x: Tensr):\n    y.store(y.load())",
    "annotation_of_another_kind": "def kernel(y: Mut, x: dict):\n    y.store(y.load())",
    "default_of_a_parameter": "def kernel(y: Mut, a: f32 = 1.0):\n    y.store(y.load())",
    "star_arguments": "def kernel(y: Mut, *rest):\n    y.store(y.load())",
    "keyword_arguments": "def kernel(y: Mut, **rest):\n    y.store(y.load())",
    "generic_without_annotation": "def kernel(y: Mut, *, BK=8):\n    y.store(y.load())",
    "generic_of_another_kind": "def kernel(y: Mut, *, BK: f32 = 8):\n    y.store(y.load())",
    "extent_of_another_kind": "def kernel(y: Mut, x: Tensor[f32, 'wide']):\n    y.store(y.load())",
    "element_of_another_kind": "def kernel(y: Mut, x: Tensor[8, 8]):\n    y.store(y.load())",
    "async_kernel": "async def kernel(y: Mut):\n    y.store(y.load())",
}
