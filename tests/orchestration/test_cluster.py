"""A private Ray cluster is out of reach of other machines."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

SCRIPT = """
import os, psutil
from rl.config.schema import RayConfig
from rl.orchestration.cluster import cluster

with cluster(RayConfig(), logical_cpus=2, use_gpus=False):
    import ray

    @ray.remote
    class Actor:
        def pid(self):
            return os.getpid()

    actor = Actor.remote()
    ray.get(actor.pid.remote())
    listening = [
        (process.name(), connection.laddr.ip)
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 5, listening
    open_to_all = [x for x in listening if x[1].removeprefix("::ffff:") not in ("127.0.0.1", "::1")]
    assert not open_to_all, open_to_all
assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
print("on loopback")
"""


def test_every_port_is_on_loopback() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240)
    assert "on loopback" in done.stdout, done.stdout + done.stderr
