"""Prints the package's requirements and those of the named extras, one a line, from pyproject.toml.

So that the dependencies can be installed before, and without, the package itself.
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    print("\n".join(project["dependencies"]))
    for extra in sys.argv[1:]:
        print("\n".join(project["optional-dependencies"][extra]))


if __name__ == "__main__":
    main()
