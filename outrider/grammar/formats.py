"""What texts of a JSON schema's `format` look like, as regular expressions. Pure.

Each lets fewer texts than its standard, and only such as the usual validators take; the lengths
are bounded, as a model that writes a host name should come to its end. Where a schema bounds them
further, a later one is tried.
"""

from __future__ import annotations

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"  # Python and others know no year 0
_DATE = (
    rf"{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_CLOCK = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_CLOCK}:[0-5]\d(?:\.\d{{1,9}})?(?:Z|[+-]{_CLOCK})"
_DAYS = r"\d{1,5}D"
_SECONDS = r"\d{1,5}S"
_MINUTES = rf"\d{{1,5}}M(?:{_SECONDS})?"
_HOURS = rf"T(?:\d{{1,5}}H(?:{_MINUTES})?|{_MINUTES}|{_SECONDS})"
_MONTHS = rf"\d{{1,3}}M(?:{_DAYS})?"
_ALNUM = "[A-Za-z0-9]"
_LABEL = f"{_ALNUM}{{1,20}}(?:-{_ALNUM}{{1,20}}){{0,2}}"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_WORD = "[A-Za-z0-9_+-]"
_EMAIL = rf"{_WORD}{{1,20}}(?:\.{_WORD}{{1,20}}){{0,2}}@(?:{_LABEL}\.){{1,2}}[A-Za-z]{{2,20}}"
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
_URI_CHARS = "A-Za-z0-9._~!$&'()*+,;=:@/-"
_URI_CHAR = f"(?:[{_URI_CHARS}]|%{_HEX}{{2}})"
_PATH = rf"(?:/{_URI_CHAR}{{0,400}})?(?:\?{_URI_CHAR}{{0,100}})?(?:#{_URI_CHAR}{{0,50}})?"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]{1,9}"
_URI = rf"{_SCHEME}://{_HOST}(?::[1-9]\d{{0,3}})?{_PATH}"
_SHORT_PATHS = [
    rf"(?:/[{_URI_CHARS}]{{0,{n}}}(?:\?[{_URI_CHARS}]{{0,{n // 2}}})?)?" for n in (200, 40, 10)
]
_SHORT_HOSTS = [rf"{_ALNUM}{{1,{n}}}(?:[.-]{_ALNUM}{{1,{n}}}){{0,3}}" for n in (24, 10, 3)]
_SHORT_URIS = [
    f"{_SCHEME}://{host}{path}" for host, path in zip(_SHORT_HOSTS, _SHORT_PATHS, strict=True)
]

_TEXTS = {
    "date": [_DATE],
    "time": [_TIME],
    "date-time": [f"{_DATE}T{_TIME}"],
    "duration": [
        rf"P(?:\d{{1,5}}W|{_HOURS}"
        rf"|(?:{_DAYS}|{_MONTHS}|\d{{1,4}}Y(?:{_MONTHS})?)(?:{_HOURS})?)"
    ],
    "email": [_EMAIL, _SHORT_EMAIL],
    "hostname": [_HOST, _SHORT_HOST],
    "ipv4": [rf"{_BYTE}(?:\.{_BYTE}){{3}}"],
    "ipv6": [_IPV6],
    "uri": [_URI, *_SHORT_URIS],
    "uri-reference": [f"{_URI}|{_PATH}", *_SHORT_PATHS],
    "json-pointer": ["(?:/(?:[^~/]|~[01]){0,60}){0,10}"],
    # As Pydantic names the versions.
    **{f"uuid{n or ''}": [_UUID.format(n or "[1-8]")] for n in range(9)},
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
"""By name, in the order in which they are tried. Other formats say nothing that is known here."""
