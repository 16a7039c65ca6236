"""JSON-RPC 2.0: the examples of its specification, our own errors, and whatever else comes in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider import errors
from outrider.errors import EngineBusy, InvalidRequest, OutriderError, PromptTooLong
from outrider_jsonrpc.protocol import (
    CODES,
    MAX_BATCH,
    MAX_DEPTH,
    Method,
    Params,
    answer,
    one_object,
)
from outrider_jsonrpc.shapes import SPECULATIVE

SETTINGS = settings(derandomize=True, deadline=None, max_examples=150)

INVALID_REQUEST = {"code": -32600, "message": "Invalid Request"}
PARSE_ERROR = {"code": -32700, "message": "Parse error"}


class Reports(list[tuple[str, Exception]]):
    """Keeps what is reported; the id of each is its number."""

    def __call__(self, method: str, error: Exception) -> str:
        self.append((method, error))
        return f"number {len(self)}"


def returning(function: Callable[[Any], Any]) -> Method:
    async def method(params: Params) -> Any:
        return function(params)

    return method


def raising(error: Exception) -> Method:
    async def method(_: Params) -> Any:
        raise error

    return method


def ask(body: bytes | str, methods: Mapping[str, Method], **limits: int) -> bytes | None:
    data = body if isinstance(body, bytes) else body.encode()
    return asyncio.run(answer(data, methods, Reports(), **limits))


def ask_for(value: Any, methods: Mapping[str, Method]) -> Any:
    """Return the answer to a request or a batch, None where there is none."""
    told = ask(json.dumps(value), methods)
    return None if told is None else json.loads(told)


def request(method: str = "it", **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, **members}


def error_of(method: Method, **members: Any) -> Any:
    return ask_for(request(id=1, **members), {"it": method})["error"]


def refusal(body: bytes | str, **limits: int) -> Any:
    """Return the error that a whole body is answered with."""
    told = ask(body, {}, **limits)
    assert told is not None
    reply = json.loads(told)
    assert reply["id"] is None
    return reply["error"]


# section 7 of the specification, in its own words


def subtract(params: Any) -> int:
    left, right = params if isinstance(params, list) else (params["minuend"], params["subtrahend"])
    return left - right


ARITHMETIC = {
    "subtract": returning(subtract),
    "sum": returning(sum),
    "get_data": returning(lambda _: ["hello", 5]),
    **{name: returning(len) for name in ("update", "notify_hello", "notify_sum")},
}

EXAMPLES = {
    "rpc call with positional parameters": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
        '{"jsonrpc": "2.0", "result": 19, "id": 1}',
    ),
    "rpc call with positional parameters, the other way round": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
        '{"jsonrpc": "2.0", "result": -19, "id": 2}',
    ),
    "rpc call with named parameters": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',  # noqa: E501
        '{"jsonrpc": "2.0", "result": 19, "id": 3}',
    ),
    "rpc call with named parameters, the other way round": (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}',  # noqa: E501
        '{"jsonrpc": "2.0", "result": 19, "id": 4}',
    ),
    "a Notification": (
        '{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}',
        None,
    ),
    "a Notification without parameters": (
        '{"jsonrpc": "2.0", "method": "foobar"}',
        None,
    ),
    "rpc call of non-existent method": (
        '{"jsonrpc": "2.0", "method": "foobar", "id": "1"}',
        '{"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}',
    ),
    "rpc call with invalid JSON": (
        '{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]',
        '{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}',
    ),
    "rpc call with invalid Request object": (
        '{"jsonrpc": "2.0", "method": 1, "params": "bar"}',
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}',
    ),
    "rpc call Batch, invalid JSON": (
        """[
  {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
  {"jsonrpc": "2.0", "method"
]""",
        '{"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": null}',
    ),
    "rpc call with an empty Array": (
        "[]",
        '{"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}',
    ),
    "rpc call with an invalid Batch (but not empty)": (
        "[1]",
        """[
  {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}
]""",
    ),
    "rpc call with invalid Batch": (
        "[1,2,3]",
        """[
  {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
  {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
  {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null}
]""",
    ),
    "rpc call Batch": (
        """[
        {"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},
        {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},
        {"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},
        {"foo": "boo"},
        {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
        {"jsonrpc": "2.0", "method": "get_data", "id": "9"}
    ]""",
        """[
        {"jsonrpc": "2.0", "result": 7, "id": "1"},
        {"jsonrpc": "2.0", "result": 19, "id": "2"},
        {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": null},
        {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
        {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"}
    ]""",
    ),
    "rpc call Batch (all notifications)": (
        """[
        {"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},
        {"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}
    ]""",
        None,
    ),
}


@pytest.mark.parametrize("body, wanted", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_of_the_specification_is_answered_to_the_letter(
    body: str, wanted: str | None
) -> None:
    told = ask(body, ARITHMETIC)
    if wanted is None:
        assert told is None
    else:
        assert told == json.dumps(json.loads(wanted), separators=(",", ":")).encode()


# requests


@pytest.mark.parametrize("call_id", ["", "1", 1, 0, -1, 2**64, 10**300, 1.5, None, "\U0001f642"])
def test_an_id_comes_back_as_it_was(call_id: Any) -> None:
    reply = ask_for(request(id=call_id), {"it": returning(len)})
    assert (reply["id"], type(reply["id"])) == (call_id, type(call_id))


@pytest.mark.parametrize("call_id", [True, False, [], {}, [1]])
def test_what_cannot_be_an_id_is_answered_without_one(call_id: Any) -> None:
    reply = ask_for(request(id=call_id), {"it": returning(len)})
    assert reply == {"jsonrpc": "2.0", "error": INVALID_REQUEST, "id": None}


@pytest.mark.parametrize(
    "members",
    [{"jsonrpc": "1.0"}, {"jsonrpc": 2.0}, {"method": None}, {"params": "x"}, {"params": None}],
)
def test_what_is_no_request_is_answered_with_the_id_it_has(members: dict[str, Any]) -> None:
    reply = ask_for(request(id=7) | members, {"it": returning(len)})
    assert reply == {"jsonrpc": "2.0", "error": INVALID_REQUEST, "id": 7}


def test_members_beyond_the_specification_are_ignored() -> None:
    assert ask_for(request(id=1, auth="x"), {"it": returning(len)})["result"] == 0


def test_a_null_id_is_no_notification() -> None:
    assert ask_for(request(id=None), {"it": returning(len)})["result"] == 0


def test_a_notification_has_run_when_the_answer_is_there() -> None:
    told: list[Any] = []
    assert ask_for(request(params=[5]), {"it": returning(told.append)}) is None
    assert told == [[5]]


@pytest.mark.parametrize("error", [InvalidRequest("seed", "no"), RuntimeError("no")])
def test_a_notification_that_fails_is_not_answered(error: Exception) -> None:
    assert ask_for(request(), {"it": raising(error)}) is None


def test_the_calls_of_a_batch_run_one_after_the_other() -> None:
    told: list[str] = []

    async def slowly(params: Any) -> None:
        told.append(f"start {params[0]}")
        for _ in range(3 - params[0]):
            await asyncio.sleep(0)
        told.append(f"end {params[0]}")

    ask_for([request(params=[i], id=i) for i in range(3)], {"it": slowly})
    assert told == ["start 0", "end 0", "start 1", "end 1", "start 2", "end 2"]


def test_calls_of_one_id_are_answered_one_by_one() -> None:
    replies = ask_for([request(id=1, params=[0] * n) for n in (3, 2)], {"it": returning(len)})
    assert [reply["result"] for reply in replies] == [3, 2]


async def test_an_answer_that_is_no_longer_wanted_ends_its_call() -> None:
    async def forever(_: Params) -> None:
        await asyncio.Event().wait()

    body = json.dumps([request(id=1), request(id=2)]).encode()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(answer(body, {"it": forever}, Reports()), 0.01)


# parameters by name


@one_object
async def echo(fields: Mapping[str, Any]) -> Any:
    return dict(fields)


@pytest.mark.parametrize("params", [{"n": 1}, [{"n": 1}], ['{"n": 1}'], [' {"n":\n1} ']])
def test_one_object_is_taken_in_every_form(params: Any) -> None:
    assert ask_for(request(id=1, params=params), {"it": echo})["result"] == {"n": 1}


@pytest.mark.parametrize("members", [{}, {"params": []}, {"params": {}}, {"params": ["{}"]}])
def test_no_parameters_are_an_empty_object(members: dict[str, Any]) -> None:
    assert ask_for(request(id=1, **members), {"it": echo})["result"] == {}


@pytest.mark.parametrize(
    "params",
    [[1], [None], [[{}]], [{}, {}], ["{}", 1], [""], ["[]"], ['"{}"'], ["{"], ['{"a":1,"a":2}']],
)
def test_anything_but_one_object_is_refused(params: Any) -> None:
    error = error_of(echo, params=params)
    assert error["code"] == -32602
    assert error["message"].startswith("params: ")
    assert error["data"] == {"reason": "INVALID_REQUEST", "metadata": {"field": "params"}}


def test_deep_json_in_a_text_is_refused() -> None:
    assert "levels deep" in error_of(echo, params=["[" * 5000])["message"]


# errors of a method


def test_an_invalid_value_is_named() -> None:
    assert error_of(raising(InvalidRequest("top_p", "must be in (0, 1]"))) == {
        "code": -32602,
        "message": "top_p: must be in (0, 1]",
        "data": {"reason": "INVALID_REQUEST", "metadata": {"field": "top_p"}},
    }


def test_an_error_has_the_code_of_its_reason_and_all_its_metadata() -> None:
    assert error_of(raising(PromptTooLong(900, 508, 512))) == {
        "code": -32005,
        "message": "prompt too long (900 tokens, max 508)",
        "data": {
            "reason": "PROMPT_TOO_LONG",
            "metadata": {
                "field": "prompt",
                "promptTokenCount": "900",
                "maximumTokenCount": "508",
                "contextTokenCount": "512",
            },
        },
    }


def test_a_busy_engine_says_when_to_try_again() -> None:
    error = error_of(raising(EngineBusy("no sequence is free", 0.5)))
    assert (error["code"], error["data"]["metadata"]) == (-32001, {"retrySeconds": "0.5"})


def test_every_error_of_ours_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert {kind.reason for kind in kinds if issubclass(kind, OutriderError)} == CODES.keys()
    assert len(set(CODES.values())) == len(CODES)
    assert all(-32099 <= code < -32000 or code in (-32602, -32603) for code in CODES.values())


def test_a_reason_from_elsewhere_keeps_its_name() -> None:
    error = OutriderError("the peer said no")
    error.reason = "UNIMPLEMENTED"
    assert error_of(raising(error)) == {
        "code": -32000,
        "message": "the peer said no",
        "data": {"reason": "UNIMPLEMENTED", "metadata": {}},
    }


def circular() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


@pytest.mark.parametrize(
    "method",
    [
        raising(RuntimeError("a prompt")),
        raising(RecursionError("a prompt")),
        returning(lambda _: {"a prompt"}),
        returning(lambda _: b"a prompt"),
        returning(lambda _: float("nan")),
        returning(lambda _: [float("inf")]),
        returning(lambda _: circular()),
        returning(lambda _: deep()),
    ],
    ids=["bug", "recursion", "set", "bytes", "NaN", "infinity", "circle", "depth"],
)
async def test_what_was_not_expected_is_reported_and_not_shown(method: Method) -> None:
    reports = Reports()
    told = await answer(json.dumps(request(id=1)).encode(), {"it": method}, reports)
    assert told is not None
    assert json.loads(told)["error"] == {
        "code": -32603,
        "message": "Internal error",
        "data": {"reason": "INTERNAL", "metadata": {"errorId": "number 1"}},
    }
    assert [name for name, _ in reports] == ["it"]


async def test_a_notification_that_fails_unexpectedly_is_reported() -> None:
    reports = Reports()
    methods = {"it": raising(RuntimeError()), "busy": raising(EngineBusy("later", 1))}
    body = json.dumps([request(), request("busy"), request("unknown")]).encode()
    assert await answer(body, methods, reports) is None
    assert [name for name, _ in reports] == ["it"]


# bodies


def test_a_body_that_is_too_large_is_refused() -> None:
    body = json.dumps(request(id=1))
    told = ask(body, {"it": returning(len)}, max_bytes=len(body))
    assert told is not None and b"result" in told
    assert refusal(body, max_bytes=len(body) - 1) == {
        "code": -32600,
        "message": f"too many bytes ({len(body)}, max {len(body) - 1})",
        "data": {
            "reason": "BODY_TOO_LARGE",
            "metadata": {"count": str(len(body)), "maximum": str(len(body) - 1)},
        },
    }


def test_a_batch_that_is_too_long_is_refused_and_none_of_it_runs() -> None:
    told: list[Any] = []
    methods = {"it": returning(told.append)}
    assert len(ask_for([request(id=1)] * MAX_BATCH, methods)) == MAX_BATCH == len(told)
    reply = ask_for([request(id=1)] * (MAX_BATCH + 1), methods)
    assert (reply["error"]["code"], reply["id"]) == (-32600, None)
    assert reply["error"]["data"]["reason"] == "BATCH_TOO_LONG"
    assert len(told) == MAX_BATCH


def test_the_deepest_that_is_taken_is_answered_with_as_much() -> None:
    params = json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))  # in the request's object
    methods = {"it": returning(lambda params: params)}
    assert ask_for(request(id=1, params=params), methods)["result"] == params
    reply = ask_for(request(id=1, params=[params]), methods)
    assert reply["error"]["data"]["reason"] == "NESTED_TOO_DEEPLY"


@pytest.mark.parametrize("start, end", [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), ("[", "")])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
def test_what_is_nested_deeply_is_refused(start: str, end: str, depth: int) -> None:
    assert refusal(start * depth + "1" + end * depth)["code"] == -32700


@pytest.mark.parametrize(
    "text, reason",
    [
        ('{"a": 1, "a": 1}', "DUPLICATE_NAME"),
        ('{"a": 1, "\\u0061": 2}', "DUPLICATE_NAME"),
        ('[{"b": {"a": 1, "a": 1}}]', "DUPLICATE_NAME"),
        ('"\\ud83d"', "LONE_SURROGATE"),
        ('"\\udd42\\ud83d"', "LONE_SURROGATE"),
        ('[{"\\ud83d": 1}]', "LONE_SURROGATE"),
        ("NaN", "NUMBER_TOO_LARGE"),
        ("[-Infinity]", "NUMBER_TOO_LARGE"),
        ("1e999", "NUMBER_TOO_LARGE"),
        ("1e300", "NUMBER_TOO_LARGE"),
        (f"-1{301 * '0'}", "NUMBER_TOO_LARGE"),
        (100_000 * "1", "NUMBER_TOO_LARGE"),
        (300 * "[" + 300 * "]", "NESTED_TOO_DEEPLY"),
    ],
)
def test_what_could_not_be_passed_on_safely_is_refused_by_name(text: str, reason: str) -> None:
    error = refusal(text)
    assert (error["code"], error["data"]) == (-32700, {"reason": reason, "metadata": {}})


NO_UTF_8 = [b"\xff", b'"\xed\xa0\x80"', b'"\xc3', b"\xef\xbb\xbf{}", "[]".encode("utf-16")]
NO_JSON = [b"", b" ", b"\0", b"{}{}", b'"\n"', b"01", b"{'a': 1}", b"[1,]", b"// none", b"nan"]


@pytest.mark.parametrize("body", [*NO_UTF_8, *NO_JSON])
def test_what_is_no_json_in_utf_8_is_a_parse_error(body: bytes) -> None:
    assert refusal(body) == PARSE_ERROR


def test_a_lone_surrogate_in_an_answer_becomes_a_mark() -> None:
    told = ask(json.dumps(request(id=1)), {"it": returning(lambda _: {"\udd42": "a\ud83db"})})
    assert told == '{"jsonrpc":"2.0","result":{"\ufffd":"a\ufffdb"},"id":1}'.encode()
    error = error_of(raising(InvalidRequest("stop", "\ud83d is no text")))
    assert error["message"] == "stop: \ufffd is no text"


def test_text_is_sent_as_it_is() -> None:
    told = ask(json.dumps(request(id=1)), {"it": returning(lambda _: "\u20ac\U0001f642\0")})
    assert told == b'{"jsonrpc":"2.0","result":"\xe2\x82\xac\xf0\x9f\x99\x82\\u0000","id":1}'


# everything else


TEXTS = st.text(st.characters(exclude_categories=()))  # with lone surrogates
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
PROPER_IDS = (
    st.none()
    | st.text()
    | st.integers(-(10**300), 10**300)
    | st.floats(-1e299, 1e299, allow_nan=False)
)
METHODS = {
    "echo": returning(lambda params: params),
    "by name": echo,
    "refuse": raising(InvalidRequest("x\ud800", "y\udfff")),
    "break": raising(RuntimeError("secret")),
    "odd": returning(lambda _: {1, 2}),
    "half": returning(lambda _: "\ud83d"),
}
NAMES = st.sampled_from([*METHODS, "unknown", "", "rpc.discover"])
PARAMS = st.lists(st.integers(), max_size=3) | st.dictionaries(st.text(), st.text(), max_size=3)
NOTIFICATIONS = st.builds(lambda name, params: request(name, params=params), NAMES, PARAMS)
CALLS = st.builds(lambda one, call_id: one | {"id": call_id}, NOTIFICATIONS, PROPER_IDS)
NO_REQUESTS = (
    st.none()
    | st.integers(-9, 9)
    | st.text()
    | st.just([])
    | st.dictionaries(st.sampled_from(["id", "method", "params"]), st.booleans())
)
ALMOST = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | ATOMS,
        "method": NAMES | ATOMS,
        "params": PARAMS | VALUES,
        "id": PROPER_IDS | VALUES,
    },
)


def refuse_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def check_reply(reply: Any) -> None:
    """Fail unless this is a response object of the specification, and no internals are in it."""
    assert isinstance(reply, dict) and reply["jsonrpc"] == "2.0"
    assert reply["id"] is None or type(reply["id"]) in (str, int, float)
    assert reply.keys() in ({"jsonrpc", "result", "id"}, {"jsonrpc", "error", "id"})
    if "error" in reply:
        error = reply["error"]
        assert {"code", "message"} <= error.keys() <= {"code", "message", "data"}
        assert type(error["code"]) is int and isinstance(error["message"], str)
        assert "secret" not in json.dumps(error)


def check_answer(told: bytes | None) -> Any:
    """Return an answer's value; fail unless it is a response object or a batch of them."""
    if told is None:
        return None
    value = json.loads(told.decode(), parse_constant=refuse_constant)
    json.dumps(value, ensure_ascii=False).encode()
    assert value != []
    for reply in value if isinstance(value, list) else [value]:
        check_reply(reply)
    return value


def damaged(data: bytes, at: int, count: int, put: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + put + data[at + count :]


@SETTINGS
@given(st.binary() | TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_answered(body: bytes) -> None:
    check_answer(ask(body, METHODS))


@SETTINGS
@given(
    st.lists(CALLS | NOTIFICATIONS | NO_REQUESTS, min_size=1, max_size=3),
    st.integers(0, 400),
    st.integers(0, 3),
    st.binary(max_size=2) | st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b",", b"NaN"]),
)
def test_damaged_batches_are_answered(requests: Any, at: int, count: int, put: bytes) -> None:
    check_answer(ask(damaged(json.dumps(requests).encode(), at, count, put), METHODS))


@SETTINGS
@given(VALUES | ALMOST | st.lists(VALUES | ALMOST | CALLS, max_size=4))
@example({"jsonrpc": "2.0", "method": "half", "id": "\ud83d"})
@example(request("by name", params=["\ud83d"], id=1))
def test_any_json_is_answered(value: Any) -> None:
    check_answer(ask(json.dumps(value), METHODS))


@SETTINGS
@given(CALLS)
def test_every_id_comes_back_exactly(one: Any) -> None:
    reply = check_answer(ask(json.dumps(one), METHODS))
    assert (repr(reply["id"]), "result" in reply or "error" in reply) == (repr(one["id"]), True)


@SETTINGS
@given(
    st.lists(
        st.tuples(st.just("call"), CALLS)
        | st.tuples(st.just("notification"), NOTIFICATIONS)
        | st.tuples(st.just("no request"), NO_REQUESTS),
        min_size=1,
        max_size=12,
    )
)
def test_a_batch_has_one_answer_for_all_but_its_notifications(batch: Any) -> None:
    replies = check_answer(ask(json.dumps([one for _, one in batch]), METHODS))
    wanted = [
        one["id"] if kind == "call" else None for kind, one in batch if kind != "notification"
    ]
    assert list(map(repr, wanted)) == [repr(reply["id"]) for reply in replies or []]


@SETTINGS
@given(st.lists(CALLS, min_size=1, max_size=6))
def test_a_batch_is_answered_as_its_calls_are_alone(calls: Any) -> None:
    def without_report(reply: Any) -> Any:
        reply.get("error", {}).get("data", {}).pop("metadata", None)
        return reply

    alone = [ask_for(one, METHODS) for one in calls]
    assert list(map(without_report, ask_for(calls, METHODS))) == list(map(without_report, alone))


def test_the_page_names_every_option_of_speculation() -> None:
    folder = Path(__file__).parents[2] / "docs" / "reference"
    page = (folder / "json-rpc.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| `speculative` |")]
    assert [name for name in SPECULATIVE if f"`{name}`" not in row] == []
    assert "\n| `prediction` |" in page
