"""What texts of a JSON schema's `format` look like, as regular expressions. Pure.

Each lets fewer texts than its standard, and only such as the usual validators take; the lengths
are bounded, as a model that writes a host name should come to its end. Where a schema bounds them
further, a later one is tried: counting a text's characters beside its parts is much for a parser.
"""

from __future__ import annotations

_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"  # multiples of 4, but for 0
_LEAP_YEAR = rf"(?:\d\d{_FOURTH}|{_FOURTH}00)"
_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"  # Python and others know no year 0
_DATE = (
    rf"(?:{_LEAP_YEAR}-02-29|{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))"
)
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_CLOCK}:[0-5]\d(?:\.\d{{1,9}})?(?:Z|[+-]{_CLOCK})"
_DAYS = r"\d{1,5}D"
_SECONDS = r"\d{1,5}S"
_MINUTES = rf"\d{{1,5}}M(?:{_SECONDS})?"
_HOURS = rf"T(?:\d{{1,5}}H(?:{_MINUTES})?|{_MINUTES}|{_SECONDS})"
_MONTHS = rf"\d{{1,3}}M(?:{_DAYS})?"
_ALNUM = "[A-Za-z0-9]"


def _words(char: str, joint: str, most: int) -> str:
    """Return texts of up to `most` characters: few long words, or more that are shorter."""
    # By how many more words.
    lengths = {n: (most - n) // (n + 1) for n in (0, 1, 2, 3, 8) if 2 * n < most}
    ways = (f"{char}{{1,{m}}}(?:{joint}{char}{{1,{m}}}){{0,{n}}}" for n, m in lengths.items())
    return f"(?:{'|'.join(ways)})"


def _hosts(char: str) -> list[str]:
    """Return hosts of up to 251 characters, 99, 62 and 30; no label of them is too long."""
    parts = [_words(char, "[.-]", most) for most in (62, 49, 62, 30)]
    return [
        rf"{part}(?:\.{part}){{0,{more}}}" for part, more in zip(parts, (3, 1, 0, 0), strict=True)
    ]


_HOSTS = _hosts(_ALNUM)
_WORD = "[A-Za-z0-9_+'-]"
_EMAILS = [  # up to 185 characters, 99 and 39
    rf"{_words(_WORD, '[.]', most)}@{host}\.[A-Za-z]{{2,{last}}}"
    for most, host, last in [
        (64, _HOSTS[1], 20),
        (30, _HOSTS[2], 5),
        (12, _words(_ALNUM, "[.-]", 20), 5),
    ]
]
# As short as one label may be: then nothing in it need be counted.
_SHORT_LABEL = f"{_ALNUM}+(?:-{_ALNUM}+)*"
_SHORT_HOST = rf"(?=.{{1,63}}$){_SHORT_LABEL}(?:\.{_SHORT_LABEL})*"
_SHORT_EMAIL = rf"(?=.{{1,63}}$){_WORD}+(?:\.{_WORD}+)*@(?:{_SHORT_LABEL}\.)+[A-Za-z]{{2,}}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        f"(?:{_GROUP}:){{7}}{_GROUP}",
        f"(?:{_GROUP}:){{1,7}}:",
        *(f"(?:{_GROUP}:){{1,{7 - n}}}(?::{_GROUP}){{1,{n}}}" for n in range(1, 7)),
        f":(?::{_GROUP}){{1,7}}",
        "::",
    ]
)
_UUID = (
    f"{_HEX}{{{{8}}}}-{_HEX}{{{{4}}}}-{{}}{_HEX}{{{{3}}}}-[89abAB]{_HEX}{{{{3}}}}-{_HEX}{{{{12}}}}"
)
_PORT = r"(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5])"
_USER = r"[A-Za-z0-9._~-]{1,40}"
_URI_CHARS = "A-Za-z0-9._~!$&'()*+,;=:@/-"
_URI_CHAR = f"(?:[{_URI_CHARS}]|%{_HEX}{{2}})"
_QUERY_CHAR = f"(?:[{_URI_CHARS}?]|%{_HEX}{{2}})"
_PATH = rf"(?:/{_URI_CHAR}{{0,400}})?(?:\?{_QUERY_CHAR}{{0,100}})?(?:#{_QUERY_CHAR}{{0,50}})?"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]{1,11}"
_URI = rf"{_SCHEME}://(?:{_USER}(?::{_USER})?@)?{_hosts('[A-Za-z0-9_]')[0]}(?::{_PORT})?{_PATH}"
_SHORT_PATHS = [
    rf"(?:/[{_URI_CHARS}]{{0,{n}}}(?:\?[{_URI_CHARS}]{{0,{n // 2}}})?)?" for n in (200, 40, 10)
]
_SHORT_HOSTS = [rf"{_ALNUM}{{1,{n}}}(?:[.-]{_ALNUM}{{1,{n}}}){{0,3}}" for n in (24, 10, 3)]
_SHORT_URIS = [
    rf"[A-Za-z][A-Za-z0-9+.-]{{1,9}}://{host}(?::[1-9]\d{{0,3}}|:[1-5]\d{{4}})?{path}"
    for host, path in zip(_SHORT_HOSTS, _SHORT_PATHS, strict=True)
]

_TEXTS = {
    "date": [_DATE],
    "time": [_TIME],
    "date-time": [f"{_DATE}T{_TIME}"],
    "duration": [
        rf"P(?:\d{{1,5}}W|{_HOURS}"
        rf"|(?:{_DAYS}|{_MONTHS}|\d{{1,4}}Y(?:{_MONTHS})?)(?:{_HOURS})?)"
    ],
    "email": [*_EMAILS, _SHORT_EMAIL],
    "hostname": [*_HOSTS, _SHORT_HOST],
    "ipv4": [rf"{_BYTE}(?:\.{_BYTE}){{3}}"],
    "ipv6": [_IPV6],
    "uri": [_URI, *_SHORT_URIS],
    "uri-reference": [f"{_URI}|{_PATH}", *_SHORT_PATHS],
    "json-pointer": ["(?:/(?:[^~/]|~[01]){0,60}){0,10}"],
    # As Pydantic names the versions.
    **{f"uuid{n}": [_UUID.format(n)] for n in range(1, 9)},
    "uuid": [f"{_UUID.format('[1-8]')}|0{{8}}(?:-0{{4}}){{3}}-0{{12}}"],
}
_SAME = {
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri-reference",
}
FORMATS = {
    name: [f"^(?:{text})$" for text in _TEXTS[_SAME.get(name, name)]] for name in [*_TEXTS, *_SAME]
}
"""By name, in the order in which they are tried, after those that are short enough by themselves.

Other formats say nothing that is known here.
"""
