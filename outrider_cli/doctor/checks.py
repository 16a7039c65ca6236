"""Says what is wrong with a set-up and how to mend it: facts in, findings out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from outrider.engine.cuda_driver import driver_advice
from outrider.engine.footprint import Gpu
from outrider.engine.heads import CarriedHead
from outrider.engine.thread_choice import thread_choices
from outrider_cli.phrases import plural, show_memory, show_profile, show_size

MEASURABLE_BYTES = 2 * 10**9
"""Models from here on are loaded only when asked for (`--measure`)."""

LEAST_RATIO = 4
"""A draft should be this many times smaller than its target."""

EXPIRY_DAYS = 30  # days before its expiry a certificate is reported

_DAY = 86400.0  # s
_SHORT_SPIN, _LONG_SPIN = 5000, 100_000
_BY_DEFAULT = 30_000  # GOMP_SPINCOUNT, as outrider.engine.llama_library sets it


class Severity(Enum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"  # works, but not as well as it could
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `remedy` is empty where there is nothing to do."""

    check: str
    level: Severity
    message: str
    remedy: str = ""


# --- versions and the build ---


class TrialStep(Enum):
    """What the process that tries llama.cpp does, in this order."""

    IMPORT = "loading its library"
    READ = "reading the models' vocabularies"
    MEMORY = "laying out the models in memory"
    KERNELS = "trying its kernels for the CPU"
    LOAD = "loading the model"
    SEVERAL = "decoding several tokens at once"
    ONE = "decoding one token"
    NUMERICS = "comparing the bits of differently batched decodes"
    HEAD = "timing the head"
    EXPECTED = "comparing what the draft and the target take for the next token"
    DONE = "nothing more"


_MEASURING = (TrialStep.NUMERICS, TrialStep.HEAD, TrialStep.EXPECTED)
"""Steps that only measure: one that takes too long says nothing about the build."""


class TrialEnd(Enum):
    """How that process ended."""

    DONE = "done"
    SIGNAL = "killed by a signal"
    ERROR = "failed"
    TIMEOUT = "too slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaBuild:
    """The installed llama-cpp-python; `version` is empty without one."""

    version: str
    pinned: str
    is_checkout: bool = True  # of the repository, with its `make setup`
    pip: str = "pip"  # the words that run the pip of this Python
    include: str = "llama.cmake"  # how llama.cpp is built for Outrider
    machine: str = "x86_64"
    has_gpu_device: bool = False
    driver: str = ""  # the version of NVIDIA's
    gpu_layers: int = -1  # most that any model asks for


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTrial:
    """What became of the process that tried llama.cpp: the last step it began, and its end."""

    step: TrialStep
    end: TrialEnd
    model: str = ""  # the name of the file that it decoded with; empty if there was none
    detail: str = ""  # the signal's name, or the last words
    last_words: str = ""  # on standard error, of what died of a signal
    seconds: float = 0.0
    system_info: str = ""
    kernels: str = ""  # what it computes with on the CPU, in words
    untried_amx: bool = False  # it computes every file with AMX, untried
    unused: Sequence[str] = ()  # abilities of the processor that the build has no kernels for
    offloads: bool = False
    gpus: Sequence[Gpu] = ()
    gpu_fault: str = ""  # why a build for GPUs finds none, in words


def judge_versions(versions: Mapping[str, str]) -> Finding:
    """Return what runs here."""
    words = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    return Finding("versions", Severity.OK, words)


def judge_build(library: LlamaBuild, trial: DecodeTrial | None) -> list[Finding]:
    """Return whether llama.cpp is here and works; `trial` is None when it is not here."""
    if not library.version:
        message = "llama-cpp-python is not installed: this machine cannot host a model"
        return [Finding("build", Severity.PROBLEM, message, _install(library))]
    findings = []
    # A release's own build of that version has a name of its own after a plus.
    if library.pinned and library.version.partition("+")[0] != library.pinned:
        message = (
            f"llama-cpp-python {library.version} is installed, and this Outrider is written for "
            f"{library.pinned}: the low-level API changes without notice"
        )
        findings.append(Finding("build", Severity.PROBLEM, message, _install(library)))
    if trial is None:
        return findings
    return [
        *findings,
        _judge_trial(library, trial),
        *_judge_kernels(library, trial),
        *_judge_gpu(library, trial),
    ]


def _judge_trial(library: LlamaBuild, trial: DecodeTrial) -> Finding:
    of = f" ({trial.model})" if trial.model else ""
    if trial.end is TrialEnd.SIGNAL:
        return _judge_death(library, trial, of)
    if trial.end is TrialEnd.TIMEOUT and trial.step not in _MEASURING:
        message = f"llama.cpp was still {trial.step.value} after {trial.seconds:.0f} s{of}"
        return Finding(
            "build", Severity.PROBLEM, message, "try again when the machine is less busy"
        )
    if trial.end is TrialEnd.ERROR:
        message = f"llama.cpp failed {trial.step.value}{of}: {trial.detail}"
        remedy = ""
        if trial.step is TrialStep.IMPORT:
            remedy = driver_advice(trial.detail) or _rebuild(library)
        return Finding("build", Severity.PROBLEM, message, remedy)
    if not trial.model:
        message = "llama.cpp loads; there was no model small enough to try a decode with"
        remedy = "give a small one: --draft-model"
        return Finding("build", Severity.NOTE, message, remedy)
    return Finding("build", Severity.OK, f"llama.cpp decodes several tokens and one{of}")


def _judge_death(library: LlamaBuild, trial: DecodeTrial, of: str) -> Finding:
    message = f"llama.cpp died of {trial.detail} while {trial.step.value}{of}"
    if trial.detail == "SIGKILL":
        message += ": most likely out of memory"
        return Finding("build", Severity.PROBLEM, message, "free memory, or take a smaller model")
    if trial.gpus and library.gpu_layers != 0:
        message += f": perhaps this build has no kernels for the card ({trial.last_words})"
        remedy = f"{_rebuild_for_gpu(library)}; --n-gpu-layers 0 shows whether it is the card"
        return Finding("build", Severity.PROBLEM, message, remedy)
    if trial.detail == "SIGABRT":
        remedy = "try another file; if the bundled models die too: " + _rebuild(library)
        return Finding("build", Severity.PROBLEM, f"{message}: its own check failed", remedy)
    if _is_x86(library):
        message += (
            ": a bad build; gcc miscompiles llama.cpp's kernels for AMX where nothing mends them, "
            "and a build made elsewhere may use instructions that this processor lacks"
        )
    else:
        message += ": a bad build, perhaps made for another processor"
    return Finding("build", Severity.PROBLEM, message, _rebuild(library))


def _judge_kernels(library: LlamaBuild, trial: DecodeTrial) -> list[Finding]:
    """Return what computes on the CPU, and what the build leaves unused of it."""
    if trial.untried_amx:
        message = "this build computes every file with AMX, as llama.cpp has it: that is wrong for "
        message += "recurrent models with several sessions, and ends the process for some others"
        return [Finding("kernels", Severity.NOTE, message, _rebuild(library))]
    if not trial.unused:
        return [Finding("kernels", Severity.OK, trial.kernels)] if trial.kernels else []
    message = f"this build has no kernels for the processor's {', '.join(trial.unused)}"
    message += ": prompts and texts may take twice as long as they need to"
    return [Finding("kernels", Severity.NOTE, message, _rebuild(library))]


def _judge_gpu(library: LlamaBuild, trial: DecodeTrial) -> list[Finding]:
    """Return what the build makes of the hardware, once its library is loaded."""
    if not trial.system_info:
        return []
    if trial.offloads:
        return [_describe_card(gpu, library.driver) for gpu in trial.gpus]
    if trial.gpu_fault and library.gpu_layers != 0:
        level = Severity.PROBLEM if library.gpu_layers > 0 else Severity.NOTE
        message = f"the CPU computes, as this build finds no GPU: {trial.gpu_fault}"
        return [Finding("gpu", level, message, "--n-gpu-layers 0 if that is as it should be")]
    remedy = _rebuild_for_gpu(library)
    if library.gpu_layers > 0:
        message = f"{library.gpu_layers} layers shall go to a GPU, and the build can use none"
        return [Finding("gpu", Severity.PROBLEM, message, f"{remedy}; or leave --n-gpu-layers out")]
    if library.has_gpu_device:
        message = "there is a GPU, and this build of llama.cpp cannot use it"
        return [Finding("gpu", Severity.NOTE, message, remedy)]
    return [Finding("gpu", Severity.OK, "none, and none is needed: the CPU computes")]


def _describe_card(gpu: Gpu, driver: str) -> Finding:
    words = f"{gpu.name} is {gpu.card}"
    if gpu.total_bytes:
        words += f", {show_size(gpu.free_bytes)} of {show_size(gpu.total_bytes)} free"
    return Finding("gpu", Severity.OK, words + (f", driver {driver}" if driver else ""))


def _rebuild_for_gpu(library: LlamaBuild) -> str:
    return _rebuild(replace(library, has_gpu_device=True))


def _install(library: LlamaBuild) -> str:
    """Return the command that installs llama.cpp, for the GPU where there is one."""
    if library.is_checkout and library.has_gpu_device:
        return "CMAKE_ARGS=-DGGML_CUDA=on make setup"
    if library.is_checkout:
        return "rm -f .venv/ready && make setup"
    if not library.version:
        build = f"{_cmake_args(library)} {library.pip} install --no-cache-dir"
        return f"{build} --no-binary llama-cpp-python 'outrider[llama]'"
    return _rebuild(library)


def _rebuild(library: LlamaBuild) -> str:
    """Return the command that builds the library anew, past pip's cache."""
    if library.is_checkout:
        return _install(library)
    version = f"=={library.pinned}" if library.pinned else ""
    return (
        f"{_cmake_args(library)} {library.pip} install --force-reinstall "
        f"--no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python{version}"
    )


def _cmake_args(library: LlamaBuild) -> str:
    cuda = "-DGGML_CUDA=on " if library.has_gpu_device else ""
    return f'CMAKE_ARGS="{cuda}-DCMAKE_PROJECT_llama_cpp_INCLUDE={library.include}"'


def _is_x86(library: LlamaBuild) -> bool:
    return library.machine.lower() in ("x86_64", "amd64")


# --- the models ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model to host here; `error` says why it cannot be read."""

    role: str
    name: str
    size: int = 0
    error: str = ""
    is_loaded: bool = True  # to see what it does
    context: int = 0  # tokens of a session, as it would be hosted; 0 where unknown
    head: CarriedHead | None = None  # in it, or all of it
    architecture: str = ""
    names: Sequence[str] = ()  # by which it is called

    @property
    def is_head(self) -> bool:
        """Whether the file holds nothing but a head."""
        return self.head is not None and self.head.head.is_alone


def judge_sizes(target: ModelFile, draft: ModelFile) -> list[Finding]:
    """Return what slows two models down that work together."""
    findings = []
    if 0 < draft.context < target.context:
        message = (
            f"the draft's context of {draft.context} tokens is smaller than the target's "
            f"{target.context}: texts that grow past it continue without drafts"
        )
        findings.append(Finding("pair", Severity.NOTE, message, f"--draft-ctx {target.context}"))
    if draft.size * LEAST_RATIO > target.size > 0:
        share = draft.size / target.size
        message = f"the draft is {share:.0%} of the target's size: the speed-up will be small"
        remedy = "take a draft that is ten times smaller or more"
        findings.append(Finding("pair", Severity.NOTE, message, remedy))
    return findings


def judge_pairing(
    mismatch: str = "",
    rule: str = "",
    differences: str = "",
    mass: float | None = None,
    level: str = "",
    acceptance: float | None = None,
    left_out: str = "",
) -> Finding:
    """Return whether two vocabularies fit, or which rule they break and how.

    With `differences`, the draft translates: what it has in common with the target, and the share
    that those tokens have on a sample of text, where that was measured. `acceptance` is the share
    of the sample's places where the draft's best token is the target's; `left_out` says why it is
    not there.
    """
    right = "" if acceptance is None else f"the draft is right in {acceptance:.0%} of a sample"
    if not right and left_out:
        unknown = "how often the draft is right"
        if differences and mass is None:
            unknown += ", and the share of the tokens in common on a sample of text"
        right = f"not measured: {unknown} ({left_out})"
    if not mismatch:
        message = "the draft and the target share a vocabulary"
        return Finding("pair", Severity.OK, f"{message}; {right}" if right else message)
    if differences:
        words = [
            f"the vocabularies differ and the draft translates (rule: {rule}): {mismatch}",
            differences,
        ]
        if mass is not None:
            at = f", so it translates at {level} level" if level else ""
            words.append(f"on a sample of text they are {mass:.0%}{at}")
        words += [right] if right else []
        remedy = "a draft of the target's own family is accepted more often (--same-vocabulary)"
        return Finding("pair", Severity.NOTE, "; ".join(words), remedy)
    if rule == "head":
        remedy = "take a head of this target, which keeps what heads read (--hidden-rows)"
        return Finding("pair", Severity.PROBLEM, mismatch, remedy)
    message = f"the vocabularies do not match (rule: {rule}): {mismatch}"
    remedy = "take a draft of the target's own family, made with the same tokenizer"
    return Finding("pair", Severity.PROBLEM, message, remedy)


def judge_numerics(profile: str, left_out: str, native_ms: float, exact_ms: float) -> Finding:
    """Return what the numerics profile means; empty when the engine did not look.

    Milliseconds are of a plain token under each profile, 0 where not known; `left_out` says why the
    target was not loaded.
    """
    shown = show_profile(profile, native_ms, exact_ms)
    if profile == "exact":
        message = f"{shown}: a seed gives the same text with and without drafts, bit for bit"
        return Finding("numerics", Severity.OK, message)
    if profile == "native":
        also = "--numerics exact forbids it" if exact_ms else "Q8_0 or Q4_0 on a CPU would not"
        message = (
            f"{shown}: texts keep the target's exact distribution, but bits depend on batching, "
            f"so a seed may give another text at near-ties ({also})"
        )
        return Finding("numerics", Severity.OK, message)
    if left_out:
        return Finding("numerics", Severity.OK, f"not known: {left_out}")
    message = "not known: the trial did not get so far"
    return Finding("numerics", Severity.NOTE, message, "outrider status, once it runs")


def unmeasured(models: Sequence[ModelFile]) -> str:
    """Return why some are not loaded; empty where all are."""
    return "; ".join(
        f"a {each.role} of {show_size(each.size)} is loaded only with --measure"
        for each in models
        if not each.is_loaded
    )


def judge_rollback(kind: str, snapshots: int, checkpoint_ms: float) -> Finding:
    """Return how the target's sessions are cut, and what that limits.

    `checkpoint_ms` is what a checkpoint takes; 0 where none is made.
    """
    shown = show_memory(kind, snapshots, checkpoint_ms)
    if kind == "none":
        return Finding("rollback", Severity.NOTE, shown, "run it without a draft (--no-draft)")
    return Finding("rollback", Severity.OK, shown)


# --- sharing a machine ---


def judge_threads(
    wanted: Sequence[tuple[str, int]],
    affinity: int,
    available: int,
    physical: int = 0,
    on_gpu: Sequence[str] = (),
    has_draft_beside: bool = False,
) -> list[Finding]:
    """Return whether the roles' threads fit on the cores that this process may use.

    0 threads are those of `thread_choices`; `physical` cores have what is available, 0 where that
    is not known. Roles that compute `on_gpu` take no core from others, and with `has_draft_beside`
    a draft is kept off the GPU and leaves them some.
    """
    limit = f"{plural(affinity, 'core')} in the affinity mask"
    if available < affinity:
        limit += f", {available} by the cgroup's quota"
    findings, words, computing = [], [], list[int]()
    for role, count in wanted:
        is_beside = has_draft_beside and role == "draft"
        choices = (count,) if count else thread_choices(available, role in on_gpu, is_beside)
        if role not in on_gpu:
            computing.append(choices[0])
        shown = " or ".join(map(str, choices)) + ", whichever is quickest" * (len(choices) > 1)
        words.append(f"{role} {shown}{' beside the GPU' * (role in on_gpu)}")
        if count > available:
            flag = "--draft-threads" if role == "draft" else "--threads"
            message = f"{role}: {plural(count, 'thread')}, but only {limit}"
            remedy = f"{flag} {available}, or leave it out"
            findings.append(Finding("threads", Severity.PROBLEM, message, remedy))
        elif 0 < physical < choices[-1]:
            flag = "--draft-threads" if role == "draft" else "--threads"
            message = f"{role}: {choices[-1]} threads on {plural(physical, 'core')}"
            message += " with two hardware threads each, which seldom help"
            findings.append(Finding("threads", Severity.NOTE, message, f"try {flag} {physical}"))
    if not findings:
        turns = sum(computing) > available and len(computing) > 1
        said = ", ".join(words) + f", who take turns on {plural(available, 'core')}" * turns
        findings.append(Finding("threads", Severity.OK, "; ".join(filter(None, (said, limit)))))
    return findings


def judge_openmp(
    environment: Mapping[str, str], model_count: int, uses_openmp: bool
) -> list[Finding]:
    """Return whether waiting threads leave the cores to others; by the variables of libgomp."""
    if not uses_openmp:
        return [Finding("openmp", Severity.OK, "this build of llama.cpp waits without OpenMP")]
    findings = [*_judge_waiting(environment, model_count), *_judge_placing(environment)]
    if not findings:
        message = f"no variable is in the way; the engine sets GOMP_SPINCOUNT={_BY_DEFAULT}"
        if "GOMP_SPINCOUNT" in environment:
            message = f"GOMP_SPINCOUNT={environment['GOMP_SPINCOUNT']}, threads wait shortly"
        findings.append(Finding("openmp", Severity.OK, message))
    return findings


def _judge_waiting(environment: Mapping[str, str], model_count: int) -> list[Finding]:
    spin, policy = environment.get("GOMP_SPINCOUNT"), environment.get("OMP_WAIT_POLICY")
    if spin is None and policy is None:
        return []
    if spin is not None:  # it wins over the policy
        name, count = "GOMP_SPINCOUNT", read_spin_count(spin)
        if count is None:
            message = f"GOMP_SPINCOUNT={spin} is no number, so threads spin for long"
            count = float("inf")
        else:
            message = f"GOMP_SPINCOUNT={spin}"
    else:
        name = "OMP_WAIT_POLICY"
        message = f"OMP_WAIT_POLICY={policy}"
        count = 0 if (policy or "").strip().lower() == "passive" else float("inf")
    if count > _LONG_SPIN:
        level = Severity.PROBLEM if model_count > 1 else Severity.NOTE
        message += (
            ": waiting threads keep their cores busy; beside another process one decode was seen "
            "to take 1.7 s in place of 0.07 s"
        )
    elif count < _SHORT_SPIN:
        level = Severity.NOTE
        message += ": threads sleep at once; a verify of 4 rows was seen to take 3 times as long"
    else:
        return []
    remedy = f"unset {name} (the engine then sets GOMP_SPINCOUNT={_BY_DEFAULT})"
    return [Finding("openmp", level, message, remedy)]


def _judge_placing(environment: Mapping[str, str]) -> list[Finding]:
    """Return what binds or limits threads without llama.cpp's knowledge."""
    findings = []
    for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"):
        value = environment.get(name, "")
        if value and value.strip().lower() != "false":
            message = f"{name}={value} binds threads: two services may sit on the same core"
            findings.append(Finding("openmp", Severity.NOTE, message, f"unset {name}"))
    if environment.get("OMP_THREAD_LIMIT"):
        message = f"OMP_THREAD_LIMIT={environment['OMP_THREAD_LIMIT']} caps --threads silently"
        findings.append(Finding("openmp", Severity.NOTE, message, "unset OMP_THREAD_LIMIT"))
    if environment.get("OMP_NUM_THREADS"):
        message = f"OMP_NUM_THREADS={environment['OMP_NUM_THREADS']} means nothing to llama.cpp"
        findings.append(Finding("openmp", Severity.NOTE, message, "--threads is what counts"))
    return findings


def read_spin_count(text: str) -> float | None:
    """Return how often libgomp would look before it sleeps; None for what it cannot read."""
    word = text.strip().lower()
    if word in ("infinity", "infinite"):
        return float("inf")
    digits = word.rstrip("kmgt")
    suffix = word[len(digits) :].strip()
    if not digits.strip().isdecimal() or len(suffix) > 1:
        return None
    return int(digits) * 10.0 ** (3 * " kmgt".index(suffix or " "))


# --- ports ---


def judge_port(role: str, address: str, owner: str | None, is_taken: bool) -> Finding:
    """Return whether a service can listen there; `owner` says which of ours does."""
    place = f"{address} ({role})" if role else address
    if not is_taken:
        return Finding("ports", Severity.OK, f"{place} is free")
    if owner is not None:
        remedy = "use it, or give a second one another --listen"
        return Finding("ports", Severity.NOTE, f"{place} is taken: {owner}", remedy)
    number = address.rpartition(":")[2]
    remedy = f"give another --listen; to see whose it is: ss -ltnp 'sport = :{number}'"
    message = f"{place} is taken: another program listens there"
    return Finding("ports", Severity.PROBLEM, message, remedy)


def judge_unusable(role: str, address: str, reason: str) -> Finding:
    """Return that no service can listen there at all."""
    place = f"{address} ({role})" if role else address
    message = f"{place} cannot be listened on: {reason}"
    return Finding("ports", Severity.PROBLEM, message, "--listen wants an address of this machine")


# --- tokens and certificates ---


def judge_token(name: str, error: str, mode: int) -> Finding:
    """Return whether a token file can be used, or why not, and is a secret by its mode."""
    if error:
        remedy = f"openssl rand -hex 32 > {name} && chmod 600 {name}"
        if "cannot read" in error:
            remedy = "correct --token-file, or let this user read the file"
        return Finding("token", Severity.PROBLEM, error, remedy)
    if mode & 0o004:
        message = f"every user of this machine can read {name}"
        return Finding("token", Severity.NOTE, message, f"chmod 600 {name}")
    return Finding("token", Severity.OK, f"{name} holds a token, and not for everyone")


def judge_certificate(
    option: str, name: str, seconds: float | None, not_yet: bool = False
) -> Finding:
    """Return for how long a certificate can be used; `seconds` are None where that is not known.

    With `not_yet`, it begins later than now.
    """
    what = f"{name} ({option})"
    if not_yet:
        remedy = "set the clock of this machine, or of the one that issued it"
        return Finding("tls", Severity.PROBLEM, f"{what} is not valid yet", remedy)
    if seconds is None:
        return Finding("tls", Severity.OK, f"{what} can be read; its expiry is not known")
    words = f"{what} is valid for another {plural(int(seconds // _DAY), 'day')}"
    return judge_expiry(what, seconds) or Finding("tls", Severity.OK, words)


def judge_expiry(what: str, seconds: float) -> Finding | None:
    """Return that a certificate expires or has expired; None while it is good for long."""
    remedy = "have a new one issued, and start the services again"
    if seconds <= 0:
        return Finding("tls", Severity.PROBLEM, f"{what} has expired", remedy)
    if seconds < EXPIRY_DAYS * _DAY:
        message = f"{what} expires in {plural(int(seconds // _DAY), 'day')}"
        return Finding("tls", Severity.NOTE, message, remedy)
    return None


def median_of(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
