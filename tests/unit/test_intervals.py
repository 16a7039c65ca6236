"""The interval of a median."""

from __future__ import annotations

import numpy as np

from outrider_cli.intervals import Estimate, median_of


def test_the_same_values_give_the_same_interval():
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    first = median_of(values)
    assert first == median_of(values)
    assert first == Estimate(5.5, 3.0, 8.0)


def test_an_interval_holds_the_truth_about_as_often_as_it_says():
    # Of the medians of 200 normal samples of 25, 95 % +- 4 % hold 0: 2.6 standard deviations.
    samples = np.random.default_rng(7).normal(size=(200, 25))
    found = [median_of(sample) for sample in samples.tolist()]
    held = sum(each is not None and each.low <= 0.0 <= each.high for each in found)
    assert 0.91 <= held / 200 <= 0.99
