"""`stop.by`: the time by which a run must have saved and ended, as people and schedulers write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta

SLURM = "SLURM_JOB_END_TIME"
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_FORMS = "a duration (`3h45m`), a clock time (`'23:30'`), a date and time (`'2027-01-31T06:00'`) or `slurm`"


def parse_deadline(text: str, *, now: datetime, environ: Mapping[str, str]) -> datetime | None:
    """When a run that starts ``now`` must have ended, with its time zone.

    Args:
        text: a duration from now (`1d12h`, `90m`); a clock time, the next one of which counts; a date and
            time in ISO format, of this machine's zone when it names none; or `slurm`, the end of the job.
        now: with its time zone.

    Returns:
        ``None`` for `slurm` outside a job.

    Raises:
        ValueError: the text is none of these.
    """
    if text == "slurm":
        end = environ.get(SLURM, "")
        return datetime.fromtimestamp(int(end), now.tzinfo) if end.isdigit() else None
    match = _DURATION.fullmatch(text)
    if match is not None and any(match.groups()):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return now + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    try:
        clock = time.fromisoformat(text) if len(text) <= 8 and ":" in text else None
        moment = datetime.combine(now, clock) if clock is not None else datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {_FORMS}; in YAML, quote times") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=now.tzinfo)
    return moment + timedelta(days=1) if clock is not None and moment <= now else moment
