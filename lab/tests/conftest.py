"""The fixtures of the product's tests, for the laboratory's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from fixtures import *  # noqa: F403
