"""Starting and leaving a Ray cluster: private on loopback with a token, unless an address is given."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator

from rl.config.schema import RayConfig

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # An engine has child processes of its own; they must not outlive a killed actor.
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of the driver and so of every process of a private cluster."""


class ClusterError(RuntimeError):
    """Ray did not start, or has not the resources that the run needs."""


@contextlib.contextmanager
def cluster(config: RayConfig, *, logical_cpus: int, use_gpus: bool) -> Iterator[None]:
    """Connects to Ray for the duration; a private cluster ends with it.

    Args:
        logical_cpus: how many actors of one logical core must fit a private cluster.
        use_gpus: let Ray count the machine's GPUs.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    private = config.address is None
    if private:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(24))
    import ray

    if ray.is_initialized():
        raise ClusterError("Ray is already running in this process; call ray.shutdown() first, or set ray.address")
    arguments = dict(
        address=config.address or "local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=True,
        namespace=f"hone-{os.getpid()}",
    )
    if private:
        arguments |= dict(
            num_cpus=config.num_cpus or logical_cpus,
            num_gpus=None if use_gpus else 0,
            object_store_memory=int(config.object_store_gb * 2**30),
            _node_ip_address="127.0.0.1",
        )
    else:
        arguments.pop("include_dashboard")
    # Ray puts the driver's working directory on every worker's sys.path, where a user's own
    # `rewards/` folder would shadow ours: start from an empty folder instead.
    with tempfile.TemporaryDirectory(prefix="hone-cwd-") as empty:
        here = os.getcwd()
        os.chdir(empty)
        try:
            ray.init(**arguments)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ClusterError(
                f"Ray did not start: {error}. `hone doctor` tries the same step alone; "
                "a stale session or a full /tmp are the usual causes"
            ) from error
        finally:
            os.chdir(here)
        try:
            yield
        finally:
            ray.shutdown()
