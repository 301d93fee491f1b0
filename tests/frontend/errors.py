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
    "misspelt_operation": "y.store(ct.expp(y.load()))",
    "misspelt_method": "y.store(y.load().reshap((8,)))",
    "function_as_a_method": "y.store(y.load().exp())",
    "operation_of_another_library": "y.store(ct.where(y.load() > 0.0, y.load(), 0.0))",
    "function_of_another_library": "y.store(np.exp(y.load()))",
    "store_to_a_tensor": "x.store(y.load())",
    "tensor_indexed": "t = x[n]",
    "mut_indexed": "t = y[n]",
    "axes_as_a_tuple": "t = ct.reduce_sum(y.load().reshape((2, 4)), (0, 1))",
    "iota_of_floats": "t = ct.iota((8,), f32)",
    "negative_extent": "t = ct.load_tile(x, (-8,), (0,))",
    "load_with_an_index_too_many": "t = x.partition((8,)).load((0, 0))",
    "captured_array": "y.store(y.load() + table)",
    "gather_that_releases": "view = ct.make_gather_scatter_view(x, (8,))\n"
    "ct.load_gather_scatter_view_tko(view, (ct.iota((8,)),), ct.ordering.RELEASE)",
    "constant_of_pairs": "t = ct.constant(1.0, (8,), ct.f4e2m1fnx2)",
    # habits from other libraries
    "name_of_another_library": "t = tl.load(x)",
    "pointer_arithmetic_on_a_tensor": "t = x + ct.iota((8,))",
    "load_of_another_library": "t = ct.load(x, (0,), (8,))",
    "store_of_another_library": "ct.store(y, (0,), y.load())",
    "activation_of_another_library": "y.store(ct.sigmoid(y.load()))",
    "barrier_of_another_library": "ct.syncthreads()",
    "thread_index": "t = ct.threadIdx.x",
    "slice_of_a_tile": "t = y.load()[2:4]",
    "extent_of_the_whole_output": "t = y.load() * y.tensor_shape[0]",
    "method_of_an_output_misspelt": "y.stor(y.load())",
    "block_index_with_an_axis": "t = ct.get_tile_block_id(1)",
    "partition_of_numbers": "t = x.partition(8, 8)",
    "rows_without_an_axis": "t = y.load().reshape((4, 2))\nt = t - ct.reduce_max(t, 1)",
    "method_of_an_array": "t = y.load().mean()",
    "item_of_a_tile": "t = y.load().item()",
    "shape_is_called": "t = x.shape(0)",
    "size_of_a_tensor": "t = x.size(0)",
    "range_with_names": "for i in range(0, n, step=2):\n    pass",
    "store_with_a_mask": "y.store(y.load(), mask=True)",
    "function_written_in_python_of_another_library": "t = y.load() * cdiv(8, 2)",
    "load_with_the_padding_of_another_library": "t = ct.load_tile(x, (8,), (0,), other=-1.0)",
    "load_with_a_padding_that_is_a_number": "t = ct.load_tile(x, (8,), (0,), padding=-1.0)",
    "load_with_a_mask": "t = y.load(mask=True, other=0.0)",
    "constant_with_the_shape_first": "t = ct.constant((8,), 0.0, f32)",
    "load_tile_with_the_index_first": "t = ct.load_tile(x, (0,), (8,))",
    "iota_from_to": "t = ct.iota(0, 8)",
    "index_that_is_no_tuple": "t = x.partition((8,)).load(0, 0)",
    "shape_that_is_no_tuple": "t = y.load().reshape(2, 4)",
    "unknown_dtype_by_name": "t = y.load().astype('flot32')",
    "tensor_for_a_tile": "y.store(ct.exp(x))",
    "mut_for_a_tile": "y.store(y + 1)",
    "tuple_for_a_scalar": "t = ct.get_tile_block_id() + 1",
    "many_items_for_a_tile": "y.store(ct.get_tile_block_id() * 8)",
    "parentheses_missing": "t = y.load + 1",
    "function_for_a_tile": "y.store(ct.exp)",
    "reduction_over_all_axes": "t = ct.reduce_sum(y.load(), axis=None)",
    "reduction_that_keeps_the_axis": "t = ct.reduce_sum(y.load(), axis=0, keepdims=True)",
    "argument_misspelt": "t = ct.reduce_sum(y.load(), axes=0)",
    "argument_unknown": "t = ct.exp(y.load(), approximate=True)",
    "member_misspelt": "t = ct.addf(y.load(), y.load(), rounding=ct.rounding.ZEROS)",
    "host_function": "t = api.zeros((8,), f32)",
    "host_function_without_counterpart": "t = api.from_numpy((1.0, 2.0))",
    "axis_by_another_name": "t = ct.reduce_sum(y.load(), dim=0)",
    "min_of_one_tile": "t = min(y.load())",
    "sum_of_a_tile": "t = sum(y.load())",
    "type_of_another_library": "t = np.float32(3)",
    "text_of_a_scalar": "t = str(n)",
    "text_by_percent": "print('%d' % n)",
    "text_by_format": "print('{}'.format(n))",
    "compared_with_none": "t = y.load() == None",
    "range_reversed": "for i in reversed(range(n)):\n    pass",
    "range_enumerated": "for i, j in enumerate(range(n)):\n    pass",
    "ranges_zipped": "for i, j in zip(range(n), range(3)):\n    pass",
    "sum_over_a_range": "t = sum(range(n))",
    "loop_over_a_partition": "for t in x.partition((8,)):\n    pass",
    # syntax
    # memory by index and by address
    "gather_needs_an_index_per_axis": "y.store(ct.gather(x, (n, n)))",
    "gather_index_of_floats": "y.store(ct.gather(x, y.load()))",
    "gather_from_a_tile": "y.store(ct.gather(y.load(), ct.iota((8,))))",
    "gather_mask_of_ints": "y.store(ct.gather(x, ct.iota((8,)), mask=ct.iota((8,))))",
    "gather_padding_of_another_dtype": "y.store(ct.gather(x, ct.iota((8,)), padding_value=n))",
    "scatter_into_a_tensor": "ct.scatter(x, 0, 1.0)",
    "scatter_shapes": "ct.scatter(y, ct.iota((8,)), ct.load_tile(x, (4,), (0,)))",
    "gather_view_rank": "view = ct.make_gather_scatter_view(x, (4, 4))",
    "gather_view_index": "view = ct.make_gather_scatter_view(x, (8,))\nct.load_gather_scatter_view_tko(view, (n,))",
    "pointer_from_a_tensor": "ct.load_ptr_tko(x)",
    "int_to_ptr_in_a_safe_kernel": "p = ct.int_to_ptr(0, f32)",
    "token_of_another_kind": "ct.print_tko('{}', n, token=n)",
    "atomic_weak": "ct.atomic_add(y, 0, 1.0, ordering=ct.ordering.WEAK)",
    "atomic_ordering_of_another_kind": "ct.atomic_add(y, 0, 1.0, ordering='relaxed')",
    "atomic_and_of_floats": "ct.atomic_and(y, 0, 1.0)",
    "atomic_max_of_floats": "ct.atomic_max(y, 0, 1.0)",
    "atomic_into_a_tensor": "ct.atomic_add(x, 0, 1.0)",
    "assumption_that_a_constant_breaks": "t = ct.constant(ct.assume_bounds(9, 0, 3), (8,), i32)",
    "divisor_that_a_constant_has_not": "t = ct.constant(ct.assume_div_by(7, 2), (8,), i32)",
    "atomic_cas_dtypes": "ct.atomic_cas(y, 0, n, 1.0)",
    "red_view_of_a_tensor": "ct.atomic_red_view_tko(x, 1.0, 0, ct.atomic.ADDF)",
    "red_view_mode": "ct.atomic_red_view_tko(y, 1.0, 0, ct.atomic.ADD)",
    # what kernels say
    "print_a_tensor": "print(x)",
    "print_format": "print(f'{n:s}')",
    "print_format_of_a_bool": "print(f'{n > 2:d}')",
    "print_conversion": "print(f'{n!r}')",
    "print_separator": "print(n, sep=n)",
    "print_too_few_values": "ct.cuda_tile_print('{} {}', n)",
    "print_too_many_values": "ct.cuda_tile_print('{}', n, a)",
    "print_lone_brace": "ct.cuda_tile_print('{', n)",
    "assert_message": "assert n > 0, n",
    "assert_never": "ct.cuda_tile_assert(BK > 8, 'BK is too small')",
    "assign_to_element": "t = y.load()\nt[0] = 1.0",
    "return_value": "return y.load()",
    # types
    "dtypes_that_differ": "y.store(y.load() + ct.convert_tile(y.load(), ct.f16))",
    "dtypes_of_which_one_is_bool": "y.store((y.load() > 0.0) * y.load())",
    "dtypes_of_one_size": "t = ct.constant(1, (8,), ct.f16) + ct.constant(1, (8,), ct.bf16)",
    "dtype_by_its_name": "t = x.dtype == 'float32'",
    "dtype_by_a_name_of_none": "t = x.dtype in (f32, 'flot32')",
    "dtype_of_numpy": "t = x.dtype != np.float16",
    "shapes_that_differ": "y.store(y.load() + ct.constant(0.0, (3,), f32))",
    "float_beside_integers": "t = ct.iota((8,)) + 1.5",
    "number_too_large": "t = ct.iota((8,), ct.u8) + 300",
    "divide_integers": "t = ct.iota((8,)) / 2",
    "bits_of_floats": "t = y.load() & 1",
    "power_of_a_tile": "t = ct.iota((8,)) ** n",
    "matrix_product_operator": "t = y.load() @ y.load()",
    "tile_as_condition": "if y.load() > 0.0:\n    y.store(y.load())",
    "store_wrong_dtype": "y.store(ct.convert_tile(y.load(), ct.f16))",
    "store_wrong_shape": "y.store(ct.reshape(y.load(), (4, 2)))",
    "mma_shapes": "t = y.load().reshape((2, 4))\nct.mma(t, t, ct.constant(0.0, (2, 4), f32))",
    "mma_fast_sums_of_f16": "t = ct.constant(1.0, (16, 16), ct.f16)\n"
    "ct.mma(t, t, ct.constant(0.0, (16, 16), f32), use_fast_acc=True)",
    "mma_fast_sums_by_number": "t = ct.constant(1.0, (16, 16), ct.f8e4m3fn)\n"
    "ct.mma(t, t, ct.constant(0.0, (16, 16), f32), use_fast_acc=1)",
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
    "tile_sliced": "t = y.load()[0:1]",
    "spread_a_mut": "y.store(*y)",
    "marker_of_another_kind": "t = ct.addf(y.load(), a, ct.padding.ZERO)",
    "rounding_of_integers": "t = ct.divi(ct.iota((8,)), 2, ct.rounding.APPROX)",
    "rounding_that_adds_cannot": "t = ct.addf(y.load(), a, ct.rounding.FULL)",
    "rounding_of_halves": "t = ct.mulf(ct.convert_tile(y.load(), ct.f16), 2.0, ct.rounding.ZERO)",
    "integers_to_addf": "t = ct.addf(ct.iota((8,)), 1)",
    "floats_to_addi": "t = ct.addi(y.load(), 1)",
    "ftz_of_f64": "t = ct.exp2(ct.convert_tile(y.load(), ct.f64), ftz=True)",
    "cat_of_two_shapes": "t = ct.cat(y.load().reshape((2, 4)), y.load().reshape((4, 2)), 0)",
    "extract_beyond": "t = ct.extract(y.load(), (4,), (2,))",
    "extract_uneven": "t = ct.extract(y.load(), (0,), (3,))",
    "reduce_identity": "t = ct.reduce(y.load(), 0, a, lambda p, q: p + q)",
    "reduce_returns_two": "t = ct.reduce(y.load(), 0, 0.0, lambda p, q: (p, q))",
    "reduce_returns_another_dtype": "t = ct.reduce(y.load(), 0, 0.0, lambda p, q: p > q)",
    "reduce_reads_outside": "t = ct.reduce(y.load(), 0, 0.0, lambda p, q: p + q * a)",
    "reduce_by_a_number": "t = ct.reduce(y.load(), 0, 0.0, 1.0)",
    "reduce_loads": "t = ct.reduce(y.load(), 0, 0.0, lambda p, q: p + ct.reduce_sum(y.load(), 0))",
    "scan_sum_identity": "t = ct.scan_sum(y.load(), 0, identity=1)",
    "scalar_of_a_tile": "t = ct.tile_to_scalar(y.load())",
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
    # variables
    "loop_carries_a_dtype": "E = f32\nfor i in range(n):\n    t = ct.convert_tile(y.load(), E)\n    E = ct.f16\n"
    "y.store(y.load())",
    "loop_changes_a_tuple": "p = (y.load(), 0)\nfor i in range(n):\n    p = (p[0], 0, i)\ny.store(p[0])",
    "first_turn_uses_it": "while True:\n    if n > 3:\n        y.store(t)\n        break\n    t = y.load()\ny.store(t)",
    "returns_differ": "y.store(either(y.load(), n))",
    "returns_on_some_paths": "y.store(sometimes(y.load(), n))",
    "expression_of_two_types": "t = y.load() if n > 0 else ct.reduce_sum(y.load(), 0)",
    "attribute_of_a_number": "t = BK.real_part",
    "name_of_a_module": "y.store(ct.f32.nothing)",
    # loops
    "range_of_floats": "for i in range(1.5):\n    pass",
    "range_of_a_float_scalar": "for i in range(a):\n    pass",
    "range_step_zero": "for i in range(0, n, 0):\n    pass",
    "range_arguments": "for i in range(1, 2, 3, 4):\n    pass",
    "range_target": "for i, j in range(n):\n    pass",
    "loop_over_a_tile": "for t in y.load():\n    pass",
    "static_range_of_a_scalar": "for i in ct.static_range(n):\n    pass",
    "assignment_in_a_right_side": "if n > 0 and (k := n * 2) > 3:\n    y.store(y.load() * k)",
    "while_condition_assigns_again": "k = n\nwhile (k := k - 1) > 3:\n    pass",
    "while_condition_assigns": "while (k := n) > 3:\n    pass",
    # comprehensions and sequences
    "comprehension_over_a_scalar": "t = [i for i in range(n)]",
    "comprehension_condition": "t = [i for i in range(4) if i < n]",
    "list_append": "t = [1, 2]\nt.append(3)",
    "tuple_index_is_a_scalar": "t = (1, 2)[n]",
    "tuple_index_too_large": "t = (1, 2)[2]",
    "tuples_of_tiles_compared": "t = (y.load(), 1) == (y.load(), 1)",
    "length_of_a_tile": "t = len(y.load())",
    "unpack_starred_too_few": "a, b, *c = (1,)",
    "star_of_a_tile": "t = (*y.load(), 1)",
    "zip_strict": "t = zip((1, 2), (3,), strict=True)",
    "sorted_scalars": "t = sorted((n, 1))",
    # conditions
    "and_of_tiles": "t = y.load() > 0 and y.load() < 1",
    "or_of_integer_and_float": "t = n or 2.5",
    "or_of_bool_and_tile": "t = n > 0 or y.load()",
    "and_of_float_and_integer": "t = a and n",
    "dict_without_the_key": "t = {'a': 1, 'b': 2}['c']",
    "dict_by_a_scalar": "t = {0: 1}[n]",
    "dict_that_changes": "t = {'a': 1}\nt.update(b=2)",
    "dict_of_a_scalar": "t = {n: 1}",
    "object_that_changes": "t = changing_object(y.load())",
    "recursion_that_a_scalar_ends": "def f(k):\n    return 0 if k == 0 else f(k - 1)\nt = f(n)",
    "context_manager_of_a_class": "with changing_object:\n    y.store(y.load())",
    "context_left_by_return": "with twice_stored(y) as t:\n    if n > 0:\n        return\n    y.store(t)",
    "windows_stored_in_a_safe_kernel": "ct.make_strided_view(y, (4,), (2,)).store(ct.constant(1.0, (4,), f32), 0)",
    "one_function_or_another": "f = (lambda t: t) if n > 0 else (lambda t: -t)",
    "slice_by_a_float": "t = x.slice(0, 1.5)",
    "slice_along_no_axis": "t = x.slice(1, 0, 4)",
    "integer_of_a_fraction": "t = ct.i32(2.5)",
    "integer_of_a_whole_float": "t = ct.i32(2.0)",
    "tuples_of_scalars_ordered": "t = (n, 1) < (2, 1)",
    "static_eval_of_a_scalar": "t = ct.static_eval(n + 1)",
    "static_eval_that_raises": "t = ct.static_eval({'a': 1}['b'])",
    "computed_function_that_raises": "t = checked_block(BK + 1)",
    "operator_with_too_few": "t = operator.add(n)",
    "reduce_by_an_operator_of_one": "t = ct.reduce(y.load(), 0, 0.0, operator.neg)",
    "not_of_a_tile": "t = not y.load()",
    "in_a_tile": "t = 1 in y.load()",
    "is_of_tiles": "t = y.load() is y",
    "string_arithmetic": "t = 'a' - 1",
    # functions
    "function_with_keywords": "def f(t, **rest):\n    return t * rest['scale']\ny.store(f(y.load(), scale=2))",
    "keyword_given_twice": "def f(t, **rest):\n    return g(t, b=1, **rest)\ndef g(t, b):\n    return t * b\n"
    "y.store(f(y.load(), b=2))",
    "generator_of_lambdas": "fs = tuple(lambda t: t * j for j in (1, 2))\ny.store(fs[0](y.load()))",
    "lambda_before_its_variable": "f = lambda t: t * later\ny.store(f(y.load()))\nlater = 2",
    "conditional_walrus_in_a_comprehension": "items = [(z := k) if n > k else 0 for k in (1,)]\n"
    "y.store(items[0] * y.load())",
    "named_tuple_with_code": "y.store(y.load() * Checked(1.0).total)",
    "decorated_function": "@half\ndef f(t):\n    return t",
    "lambda_arguments": "f = lambda t: t\ny.store(f(1, 2))",
    "keywords_in_a_call": "y.store(half(**y))",
    "call_of_a_class": "t = object()",
    "math_of_a_scalar": "t = math.sqrt(a)",
    "dtype_of_two_values": "t = f32(1, 2)",
    "mistakes_in_several_places": "t = y.load() + undefined_name\nu = t * 2\nw = ct.exp(ct.iota((8,)))\nif n > 0:\n"
    "    y.store(w)\n    v = {1, 2}\nelse:\n    y.store(u)\ny.store(y.load() & 1)",
    # records and patterns
    "field_of_a_dataclass": "s = State(y.load())\ny.store(s.totl)",
    "dataclass_arguments": "s = State()",
    "assign_to_a_field": "s = State(y.load())\ns.total = 1",
    "assign_to_an_item": "s = (1, 2)\ns[0] = 1",
    "dataclass_that_computes": "s = Computing(1)",
    "captured_dataclass_that_may_change": "y.store(y.load() * STATE.total)",
    "replace_unknown_field": "s = replace(State(1), totl=2)",
    "pattern_of_a_tile": "match y.load():\n    case 1:\n        pass",
    "pattern_of_a_mapping": "match n:\n    case {'a': 1}:\n        pass",
    "pattern_of_another_class": "match n:\n    case object():\n        pass",
    "pattern_with_a_wrong_field": "match State(1):\n    case State(totl=1):\n        pass",
    # compile time
    "assert_false": "assert BK == 7, 'BK must be 7'",
    "static_assert_false": "ct.static_assert(BK % 3 == 0, 'BK must be a multiple of 3')",
    "static_assert_of_a_scalar": "ct.static_assert(n > 0)",
    "complex_number": "t = 1j",
    "bytes": "t = b'abc'",
    "kernel_calls_a_kernel": "other(y, x)",
    "division_by_zero": "t = 1 // 0",
    # helpers
    "mistake_in_a_helper": "y.store(half(y.load()))",
    "helper_arguments": "y.store(half(y.load(), 3))",
    "recursion": "y.store(forever(y.load()))",
}

REFUSED: dict[str, str] = {
    "Set": "t = {1, 2}",
    "SetComp": "t = {i for i in range(3)}",
    "DictComp": "t = {i: i for i in range(3)}",
    "Yield": "t = yield",
    "YieldFrom": "t = yield from y",
    "Try": "try:\n    y.store(y.load())\nexcept ValueError:\n    pass",
    "TryStar": "try:\n    y.store(y.load())\nexcept* ValueError:\n    pass",
    "Raise": "raise ValueError('no')",
    "With": "with ct:\n    y.store(y.load())",
    "AsyncFunctionDef": "async def f():\n    pass",
    "ClassDef": "class C:\n    pass",
    "Import": "import math",
    "ImportFrom": "from math import pi",
    "Global": "global table",
    "Nonlocal": "k = 1\ndef f():\n    nonlocal k\n    k = 2\nf()",
    "Delete": "t = 1\ndel t",
    "TypeAlias": "type T = int",
    "MatchMapping": "match n:\n    case {'a': 1}:\n        pass",
    "MatMult": "t = y.load() @ y.load()",
    "TemplateStr": "t = t'{n}'",
}
"""A kernel for each class of syntax that is refused, by the name of its node."""

HELPERS = """
import math
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class State:
    total: object

@dataclass
class Changing:
    total: object = 0

STATE = Changing()

@dataclass
class Computing:
    total: object

    def __post_init__(self):
        self.total = 1

@ct.entry
def other(y: Mut, x: Tensor):
    y.store(y.load())

def either(t, n):
    if n > 0:
        return t
    return n

def sometimes(t, n):
    if n > 0:
        return t
def half(t):
    return t / 2 & 1

def forever(t):
    return forever(t)

"""

SIGNATURES: dict[str, str] = {
    "lambda": "kernel = lambda y: y.store(1.0)",
    "method": "class Model:\n    def kernel(self, y: Mut):\n        y.store(1.0)\nkernel = Model.kernel",
    "bound_method": "class Model:\n    def kernel(self, y: Mut):\n        y.store(1.0)\nkernel = Model().kernel",
    "above_a_decorator": "import functools\ndef traced(function):\n    @functools.wraps(function)\n"
    "    def wrapper(*args):\n        return function(*args)\n    return wrapper\n"
    "@traced\ndef kernel(y: Mut):\n    y.store(1.0)",
    "no_annotation": "def kernel(y: Mut, x):\n    y.store(y.load())",
    "unknown_annotation": "def kernel(y: Mut, x: Tensr):\n    y.store(y.load())",
    "annotation_of_another_kind": "def kernel(y: Mut, x: dict):\n    y.store(y.load())",
    "annotation_of_another_library": "class constexpr: ...\ndef kernel(y: Mut, BLOCK: constexpr):\n    y.store(1.0)",
    "annotation_of_python": "def kernel(y: Mut, a: float):\n    y.store(y.load() * a)",
    "generic_among_the_parameters": "def kernel(y: Mut, n: Const):\n    y.store(y.load() * n)",
    "default_of_a_tensor": "def kernel(y: Mut, x: Tensor = 1.0):\n    y.store(y.load())",
    "default_of_a_mut": "def kernel(y: Mut = None):\n    y.store(y.load())",
    "tuple_of_nothing": "def kernel(y: Mut, xs: tuple):\n    y.store(y.load())",
    "several_types": "def kernel(y: Mut, x: Tensor | f32):\n    y.store(y.load())",
    "field_without_annotation": "from collections import namedtuple\nPair = namedtuple('Pair', 'a b')\n"
    "def kernel(y: Mut, pair: Pair):\n    y.store(y.load())",
    "field_of_another_kind": "from dataclasses import dataclass\n@dataclass\nclass Params:\n    scale: float\n"
    "def kernel(y: Mut, params: Params):\n    y.store(y.load() * params.scale)",
    "class_that_holds_itself": "from dataclasses import dataclass\n@dataclass\nclass Node:\n    x: Tensor\n"
    "    next: 'Node'\nNode.__module__ = 'tests.support.kernels'\nimport tests.support.kernels as home\n"
    "home.Node = Node\ndef kernel(y: Mut, node: Node):\n    y.store(y.load())",
    "constant_of_another_kind": "def kernel(y: Mut, *, MODE: Const[dict] = None):\n    y.store(y.load())",
    "star_arguments": "def kernel(y: Mut, *rest):\n    y.store(y.load())",
    "keyword_arguments": "def kernel(y: Mut, **rest):\n    y.store(y.load())",
    "generic_without_annotation": "def kernel(y: Mut, *, BK=8):\n    y.store(y.load())",
    "generic_of_another_kind": "def kernel(y: Mut, *, BK: f32 = 8):\n    y.store(y.load())",
    "extent_of_another_kind": "def kernel(y: Mut, x: Tensor[f32, 2.5]):\n    y.store(y.load())",
    "element_of_another_kind": "def kernel(y: Mut, x: Tensor[8, 8]):\n    y.store(y.load())",
    "async_kernel": "async def kernel(y: Mut):\n    y.store(y.load())",
}
