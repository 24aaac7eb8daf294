"""Define the errors of py-lmdb's interface."""

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

Error = FeedError  # the error class caught by `except lmdb.Error`


class NotFoundError(Error):
    """No database has the given name."""


class ReadonlyError(Error):
    """The caller tried to write."""


class InvalidError(Error):
    """The file is not an LMDB."""


class BadValsizeError(Error):
    """The key is not valid in LMDB."""


class IncompatibleError(Error):
    """The operation does not fit the kind of the database."""


class InvalidParameterError(Error):
    """LMDB does not accept the argument."""


class _NeverError(Error):
    """An error of writing, locking or mapping, so never raised here.

    The subclasses exist so that an `except` clause with their name causes no AttributeError.
    Damage raises Error with the number of the damaged page.
    """


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
