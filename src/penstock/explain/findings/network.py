"""Rules about storage behind a network: requests one after another, connections opened anew."""

from penstock.explain.findings.rule import Fine, RuleResult, Said, Threshold, Unjudged
from penstock.explain.findings.workers import workers_wanted
from penstock.explain.measures import Endpoint, Measures
from penstock.explain.remedies import Remedy, further_ahead, more_at_once, more_workers
from penstock.words import count, per_cent, show

__all__ = [
    "AT_ONCE",
    "FIRST_BYTE_SHARE",
    "PER_CONNECTION",
    "REOPENED",
    "connections_anew",
    "few_at_once",
]

FIRST_BYTE_SHARE = Threshold(
    0.50,
    "share",
    "of the wait for the endpoint is for first bytes of answers",
    "chosen: then more bandwidth would end less than half of it",
)
AT_ONCE = Threshold(
    16,
    "count",
    "requests at once at most",
    "chosen: an object store answers many clients at once, so 16 requests of one job do not delay "
    "each other there",
)

OBJECTS_FEED = Remedy(
    "feed", "read objects, or shards by their index, many requests at once: penstock.feed"
)
LARGER_REQUESTS = Remedy(
    "code", "fewer, larger requests: pack samples into shards, read neighbours with one range"
)


def few_at_once(measures: Measures) -> Said:
    """The step loop waits for an endpoint's first bytes while few requests are under way: requests
    wait for each other, and neither the network nor the endpoint is the limit."""
    waited = _waits_of_first(measures)
    if waited is None:
        return Fine("no data wait is known to be for another host")
    row, phases = waited
    whole_s = sum(phases.values())
    first_s = phases.get("first byte", 0.0)
    says = f"{per_cent(first_s / whole_s)} of the wait for {row.endpoint} is for first bytes"
    if first_s < FIRST_BYTE_SHARE.value * whole_s:
        return Fine(says)
    if not row.answers:
        return Unjudged(f"no answer of {row.endpoint} was seen to its end")
    at_once = _at_once(row, whole_s * max(1, measures.training.mains))
    if at_once > AT_ONCE.value:
        return Unjudged(
            f"{at_once:.0f} requests at once or fewer: whether {row.endpoint} answers more at once "
            "as fast is not measured"
        )
    mean_s = row.first_byte_s / row.answers
    evidence = (
        f"{says}: {count(row.answers, 'answer')}, {show(mean_s, 's')} to the first byte, "
        f"{show(row.received_bytes / row.answers, 'B')} each",
        f"at most {show(round(at_once, 1), 'count')} under way at once, "
        f"over {count(row.connections, 'connection')}; several in one connection (HTTP/2) would "
        "not be seen",
    )
    return RuleResult(first_s, evidence, _remedies(measures, whole_s), "endpoints")


def _remedies(measures: Measures, wait_s: float) -> tuple[Remedy, ...]:
    wanted = workers_wanted(measures, wait_s)
    more = more_at_once(measures) if wanted is None else more_workers(measures, wanted)
    return more, further_ahead(measures), LARGER_REQUESTS, OBJECTS_FEED


def _waits_of_first(measures: Measures) -> tuple[Endpoint, dict[str, float]] | None:
    """Return the remote endpoint that the training waited for longest, with the seconds by phase;
    None without one."""
    if not measures.remote_endpoints:
        return None
    name = measures.remote_endpoints[0]
    row = next((row for row in measures.endpoints if row.endpoint == name), None)
    if row is None:
        return None
    phases: dict[str, float] = {}
    for part in measures.network:
        if part.endpoint == name and part.is_remote:
            phases[part.phase or ""] = phases.get(part.phase or "", 0.0) + part.s
    return row, phases


def _at_once(row: Endpoint, waited_s: float) -> float:
    """Return the most requests that can have been under way at once, a mean over the wait for them.

    Requests outside of data waits count as inside, so it is an upper bound.
    """
    return (row.first_byte_s + row.transfer_s) / waited_s


REOPENED = Threshold(
    0.50,
    "share",
    "of the connections to an endpoint follow one that the process had closed",
    "chosen: then most of them could have been kept",
)
PER_CONNECTION = Threshold(
    4,
    "count",
    "answers a connection at most",
    "chosen: a TLS handshake is one or two of them, and a connection that is kept has hundreds",
)


def connections_anew(measures: Measures) -> Said:
    """Connections are closed after a request or two and opened again: each costs the look-up of the
    name, a round trip, and with TLS one or two more."""
    waited: dict[str, float] = {}
    for part in measures.network:
        if part.endpoint and part.is_remote and part.phase == "connect":
            waited[part.endpoint] = waited.get(part.endpoint, 0.0) + part.s
    rows = {row.endpoint: row for row in measures.endpoints}
    if not waited:
        return Fine("no data wait is known to be for opening a connection")
    name = max(waited, key=lambda one: waited[one])
    row = rows.get(name)
    if row is None:
        return Unjudged(f"the connections to {name} are not in the run")
    says = f"{row.reopened:,} of {count(row.connections, 'connection')} to {name} opened anew"
    per_connection = row.answers / row.connections
    if row.reopened < REOPENED.value * row.connections or per_connection > PER_CONNECTION.value:
        return Fine(f"{says}, {per_connection:.1f} answers each")
    opening = f", {show(row.connect_s, 's')} each" if row.connect_s is not None else ""
    return RuleResult(
        waited[name],
        (
            f"{says}{opening}, for {per_connection:.1f} answers each",
            "TLS handshakes are not in the gain: they count as answers",
        ),
        (
            Remedy(
                "code",
                "keep connections: one client or session a process, made once (requests.Session, "
                "one boto3 client, one aiohttp.ClientSession), with as many connections as threads",
            ),
        ),
        "endpoints",
    )
