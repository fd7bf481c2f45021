"""Packing and sharing: nothing lost, nothing too long, close to the optimum, deterministic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.packing import pack, share

LENGTHS = st.lists(st.integers(1, 50), max_size=60)


@settings(deadline=None)
@given(lengths=LENGTHS, room=st.integers(50, 200))
def test_every_row_is_in_one_bin_that_holds_it(lengths, room):
    bins = pack(lengths, room)
    assert sorted(i for members in bins for i in members) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in members) <= room for members in bins)
    # Best fit leaves at most one bin that is at most half full.
    assert sum(2 * sum(lengths[i] for i in members) <= room for members in bins) <= 1
    assert bins == pack(lengths, room)


def test_a_row_longer_than_a_bin_names_the_key():
    with pytest.raises(ValueError, match=r"trainer\.max_tokens_per_microbatch \(now 8\)"):
        pack([3, 9], 8)


def test_skewed_lengths_need_no_more_bins_than_their_sum_does():
    lengths = [1000] * 4 + [300] * 20 + [37] * 100
    assert sum(lengths) == 13700  # 13.4 bins of 1024
    assert len(pack(lengths, 1024)) == 14


@settings(deadline=None)
@given(lengths=LENGTHS, parts=st.integers(1, 6))
def test_shares_are_whole_and_even(lengths, parts):
    shares = share(lengths, parts)
    assert len(shares) == parts
    assert sorted(i for members in shares for i in members) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in members) for members in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)
