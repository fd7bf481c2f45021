"""From bundles to rank batches: what is counted, where rows go, and what never changes the result."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.config.schema import Config
from rl.objectives.base import TrajectoryWeight
from rl.training.assemble import assemble, sample_id
from rl.types import SOLUTION, Bundle, Finish, Group, Task
from tests.objectives.batches import bundle, objective, trajectory


def config(**settings) -> Config:
    made = Config(**{k: v for k, v in settings.items() if k != "room"})
    made.trainer.max_tokens_per_microbatch = settings.get("room", 64)
    return made


def run(bundles, goal=None, ranks=1, **settings):
    options = {k: settings.pop(k) for k in ("updates", "epochs") if k in settings}
    return assemble(3, bundles, goal or objective(), config(**settings), ranks=ranks, total_updates=None, **options)


def make(task: str, sizes: list[int], segments: int = 1) -> Bundle:
    made = Bundle(f"{task}#0", Task(task, ()), 0)
    members = [trajectory(float(i % 2), i, task=task, tokens=n, segments=segments) for i, n in enumerate(sizes)]
    made.groups[SOLUTION] = Group(made.bundle_id, SOLUTION, made.task, len(members), members)
    return made


def rows_of(batches, update):
    return [batch.rows[i] for batch in batches for members in batch.updates[update].microbatches for i in members]


BUNDLES = st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=5), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(
    sizes=BUNDLES,
    ranks=st.integers(1, 3),
    updates=st.integers(1, 3),
    segments=st.integers(1, 2),
    order=st.randoms(use_true_random=False),
)
def test_invariants(sizes, ranks, updates, segments, order):
    bundles = [make(f"t{i}", s, segments) for i, s in enumerate(sizes)]
    batches, stats = run(bundles, ranks=ranks, updates_per_step=updates)
    everyone = [t for b in bundles for t in b.trajectories]
    parts = min(updates, len(everyone))
    assert all(len(batch.updates) == parts for batch in batches)
    seen: Counter[int] = Counter()
    sizes_of_updates = []
    for u in range(parts):
        counts = {id(batch.updates[u].counts) for batch in batches}
        assert len(counts) == 1
        assert len({len(batch.updates[u].microbatches) for batch in batches}) == 1
        rows = rows_of(batches, u)
        seen.update(row.sample_id for row in rows)
        total = batches[0].updates[u].counts
        sizes_of_updates.append(total.sequences)
        if not any(np.ptp([t.reward for t in b.trajectories]) == 0 for b in bundles):
            assert total.tokens == sum(row.segment.trained_tokens for row in rows)
            assert total.sequences == len({row.sample_id for row in rows})
            assert total.groups == len({row.group_id for row in rows})
        for batch in batches:
            for members in batch.updates[u].microbatches:
                assert sum(len(batch.rows[i].segment.token_ids) for i in members) <= 64
        homes = {
            (row.sample_id, rank)
            for rank, b in enumerate(batches)
            for m in b.updates[u].microbatches
            for row in (b.rows[i] for i in m)
        }
        assert len(homes) == len({s for s, _ in homes})  # all segments of a trajectory on one rank
    assert max(sizes_of_updates) - min(sizes_of_updates) <= 1
    assert set(seen.values()) <= {segments}  # in one update, each segment once
    shuffled = list(bundles)
    order.shuffle(shuffled)
    for b in shuffled:
        order.shuffle(b.groups[SOLUTION].trajectories)
    again, stats_again = run(shuffled, ranks=ranks, updates_per_step=updates)
    assert stats_again == stats
    for x, y in zip(batches, again, strict=True):
        assert [r.sample_id for r in x.rows] == [r.sample_id for r in y.rows]
        assert [u.microbatches for u in x.updates] == [u.microbatches for u in y.updates]


def test_counts_include_what_is_skipped_and_not_what_is_dropped():
    def change(t):
        if t.sample_index == 0:
            t.finish = Finish.TIMEOUT

    bundles = [bundle("a", [1.0, 1.0, 1.0], change), bundle("b", [1.0, 0.0])]
    batches, stats = run(bundles)
    assert vars_of(batches[0].updates[0].counts) == (4 * 3, 4, 2)
    assert len(batches[0].rows) == 2  # the group of equal rewards is counted and not computed
    assert stats["train/dropped/timeout"] == 1
    assert stats["train/trajectories"] == 2 and stats["train/skipped_share"] == 0.5
    assert stats["tokens/trained"] == 6 and stats["tokens/processed"] == 8
    kept, _ = run(bundles, objective(kl_coef=0.1))
    assert len(kept[0].rows) == 4  # a KL term acts without an advantage


def test_masked_rows_leave_numerator_and_denominator():  # LOSS-09
    members = [trajectory(1.0, 0, tokens=4), trajectory(0.0, 1, tokens=8, finish=Finish.LENGTH)]
    made = Bundle("t#0", Task("t", ()), 0, {SOLUTION: Group("t#0", SOLUTION, Task("t", ()), 2, members)})
    batches, _ = run([made], objective(mask_truncated=True, advantage="raw", policy_loss="nll"))
    assert batches[0].updates[0].counts.tokens == 4
    assert [row.segment.trained_tokens for row in batches[0].rows] == [4]


def test_zero_variance_groups_can_leave_the_denominator():  # ORCH-11
    three = [bundle(f"g{i}", [1.0, 0.0]) for i in range(3)]
    filtered = [bundle(f"x{i}", [1.0, 1.0]) for i in range(5)]
    goal = objective(zero_advantage="drop_groups")
    alone, mixed = run(three, goal)[0], run(three + filtered, goal)[0]
    assert vars_of(mixed[0].updates[0].counts) == vars_of(alone[0].updates[0].counts) == (18, 6, 3)


def test_group_counts_where_an_update_splits_a_group():
    batches, _ = run([make("a", [2, 3, 4, 5])], updates_per_step=2)
    first, second = batches[0].updates
    assert vars_of(first.counts) == (5, 2, 1) and vars_of(second.counts) == (9, 2, 1)
    assert {row.group_tokens for row in rows_of(batches, 0)} == {5}
    assert {row.group_tokens for row in rows_of(batches, 1)} == {9}


def test_epochs_repeat_the_same_plans():
    batches, stats = run([bundle("a", [1.0, 0.0])], epochs_per_step=3)
    assert len(batches[0].updates) == 3 and batches[0].updates[0] is batches[0].updates[2]
    assert stats["tokens/trained"] == 18
    assert len(run([bundle("a", [1.0, 0.0])], epochs=2, updates=2)[0][0].updates) == 4


def test_lost_trajectories_stop_the_run():  # LOSS-06
    made = bundle("a", [1.0, 0.0, 1.0])
    made.groups[SOLUTION].trajectories.pop()
    with pytest.raises(ValueError, match=r"a#0/solution has 2 trajectories and 0 drops, but 3"):
        run([made])
    made.groups[SOLUTION].dropped = 1
    assert run([made])[1]["train/trajectories"] == 2


def test_a_number_that_is_not_finite_stops_the_run():  # LOSS-02
    goal = objective()
    goal.weights = lambda bundles: {
        (t.bundle_id, t.kind, t.sample_index): TrajectoryWeight(float("nan")) for b in bundles for t in b.trajectories
    }
    with pytest.raises(ValueError, match="nan"):
        run([bundle("a", [1.0, 0.0])], goal)


def test_a_row_that_cannot_fit_names_the_key():
    with pytest.raises(ValueError, match=r"trainer\.max_tokens_per_microbatch"):
        run([make("a", [100, 2])])


def test_nothing_to_train():
    batches, stats = run([bundle("a", [None, None])], ranks=2)
    assert [batch.rows for batch in batches] == [[], []] and stats["train/dropped/not_scored"] == 2
    assert all(len(batch.updates) == 1 and batch.updates[0].microbatches == [] for batch in batches)


def test_rows_carry_what_the_objective_said():
    goal = objective(guide="novelty", kl_coef=0.1)
    made = bundle("a", [1.0, 0.0, 0.0])
    for t, text in zip(made.trajectories, ["so\n7", "7\n", "8"], strict=True):
        t.messages = ({"role": "assistant", "content": text},)
    batches, _ = run([made], goal)
    assert {r.sample_id: r.features["novelty"] for r in batches[0].rows} == {
        sample_id(t): n for t, n in zip(made.trajectories, [0.5, 0.5, 1.0], strict=True)
    }
    assert batches[0].groups == 1 and all(row.trajectory_tokens == 3 for row in batches[0].rows)


def vars_of(counts):
    return counts.tokens, counts.sequences, counts.groups
