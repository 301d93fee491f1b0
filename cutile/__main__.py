"""`python -m cutile`: what is installed, the language, kernels' code, the cache."""

from cutile.command import main

if __name__ == "__main__":
    raise SystemExit(main(program="python -m cutile"))
