"""The band of the runs that lived, and the batch at which a curve leaves it: hand-made series."""

import math

import pytest
from helpers import script

onsets = script("atlas/onsets.py")
SPIRAL, Band, BandRule = onsets.SPIRAL, onsets.Band, onsets.BandRule
band_of, leaves, order_of = onsets.band_of, onsets.leaves, onsets.order_of
NOW = BandRule(start=0, window=1, hold=1)


def test_the_band_by_hand():
    # trailing means of 2: 1.5, 2.5 and 4, 3; the third run ends early and widens what it has
    band = band_of(
        [[1.0, 2.0, 3.0], [5.0, 3.0, 3.0], [9.0, 9.0]], BandRule(start=0, window=2, hold=1)
    )
    assert math.isnan(band.low[0]) and math.isnan(band.high[0])
    assert band.low[1:] == (1.5, 2.5) and band.high[1:] == (9.0, 3.0)


def test_a_band_skips_what_was_not_measured_and_wants_two_runs():
    assert band_of([[None, 2.0], [1.0, 4.0]], NOW) == Band((1.0, 2.0), (1.0, 4.0))
    with pytest.raises(ValueError, match="at least 2"):
        band_of([[1.0, 2.0]], NOW)


def test_leaving_by_hand():
    band = Band((0.0,) * 8, (1.0,) * 8)
    series = [0.5, 1.5, 0.5, 1.5, 1.5, 1.5, 0.5, -0.5]
    assert leaves(series, band, "above", NOW) == 1
    assert leaves(series, band, "above", BandRule(start=0, window=1, hold=2)) == 3
    assert leaves(series, band, "above", BandRule(start=0, window=1, hold=4)) is None
    assert leaves(series, band, "below", NOW) == 7


def test_the_edge_itself_is_inside_and_so_is_what_nobody_measured():
    band = Band((0.0,) * 3, (1.0, math.nan, 1.0))
    assert leaves([1.0, 9.0, 1.0], band, "above", NOW) is None
    assert leaves([None, None, 2.0], band, "above", NOW) == 2


def test_one_wild_batch_leaves_only_a_short_window():
    band = Band((0.0,) * 9, (1.0,) * 9)
    wild = [0.5] * 4 + [9.0] + [0.5] * 4
    assert leaves(wild, band, "above", BandRule(start=0, window=1, hold=2)) is None
    assert (
        leaves(wild, band, "above", BandRule(start=0, window=3, hold=2)) == 4
    )  # means of 3: 3.3 thrice


def test_the_start_is_not_watched():
    band, series = Band((0.0,) * 6, (1.0,) * 6), [9.0] * 6
    assert leaves(series, band, "above", BandRule(start=3, window=1, hold=2)) == 3
    assert leaves(series, band, "above", BandRule(start=5, window=1, hold=2)) is None


def test_a_run_past_the_end_of_the_band_is_not_judged():
    assert leaves([0.5, 0.5, 9.0], Band((0.0,) * 2, (1.0,) * 2), "above", NOW) is None


def test_the_order():
    onsets = {"reward": 40, "likelihood": 12, "norm": None, "entropy": 12}
    assert order_of(onsets) == ("likelihood", "entropy", "reward")
    assert order_of({}) == ()


def test_the_four_curves_are_logged_ones():
    from lldlib.runs.glossary import describe

    assert all(describe(key).unit for key in SPIRAL)
