"""A peer may send what it was asked for, and no more."""

from __future__ import annotations

import pytest

from outrider.core.allowance import OrderAllowance, RoundAllowance
from outrider.errors import InvalidRequest
from outrider.messages import Form, Frame, Order, Round, RunnerUp, Span

PROMPT = Span(0, [5, 6, 7])


def order(number: int, until: int) -> Order:
    return Order(number, PROMPT, until, 0, 0)


def frame(position: int, count: int) -> Frame:
    return Frame(base=3, position=position, token_ids=[9] * count)


def test_a_line_in_single_tokens_and_a_last_frame_are_in_order() -> None:
    allowance = OrderAllowance()
    for number in range(1, 50):
        allowance.note_order(order(number, 3 + 64))
        for i in range(64):
            allowance.take_completed(0)
            allowance.take_frame(frame(3 + i, 1))
        allowance.take_completed(number)


def test_tokens_beyond_every_order_are_refused() -> None:
    allowance = OrderAllowance()
    allowance.note_order(order(1, 10))
    allowance.note_order(order(2, 7))  # a nearer horizon cuts nothing that was ordered before
    allowance.take_frame(frame(5, 5))
    with pytest.raises(InvalidRequest, match="ordered up to 10"):
        allowance.take_frame(frame(5, 6))


def test_messages_without_end_are_refused() -> None:
    allowance = OrderAllowance()
    for number in range(1, 1000):
        allowance.note_order(order(number, 67))
    with pytest.raises(InvalidRequest, match="more messages"):
        for _ in range(400):
            allowance.take_completed(0)


@pytest.mark.parametrize("completed", [-1, 2, 2**31 - 1])
def test_an_order_that_was_not_given_cannot_be_completed(completed: int) -> None:
    allowance = OrderAllowance()
    allowance.note_order(order(1, 10))
    with pytest.raises(InvalidRequest, match="completed_order"):
        allowance.take_completed(completed)


def test_a_peer_that_loses_what_it_is_sent_again_and_again_is_refused() -> None:
    allowance = OrderAllowance()
    allowance.note_order(order(1, 10))
    for _ in range(10):
        for _ in range(16):
            allowance.take_lost()
        allowance.take_frame(frame(3, 1))  # it does hold the text, after all
    for _ in range(16):
        allowance.take_lost()
    with pytest.raises(InvalidRequest, match="again and again"):
        allowance.take_lost()


@pytest.mark.parametrize("continues", [0, 40])
def test_a_target_may_answer_each_row_and_each_decode_that_follows_twice(continues: int) -> None:
    allowance = RoundAllowance()
    for number in range(1, 300):
        round_ = Round(number, PROMPT, [8, 9], Form.SAMPLED, continue_count=continues)
        allowance.note_round(round_)
        for _ in range(2 * (3 + continues)):
            allowance.take_message()


def test_messages_of_a_target_without_end_are_refused() -> None:
    allowance = RoundAllowance()
    for number in range(1, 1000):
        allowance.note_round(Round(number, PROMPT, [8, 9], Form.SAMPLED, continue_count=4096))
    with pytest.raises(InvalidRequest, match="more messages"):
        for _ in range(10_000):
            allowance.take_message()


def test_runner_up_lines_that_nobody_asked_for_are_refused() -> None:
    allowance = OrderAllowance()
    allowance.note_order(order(1, 10))
    with pytest.raises(InvalidRequest, match="not asked for"):
        allowance.take_frame(Frame(3, 3, [9], runner_ups=[RunnerUp(1, 0, 4, 4, [8])]))


def test_runner_up_lines_end_where_the_orders_do() -> None:
    allowance = OrderAllowance()
    allowance.note_order(Order(1, PROMPT, 10, line_count=4))
    allowance.take_frame(Frame(3, 3, [9], runner_ups=[RunnerUp(1, 0, 4, 4, [8] * 6)]))
    with pytest.raises(InvalidRequest, match="ordered up to 10"):
        allowance.take_frame(Frame(3, 3, [9], runner_ups=[RunnerUp(1, 0, 4, 4, [8] * 7)]))


def test_messages_of_runner_up_lines_alone_are_in_order_and_have_an_end() -> None:
    allowance = OrderAllowance()
    allowance.note_order(Order(1, PROMPT, 10, line_count=4))
    for _ in range(4 * 7 + 16):
        allowance.take_completed(0)
    with pytest.raises(InvalidRequest, match="more messages"):
        for _ in range(20):
            allowance.take_completed(0)
