"""Named tokens: what a file of them may say, and what each may do."""

from __future__ import annotations

import hmac
from hashlib import sha256

import pytest

from outrider.errors import InvalidRequest, PermissionDenied
from outrider.grants import (
    MOST_GRANTS,
    Grant,
    Right,
    digest_of,
    find,
    grant_of,
    read_grants,
)
from outrider.limits import NO_LIMITS, TokenLimits

TOKEN = "a-token-of-some-length"


def table(name: str = "alice", token: str = TOKEN, rights: str = '"client"', more: str = "") -> str:
    return f'[tokens.{name}]\ntoken = "{token}"\nrights = [{rights}]\n{more}\n'


def test_a_file_names_tokens_their_rights_and_limits():
    its = "generations = 4\ntokens_per_minute = 2000\nrequests_per_minute = 60"
    text = table(more=its) + (
        f'[tokens."gpu.box"]\nsha256 = "{sha256(b"another token of hers").hexdigest()}"\n'
        'rights = ["draft", "operator"]\n'
    )
    alice, box = read_grants(text)
    limits = TokenLimits(generations=4, tokens_per_minute=2000, requests_per_minute=60)
    its_rights = frozenset({Right.CLIENT})
    assert alice == Grant(
        name="alice", digest=digest_of(TOKEN.encode()), rights=its_rights, limits=limits
    )
    assert (box.name, box.limits) == ("gpu.box", NO_LIMITS)
    assert find((alice, box), b"another token of hers") is box


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "tokens: needs 1 to 1024 tables"),
        ("tokens = 3", "tokens: needs 1 to 1024 tables"),
        ("[tokens]\n", "tokens: needs 1 to 1024 tables"),
        ("[tokens.alice\n", "line 1, column 14: is not TOML"),
        (table() + "[other]\n", "file: may hold nothing but tables"),
        ("[tokens]\nalice = 1", "tokens.alice: must be a table"),
        (table('"a b"'), "tokens: a name has 1 to 64"),
        (table('"--token-file"'), "tokens: a name has 1 to 64"),
        (table("x" * 65), "tokens: a name has 1 to 64"),
        (table(token="short"), "tokens.alice.token: a token has 16 to 4096 characters"),
        (table(token="schlüsselschlüssel"), "tokens.alice.token: a token is one line of"),
        (table(token=f" {TOKEN}"), "tokens.alice.token: a token is one line of"),
        (table(rights=""), "tokens.alice.rights: must list some of client, draft, operator"),
        (table(rights='"root"'), "tokens.alice.rights: must list some of"),
        (table(rights="1"), "tokens.alice.rights: must list some of"),
        (table(more="colour = 1"), "tokens.alice: may have token, sha256, rights, generations"),
        (table(more='sha256 = "00"'), "tokens.alice: needs either token or sha256"),
        ("[tokens.a]\nrights = ['client']", "tokens.a: needs either token or sha256"),
        ("[tokens.a]\nsha256 = 'x'\nrights = ['client']", "tokens.a.sha256: must be 64 hex"),
        *(
            (table(more=f"generations = {value}"), "tokens.alice.generations: must be a whole")
            for value in ("0", "-1", "1.5", "true", '"4"', "1000000001")
        ),
        (table() + table("bob"), "tokens.bob: is the token of alice"),
        ("".join(table(f"n{i}", f"{TOKEN}{i}") for i in range(MOST_GRANTS + 1)), "tokens: needs"),
        ("a = " + "[" * 5000, "is not TOML"),
    ],
)
def test_a_file_that_says_something_else_is_refused_without_a_word_of_a_token(
    text: str, words: str
):
    with pytest.raises(InvalidRequest) as caught:
        read_grants(text)
    assert words in str(caught.value)
    assert TOKEN not in str(caught.value) and "\n" not in str(caught.value)


def test_a_token_is_found_by_all_of_it_alone():
    grants = read_grants(table() + table("bob", f"{TOKEN}-too"))
    assert find(grants, TOKEN.encode()) is grants[0]
    assert find(grants, f"{TOKEN}-too".encode()) is grants[1]
    for wrong in (b"", TOKEN.encode()[:-1], f"{TOKEN}-".encode(), b"\xff\x00"):
        assert find(grants, wrong) is None
    assert find((), TOKEN.encode()) is None


def test_every_token_is_compared_whichever_is_shown(monkeypatch: pytest.MonkeyPatch):
    grants = read_grants("".join(table(f"n{i}", f"{TOKEN}{i}") for i in range(5)))
    compare, count = hmac.compare_digest, 0

    def counted(one: bytes, other: bytes) -> bool:
        nonlocal count
        count += 1
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for shown in (f"{TOKEN}0", f"{TOKEN}4", "no such token"):
        count = 0
        find(grants, shown.encode())
        assert count == len(grants)


RIGHTS = {
    "client": {Right.CLIENT},
    "draft": {Right.DRAFT},
    "operator": {Right.CLIENT, Right.OPERATOR},
}


@pytest.mark.parametrize("name", RIGHTS)
def test_a_token_may_what_its_right_says(name: str):
    [grant] = read_grants(table(rights=f'"{name}"'))
    for right in Right:
        assert grant.allows(right) is (right in RIGHTS[name])
        if right in RIGHTS[name]:
            grant.check(right)
        else:
            with pytest.raises(PermissionDenied) as refused:
                grant.check(right)
            assert str(refused.value) == f"the token 'alice' has no right '{right.value}'"


def test_the_single_token_may_everything():
    grant = grant_of(TOKEN, "--token-file")
    assert all(grant.allows(right) for right in Right) and grant.limits == NO_LIMITS
