"""The command `python -m kernels`: runs the main kernels on this machine's best device.

`python -m kernels bench` compares products with those of other libraries. Both commands measure, so their code is in
`benchmarks/`; this file is the only one here that imports it.
"""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo, or the comparison; return the exit status."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    if command_line[:1] == ["bench"]:
        from benchmarks.products.bench import main as compare_products

        return compare_products(command_line[1:])
    from benchmarks.kernels.demo import main as demo

    return demo(command_line)


if __name__ == "__main__":
    sys.exit(main())
