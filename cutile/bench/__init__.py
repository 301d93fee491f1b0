"""Times of operations on the device that runs them, alone and in comparison.

from cutile.bench import do_bench, do_bench_paired

do_bench(lambda: saxpy(y.mut.partition((1024,)), 2.0, x))        # 0.0182 ms, the median of 1000 runs
do_bench_paired(lambda: one(...), lambda: other(...)).ratio      # how many times as fast the first is
"""

from cutile.bench.measure import DEFAULT_BENCH, BenchOptions, Measurement, do_bench, do_bench_paired, measure
from cutile.bench.pairs import (
    CONFIDENCE,
    FLUSH_BYTES,
    MIN_PAIRS,
    Arm,
    Budget,
    DeviceArm,
    Interval,
    Paired,
    Subject,
    alone,
    compare,
    interval,
)

__all__ = (
    "CONFIDENCE",
    "DEFAULT_BENCH",
    "FLUSH_BYTES",
    "MIN_PAIRS",
    "Arm",
    "BenchOptions",
    "Budget",
    "DeviceArm",
    "Interval",
    "Measurement",
    "Paired",
    "Subject",
    "alone",
    "compare",
    "do_bench",
    "do_bench_paired",
    "interval",
    "measure",
)
