"""`python -m cutile`: what is installed, what the language has, any kernel's code, the disk cache."""

from cutile.command.line import main

if __name__ == "__main__":
    raise SystemExit(main(program="python -m cutile"))
