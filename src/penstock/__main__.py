"""`python -m penstock` is `penstock`."""

from penstock.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
