"""Patch a framework as soon as the program imports the framework, or at once if imported already.

Imports no framework.  An adapter is a module in this package with PATCHES: module name → function
that patches the module, called once after the module's execution.  Any failure becomes a note in
the log, never an error in the training.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.adapters import http_async, http_client, marks, object_clients, requests
from penstock.recording import recorder

__all__ = ["install", "install_clients", "load"]

Patch = Callable[[ModuleType], None]

FRAMEWORKS = (
    *("torch", "torch_compute", "trainers", "tensorflow", "keras", "grain", "loaders", "orbax"),
    "processes",
)

CLIENTS: tuple[dict[str, Patch], ...] = (
    http_client.PATCHES,
    http_async.PATCHES,
    object_clients.PATCHES,
)

_waiting: dict[str, list[Patch]] = {}  # several adapters may patch the same module
_notes: dict[str, str] = {}
_installed: set[str] = set()


if TYPE_CHECKING:
    from penstock.adapters import grain as grain
    from penstock.adapters import keras as keras
    from penstock.adapters import loaders as loaders
    from penstock.adapters import orbax as orbax
    from penstock.adapters import processes as processes
    from penstock.adapters import tensorflow as tensorflow
    from penstock.adapters import torch as torch
    from penstock.adapters import torch_compute as torch_compute
    from penstock.adapters import trainers as trainers
else:  # a type checker that sees __getattr__ takes any name for an adapter

    def __getattr__(name: str) -> ModuleType:
        """Import an adapter at the first use: `penstock.adapters.torch`."""
        if name in FRAMEWORKS:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load() -> tuple[dict[str, Patch], ...]:
    """Import the adapters of frameworks (some 20 ms) and return their patches."""
    return tuple(importlib.import_module(f"{__name__}.{name}").PATCHES for name in FRAMEWORKS)


def install() -> None:
    """Patch imported frameworks and HTTP clients; patch the others once imported.

    A second call is safe.  Never raises.
    """
    for key, value in _notes.items():  # a new window has a new log without the notes
        recorder.note(key, value)
    install_clients()
    if "frameworks" not in _installed:
        _installed.add("frameworks")
        _watch_for(load())


def install_clients() -> None:
    """Patch HTTP clients only, in a program that may have no framework."""
    if "clients" in _installed:
        return
    _installed.add("clients")
    os.register_at_fork(after_in_child=marks.thread.forget)
    os.register_at_fork(after_in_child=requests.forget)
    os.register_at_fork(after_in_child=object_clients.forget)
    _watch_for(CLIENTS)
    if "PENSTOCK_OBJECTS" in os.environ:  # few runs serve objects: others do not pay for the import
        from penstock.adapters import staged_http

        os.register_at_fork(after_in_child=staged_http.forget)
        _watch_for((staged_http.PATCHES,))  # the last: outside of the wrappers that record


def _watch_for(adapters: tuple[dict[str, Patch], ...]) -> None:
    for patches in adapters:
        for name, patch in patches.items():
            _waiting.setdefault(name, []).append(patch)
    _patch_complete()
    if _waiting and not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _patch_complete() -> None:
    for name in list(_waiting):
        module = sys.modules.get(name)
        if module is None:
            continue
        if not _is_initializing(module):
            _apply(name, module)
        elif type(module.__spec__) is ModuleSpec:
            module.__spec__.__class__ = _InitializingSpec


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _apply(name: str, module: ModuleType) -> None:
    for patch in _waiting.pop(name, ()):
        try:
            patch(module)
        except Exception as error:
            key, value = f"adapter {name}", f"not patched: {error!r}"
            _notes[key] = value
            recorder.note(key, value)


class _InitializingSpec(ModuleSpec):
    """The spec of a module that was half imported at the time of the installation, as of
    urllib.request, which imports http.client: at the end the import sets _initializing to False."""

    @property
    def _initializing(self) -> bool:
        return True

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        if value:
            return
        self.__class__ = ModuleSpec  # type: ignore[assignment]
        self.__dict__["_initializing"] = False
        module = sys.modules.get(self.name)
        if module is not None:  # else the import has failed
            _apply(self.name, module)


class _Watcher:
    """Patches a waiting module after the module's execution; finds no module itself.

    find_spec asks the later finders.  The loader gets another exec_module for a single call, so the
    module keeps the original loader and spec.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not _waiting:
            return None
        if name not in _waiting:
            return None
        _patch_complete()  # half imported at the installation, with a spec of another class
        spec = self._ask_the_others(name, path, target)
        if spec is not None and spec.loader is not None:
            try:
                self._follow(name, spec.loader)
            except Exception as error:
                _notes[f"adapter {name}"] = f"not watched: {error!r}"
        return spec

    def _ask_the_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            _apply(name, module)

        loader.exec_module = exec_module
