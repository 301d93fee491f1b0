"""Settings from the environment: what the variables may be, and errors that show them as they are."""

from __future__ import annotations

import pytest

from cutile import config


@pytest.mark.parametrize(
    ("text", "verifies", "proves"),
    [(None, True, False), ("", True, False), ("0", False, False), ("1", True, True), (" Off", False, False),
     ("YES", True, True)],
)  # fmt: skip
def test_one_variable_says_what_is_verified(
    text: str | None, verifies: bool, proves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUTILE_VERIFY", raising=False)
    if text is not None:
        monkeypatch.setenv("CUTILE_VERIFY", text)
    settings = config.load()
    assert (settings.verify, settings.prove) == (verifies, proves)


@pytest.mark.parametrize("name", ["CUTILE_VERIFY", "CUTILE_DISK_CACHE", "CUTILE_FORCE_CHECKS", "CUTILE_INTERPRET"])
def test_an_invalid_value_is_shown_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, " Maybe")
    with pytest.raises(
        ValueError, match=rf"^{name}=' Maybe': expected 0 or 1 \(also false, off, no or true, on, yes\)$"
    ):
        config.load()
