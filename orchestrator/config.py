"""The settings of an orchestrator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outrider.core.health import TIMEOUT
from outrider.errors import InvalidConfig
from outrider.rpc.channel import read_address
from outrider.rpc.security import ANONYMOUS, ClientSecurity
from outrider.rpc.server import ServerConfig
from outrider.speculation import DEFAULT, Speculation

MOST_SHARED_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorConfig:
    """One orchestrator process. `drafts` is empty to run without any.

    The peers are HOST:PORT each, or plain://HOST:PORT for one that has no TLS. A name with several
    records stands for as many services.
    """

    server: ServerConfig
    targets: Sequence[str]  # of the same weights
    drafts: Sequence[str] = ()
    peer_security: ClientSecurity = ANONYMOUS  # what both peers are shown
    speculation: Speculation = DEFAULT  # unless the request says otherwise
    draft_seconds: float = 1.0  # wait for an order this long, then continue plainly
    target_seconds: float = TIMEOUT  # at least, before a target that decodes nothing is left
    request_seconds: float = 600.0  # a generation's deadline when the client sets none
    generations: int = 64  # at the same time; more get RESOURCE_EXHAUSTED
    accept_drafts: bool = False  # that dial in, on the port that clients use
    trust_drafts: bool = False  # those may draft under the rejection rule, too
    same_vocabulary: bool = False  # refuse drafts whose ids are not the target's
    chat_template: str = ""  # jinja2, in place of the target's own
    jobs: int = 256  # running, or over with results kept
    job_seconds: float = 600.0  # results are kept so long after the last look at them
    state: Path | None = None  # a folder; jobs are kept there and outlive the process
    lookup_cache_static: Path | None = None  # n-grams of a large text, only read
    lookup_cache_dynamic: Path | None = None  # n-grams of past texts, read and saved
    gateway: object | None = None  # the settings of what serves HTTP in front of it: its own affair
    share_past_texts: int = 0  # tokens of past texts that any caller's are drafted from

    def __post_init__(self) -> None:
        for name, addresses in (("target", self.targets), ("draft", self.drafts)):
            for address in addresses:
                read_address(name, address)
            if len(set(addresses)) < len(addresses):
                raise InvalidConfig(name, f"names a service twice: {', '.join(addresses)}")
        for name, seconds in (
            ("draft_timeout", self.draft_seconds),
            ("target_timeout", self.target_seconds),
            ("request_timeout", self.request_seconds),
            ("job_keep", self.job_seconds),
        ):
            if not 0 < seconds <= 1e6:
                raise InvalidConfig(name, f"must be in (0, 1000000] seconds, not {seconds}")
        if not 1 <= self.generations <= 65536:
            raise InvalidConfig("generations", f"must be in [1, 65536], not {self.generations}")
        if not 1 <= self.jobs <= 65536:
            raise InvalidConfig("jobs", f"must be in [1, 65536], not {self.jobs}")
        if not 0 <= self.share_past_texts <= MOST_SHARED_TOKENS:
            wrong = f"must be in [0, {MOST_SHARED_TOKENS}] tokens, not {self.share_past_texts}"
            raise InvalidConfig("share_past_texts", wrong)
        if not self.targets:
            raise InvalidConfig("target", "needs the address of a target service")
