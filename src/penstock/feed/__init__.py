"""Data sets read at the device's speed: LMDB, tar, TFRecord and folders, unconverted.

What is read where is in the modules; nothing starts at import.
"""

from penstock.feed import lmdb
from penstock.feed.feed import Batch, Feed, Record
from penstock.feed.hint import hinted
from penstock.feed.index import Index, open_index
from penstock.feed.share import NodeFeed, attach

__all__ = ["Batch", "Feed", "Index", "NodeFeed", "Record", "attach", "hinted", "lmdb", "open_index"]
