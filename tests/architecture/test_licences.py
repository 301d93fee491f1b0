"""Each requirement in pyproject.toml has its licence beside it; an installed package says the same of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from tests.architecture.sources import ROOT

TABLES = ("dependencies", "cuda", "demo", "test", "docs", "notebook", "profile", "viz")
CLASSIFIERS = {"BSD": "BSD License", "MIT": "MIT License", "PSF": "Python Software Foundation License"}


@dataclass(frozen=True)
class Requirement:
    """A line of pyproject.toml: the distribution, and the first licence that the comment names, "" for none."""

    name: str
    licence: str


def requirements(text: str) -> Iterator[Requirement]:
    """Yield the requirements of each table, a licence being in the comment on the line or on those ahead of it."""
    for table in TABLES:
        body = re.search(rf"^{table} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
        assert body is not None, f"pyproject.toml has no table {table}"
        ahead = ""
        for line in body.group(1).splitlines():
            comment = line.rpartition("#")[2].strip() if "#" in line else ""
            written = re.match(r'\s*"([\w-]+)', line)
            if written is None:
                ahead = ahead or comment
                continue
            yield Requirement(written.group(1), re.split(r"[ ;,]", comment or ahead)[0])
            ahead = ""


def disagreement(requirement: Requirement, said: str) -> str:
    """What is wrong with a requirement whose package says `said` of its licence; "" for nothing."""
    if not re.match(r"[A-Z][\w.]+-", requirement.licence + "-"):
        return f"{requirement.name}: name its licence in a comment, got {requirement.licence!r}"
    family = CLASSIFIERS.get(requirement.licence.split("-")[0], requirement.licence)
    if said and requirement.licence not in said and family not in said:
        return f"{requirement.name}: pyproject.toml says {requirement.licence}, the package {said}"
    return ""


def said_of(name: str) -> str:
    """What the installed package says of its licence; "" where it is not installed, or says nothing."""
    try:
        facts: Any = metadata.metadata(name)  # an email.message.Message, which its type does not say
    except metadata.PackageNotFoundError:
        return ""
    expression: str | None = facts.get("License-Expression")
    if expression:
        return expression
    classifiers: list[str] = [each for each in facts.get_all("Classifier") or () if each.startswith("License ::")]
    return "; ".join(classifiers)


def test_each_requirement_names_its_licence() -> None:
    listed = list(requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    assert len(listed) > 25
    wrong = (disagreement(each, said_of(each.name)) for each in listed)
    assert [words for words in wrong if words] == []


def test_a_missing_and_a_wrong_licence_are_noticed() -> None:
    tables = "".join(f"{table} = [\n]\n" for table in TABLES if table != "demo")
    text = tables + 'demo = [\n    "rich>=13",\n    # MIT; a reason\n    "trio>=1",\n    "anyio",  # MIT\n]\n'
    assert list(requirements(text)) == [
        Requirement("rich", ""),
        Requirement("trio", "MIT"),
        Requirement("anyio", "MIT"),
    ]
    assert "name its licence" in disagreement(Requirement("rich", ""), "MIT")
    assert "says MIT" in disagreement(Requirement("nvidia-curand", "MIT"), "LicenseRef-NVIDIA-Proprietary")
    assert disagreement(Requirement("scipy", "BSD-3-Clause"), "License :: OSI Approved :: BSD License") == ""
