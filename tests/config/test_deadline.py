"""The forms of `stop.by`, and the rule that heeds it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from rl.config import ConfigError, load
from rl.config.deadline import parse_deadline
from rl.orchestration.start import end_time
from rl.orchestration.stopping import time_is_up

NOW = datetime(2027, 1, 30, 22, 0, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3h45m", 3 * 3600 + 45 * 60),
        ("1d", 86400),
        ("90s", 90),
        ("23:30", 5400),
        ("21:00", 23 * 3600),  # tomorrow's
        ("22:00", 86400),
        ("2027-01-31T06:00", 8 * 3600),
        ("2027-01-30T22:00:00+00:00", 3600),
        ("2027-01-30T21:00:00", -3600),  # has passed: refused at the start, not taken for tomorrow's
        ("slurm", 600),
    ],
)
def test_forms(text: str, seconds: float) -> None:
    environ = {"SLURM_JOB_END_TIME": str(int(NOW.timestamp()) + 600)}
    end = parse_deadline(text, now=NOW, environ=environ)
    assert end is not None and (end - NOW).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "soon", "3 hours", "25:00", "1410", "2027-13-01", "h", "m3"])
def test_others_are_refused_with_the_key(text: str) -> None:
    with pytest.raises(ConfigError, match=r"stop\.by"):
        load(None, [f"stop.by='{text}'"])


def test_slurm_outside_a_job_and_a_past_time_are_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    assert load(None, ["stop.by=slurm"]).config.stop.by == "slurm"  # a login node may check the recipe
    with pytest.raises(ConfigError, match="SLURM_JOB_END_TIME"):
        end_time("slurm")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(datetime.now(UTC).timestamp()) - 5))
    with pytest.raises(ConfigError, match="has passed"):
        end_time("slurm")
    assert end_time(None) is None


def test_a_step_and_a_save_must_fit_with_a_margin() -> None:
    assert not time_is_up(100.0, now=0.0, step_s=60.0, save_s=30.0)  # 99 s
    assert time_is_up(98.9, now=0.0, step_s=60.0, save_s=30.0)
    assert time_is_up(131.9, now=0.0, step_s=60.0, save_s=None)  # no save seen: a step's time, 132 s
    assert not time_is_up(132.1, now=0.0, step_s=60.0, save_s=None)
