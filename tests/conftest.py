"""The fixtures of all tests; the laboratory's tests use the same."""

from fixtures import *  # noqa: F403
