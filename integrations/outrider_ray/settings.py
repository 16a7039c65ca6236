"""What a Serve application is made of, and what that is in Serve's own words. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from outrider.errors import InvalidConfig

POLICY = "outrider_ray.scaling:by_generations"
ROUTER = "outrider_ray.router:PrefixRouter"

_MOST_REPLICAS = 1000
_OTHER_CALLS = 64  # polls, status and the like, beside a replica's generations
_HEALTH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Count:
    """How many replicas: always so many, or as many as the load needs between the two."""

    least: int
    most: int

    @classmethod
    def read(cls, name: str, value: object) -> Self:
        """Read 2, "2" or "1-4". Raises InvalidConfig."""
        found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", str(value).strip())
        if found is None:
            raise InvalidConfig(name, f"must be a number or a range such as 1-4, not {value!r}")
        least = int(found[1])
        most = int(found[2] or least)
        # No replica would report that there is work for one.
        if not 1 <= least <= most <= _MOST_REPLICAS:
            raise InvalidConfig(name, f"must be within 1-{_MOST_REPLICAS}, not {value!r}")
        return cls(least, most)

    @property
    def varies(self) -> bool:
        """Whether the load decides."""
        return self.most > self.least


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of the application."""

    model: str  # GGUF file of the target, at the same path on every node that may host one
    draft_model: str = ""  # GGUF file of the drafts; empty: no drafts
    token_file: str = ""  # what clients and services show, on every node; empty: loopback alone
    serving: Count = Count(1, 1)  # replicas of target + orchestrator
    drafts: Count = Count(1, 1)  # replicas of drafts
    ingress: Count = Count(1, 1)  # replicas that take HTTP and gRPC
    generations: int = 64  # in flight at a replica of target + orchestrator; more wait
    serving_load: float = 8.0  # generations in flight for which one such replica is wanted
    draft_load: float = 4.0  # generations in flight, of all, for which one draft is wanted
    upscale_delay: float = 30.0  # seconds of more load before replicas are added
    downscale_delay: float = 300.0  # seconds of less load before replicas are taken away
    look_back: float = 30.0  # seconds over which load is averaged
    grace: float = 120.0  # seconds that a replica's texts have to end once it is taken away
    reading: int = 2048  # characters read anew that weigh as much as a generation in flight
    serving_cpus: float = 1.0
    serving_gpus: float = 0.0
    draft_cpus: float = 1.0
    draft_gpus: float = 0.0
    target_args: tuple[str, ...] = ()  # more options of `outrider target`
    orchestrator_args: tuple[str, ...] = ()  # more options of `outrider orchestrator`
    draft_args: tuple[str, ...] = ()  # more options of `outrider draft`

    @classmethod
    def read(cls, args: Mapping[str, Any]) -> Self:
        """Read the arguments that Serve hands over: values of YAML, or texts of a command line.

        Raises InvalidConfig for what is unknown, missing or out of bounds.
        """
        kinds = {each.name: str(each.type) for each in fields(cls)}
        for name in args:
            if name not in kinds:
                close = difflib.get_close_matches(str(name), kinds, 1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise InvalidConfig(str(name), f"is no argument{hint}")
        if not args.get("model"):
            raise InvalidConfig("model", "must be the path of the target's GGUF file")
        return cls(**{name: _READ[kinds[name]](name, value) for name, value in args.items()})

    def __post_init__(self) -> None:
        for name in ("generations", "serving_load", "draft_load", "look_back", "reading"):
            if not getattr(self, name) > 0:
                raise InvalidConfig(name, "must be more than 0")
        for name in ("upscale_delay", "downscale_delay", "grace", "serving_cpus", "serving_gpus"):
            if not getattr(self, name) >= 0:
                raise InvalidConfig(name, "must not be negative")
        for name in ("draft_cpus", "draft_gpus"):
            if not getattr(self, name) >= 0:
                raise InvalidConfig(name, "must not be negative")

    # --- the commands ---

    @property
    def target_words(self) -> tuple[str, ...]:
        """The options of `outrider target`."""
        return (f"--model={self.model}", *_threads(self.serving_cpus, self.target_args))

    @property
    def draft_words(self) -> tuple[str, ...]:
        """The options of `outrider draft`, but where it listens."""
        words = (f"--model={self.draft_model}", *_threads(self.draft_cpus, self.draft_args))
        return words if not self.token_file else (*words, *self._token, "--allow-remote")

    def orchestrator_words(self, target: str) -> tuple[str, ...]:
        """Return the options of `outrider orchestrator` with its target at an address."""
        return (
            f"--target=plain://{target}",
            "--http=127.0.0.1:0",
            f"--generations={self.generations}",
            *self._token,
            *self.orchestrator_args,
        )

    @property
    def _token(self) -> tuple[str, ...]:
        return (f"--token-file={self.token_file}",) if self.token_file else ()


def orchestrator_file(drafts: Sequence[str]) -> str:
    """Return the configuration file of an orchestrator that dials these drafts, as TOML."""
    listed = ", ".join(f'"plain://{each}"' for each in drafts)
    return f"[orchestrator]\ndraft = [{listed}]\n"


# --- in Serve's words ---


def deployments(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return what each deployment is given, by the names of `serve.deployment`'s parameters."""
    found = {
        "Ingress": {
            **_replicas(settings, settings.ingress, target_ongoing_requests=_OTHER_CALLS),
            "max_ongoing_requests": 100 * settings.generations,
            "ray_actor_options": {"num_cpus": 0},
        },
        "Directory": {
            "num_replicas": 1,
            "logging_config": {"enable_access_log": False},  # two calls a second
            "max_ongoing_requests": 10 * _MOST_REPLICAS,
            "ray_actor_options": {"num_cpus": 0},
        },
        "Serving": {
            **_replicas(settings, settings.serving, target_ongoing_requests=settings.serving_load),
            # The orchestrator refuses what is too much, in its own words.
            "max_ongoing_requests": settings.generations + _OTHER_CALLS,
            "ray_actor_options": _resources(settings.serving_cpus, settings.serving_gpus),
            "request_router_config": {
                "request_router_class": ROUTER,
                "request_router_kwargs": {"reading": settings.reading},
            },
        },
    }
    if settings.draft_model:
        found["Draft"] = {
            # No request comes to a draft through Serve, so Serve sees no load there.
            **_replicas(settings, settings.drafts, policy={"policy_function": POLICY}),
            "ray_actor_options": _resources(settings.draft_cpus, settings.draft_gpus),
        }
    common = {
        "health_check_period_s": _HEALTH_SECONDS,
        "graceful_shutdown_timeout_s": settings.grace,
    }
    return {name: {**common, **each} for name, each in found.items()}


def _replicas(settings: Settings, count: Count, **scaling: object) -> dict[str, Any]:
    if not count.varies:
        return {"num_replicas": count.least}
    return {
        "autoscaling_config": {
            "min_replicas": count.least,
            "max_replicas": count.most,
            "upscale_delay_s": settings.upscale_delay,
            "downscale_delay_s": settings.downscale_delay,
            "look_back_period_s": settings.look_back,
            **scaling,
        }
    }


def _resources(cpus: float, gpus: float) -> dict[str, float]:
    return {"num_cpus": cpus, "num_gpus": gpus}


# --- reading ---


def _threads(cpus: float, words: Sequence[str]) -> tuple[str, ...]:
    """Return options with as many threads as cores: Ray counts cores, and keeps nobody to them."""
    given = any(re.match(r"--threads\b|-t\b", word) for word in words)
    return (*words,) if given or cpus < 1 else (f"--threads={int(cpus)}", *words)


def _read_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidConfig(name, f"must be a text, not {value!r}")
    return value


def _read_number(name: str, value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
    except ValueError:
        raise InvalidConfig(name, f"must be a number, not {value!r}") from None
    if not -1e9 < number < 1e9:
        raise InvalidConfig(name, f"must be a number below a thousand million, not {value!r}")
    return number


def _read_whole(name: str, value: object) -> int:
    number = _read_number(name, value)
    if number != int(number):
        raise InvalidConfig(name, f"must be a whole number, not {value!r}")
    return int(number)


def _read_words(name: str, value: object) -> tuple[str, ...]:
    """Read a list of words, or one text with spaces between them."""
    if isinstance(value, str):
        return tuple(value.split())
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise InvalidConfig(name, f"must be a list of texts, not {value!r}")
    return tuple(value)


_READ: dict[str, Any] = {
    "str": _read_text,
    "int": _read_whole,
    "float": _read_number,
    "Count": Count.read,
    "tuple[str, ...]": _read_words,
}
