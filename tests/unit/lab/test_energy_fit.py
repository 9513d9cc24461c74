"""The fit of boards' power."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from lab.energy import deep_speech, fit, left_out, neural_filtering

SHARES = np.array([0.1, 0.25, 0.9, 0.5])


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    working, recurrent = random.uniform(0, 1, (2, 40))
    is_stacked = np.arange(40) % 2
    terms = np.stack(
        (
            (1 - working) * is_stacked,
            (1 - working) * (1 - is_stacked),
            working * (1 - recurrent),
            working * recurrent,
        ),
        axis=1,
    )
    return terms, terms @ SHARES, np.ones(40)


def test_it_finds_the_shares_despite_an_outlier() -> None:
    terms, power, weights = rows()
    power[3] *= 3

    assert fit(terms, power, weights) == pytest.approx(SHARES, rel=0.02)


def test_a_missing_kind_of_board_gets_the_floor_of_the_other() -> None:
    terms, power, weights = rows()
    others = terms[:, 0] == 0

    found = fit(terms[others], power[others], weights[others])

    assert found[0] == found[1] == pytest.approx(0.25, rel=0.02)


def test_a_group_is_predicted_without_its_own_rows() -> None:
    terms, power, weights = rows()
    groups = np.arange(40) % 4
    power[groups == 2] *= 1.5

    predicted = left_out(terms, power, weights, groups)

    assert predicted[groups == 2] == pytest.approx(power[groups == 2] / 1.5, rel=0.02)


def test_networks_compute_a_loss() -> None:
    network, batch = neural_filtering(3)
    assert network(*batch).ndim == 0
    _, (spectrum, _) = deep_speech(2)
    assert spectrum.shape == (2, 1, 161, 1230)
