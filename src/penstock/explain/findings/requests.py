"""Rules about requests to remote storage: retries, the same bytes, names, late answers, pieces."""

from collections.abc import Callable

from penstock.explain.findings.memory import REREAD
from penstock.explain.findings.network import NOT_REMOTE
from penstock.explain.findings.rule import Fine, RuleResult, Said, Threshold, Unjudged
from penstock.explain.measures import EndpointRequests, Measures
from penstock.explain.remedies import Remedy, further_ahead, more_at_once
from penstock.words import count, per_cent, show

__all__ = [
    "FEW_LATE",
    "LATE",
    "LATE_SHARE",
    "LEAST_ANSWERS",
    "LEAST_LOOKS",
    "LOOK_SHARE",
    "PIECE_SHARE",
    "late_answers",
    "lists_and_heads",
    "repeated_requests",
    "same_objects_again",
    "small_ranges",
]


def _worst(
    measures: Measures, seconds: Callable[[EndpointRequests], float]
) -> EndpointRequests | Said:
    """Return the endpoint with the most `seconds`; Fine or Unjudged if no request was recorded."""
    if measures.endpoint_requests:
        return max(measures.endpoint_requests, key=seconds)
    if measures.remote_endpoints:
        return Unjudged(
            f"requests to {measures.remote_endpoints[0]} were not seen, only connections"
        )
    return Fine(NOT_REMOTE, applies=False)


def _wait_s(measures: Measures, endpoint: str) -> float:
    """Return the seconds of data wait for an endpoint.

    The data wait for all endpoints, if connections have another name for the endpoint.
    """
    waits = [part.s for part in measures.network if part.endpoint == endpoint and part.is_remote]
    return sum(waits) if waits else measures.remote_s


def repeated_requests(measures: Measures) -> Said:
    """Requests fail, or the store refuses them as too many, and are sent again after a pause: both
    are lost time."""
    row = _worst(measures, lambda endpoint: endpoint.lost_s)
    if not isinstance(row, EndpointRequests):
        return row
    mains = max(1, measures.training.mains)
    says = f"{row.failed:,} of {count(row.requests, 'request')} to {row.endpoint} failed"
    if not row.failed:
        return Fine(says)
    refused = f", {row.throttled:,} of them refused as too many (429, 503)" if row.throttled else ""
    waited_s = sum(
        part.s
        for part in measures.network
        if part.phase == "back-off" and part.endpoint == row.endpoint
    )
    waits = (f"{show(waited_s, 's')} of the data wait in such pauses",) if waited_s else ()
    remedies = [
        Remedy(
            "code",
            "let the client adapt its rate: boto3 Config(retries={'mode': 'adaptive'}); fewer, "
            "larger requests; keys under several prefixes",
        ),
        Remedy("job", "ask the store's operator for its limit of requests a second"),
    ]
    if not row.throttled:
        remedies = [Remedy("job", "look at the store's and the network's errors at that time")]
    return RuleResult(
        min(row.lost_s / mains, measures.training.data_wait_s or 0.0),
        (
            f"{says}{refused}; {count(row.retries, 'retry')}",
            f"{show(row.lost_s, 's')} of all threads in failed requests and pauses before retries",
            *waits,
        ),
        tuple(remedies),
        "endpoints",
    )


def same_objects_again(measures: Measures) -> Said:
    """The same objects, or ranges of them, are fetched again: by another worker or rank, or in
    another epoch.  A copy on the node would have been read instead."""
    row = _worst(measures, lambda endpoint: endpoint.again_bytes)
    if not isinstance(row, EndpointRequests):
        return row
    once_bytes = row.fetched_bytes - row.again_bytes
    if not once_bytes:
        return Fine("no object was fetched", applies=False)
    times = row.fetched_bytes / once_bytes
    says = f"{show(once_bytes, 'B')} of {count(row.objects, 'object')} at {row.endpoint} fetched "
    says += show(times, "x")
    if times < REREAD.value:
        return Fine(says)
    by = f", by {row.most_processes:,} processes" if row.most_processes > 1 else ""
    return RuleResult(
        _wait_s(measures, row.endpoint) * row.again_bytes / row.fetched_bytes,
        (f"{says}: {show(row.fetched_bytes, 'B')}", f"one up to {row.most_times:,} times{by}"),
        (
            Remedy(
                "feed",
                "fetch each object once a node: penstock.feed with PENSTOCK_FEED_CACHE=FOLDER on a "
                "fast tier",
            ),
            Remedy(
                "job", "copy the data set to the node, or to a file system, before the training"
            ),
        ),
        "endpoints",
    )


LOOK_SHARE = Threshold(
    0.20,
    "share",
    "of the requests' time is for LIST and HEAD",
    "chosen: as every fifth second that another way of naming the objects would save",
)
LEAST_LOOKS = Threshold(16, "count", "of them at least", "chosen: a few open a data set")


def lists_and_heads(measures: Measures) -> Said:
    """During the training objects are listed, or examined one by one, before they are read."""
    row = _worst(measures, lambda endpoint: endpoint.look_s)
    if not isinstance(row, EndpointRequests):
        return row
    share = row.look_s / row.asked_s if row.asked_s else 0.0
    says = f"{row.looks:,} of {count(row.requests, 'request')} to {row.endpoint} are LIST or HEAD, "
    says += f"{per_cent(share)} of their time"
    if share < LOOK_SHARE.value or row.looks < LEAST_LOOKS.value:
        return Fine(says)
    return RuleResult(
        _wait_s(measures, row.endpoint) * share,
        (says,),
        (
            Remedy("code", "list once, keep names and sizes in a manifest, and read by it"),
            Remedy("code", "no HEAD before a GET: the answer of a GET has the size"),
        ),
        "endpoints",
    )


LATE = Threshold(
    10, "x", "the median time to the first byte", "as of reads of files (D9): a queue, not a load"
)
LATE_SHARE = Threshold(
    0.30,
    "share",
    "of the fetches' time is what late answers began after the median",
    "chosen: a tail that few waited for is no finding",
)
FEW_LATE = Threshold(
    0.10, "share", "of the answers at most are late", "chosen: more are another kind of request"
)
LEAST_ANSWERS = Threshold(
    50, "count", "answers at least", "chosen: the median of fewer says how one object was"
)


def late_answers(measures: Measures) -> Said:
    """Some answers begin far later than the others: a batch waits for its slowest request."""
    row = _worst(measures, lambda endpoint: endpoint.slow_s)
    if not isinstance(row, EndpointRequests):
        return row
    if row.fetches < LEAST_ANSWERS.value or not row.first_s:
        return Fine(f"{count(row.fetches, 'fetch')} from {row.endpoint}: too few")
    says = f"{row.slow:,} of {row.fetches:,} answers of {row.endpoint} began after more than "
    says += f"{LATE.value:g} times the median of {show(row.first_s, 's')}"
    is_few = row.slow <= FEW_LATE.value * row.fetches
    if row.slow_s < LATE_SHARE.value * row.fetch_s or not is_few:
        return Fine(says)
    return RuleResult(
        min(row.slow_s / max(1, measures.training.mains), _wait_s(measures, row.endpoint)),
        (says, f"{show(row.slow_s, 's')} beyond it, of all threads"),
        (
            further_ahead(measures),
            Remedy("code", "a second request for what is late (hedging); a shorter time-out"),
        ),
        "endpoints",
    )


PIECE_SHARE = Threshold(
    0.50, "share", "of the fetches' time", "chosen: then most waiting is for pieces"
)


def small_ranges(measures: Measures) -> Said:
    """Large objects are read in small ranges, such as footers, indexes or single records: each
    range costs a round trip."""
    row = _worst(measures, lambda endpoint: endpoint.piece_s)
    if not isinstance(row, EndpointRequests):
        return row
    share = row.piece_s / row.fetch_s if row.fetch_s else 0.0
    says = f"{row.pieces:,} of {count(row.fetches, 'fetch')} from {row.endpoint} are "
    says += f"ranges below 64 KiB of large objects, {per_cent(share)} of the time"
    if share < PIECE_SHARE.value:
        return Fine(says)
    return RuleResult(
        _wait_s(measures, row.endpoint) * share,
        (says,),
        (
            Remedy("feed", "read records by an index, many ranges at once, merged: penstock.feed"),
            Remedy("code", "read larger ranges, keep footers and indexes, read neighbours at once"),
            more_at_once(measures),
        ),
        "endpoints",
    )
