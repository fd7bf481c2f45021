"""Ray actors, placement, supervision and the step loop.

Ray reads its environment once, when it is first imported: it is set here, before any module of this
package imports it.
"""

from __future__ import annotations

import os
import secrets

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # An engine has child processes of its own; they must not outlive a killed actor.
    "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "1",
    "RAY_AUTH_MODE": "token",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
# A private cluster gets a token of its own; one that was started elsewhere brings its token along.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(24))
