"""Which configuration of a kernel is the fastest.

Tile extents, generics, compile options, anything that makes an op.

    from cutile.tune import Autotuner

    result = (
        Autotuner("gemm")
        .configs(BM=[64, 128], BN=[128, 256], BK=[32, 64])
        .run(lambda c: gemm(z.mut.partition((c.BM, c.BN)), x, y).generics([c.BK]))
    )
    result.best                      # Config(BK=64, BM=128, BN=256)

A launch that finds its own needs none of this: `gemm(z.partition(("BM", "BN")), x, y).generics([{...}, {...}])`.

See docs/autotuning.md.
"""

from cutile.tune.choices import Choice
from cutile.tune.log import Invalid, Measured, Trial, TrialLog
from cutile.tune.memory import DisagreementWarning
from cutile.tune.record import Provenance, Record, ToolchainDriftWarning, load_verified
from cutile.tune.search import DeviceOracle, InvalidError, Oracle, WrongResultError
from cutile.tune.space import Config, GridSearch, Searcher, space_hash
from cutile.tune.table import Tuned
from cutile.tune.tuner import Autotuner

__all__ = (
    "Autotuner",
    "Choice",
    "Config",
    "DeviceOracle",
    "DisagreementWarning",
    "GridSearch",
    "Invalid",
    "InvalidError",
    "Measured",
    "Oracle",
    "Provenance",
    "Record",
    "Searcher",
    "ToolchainDriftWarning",
    "Trial",
    "TrialLog",
    "Tuned",
    "WrongResultError",
    "load_verified",
    "space_hash",
)
