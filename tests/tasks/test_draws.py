"""The draws against their exact distributions, by chi-square over a fixed generator."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from effstate.tasks import draws

ROWS = 40_000
SURE = 1e-4  # a right sampler fails one fixed seed in 10,000


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def p_value(drawn: np.ndarray, expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square p-value of rows of outcomes against the probability of each outcome."""
    outcomes, counts = np.unique(drawn, axis=0, return_counts=True)
    found = {tuple(map(int, outcome)): n for outcome, n in zip(outcomes, counts, strict=True)}
    assert found.keys() <= expected.keys()
    observed = np.array([found.get(outcome, 0) for outcome in expected])
    return stats.chisquare(observed, len(drawn) * np.array(list(expected.values()))).pvalue


def successive(slots: int, count: int, exponent: float) -> dict[tuple[int, ...], float]:
    """Probability of each ordered draw without replacement, by the definition: draw by draw."""
    weights = np.arange(1.0, slots + 1) ** exponent
    expected = {}
    for order in permutations(range(slots), count):
        probability, left = 1.0, weights.sum()
        for slot in order:
            probability *= weights[slot] / left
            left -= weights[slot]
        expected[order] = probability
    return expected


@pytest.mark.parametrize("count", [1, 2, 4], ids=lambda n: f"{n}-of-4")
def test_distinct_is_uniform_over_ordered_draws(count: int) -> None:
    orders = list(permutations(range(4), count))
    drawn = draws.distinct(generator(), ROWS, 4, count)
    assert p_value(drawn, {order: 1 / len(orders) for order in orders}) > SURE


@given(
    pool=st.integers(1, 300),
    share=st.floats(0, 1),
    rows=st.integers(1, 20),
    deck=st.sampled_from([1, 700, 2**22]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_distinct_in_range_and_free_of_chunks(
    pool: int, share: float, rows: int, deck: int, seed: int
) -> None:
    count = max(1, int(share * pool))
    whole = draws.distinct(generator(seed), rows, pool, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_DECK_ENTRIES", deck)
        assert np.array_equal(draws.distinct(generator(seed), rows, pool, count), whole)
    assert whole.min() >= 0 and whole.max() < pool
    assert all(len(set(row)) == count for row in whole)


@pytest.mark.parametrize("exponent", [-0.99, -0.9, 0.0, 1.5], ids=lambda e: f"slot^{e:g}")
@pytest.mark.parametrize("count", [1, 3, 5], ids=lambda n: f"{n}-of-5")
def test_power_law_slots_follow_the_definition(exponent: float, count: int) -> None:
    drawn = draws.power_law_slots(generator(1), ROWS, 5, count, exponent)
    assert p_value(drawn, successive(5, count, exponent)) > SURE


def test_power_law_slots_test_tells_exponents_apart() -> None:
    drawn = draws.power_law_slots(generator(1), ROWS, 5, 3, -0.9)
    assert p_value(drawn, successive(5, 3, -0.8)) < 1e-12


@given(
    slots=st.integers(1, 200),
    share=st.floats(0, 1),
    exponent=st.sampled_from([-1 + 1e-12, -0.9, 0.0, 3.0, 500.0, 1e300]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_power_law_slots_are_distinct_at_extremes(
    slots: int, share: float, exponent: float, seed: int
) -> None:
    count = max(1, int(share * slots))
    drawn = draws.power_law_slots(generator(seed), 8, slots, count, exponent)
    assert drawn.shape == (8, count)
    assert drawn.min() >= 0 and drawn.max() < slots
    assert all(len(set(row)) == count for row in drawn)


def test_steep_power_law_takes_the_last_slots_in_order() -> None:
    drawn = draws.power_law_slots(generator(), 50, 6, 3, 400.0)
    assert np.array_equal(drawn, np.tile([5, 4, 3], (50, 1)))


@given(st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_exponentials_match_log(numerators: list[int]) -> None:
    uniform = np.array([0, 1, 2**52 - 1, 2**52, 2**53 - 1, *numerators]) * 2.0**-53
    np.testing.assert_allclose(draws.exponentials(uniform), -np.log1p(-uniform), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("high", [1, 3, 2**15 - 1, 2**31 - 1])
def test_integers_stay_below_high(high: int) -> None:
    class Largest:
        def random(self, shape: tuple[int, ...]) -> np.ndarray:
            return np.full(shape, 1 - 2.0**-53)

    drawn = draws.integers(Largest(), (3,), high)  # type: ignore[arg-type]
    assert drawn.tolist() == [high - 1] * 3


@pytest.mark.parametrize("draw", ["distinct", "slots"])
def test_too_small_a_pool_is_refused(draw: str) -> None:
    with pytest.raises(ValueError, match=r"cannot draw 4 distinct .* 3"):
        if draw == "distinct":
            draws.distinct(generator(), 2, 3, 4)
        else:
            draws.power_law_slots(generator(), 2, 3, 4, -0.9)
