"""Load the adapters into a process with the native recorder; run by path, not imported.

The recorder runs this file with exec() once a framework's library or an HTTP client is loaded, in
any Python, with any sys.path.  Therefore the file is plain Python 3.8, imports nothing of penstock
at the top, leaves sys.path and the environment alone, prints nothing and raises nothing.
"""

# Pythons older than the package's minimum run bootstrap.py, and pathlib would add 10 ms per start:
# ruff: noqa: UP036, PTH100, PTH118, PTH120

import contextlib
import sys

__all__ = ["bring_in", "say"]


def bring_in(path: str, has_framework: bool) -> None:
    """Make the package at `path` importable as penstock, unless a penstock is imported; patch.

    Without a framework, only HTTP clients are patched.
    """
    import importlib.util
    import os

    if sys.version_info < (3, 11):
        say("adapters", "not installed: they need Python 3.11, this is " + sys.version.split()[0])
        return
    if "penstock" not in sys.modules:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(path)))
        spec = importlib.util.spec_from_file_location(
            "penstock", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["penstock"] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop("penstock", None)
            raise
    from penstock import adapters
    from penstock.recording import recorder

    recorder.look()
    adapters.install() if has_framework else adapters.install_clients()


def say(key: str, value: str) -> None:
    """Write a note to the log of the process.

    The recorder is present, because nothing else runs the file.
    """
    import ctypes

    function = ctypes.PyDLL(None).penstock_note
    function.restype = None
    function.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    function(key.encode(), value.encode("utf-8", "backslashreplace"))


if __name__ in ("penstock_bootstrap", "penstock_bootstrap_clients"):
    try:
        bring_in(__file__, __name__ == "penstock_bootstrap")
    except Exception as error:
        with contextlib.suppress(Exception):
            say("adapters", f"not installed: {error!r}")
