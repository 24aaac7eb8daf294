"""The errors of py-lmdb's interface."""

from __future__ import annotations

from penstock.errors import FeedError

__all__ = [
    "BadChecksumError",
    "BadDbiError",
    "BadRslotError",
    "BadTxnError",
    "BadValsizeError",
    "CorruptedError",
    "CryptoFailError",
    "CursorFullError",
    "DbsFullError",
    "DiskError",
    "EnvEncryptionError",
    "Error",
    "IncompatibleError",
    "InvalidError",
    "InvalidParameterError",
    "KeyExistsError",
    "LockError",
    "MapFullError",
    "MapResizedError",
    "MemoryError",
    "NotFoundError",
    "PageFullError",
    "PageNotFoundError",
    "PanicError",
    "ProblemError",
    "ReadersFullError",
    "ReadonlyError",
    "TlsFullError",
    "TxnFullError",
    "VersionMismatchError",
]

Error = FeedError  # what `except lmdb.Error` catches


class NotFoundError(Error):
    """There is no database of this name."""


class ReadonlyError(Error):
    """Something was to be written."""


class InvalidError(Error):
    """The file is no LMDB."""


class BadValsizeError(Error):
    """A key that LMDB cannot have."""


class IncompatibleError(Error):
    """What only a database of another kind has or is."""


class InvalidParameterError(Error):
    """What LMDB takes no such argument for."""


class _NeverError(Error):
    """What only writing, locking or mapping raises, none of which is done here: so that an `except`
    that names it is no AttributeError.  Damage is an Error that says which page it is in."""


class CorruptedError(_NeverError):
    pass


class KeyExistsError(_NeverError):
    pass


class LockError(_NeverError):
    pass


class MapFullError(_NeverError):
    pass


class MapResizedError(_NeverError):
    pass


class PageNotFoundError(_NeverError):
    pass


class VersionMismatchError(_NeverError):
    pass


class BadChecksumError(_NeverError):
    pass


class BadDbiError(_NeverError):
    pass


class BadRslotError(_NeverError):
    pass


class BadTxnError(_NeverError):
    pass


class CryptoFailError(_NeverError):
    pass


class CursorFullError(_NeverError):
    pass


class DbsFullError(_NeverError):
    pass


class DiskError(_NeverError):
    pass


class EnvEncryptionError(_NeverError):
    pass


class MemoryError(_NeverError):  # noqa: A001 - the name is the interface
    pass


class PageFullError(_NeverError):
    pass


class PanicError(_NeverError):
    pass


class ProblemError(_NeverError):
    pass


class ReadersFullError(_NeverError):
    pass


class TlsFullError(_NeverError):
    pass


class TxnFullError(_NeverError):
    pass
