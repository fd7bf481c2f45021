"""Starting and leaving a Ray cluster: private on loopback with a token, unless an address is given."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from rl.config.schema import RayConfig


class ClusterError(RuntimeError):
    """Ray did not start, or has not the resources that the run needs."""


@contextlib.contextmanager
def cluster(config: RayConfig, *, logical_cpus: int, use_gpus: bool) -> Iterator[None]:
    """Connects to Ray for the duration; a private cluster ends with it.

    Args:
        logical_cpus: how many actors of one logical core must fit a private cluster.
        use_gpus: let Ray count the machine's GPUs.
    """
    private = config.address is None
    import ray
    from ray._private import ray_constants

    if ray.is_initialized():
        raise ClusterError("Ray is already running in this process; call ray.shutdown() first, or set ray.address")
    arguments: dict[str, Any] = dict(
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
        # Ray takes 127.0.0.1 for the machine's outer address, and then listens on every interface. On other
        # systems than Linux it does not: this is its switch for that, for this process and for those it starts.
        clusters = ray_constants.ENABLE_RAY_CLUSTER
        if private:
            ray_constants.ENABLE_RAY_CLUSTER = False
            os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
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
            ray_constants.ENABLE_RAY_CLUSTER = clusters
            os.environ.pop(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, None)
