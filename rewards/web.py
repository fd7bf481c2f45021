"""JSON over HTTP for rewards: which faults are the infrastructure's."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from rewards.contract import RewardError, RewardUnavailable


def post(url: str, body: Any, headers: Mapping[str, str], seconds: float) -> Any:
    """The JSON answer to a JSON request.

    Raises:
        RewardUnavailable: no answer, or 5xx or 429.
        RewardError: another refusal, or no JSON.
    """
    data = json.dumps(body, default=str).encode("utf-8", errors="replace")
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            text = answer.read().decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        kind = RewardUnavailable if error.code >= 500 or error.code == 429 else RewardError
        raise kind(f"{url}: {error.code} {error.reason}: {said}") from error
    except (OSError, urllib.error.URLError) as error:
        raise RewardUnavailable(f"{url}: {error}") from error
    except ValueError as error:
        raise RewardError(f"{url}: {error}") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise RewardError(f"{url} answered with no JSON: {text[:200]}") from error
