"""`python -m xattr` is the command `xattr-explain`."""

from .cli import main

if __name__ == "__main__":
    main()
