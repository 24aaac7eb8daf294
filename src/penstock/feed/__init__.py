"""Read data sets at the device's speed: LMDB, tar, TFRecord, Parquet and folders, unconverted.

Import starts nothing; the docstrings of the modules describe the data read.
"""

from penstock.feed import lmdb
from penstock.feed.feed import Batch, Feed, Record
from penstock.feed.hint import hinted
from penstock.feed.index import Index, open_index
from penstock.feed.rows import RowFeed
from penstock.feed.share import NodeFeed, attach

__all__ = [
    "Batch",
    "Feed",
    "Index",
    "NodeFeed",
    "Record",
    "RowFeed",
    "attach",
    "hinted",
    "lmdb",
    "open_index",
]
