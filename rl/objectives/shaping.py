"""Shaping of a trajectory's reward before advantages are estimated."""

from __future__ import annotations


def overlong_penalty(tokens: int, *, limit: int, buffer: int, factor: float = 1.0) -> float:
    """Soft overlong punishment: DAPO, arXiv 2503.14476, eq. 13.

    0 up to ``limit - buffer`` tokens, then falling linearly to ``-factor`` at ``limit`` and beyond.

    Args:
        tokens: trained tokens of the trajectory; tool text does not count.
    """
    excess = tokens - (limit - buffer)
    return 0.0 if excess <= 0 else -factor * min(1.0, excess / buffer)
