"""What messages name in place of other libraries' names is there."""

import re

import cutile as ct
from cutile.frontend.elsewhere import FUNCTIONS, METHODS


def test_every_counterpart_exists() -> None:
    named = set(re.findall(r"\bct\.(\w+)", " ".join([*FUNCTIONS.values(), *METHODS.values()])))
    assert named <= set(ct.__all__)
    methods = set(re.findall(r"\btile\.(\w+)", " ".join([*FUNCTIONS.values(), *METHODS.values()])))
    assert all(hasattr(ct.Tile, name) for name in methods)


def test_names_of_ours_are_not_corrected() -> None:
    assert not set(FUNCTIONS) & set(ct.__all__)
    assert not [name for name in METHODS if hasattr(ct.Tile, name)]
