"""The command that looks for what would go wrong, and says how to mend it."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.model_service.config import ModelOptions
from outrider_cli.hub.models import given_file
from outrider_cli.options import ClientOptions, Prefix, spread
from outrider_cli.services.commands import DRAFT_ADDRESS, ORCHESTRATOR_ADDRESS, TARGET_ADDRESS
from outrider_cli.services.pair import BUNDLED_DRAFT, BUNDLED_TARGET
from outrider_cli.services.pair import DraftModel as DraftModelOption
from outrider_cli.services.pair import TargetModel as TargetModelOption

if TYPE_CHECKING:
    from outrider.model_service.config import ModelConfig
    from outrider.rpc.security import ClientSecurity
    from outrider_cli.doctor.checks import DecodeTrial, Finding, LlamaBuild, ModelFile, TrialEnd
    from outrider_cli.doctor.model_checks import Placed

_TRIAL_SECONDS = 120.0  # s; a cold file of 2 GB, and some thousand tokens
_PROBE_SECONDS = 60.0  # s; in which one service is probed
_SMALL_BYTES = 100 * 10**6  # one thread decodes it at once, and does not disturb others
_LISTENS = {
    "orchestrator": ORCHESTRATOR_ADDRESS,
    "target": TARGET_ADDRESS,
    "draft": DRAFT_ADDRESS,
}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

Peer = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Probe this one.", rich_help_panel="Peers"),
]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that this machine shall host."""

    role: str
    path: Path
    options: ModelOptions


@dataclass(frozen=True, slots=True)
class Probed:
    """What the trial found out, beside its end."""

    trial: DecodeTrial | None = None
    report: dict[str, Any] = field(default_factory=dict)
    others_share: float = 0.0  # of all cores' time, that other processes took meanwhile


@spread
def doctor(
    model: TargetModelOption = None,
    draft_model: DraftModelOption = None,
    orchestrator: Peer = None,
    target: Peer = None,
    draft: Peer = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Look at this port, not the three default ones."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Load large models too: what their decodes cost, how often the draft is right.",
        ),
    ] = False,
    remeasure: Annotated[
        bool,
        typer.Option(
            "--remeasure", help="Forget what decodes cost; the next start of a model measures."
        ),
    ] = False,
    engine: Annotated[ModelOptions, Prefix(panel="Target")] = ModelOptions(),
    draft_engine: Annotated[ModelOptions, Prefix("draft", panel="Draft")] = ModelOptions(),
    connection: Annotated[ClientOptions, Prefix(panel="Connection")] = ClientOptions(),
) -> None:
    """Look for what would go wrong, here and at running services, and say how to mend it.

    With an address, only the models that are given are looked at. Exit code 0: no problem.
    """
    from outrider_cli.doctor.report import all_well

    if remeasure:
        from outrider.engine.measurements import forget
        from outrider_cli.phrases import plural
        from outrider_cli.screen import note

        count = forget()
        note(f"forgot the measurements of {plural(count, 'model')}")
    addresses = {"orchestrator": orchestrator, "target": target, "draft": draft}
    peers = {role: address for role, address in addresses.items() if address}
    hosted = _hosted(model, draft_model, engine, draft_engine, not peers)
    findings = _look(hosted, measure, peers, listen, connection)
    if as_json:
        print(json.dumps({"findings": _objects(findings), "ok": all_well(findings)}))
    else:
        _show(findings)
    if not all_well(findings):
        raise typer.Exit(1)


def _hosted(
    model: Path | None,
    draft_model: Path | None,
    engine: ModelOptions,
    draft_engine: ModelOptions,
    whole_pair: bool,
) -> list[PlannedModel]:
    """Return the models to host: what is given; without a target, and a peer, what is bundled."""
    target, draft = given_file("model", model), given_file("draft-model", draft_model)
    is_pair = whole_pair and (draft is None or not _is_head(draft))
    if is_pair and target is None and BUNDLED_TARGET.is_file():
        target, draft = BUNDLED_TARGET, draft or BUNDLED_DRAFT
    draft_engine = replace(draft_engine, context=draft_engine.context or engine.context)
    both = (("target", target, engine), ("draft", draft, draft_engine))
    return [PlannedModel(role, path, options) for role, path, options in both if path]


def _is_head(path: Path) -> bool:
    from outrider.engine.gguf_check import is_head
    from outrider.errors import InvalidConfig

    with suppress(InvalidConfig):  # what is wrong with the file is told later
        return is_head(path)
    return False


def _look(
    hosted: Sequence[PlannedModel],
    measure: bool,
    peers: dict[str, str],
    listen: str | None,
    connection: ClientOptions,
) -> list[Finding]:
    """Return the findings of all checks, in the order of what depends on what."""
    from outrider_cli.doctor.checks import judge_versions
    from outrider_cli.doctor.machine import versions
    from outrider_cli.screen import Progress

    hosts = bool(hosted) or not peers
    security = connection.security()
    findings = [judge_versions(versions())]
    with Progress() as progress:
        if hosts:
            progress.say("trying llama.cpp")
            findings += _look_here(hosted, measure)
        progress.say("looking at the ports and the peers")
        findings += asyncio.run(_look_around(hosts, peers, listen, security))
    return findings


# --- llama.cpp and the models ---


def _look_here(hosted: Sequence[PlannedModel], measure: bool) -> list[Finding]:
    """Return what is found about this machine as a host of models."""
    from outrider.memory import available_memory
    from outrider_cli.doctor import checks, model_checks
    from outrider_cli.doctor.gain import head_forecast
    from outrider_cli.doctor.head_checks import judge_heads
    from outrider_cli.doctor.suggestion import suggest_draft

    configs = {one.role: one.options.config(one.path, one.role == "draft") for one in hosted}
    if "draft" not in configs and "target" in configs:  # it drafts for itself, where it can
        configs["target"] = replace(configs["target"], mtp=True)
    library = _library(hosted)
    files = [_file(one, measure) for one in hosted]
    tried = _try_llama(library, files, configs, measure)
    files = [_with_context(one, file, tried) for one, file in zip(hosted, files, strict=True)]
    gpus = tried.trial.gpus if tried.trial else ()
    footprints = tried.report.get("footprints", {})
    placed = [
        model_checks.place(one.role, one.options.sessions, file.size, footprints.get(one.role))
        for one, file in zip(hosted, files, strict=True)
        if file.size and not file.error
    ]
    drafting = tried.report.get("head", {}).get("token_ms")
    token_ms = tried.report.get("costs", {}).get("draft_ms", drafting)
    return [
        *checks.judge_build(library, tried.trial),
        *model_checks.judge_models(files),
        *judge_heads(files, tried.report.get("missing", {}), tried.report.get("head_fault", "")),
        *model_checks.judge_memory(placed, gpus, available_memory()),
        *model_checks.judge_decodes(tried.report.get("decode_ms", ()), token_ms),
        *_pair(files, placed, tried),
        *head_forecast(tried.report.get("head"), tried.others_share),
        *suggest_draft(files),
        *_numerics(files, tried),
        *_rollback(tried),
        *_sharing(hosted, placed, tried),
    ]


def _library(hosted: Sequence[PlannedModel]) -> LlamaBuild:
    from outrider.engine.kernels import LLAMA_CMAKE
    from outrider_cli.doctor.checks import LlamaBuild
    from outrider_cli.doctor.machine import (
        has_gpu_device,
        nvidia_driver,
        pinned_version,
        version_of,
    )
    from outrider_cli.services.pair import ROOT

    return LlamaBuild(
        version=version_of("llama-cpp-python"),
        pinned=pinned_version(),
        is_checkout=(ROOT / "scripts" / "setup").is_file(),
        pip=f"{shlex.quote(sys.executable)} -m pip",
        include=str(LLAMA_CMAKE),
        machine=platform.machine(),
        has_gpu_device=has_gpu_device(),
        driver=nvidia_driver(),
        gpu_layers=max((one.options.n_gpu_layers for one in hosted), default=-1),
    )


def _file(one: PlannedModel, measure: bool) -> ModelFile:
    """Return what can be said of a model's file without llama.cpp."""
    from outrider.engine.gguf_check import check_draft, check_gguf
    from outrider.engine.heads import carried
    from outrider.errors import OutriderError
    from outrider_cli.doctor.checks import MEASURABLE_BYTES, ModelFile

    name = one.path.name
    try:
        if not one.path.exists():
            return ModelFile(role=one.role, name=name, error=f"there is no file {one.path}")
        checked = (check_draft if one.role == "draft" else check_gguf)(one.path)
        size = sum(part.stat().st_size for part in checked.files)
        file = ModelFile(
            role=one.role,
            name=name,
            size=size,
            is_loaded=measure or size < MEASURABLE_BYTES,
            head=carried(checked.head, checked.tensor_bytes),
            architecture=checked.architecture,
            names=(checked.name, name),
        )
        return replace(file, is_loaded=False) if file.is_head else file
    except OutriderError as error:
        return ModelFile(role=one.role, name=name, error=str(error).removeprefix("model: "))
    except OSError as error:
        unread = f"cannot read {one.path}: {error.strerror}"
        return ModelFile(role=one.role, name=name, error=unread)


def _with_context(one: PlannedModel, file: ModelFile, tried: Probed) -> ModelFile:
    """Return the file with what llama.cpp said of it."""
    report = tried.report.get(one.role, {})
    if report.get("error"):
        return replace(file, error=report["error"].removeprefix("model: "))
    trained = report.get("trained_context", 0)
    return replace(file, context=(one.options.context or min(trained, 4096)) if trained else 0)


def _try_llama(
    library: LlamaBuild,
    files: Sequence[ModelFile],
    configs: dict[str, ModelConfig],
    measure: bool,
) -> Probed:
    """Let a process of its own try llama.cpp, which may well die of it."""
    from outrider.engine.footprint import Gpu
    from outrider_cli.cpu_time import OthersClock
    from outrider_cli.doctor.checks import DecodeTrial, TrialStep

    if not library.version:
        return Probed()
    sound = [file for file in files if not file.error and not file.is_head]
    head = next((file.role for file in files if file.is_head and not file.error), None)
    loaded = {file.role: file.size for file in sound if file.is_loaded}
    order = {
        "hosted": {file.role: _values(configs[file.role]) for file in sound},
        "head": _values(configs[head]) if head else None,
        "trials": _trials(loaded, configs),
        "together": {role: _trial_values(configs[role], _SMALL_BYTES) for role in loaded},
    }
    others = OthersClock()
    seconds = None if measure else _TRIAL_SECONDS
    code, lines, last_words = _run_probe(json.dumps(order), seconds)
    report: dict[str, Any] = {}
    for line in lines:
        report |= line
    end, detail = _end(code, report.get("failure", ""), last_words)
    trial = DecodeTrial(
        step=TrialStep[report.get("step", "IMPORT")],
        end=end,
        model=report.get("model", ""),
        detail=detail,
        last_words=last_words,
        seconds=_TRIAL_SECONDS,
        system_info=report.get("system_info", ""),
        kernels=report.get("kernels", ""),
        unused=report.get("unused", ()),
        untried_amx=report.get("untried_amx", False),
        offloads=report.get("offloads", False),
        gpus=[Gpu(**each) for each in report.get("gpus", ())],
        gpu_fault=report.get("gpu_fault", ""),
    )
    return Probed(trial, report, others.share() or 0.0)


def _end(code: int | None, failure: str, last_words: str) -> tuple[TrialEnd, str]:
    """Return how the trial ended, with the signal or the error."""
    from outrider_cli.doctor.checks import TrialEnd

    if code is None:
        return TrialEnd.TIMEOUT, ""
    if code < 0:
        return TrialEnd.SIGNAL, _signal_name(-code)
    return (TrialEnd.ERROR, failure or last_words) if code or failure else (TrialEnd.DONE, "")


def _trials(sizes: dict[str, int], configs: dict[str, ModelConfig]) -> list[dict[str, Any]]:
    """Return the models to decode with, of which the first that can be read is taken."""
    trials: list[dict[str, Any]] = [
        {"role": role, "values": _trial_values(configs[role], size)} for role, size in sizes.items()
    ]
    if BUNDLED_DRAFT.is_file():
        values = {"model": str(BUNDLED_DRAFT), "is_draft": True, "threads": 1}
        trials.append({"role": "", "values": values})
    return trials


def _trial_values(config: ModelConfig, size: int) -> dict[str, Any]:
    """Return the configuration of a trial as JSON knows it."""
    from outrider.threads import available_threads

    most = 1 if size < _SMALL_BYTES else config.threads or available_threads()
    return {**_values(config), "threads": min(most, available_threads()), "threads_batch": 0}


def _values(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration as JSON knows it."""
    return {**asdict(config), "model": str(config.model)}


def _run_probe(order: str, seconds: float | None) -> tuple[int | None, list[dict[str, Any]], str]:
    """Return the exit code (None: too slow), the lines it reported, the last words."""
    command = (sys.executable, "-P", "-m", "outrider_cli.doctor.trial")
    # Waiting is judged elsewhere; here it would only make the trial slow.
    left_out = ("OUTRIDER_", "OMP_", "GOMP_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    code: int | None = None
    try:
        ended = subprocess.run(
            command,
            input=order.encode(),
            capture_output=True,
            env=environment,
            timeout=seconds,
            check=False,
        )
        code, out, err = ended.returncode, ended.stdout, ended.stderr
    except subprocess.TimeoutExpired as expired:
        out, err = expired.stdout or b"", expired.stderr or b""
    errors = err.decode(errors="replace").strip().splitlines()
    return code, list(_objects_in(out)), errors[-1] if errors else f"exit code {code}"


def _objects_in(out: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects of a process's lines; a build may print more than ours."""
    found = []
    for line in out.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _pair(files: Sequence[ModelFile], placed: Sequence[Placed], tried: Probed) -> list[Finding]:
    from outrider_cli.doctor.checks import judge_pairing, judge_sizes, unmeasured
    from outrider_cli.doctor.gain import forecast

    if len(files) != 2 or "pair" not in tried.report:
        return []
    pair = {**tried.report["pair"], **tried.report.get("expected", {})}
    found = [judge_pairing(**pair, left_out=unmeasured(files)), *judge_sizes(*files)]
    # As `up` has it: the draft in the target's process, unless that computes on a GPU alone.
    on_gpu = [bool(each.footprint.gpu_layers) for each in placed]
    return found + forecast(tried.report, tried.others_share, on_gpu != [True, False])


def _rollback(tried: Probed) -> list[Finding]:
    from outrider_cli.doctor.checks import judge_rollback

    return [judge_rollback(*tried.report["rollback"])] if "rollback" in tried.report else []


def _numerics(files: Sequence[ModelFile], tried: Probed) -> list[Finding]:
    from outrider_cli.doctor.checks import judge_numerics, unmeasured

    targets = [file for file in files if file.role == "target" and not file.error]
    if not targets or tried.trial is None:
        return []
    report = tried.report
    costs = report.get("plain_ms", (0.0, 0.0))
    return [judge_numerics(report.get("profile", ""), unmeasured(targets), *costs)]


def _sharing(
    hosted: Sequence[PlannedModel], placed: Sequence[Placed], tried: Probed
) -> list[Finding]:
    from outrider.threads import available_threads, physical_cores
    from outrider_cli.doctor.checks import judge_openmp, judge_threads

    wanted = [(one.role, max(one.options.threads, one.options.threads_batch)) for one in hosted]
    affinity = len(os.sched_getaffinity(0))
    system_info = tried.trial.system_info if tried.trial else ""
    uses_openmp = not system_info or "OPENMP = 1" in system_info
    offloads = tried.trial is not None and tried.trial.offloads
    on_gpu = [each.role for each in placed if each.footprint.is_on_gpu]
    kept_off = [one.role for one in hosted if offloads and one.options.n_gpu_layers == 0]
    cores = affinity, available_threads(), physical_cores()
    return [
        *judge_threads(wanted, *cores, on_gpu, "draft" in kept_off),
        *judge_openmp(os.environ, len(hosted), uses_openmp),
    ]


# --- ports, secrets and peers ---


async def _look_around(
    hosts: bool, peers: dict[str, str], listen: str | None, security: ClientSecurity
) -> list[Finding]:
    places = {"": listen} if listen else _LISTENS if hosts else {}
    findings = [await _port(role, address, security) for role, address in places.items()]
    findings += _secrets(security)
    for role, address in peers.items():
        findings += await _probe_peer(role, address, security)
    if "target" in peers and "draft" in peers:
        findings += await _compare(peers["target"], peers["draft"], security)
    return findings


async def _port(role: str, address: str, security: ClientSecurity) -> Finding:
    """Return whether a service could listen there, by trying."""
    from outrider.errors import InvalidConfig
    from outrider.rpc.channel import read_listen
    from outrider_cli.doctor.checks import judge_port, judge_unusable
    from outrider_cli.doctor.peer_probe import whose_port

    try:
        place = read_listen(address)
        is_taken = not _can_listen(place.host.strip("[]"), place.port)
    except (InvalidConfig, OSError) as error:
        return judge_unusable(role, address, getattr(error, "strerror", None) or str(error))
    reached = f"{_EVERYWHERE.get(place.host, place.host)}:{place.port}"
    owner = await whose_port(reached, security) if is_taken else None
    return judge_port(role, address, owner, is_taken)


def _can_listen(host: str, port: int) -> bool:
    """Return whether the port is free. Raises OSError for an address that is not here."""
    import errno

    for family, kind, protocol, _, place in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        with socket.socket(family, kind, protocol) as tried:
            # As gRPC does: ports of connections that ended just now are free.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(place)
                tried.listen()
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return False
                raise
    return True


def _secrets(security: ClientSecurity) -> list[Finding]:
    """Return what is found about the files of the connection's options."""
    from outrider.errors import InvalidConfig
    from outrider.rpc.certificates import ca_validity, own_validity
    from outrider.rpc.security import call_metadata, channel_credentials
    from outrider_cli.doctor.checks import Finding, Severity, judge_certificate, judge_token

    findings = []
    if (path := security.token_file) is not None:
        error = ""
        try:
            call_metadata(security)
        except InvalidConfig as refused:
            error = str(refused)
        findings.append(judge_token(str(path), error, 0 if error else path.stat().st_mode))
    if security.tls_ca is None:
        return findings
    try:
        channel_credentials(security)
    except InvalidConfig as refused:
        remedy = "correct the option, or have the certificate made anew"
        return [*findings, Finding("tls", Severity.PROBLEM, str(refused), remedy)]
    validity = ca_validity(security.tls_ca)
    what = ("--tls-ca", str(security.tls_ca))
    findings.append(judge_certificate(*what, validity.seconds_left, validity.not_yet))
    if security.tls_cert is not None and security.tls_key is not None:
        validity = own_validity(security.tls_cert, security.tls_key)
        what = ("--tls-cert", str(security.tls_cert))
        findings.append(judge_certificate(*what, validity.seconds_left, validity.not_yet))
    return findings


async def _probe_peer(role: str, address: str, security: ClientSecurity) -> list[Finding]:
    import outrider
    from outrider_cli.doctor.peer_checks import CallFailure, ProbedPeer, judge_peer
    from outrider_cli.doctor.peer_probe import probe_peer

    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            found = await probe_peer(role, address, security)
    except TimeoutError:
        detail = f"the probe took more than {_PROBE_SECONDS:.0f} s"
        found = ProbedPeer(role=role, address=address, failure=CallFailure.TIMEOUT, detail=detail)
    return judge_peer(found, outrider.__version__)


async def _compare(target: str, draft: str, security: ClientSecurity) -> list[Finding]:
    from outrider_cli.doctor.peer_probe import compare

    with suppress(TimeoutError):  # of which the probes have said enough
        async with asyncio.timeout(_PROBE_SECONDS):
            return await compare(target, draft, security)
    return []


# --- what is shown ---


def _objects(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{**asdict(finding), "level": finding.level.value} for finding in findings]


def _show(findings: Sequence[Finding]) -> None:
    from outrider_cli.doctor.report import finding_lines
    from outrider_cli.screen import open_screen, show_lines

    # Only a terminal has an edge; a pipe gets one line per finding.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    show_lines(open_screen(), finding_lines(findings, width))
