"""Rules about storage behind a network: few requests at once, the ceiling, new connections."""

from dataclasses import dataclass

from penstock.explain.findings.reads import NEAR
from penstock.explain.findings.rule import Fine, RuleResult, Said, Threshold, Unjudged
from penstock.explain.findings.workers import workers_wanted
from penstock.explain.measures import Endpoint, EndpointCeiling, Measures
from penstock.explain.remedies import Remedy, further_ahead, more_at_once, more_workers
from penstock.words import count, per_cent, show

__all__ = [
    "AT_ONCE",
    "FIRST_BYTE_SHARE",
    "NOT_REMOTE",
    "PER_CONNECTION",
    "REOPENED",
    "connections_anew",
    "endpoint_bound",
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

ONE_LATE = 0.5  # of the wait for first bytes: one answer with more is late, and is named by itself

NOT_REMOTE = "no data wait is known to be for another host"
MEASURE = "measure it: penstock ceiling URL --keep RUN"
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
        return Fine(NOT_REMOTE, applies=False)
    row = waited.row
    says = f"{per_cent(waited.share('first byte'))} of the wait for {row.endpoint} is for first"
    says += " bytes"
    if waited.share("first byte") < FIRST_BYTE_SHARE.value:
        return Fine(says)
    if not row.answers:
        return Unjudged(f"no answer of {row.endpoint} was seen to its end")
    most = _most_requests(measures, row)
    if most is None and waited.at_once > AT_ONCE.value:
        return Unjudged(
            f"{waited.at_once:.0f} requests at once or fewer: whether {row.endpoint} answers more "
            f"at once as fast was not measured; {MEASURE}"
        )
    mean_s = row.first_byte_s / row.answers
    evidence = [
        f"{says}: {count(row.answers, 'answer')}, {show(mean_s, 's')} to the first byte, "
        f"{show(row.received_bytes / row.answers, 'B')} each",
        f"at most {show(round(waited.at_once, 1), 'count')} under way at once, "
        f"over {count(row.connections, 'connection')}; several in one connection (HTTP/2) would "
        "not be seen",
    ]
    if most is not None:
        used_hz = row.answers / waited.of_all_s
        sentence = (
            f"{used_hz:,.0f} requests/s or fewer; the endpoint answered {most.requests_hz:,.0f}/s"
        )
        sentence += f" of {show(most.request_bytes, 'B')}, {most.at_once} at once"
        if used_hz >= NEAR.value * most.requests_hz:
            return Fine(sentence)
        evidence.append(sentence)
    gain_s = waited.phases.get("first byte", 0.0)
    if waited.longest_s >= ONE_LATE * gain_s:
        gain_s -= waited.longest_s
        evidence.append(
            f"one answer came after {show(waited.longest_s, 's')}, which is not in the gain: more "
            "requests at once do not shorten it"
        )
    return RuleResult(gain_s, tuple(evidence), _remedies(measures, waited.s), "endpoints")


def _most_requests(measures: Measures, row: Endpoint) -> EndpointCeiling | None:
    """Return the measurement with the most requests/s, at the request size nearest to the job's.

    None if the endpoint was not measured.
    """
    rows = [ceiling for ceiling in measures.endpoint_ceilings if ceiling.endpoint == row.endpoint]
    if not rows:
        return None
    mean_bytes = row.received_bytes / row.answers
    size = min((ceiling.request_bytes for ceiling in rows), key=lambda size: abs(size - mean_bytes))
    alike = (ceiling for ceiling in rows if ceiling.request_bytes == size)
    return max(alike, key=lambda ceiling: ceiling.requests_hz)


def endpoint_bound(measures: Measures) -> Said:
    """While the step loop waits, bytes come nearly as fast as the endpoint and the way to it were
    measured to give: more requests at once bring nothing."""
    waited = _waits_of_first(measures)
    if waited is None:
        return Fine(NOT_REMOTE, applies=False)
    row = waited.row
    rows = [rung for rung in measures.endpoint_ceilings if rung.endpoint == row.endpoint]
    share = per_cent(waited.share("transfer"))
    if not rows:
        if waited.share("transfer") < FIRST_BYTE_SHARE.value:
            return Fine(f"{share} of the wait for {row.endpoint} is for bytes after the first")
        return Unjudged(f"how fast {row.endpoint} sends at most was not measured; {MEASURE}")
    ceiling = max(rows, key=lambda rung: rung.bandwidth_bps)
    most_bps = row.received_bytes / waited.of_all_s
    says = f"{show(ceiling.bandwidth_bps, 'B/s')} measured, {ceiling.at_once} requests at once"
    if most_bps < NEAR.value * ceiling.bandwidth_bps:
        return Fine(f"{show(most_bps, 'B/s')} or less while waiting, {says}")
    # The rate above also counts bytes received outside of waits; the rate below is the lower bound.
    least_bps = row.received_bytes / max(row.open_s or 0.0, waited.of_all_s)
    if least_bps < NEAR.value * ceiling.bandwidth_bps:
        return Unjudged(
            f"{show(least_bps, 'B/s')} to {show(most_bps, 'B/s')} while waiting, {says}"
        )
    return RuleResult(
        waited.s - waited.phases.get("connect", 0.0) - waited.phases.get("back-off", 0.0),
        (f"{show(least_bps, 'B/s')} while waiting; {says}: {row.endpoint}",),
        (
            Remedy("feed", "fetch each object once a node, and later epochs from a fast tier: "
                   "penstock.feed with PENSTOCK_FEED_CACHE=FOLDER"),
            Remedy("code", "fewer bytes a sample: compress, crop, or lower the resolution"),
            Remedy("job", "train nearer to the store: same region, a faster link"),
        ),
        "endpoints",
    )  # fmt: skip


def _remedies(measures: Measures, wait_s: float) -> tuple[Remedy, ...]:
    wanted = workers_wanted(measures, wait_s)
    more = more_at_once(measures) if wanted is None else more_workers(measures, wanted)
    return more, further_ahead(measures), LARGER_REQUESTS, OBJECTS_FEED


@dataclass(frozen=True, slots=True)
class _Waited:
    """The remote endpoint with the longest data wait.

    phases: seconds of data wait by phase, a mean over main processes.  of_all_s: seconds of data
    wait, the sum over main processes.  longest_s: of the longest wait for a first byte.
    """

    row: Endpoint
    phases: dict[str, float]
    of_all_s: float
    longest_s: float

    @property
    def s(self) -> float:
        return sum(self.phases.values())

    def share(self, phase: str) -> float:
        return self.phases.get(phase, 0.0) / self.s

    @property
    def at_once(self) -> float:
        """Return an upper bound of the requests under way at once, a mean over the wait.

        Requests outside of data waits count as requests during data waits.
        """
        return (self.row.first_byte_s + self.row.transfer_s) / self.of_all_s


def _waits_of_first(measures: Measures) -> _Waited | None:
    """Return the remote endpoint with the longest data wait; None without a remote endpoint."""
    if not measures.remote_endpoints:
        return None
    name = measures.remote_endpoints[0]
    row = next((row for row in measures.endpoints if row.endpoint == name), None)
    if row is None:
        return None
    phases: dict[str, float] = {}
    longest_s = 0.0
    for part in measures.network:
        if part.endpoint == name and part.is_remote:
            phases[part.phase or ""] = phases.get(part.phase or "", 0.0) + part.s
            if part.phase == "first byte":
                longest_s = max(longest_s, part.longest_s)
    of_all_s = sum(phases.values()) * max(1, measures.training.mains)
    return _Waited(row, phases, of_all_s, longest_s)


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


def _of_handshakes(row: Endpoint) -> str:
    each = f", {show(row.handshake_s, 's')} each," if row.handshake_s is not None else ""
    return f"TLS handshakes{each} are not in the gain: they count as answers"


def connections_anew(measures: Measures) -> Said:
    """Connections are closed after a request or two and opened again: each costs the look-up of the
    name, a round trip, and with TLS one or two more."""
    waited: dict[str, float] = {}
    for part in measures.network:
        if part.endpoint and part.is_remote and part.phase == "connect":
            waited[part.endpoint] = waited.get(part.endpoint, 0.0) + part.s
    rows = {row.endpoint: row for row in measures.endpoints}
    if not waited:
        return Fine("no data wait is known to be for opening a connection", applies=False)
    name = max(waited, key=lambda endpoint: waited[endpoint])
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
            _of_handshakes(row),
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
