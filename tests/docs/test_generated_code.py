"""docs/reading_generated_code.md shows what the compiler prints: compared here, renewed by --update-golden."""

import re

import pytest

from tests.docs.blocks import ROOT, run
from tests.support.golden import Golden, GoldenMismatchError

PAGE = ROOT / "docs" / "reading_generated_code.md"
_OUTPUT = re.compile(r"(<!-- output: (\w+) (\w+) -->\n```text\n)(.*?)(```)", re.DOTALL)


def test_the_page_shows_what_is_printed(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(PAGE)
    capsys.readouterr()

    def printed(stage: str, arch: str) -> str:
        text: str = names["saxpy"].inspect(names["y"], 2.0, names["x"], stage=stage, arch=arch)
        # The CPU target is named after the machine, which is not the reader's.
        return re.sub(r"^(# target   cpu).*$", r"\1", text, flags=re.MULTILINE).strip("\n") + "\n"

    text = PAGE.read_text(encoding="utf-8")
    renewed = _OUTPUT.sub(lambda match: match[1] + printed(match[2], match[3]) + match[5], text)
    assert len(_OUTPUT.findall(text)) == 4
    if golden.update:
        PAGE.write_text(renewed, encoding="utf-8")
    elif renewed != text:
        raise GoldenMismatchError(
            "docs/reading_generated_code.md is out of date; run pytest --update-golden tests/docs, read the difference"
        )
