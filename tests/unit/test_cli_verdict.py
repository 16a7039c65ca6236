"""The sentence that says whether drafts pay."""

import pytest

from outrider_cli import verdict


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1.4, 1.3, 1.5), "Drafts help here: 1.4 times (1.3 to 1.5). Leave them on."),
        ((1.1, 1.04, 1.16), "Drafts help here: 1.10 times (1.04 to 1.16). Leave them on."),
        ((1.4,), "Drafts help here: 1.4 times. Leave them on."),
        (
            (0.9, 0.88, 0.92),
            "Drafts cost 10 %: .90 times (.88 to .92). --no-draft turns them off.",
        ),
        (
            (0.8,),
            "Drafts cost 20 %: .80 times. --no-draft turns them off.",
        ),
        ((1.3, 0.9, 1.9), "Drafts make no clear difference here: 1.30 times (.90 to 1.90)."),
        ((0.9, 0.7, 1.1), "Drafts make no clear difference here: .90 times (.70 to 1.10)."),
    ],
)
def test_a_speedup_is_a_gain_or_a_loss_only_where_its_interval_leaves_out_one(given, said):
    assert verdict.sentence(*given) == said


@pytest.mark.parametrize("ratio", [0.96, 1.0, 1.04])
def test_one_measurement_near_one_is_no_clear_difference(ratio):
    assert "no clear difference" in verdict.sentence(ratio)


def test_a_target_that_was_left_to_itself_loses_nothing():
    said = "Drafts would not save time here, so none were made."
    assert verdict.sentence(1.0, drafted=False) == said
    assert verdict.sentence(0.99, 0.97, 1.02, drafted=False) == said


def test_a_clear_loss_is_told_even_where_nothing_was_drafted():
    assert verdict.sentence(0.9, 0.88, 0.92, drafted=False).startswith("Drafts cost 10 %")


def test_a_ratio_keeps_the_digits_that_tell_it_from_one():
    assert verdict.times(1.04, 1.02, 1.06) == "1.04 times (1.02 to 1.06)"
    assert verdict.times(2.31, 2.24, 2.4) == "2.3 times (2.2 to 2.4)"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (1.3, "Drafts help here: about 1.3 times the target alone."),
        (1.02, "Drafts make no clear difference in this text."),
        (0.61, "Perhaps .61 times the target alone: try generate --compare."),
    ],
)
def test_one_text_gives_an_estimate_and_no_advice(ratio, said):
    assert verdict.estimate(ratio) == said
