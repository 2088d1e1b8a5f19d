"""How the doctor calls while a run goes on: a function, a webhook, trackio; none stops a run."""

import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from lldlib.doctor.page import Diagnosis, as_object

log = logging.getLogger(__name__)
PATIENCE = 10.0  # seconds that a webhook may take
Bell = Callable[[Diagnosis], Any]


def status_line(one: Diagnosis) -> str:
    """What is said of a run that goes on, in one line."""
    last = one.run.steps[-1] if len(one.run.steps) else 0
    said = f"step {last:g}: {one.judged.sentence}"
    if one.warnings:
        said += f" Warning since step {one.warned:g}: {one.warnings[0].says}."
    if one.patterns:
        said += f" Resembles: {', '.join(p.title.lower() for p in one.patterns)}."
    return said


def ring(bells: Sequence[Bell], found: Diagnosis) -> None:
    """Ring each bell; one that fails is logged as a warning and stops nothing."""
    for bell in bells:
        try:
            bell(found)
        except Exception as error:  # whatever a stranger's code raises
            log.warning("a bell failed: %s: %s", type(error).__name__, error)


def webhook(address: str, wait: bool = False) -> Bell:
    """A bell that sends one POST of the diagnosis as JSON, with the sentence as "text".

    It is sent from a thread of its own, so that a slow address holds nothing up; with `wait` the
    call returns when it is done. A failure is logged as a warning. Raises ValueError for an address
    that is not http or https.
    """
    if not address.startswith(("http://", "https://")):
        raise ValueError(
            f"webhook {address!r}: want an address that begins with http:// or https://"
        )

    def send(body: bytes) -> None:
        head = {"Content-Type": "application/json", "User-Agent": "lldlib"}
        request = urllib.request.Request(address, body, head, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE):
                pass
        except Exception as error:  # a training goes on whatever the network does
            log.warning("the webhook was not reached: %s: %s", type(error).__name__, error)

    def bell(found: Diagnosis) -> None:
        told = {"text": f"{found.run.name}: {status_line(found)}", **as_object(found)}
        thread = threading.Thread(target=send, args=(json.dumps(told).encode(),), daemon=True)
        thread.start()
        if wait:
            thread.join()

    return bell


def trackio_alert(found: Diagnosis) -> None:
    """A bell: an alert on the current run of trackio; raises ImportError without trackio."""
    import trackio

    bad = found.judged.verdict == "collapsed"
    level = trackio.AlertLevel.ERROR if bad else trackio.AlertLevel.WARN
    trackio.alert(title=f"lldlib: {found.judged.verdict}", text=status_line(found), level=level)
