"""What the tests' toy model promises those who test with it."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.model import Chunk, Model, NoRoom, Rollback, Row
from outrider.sampling import GREEDY, SamplingParameters
from tests.support.toy import BOS, EOS, NEVER, PAD, Misused, ToyModel, generate_alone

TEXT = [BOS, 12, 40, 7, 33, 21, 50, 9, 15]
FREE = SamplingParameters(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def rows_of(model: Model, sequence: int, token_ids: list[int], sizes: list[int]) -> list[Row]:
    """Decode in chunks of the given sizes and keep copies of every row."""
    rows: list[Row] = []
    for size in sizes:
        part = token_ids[len(rows) : len(rows) + size]
        [new] = model.decode([Chunk(sequence, len(rows), part, size)])
        rows += [row.copy() for row in new]
    return rows


def row_after(model: Model, sequence: int, position: int, token_ids: list[int]) -> Row:
    [[row]] = model.decode([Chunk(sequence, position, token_ids, 1)])
    return row.copy()


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [4, 5], [2, 3, 4]])
def test_rows_do_not_depend_on_the_chunking(sizes: list[int]) -> None:
    whole = rows_of(ToyModel(), 0, TEXT, [9])
    np.testing.assert_array_equal(rows_of(ToyModel(), 2, TEXT, sizes), whole)


def test_rows_do_not_depend_on_other_sequences_in_the_batch() -> None:
    together = ToyModel().decode([Chunk(1, 0, [5, 6], 1), Chunk(3, 0, TEXT, 2)])
    np.testing.assert_array_equal(together[1], rows_of(ToyModel(), 0, TEXT, [9])[-2:])


def test_rows_forget_what_is_older_than_the_order() -> None:
    longer = row_after(ToyModel(order=3), 0, 0, TEXT)
    np.testing.assert_array_equal(longer, row_after(ToyModel(order=3), 0, 0, TEXT[-3:]))
    whole = row_after(ToyModel(order=256), 0, 0, TEXT)
    assert not np.array_equal(whole, row_after(ToyModel(order=256), 0, 0, TEXT[1:]))


def test_another_seed_is_another_model() -> None:
    assert not np.array_equal(
        row_after(ToyModel(seed=1), 0, 0, TEXT), row_after(ToyModel(seed=2), 0, 0, TEXT)
    )


def test_numpy_ids_are_the_same_tokens() -> None:
    ids = np.array(TEXT, np.int32)
    [[row]] = ToyModel().decode([Chunk(0, 0, list(ids), 1)])
    np.testing.assert_array_equal(row, row_after(ToyModel(), 0, 0, TEXT))


def test_a_truncated_sequence_forgets() -> None:
    model = ToyModel()
    row_after(model, 0, 0, [*TEXT, 60, 61, 62])
    model.truncate(0, len(TEXT))
    assert model.held(0) == tuple(TEXT)
    expected = row_after(ToyModel(), 0, 0, [*TEXT, 8])
    np.testing.assert_array_equal(row_after(model, 0, len(TEXT), [8]), expected)


def test_a_truncation_that_was_left_out_changes_the_rows() -> None:
    model = ToyModel()
    row_after(model, 0, 0, [*TEXT, 60])
    expected = row_after(ToyModel(), 0, 0, [*TEXT, 8])
    assert not np.array_equal(row_after(model, 0, len(TEXT) + 1, [8]), expected)


def test_a_copied_prefix_is_the_prefix_and_stays_apart() -> None:
    model = ToyModel()
    row_after(model, 0, 0, TEXT)
    row_after(model, 1, 0, [4, 4])
    model.copy_prefix(0, 1, 5)
    model.truncate(0, 2)
    assert model.held(1) == tuple(TEXT[:5])
    np.testing.assert_array_equal(row_after(model, 1, 5, TEXT[5:]), rows_of(model, 2, TEXT, [9])[8])


def test_exchanged_sequences_hold_what_the_other_held() -> None:
    model = ToyModel()
    row_after(model, 0, 0, TEXT)
    row_after(model, 1, 0, [4, 4])
    model.exchange(0, 1)
    assert (model.held(0), model.held(1)) == ((4, 4), tuple(TEXT))
    with pytest.raises(Misused, match="itself"):
        model.exchange(1, 1)


def test_a_stale_row_is_visibly_overwritten_and_refused_by_the_sampler() -> None:
    model = ToyModel()
    [[stale]] = model.decode([Chunk(0, 0, TEXT, 1)])
    [[fresh]] = model.decode([Chunk(1, 0, TEXT, 1)])
    assert np.isnan(stale).all()
    assert not np.isnan(fresh).any()
    with pytest.raises(Misused, match="overwritten"):
        model.sampler(GREEDY).distribution(stale)


def test_a_row_cannot_be_written_to() -> None:
    [[row]] = ToyModel().decode([Chunk(0, 0, TEXT, 1)])
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 1.0


@pytest.mark.parametrize(
    ("chunks", "said"),
    [
        ([], "nothing"),
        ([Chunk(0, 0, [], 0)], "without tokens"),
        ([Chunk(0, 0, [64], 1)], "no token 64"),
        ([Chunk(0, 0, [-1], 1)], "no token -1"),
        ([Chunk(4, 0, [5], 1)], "no sequence 4"),
        ([Chunk(-1, 0, [5], 1)], "no sequence -1"),
        ([Chunk(0, 1, [5], 1)], "position 1, but 0 held"),
        ([Chunk(0, 0, [5], 2)], "2 rows of 1"),
        ([Chunk(0, 0, [5], -1)], "-1 rows of 1"),
        ([Chunk(0, 0, [5], 1), Chunk(0, 1, [6], 1)], "not distinct"),
        ([Chunk(0, 0, [5] * 17, 1)], "overflow"),
        ([Chunk(0, 0, [5] * 5, 1), Chunk(1, 0, [5], 1)], "12 rows; a decode has 8"),
        ([Chunk(0, 0, [5] * 4, 4), Chunk(1, 0, [5] * 3, 3)], "7 rows of logits; 6 fit"),
    ],
)
def test_what_would_abort_llama_cpp_raises_and_changes_nothing(
    chunks: list[Chunk], said: str
) -> None:
    model = ToyModel(context=16, batch_rows=8, wanted_rows=6)
    with pytest.raises(Misused, match=said):
        model.decode(chunks)
    assert model.decode_count == 0
    assert [model.held(sequence) for sequence in range(4)] == [()] * 4


@pytest.mark.parametrize(("sequence", "token_count"), [(0, 3), (0, -1), (4, 0)])
def test_a_prefix_that_is_not_held_cannot_be_kept_or_copied(
    sequence: int, token_count: int
) -> None:
    model = ToyModel()
    model.decode([Chunk(0, 0, [5, 6], 0)])
    with pytest.raises(Misused):
        model.truncate(sequence, token_count)
    with pytest.raises(Misused):
        model.copy_prefix(sequence, 1, token_count)


def test_memory_that_cannot_be_cut_goes_back_to_a_checkpoint() -> None:
    model = ToyModel(rollback=Rollback.CHECKPOINTS)
    model.decode([Chunk(0, 0, [5, 6], 0)])
    assert model.truncate(0, 1) == 0
    assert model.held(0) == ()
    model.decode([Chunk(0, 0, [5, 6], 0)])
    model.decode([Chunk(0, 2, [7, 8, 9], 3)])
    assert model.truncate(0, 4) == 2
    assert model.held(0) == (5, 6)


def test_no_room_for_a_merged_batch_holds_nothing_of_it() -> None:
    model = ToyModel(no_room_after=4)
    with pytest.raises(NoRoom):
        model.decode([Chunk(0, 0, [5], 1), Chunk(1, 0, [6], 1)])
    assert model.held(0) == model.held(1) == ()
    model.decode([Chunk(0, 0, [5] * 9, 1)])  # alone, a chunk always finds room


def test_the_hook_before_a_decode_can_refuse_it() -> None:
    def refuse(chunks: object) -> None:
        raise NoRoom

    model = ToyModel(before_decode=refuse)
    with pytest.raises(NoRoom):
        model.decode([Chunk(0, 0, [5], 1)])
    assert model.decode_count == 0


def test_a_second_user_at_the_same_time_is_noticed() -> None:
    def decode_again(chunks: object) -> None:
        model.truncate(0, 0)

    model = ToyModel(before_decode=decode_again)
    with pytest.raises(Misused, match="at once"):
        model.decode([Chunk(0, 0, [5], 1)])


def test_a_closed_model_refuses_to_decode() -> None:
    model = ToyModel()
    model.close()
    with pytest.raises(Misused, match="closed"):
        model.decode([Chunk(0, 0, [5], 1)])


def test_decodes_are_counted_with_their_padding() -> None:
    model = ToyModel()
    model.decode([Chunk(0, 0, [5] * 5, 1), Chunk(2, 0, [6], 0)])
    assert model.decode_count == 1
    assert (model.decodes[0].row_count, model.decodes[0].token_count) == (12, 6)
    assert model.decodes[0].chunks[1] == Chunk(2, 0, (6,), 0)


def test_padding_is_to_the_next_multiple() -> None:
    assert [ToyModel().padded(count) for count in (1, 4, 5)] == [4, 4, 8]
    assert ToyModel(pad_multiple=1).padded(5) == 5


def best_after(model: ToyModel, text: list[int]) -> int:
    model.truncate(0, 0)
    return int(row_after(model, 0, 0, text).argmax())


def agreement_of(draft: ToyModel, target: ToyModel) -> float:
    texts = np.random.default_rng(7).integers(3, 64, (400, 3)).tolist()
    return float(np.mean([best_after(draft, text) == best_after(target, text) for text in texts]))


def test_greedy_agreement_rises_with_the_agreement_option() -> None:
    shares = [0.0, 0.5, 0.8, 0.95, 1.0]
    drafts = [ToyModel(seed=2, like=1, agreement=share) for share in shares]
    rates = [agreement_of(draft, ToyModel(seed=1)) for draft in drafts]
    assert rates == sorted(rates)
    assert rates[0] < 0.1
    assert 0.2 < rates[1] < 0.6 < rates[3] < 1.0 == rates[4]


def test_a_larger_vocabulary_keeps_the_texts_and_logits_of_the_smaller() -> None:
    small, large = ToyModel(), ToyModel(vocabulary_size=300)
    assert large.token_texts()[:64] == small.token_texts()
    assert len(set(large.token_names())) == 300
    np.testing.assert_array_equal(row_after(large, 0, 0, TEXT)[:64], row_after(small, 0, 0, TEXT))


def test_a_changed_text_is_what_the_handshake_must_notice() -> None:
    model = ToyModel(changed_texts={9: b"odd"})
    assert model.token_texts()[9] == model.token_names()[9] == b"odd"
    assert model.tokenize(b"odd", add_special=False, parse_special=False) == [9]


def test_wobble_makes_the_bits_depend_on_the_batch() -> None:
    alone = row_after(ToyModel(wobble=1e-4), 0, 0, TEXT[:1])
    together = rows_of(ToyModel(wobble=1e-4), 0, TEXT, [9])[0]
    assert not np.array_equal(alone, together)
    np.testing.assert_allclose(alone, together, rtol=1e-2)


@pytest.mark.parametrize("text", ["the cat\nate.", "caf\u00e9 \u20ac \U0001f642", ""])
def test_text_survives_tokens_that_are_half_a_character(text: str) -> None:
    model = ToyModel()
    ids = model.tokenize(text.encode(), add_special=False, parse_special=False)
    assert b"".join(model.token_texts()[token_id] for token_id in ids) == text.encode()


def test_some_tokens_are_only_half_a_character() -> None:
    model = ToyModel()
    assert len(model.tokenize("\u00e9".encode(), add_special=False, parse_special=False)) == 2


def test_tokenizing_takes_the_longest_text_and_a_mark_for_what_is_unknown() -> None:
    model = ToyModel()
    ids = model.tokenize(b"then\x00", add_special=True, parse_special=False)
    assert [model.token_names()[token_id] for token_id in ids] == [b"<s>", b"th", b"en", b"?"]


def test_control_tokens_are_read_only_when_asked_for_and_add_no_text() -> None:
    model = ToyModel(adds_bos=False)
    assert model.tokenize(b"</s>a", add_special=True, parse_special=True)[0] == EOS
    assert EOS not in model.tokenize(b"</s>a", add_special=True, parse_special=False)
    assert [model.token_texts()[token_id] for token_id in (BOS, EOS, PAD)] == [b"", b"", b""]


def test_the_end_bias_decides_when_a_text_ends() -> None:
    assert generate_alone(ToyModel(eos_bias=20.0), TEXT, 50, FREE, seed=5) == [EOS]
    endless = generate_alone(ToyModel(eos_bias=NEVER), TEXT, 200, FREE, seed=5)
    assert len(endless) == 200
    assert not {BOS, EOS, PAD} & set(endless)


def test_alone_and_greedy_is_the_argmax_of_every_row() -> None:
    written = generate_alone(ToyModel(eos_bias=NEVER), TEXT, 12, GREEDY, seed=0)
    rows = rows_of(ToyModel(eos_bias=NEVER), 0, TEXT + written, [len(TEXT) + 12])
    assert written == [int(row.argmax()) for row in rows[len(TEXT) - 1 : -1]]


def test_alone_follows_the_seed_and_the_choice_and_nothing_else() -> None:
    used = ToyModel(batch_rows=8)
    first = generate_alone(used, TEXT, 20, FREE, seed=3)
    assert generate_alone(used, TEXT, 20, FREE, seed=3) == first
    assert generate_alone(ToyModel(), TEXT, 20, FREE, seed=3) == first
    assert generate_alone(ToyModel(), TEXT, 20, FREE, seed=4) != first
    assert generate_alone(ToyModel(), TEXT, 20, FREE, seed=3, choice=1) != first


def test_alone_continues_a_text_as_if_it_had_written_all_of_it() -> None:
    whole = generate_alone(ToyModel(eos_bias=NEVER), TEXT, 20, FREE, seed=3)
    rest = generate_alone(ToyModel(eos_bias=NEVER), TEXT + whole[:8], 12, FREE, seed=3)
    assert rest == whole[8:]
