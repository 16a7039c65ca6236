"""What doctor concludes from what it sees."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.engine.footprint import CPU, DeviceShare, Footprint, Gpu
from outrider.engine.heads import CarriedHead, Head
from outrider.speculation import HeadKind
from outrider.v1 import common_pb2 as common
from outrider.v1 import orchestrator_service_pb2 as messages
from outrider_cli.doctor.checks import (
    DecodeTrial,
    Finding,
    LlamaBuild,
    ModelFile,
    Severity,
    TrialEnd,
    TrialStep,
    judge_build,
    judge_certificate,
    judge_numerics,
    judge_openmp,
    judge_pairing,
    judge_port,
    judge_rollback,
    judge_sizes,
    judge_threads,
    judge_token,
    judge_unusable,
    judge_versions,
    read_spin_count,
    show_size,
    unmeasured,
)
from outrider_cli.doctor.head_checks import judge_heads
from outrider_cli.doctor.machine import nvidia_driver
from outrider_cli.doctor.model_checks import Placed, judge_decodes, judge_memory, judge_models
from outrider_cli.doctor.peer_checks import CallFailure, ProbedPeer, judge_peer
from outrider_cli.doctor.report import all_well, finding_lines, judge_gain, judge_head_gain, verdict
from outrider_cli.phrases import show_time
from tests.support import chat_formats

GB = 10**9
OK, NOTE, PROBLEM = Severity.OK, Severity.NOTE, Severity.PROBLEM
DAY = 86400.0

LIBRARY = LlamaBuild(version="0.3.36", pinned="0.3.36")
TRIAL = DecodeTrial(
    step=TrialStep.DONE, end=TrialEnd.DONE, model="m.gguf", system_info="CPU : OPENMP = 1 |"
)
TARGET = ModelFile(role="target", name="t.gguf", size=4 * 10**9, context=4096)
DRAFT = ModelFile(role="draft", name="d.gguf", size=4 * 10**8, context=4096)
CARD = Gpu("CUDA0", "NVIDIA H200", free_bytes=20 * GB, total_bytes=140 * GB)


def levels(findings: list[Finding]) -> list[Severity]:
    return [finding.level for finding in findings]


def only(findings: list[Finding]) -> Finding:
    [finding] = findings
    return finding


def test_notes_are_no_problems():
    assert all_well([])
    assert all_well([Finding("a", OK, ""), Finding("b", NOTE, "")])
    assert not all_well([Finding("a", OK, ""), Finding("b", PROBLEM, "")])


def test_versions_name_what_is_missing():
    finding = judge_versions({"Python": "3.11.7", "llama-cpp-python": ""})
    assert finding == Finding("versions", OK, "Python 3.11.7, llama-cpp-python not installed")


# --- the build ---


def test_a_build_that_decodes_is_fine():
    assert levels(judge_build(LIBRARY, TRIAL)) == [OK, OK]


def test_no_library_is_a_problem():
    finding = only(judge_build(replace(LIBRARY, version=""), None))
    assert finding.level is PROBLEM and finding.remedy == "rm -f .venv/ready && make setup"


def test_outside_a_checkout_the_remedy_is_pip():
    library = replace(LIBRARY, version="", is_checkout=False, machine="aarch64")
    assert only(judge_build(library, None)).remedy == (
        'CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=llama.cmake" pip install --no-cache-dir '
        "--no-binary llama-cpp-python 'outrider[llama]'"
    )


def test_another_version_is_a_problem_that_names_both():
    findings = judge_build(replace(LIBRARY, version="0.3.30"), TRIAL)
    assert levels(findings) == [PROBLEM, OK, OK]
    assert "0.3.30" in findings[0].message and "0.3.36" in findings[0].message


def test_a_releases_build_of_the_version_is_that_version():
    assert levels(judge_build(replace(LIBRARY, version="0.3.36+outrider.0.1.0"), TRIAL)) == [OK, OK]


def test_without_a_pin_no_version_is_wrong():
    assert levels(judge_build(replace(LIBRARY, pinned=""), TRIAL)) == [OK, OK]


def died(name: str, step: TrialStep = TrialStep.SEVERAL) -> DecodeTrial:
    return replace(TRIAL, step=step, end=TrialEnd.SIGNAL, detail=name, system_info="")


@pytest.mark.parametrize("name", ["SIGILL", "SIGSEGV", "SIGBUS"])
def test_a_death_in_a_decode_names_signal_step_and_the_known_cause(name: str):
    finding = only(judge_build(LIBRARY, died(name)))
    assert finding.level is PROBLEM
    assert finding.message.startswith(
        f"llama.cpp died of {name} while decoding several tokens at once (m.gguf)"
    )
    assert "gcc miscompiles llama.cpp's kernels for AMX" in finding.message
    assert finding.remedy == "rm -f .venv/ready && make setup"


def test_what_the_build_leaves_unused_of_the_processor_is_named_with_the_command():
    trial = replace(TRIAL, unused=["AVX512", "AMX_INT8"])
    [_, finding, _] = judge_build(LIBRARY, trial)
    assert finding.level is NOTE
    assert "no kernels for the processor's AVX512, AMX_INT8" in finding.message
    assert finding.remedy == "rm -f .venv/ready && make setup"
    [_, finding, _] = judge_build(replace(LIBRARY, is_checkout=False), trial)
    assert finding.remedy.startswith('CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=')


def test_a_build_on_a_machine_with_a_gpu_is_made_anew_for_it():
    old = replace(TRIAL, unused=["AVX2"])  # as the wheels for CUDA are
    for is_checkout, words in (
        (True, "CMAKE_ARGS=-DGGML_CUDA=on make"),
        (False, '"-DGGML_CUDA=on '),
    ):
        library = replace(LIBRARY, is_checkout=is_checkout, has_gpu_device=True)
        assert words in judge_build(library, old)[1].remedy
        assert words in only(judge_build(replace(library, version=""), None)).remedy


def test_a_build_that_has_nothing_but_amx_is_named_with_the_command():
    [_, finding, _] = judge_build(LIBRARY, replace(TRIAL, untried_amx=True))
    assert finding.level is NOTE
    assert "wrong for recurrent models" in finding.message
    assert finding.remedy == "rm -f .venv/ready && make setup"


def test_the_command_that_builds_anew_builds_as_for_a_checkout():
    pip = replace(LIBRARY, is_checkout=False)
    remedy = only(judge_build(pip, died("SIGILL"))).remedy
    assert remedy == (
        'CMAKE_ARGS="-DCMAKE_PROJECT_llama_cpp_INCLUDE=llama.cmake" '
        "pip install --force-reinstall --no-deps --no-cache-dir "
        "--no-binary llama-cpp-python llama-cpp-python==0.3.36"
    )
    finding = only(judge_build(replace(pip, machine="aarch64"), died("SIGILL")))
    assert "amx" not in finding.remedy and "AMX" not in finding.message


def test_a_killed_trial_ran_out_of_memory():
    finding = only(judge_build(LIBRARY, died("SIGKILL", TrialStep.LOAD)))
    assert "out of memory" in finding.message and "memory" in finding.remedy


def test_an_abort_points_at_the_file_first():
    finding = only(judge_build(LIBRARY, died("SIGABRT", TrialStep.READ)))
    assert finding.remedy.startswith("try another file")


def test_a_slow_trial_is_told_with_its_time():
    trial = replace(TRIAL, step=TrialStep.LOAD, end=TrialEnd.TIMEOUT, seconds=120)
    assert "still loading the model after 120 s" in judge_build(LIBRARY, trial)[0].message


def test_a_trial_that_is_slow_after_its_decodes_shows_a_sound_build():
    trial = replace(TRIAL, step=TrialStep.NUMERICS, end=TrialEnd.TIMEOUT)
    assert levels(judge_build(LIBRARY, trial)) == [OK, OK]


def test_a_build_for_cuda_without_a_driver_is_no_reason_to_build_anew():
    detail = "libcuda.so.1: cannot open shared object file: No such file or directory"
    trial = DecodeTrial(step=TrialStep.IMPORT, end=TrialEnd.ERROR, detail=detail)
    finding = only(judge_build(LIBRARY, trial))
    assert finding.level is PROBLEM
    assert "--gpus all" in finding.remedy
    assert "make setup" not in finding.remedy


def test_a_library_that_does_not_load_is_built_anew():
    trial = DecodeTrial(step=TrialStep.IMPORT, end=TrialEnd.ERROR, detail="no libllama.so")
    finding = only(judge_build(LIBRARY, trial))
    assert (finding.level, finding.remedy) == (PROBLEM, "rm -f .venv/ready && make setup")
    assert "no libllama.so" in finding.message


def test_an_error_of_a_model_asks_for_no_new_build():
    trial = replace(TRIAL, step=TrialStep.LOAD, end=TrialEnd.ERROR, detail="no context of 9 cells")
    finding = judge_build(LIBRARY, trial)[0]
    assert finding.level is PROBLEM and "setup" not in finding.remedy


def test_without_a_model_nothing_was_tried():
    assert levels(judge_build(LIBRARY, replace(TRIAL, model=""))) == [NOTE, OK]


@pytest.mark.parametrize(
    ("device", "layers", "level"),
    [(False, -1, OK), (True, -1, NOTE), (True, 99, PROBLEM), (False, 1, PROBLEM), (False, 0, OK)],
)
def test_a_build_without_a_gpu(device: bool, layers: int, level: Severity):
    library = replace(LIBRARY, has_gpu_device=device, gpu_layers=layers)
    finding = judge_build(library, TRIAL)[1]
    assert (finding.check, finding.level) == ("gpu", level)
    assert bool(finding.remedy) is (level is not OK)
    assert len(finding.message) < 62, "one line of 80 columns"


ON_A_GPU = replace(TRIAL, offloads=True, gpus=[CARD, Gpu("CUDA1", "NVIDIA L4", 0, 0)])


def test_every_card_is_shown_with_its_memory_and_its_driver():
    driven = replace(LIBRARY, driver="580.82.07")
    first, second = (each for each in judge_build(driven, ON_A_GPU) if each.check == "gpu")
    assert first == Finding(
        "gpu", OK, "CUDA0 is NVIDIA H200, 20.0 GB of 140.0 GB free, driver 580.82.07"
    )
    assert second.message == "CUDA1 is NVIDIA L4, driver 580.82.07"


@pytest.mark.parametrize("signal", ["SIGABRT", "SIGILL"])
def test_a_death_on_a_card_is_told_with_its_last_words_and_how_to_tell_whose_it_is(signal: str):
    words = "/src/ggml-cuda.cu:97: CUDA error"
    trial = replace(ON_A_GPU, end=TrialEnd.SIGNAL, step=TrialStep.SEVERAL, detail=signal)
    finding = judge_build(LIBRARY, replace(trial, last_words=words))[0]
    assert finding.message.startswith(f"llama.cpp died of {signal} while decoding several tokens")
    assert "no kernels for the card" in finding.message and words in finding.message
    assert "-DGGML_CUDA=on make setup; --n-gpu-layers 0 shows" in finding.remedy
    without = judge_build(replace(LIBRARY, gpu_layers=0), replace(trial, last_words=words))[0]
    assert "for the card" not in without.message


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15",
            "535.183.01",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
            "580.65.06",
        ),
        ("something else", ""),
    ],
)
def test_the_drivers_version_is_read(tmp_path: Path, line: str, version: str):
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.2.0\n")
    assert nvidia_driver(tmp_path / "version") == version
    assert nvidia_driver(tmp_path / "there is none") == ""


@pytest.mark.parametrize(("layers", "level"), [(-1, NOTE), (99, PROBLEM), (0, OK)])
def test_a_build_for_a_gpu_that_finds_none_says_why_and_is_not_built_anew(
    layers: int, level: Severity
):
    library = replace(LIBRARY, gpu_layers=layers)
    trial = replace(TRIAL, gpu_fault="it is built for CUDA, and NVIDIA's driver is not here")
    finding = judge_build(library, trial)[1]
    assert (finding.check, finding.level) == ("gpu", level)
    assert ("NVIDIA's driver is not here" in finding.message) is (layers != 0)
    assert "make setup" not in finding.remedy


def test_outside_a_checkout_a_build_for_the_gpu_is_made_by_pip():
    library = replace(LIBRARY, is_checkout=False, machine="aarch64", has_gpu_device=True)
    remedy = judge_build(library, TRIAL)[1].remedy
    assert remedy.startswith('CMAKE_ARGS="-DGGML_CUDA=on -DCMAKE_PROJECT')


# --- the models ---


def test_a_file_that_cannot_be_read_is_a_problem():
    broken = ModelFile(role="draft", name="d.gguf", error="d.gguf is not a GGUF file")
    findings = judge_models([TARGET, broken])
    assert levels(findings) == [OK, PROBLEM]
    assert findings[1].message == "draft: d.gguf is not a GGUF file"


MTP = Head(HeadKind.MTP, "qwen35", is_alone=False, width=64)
EAGLE3 = Head(HeadKind.EAGLE3, "eagle3", target_layers=(1, 2, 3), width=64)
WITH_HEAD = replace(TARGET, head=CarriedHead(MTP, 1, 2 * 10**6))
HEAD_FILE = ModelFile(role="draft", name="e.gguf", head=CarriedHead(EAGLE3, 2, 10**6))
MISSING = {"mtp": "this llama.cpp cannot run an MTP head: it has no x"}


def told(*files: ModelFile, missing: dict[str, str] | None = None, beside: str = "") -> list[str]:
    findings = judge_heads(files, missing or {}, beside)
    return [f"{each.level.value}: {each.message}" for each in findings]


def test_a_head_in_a_targets_file_is_told_with_its_size_and_whether_it_drafts():
    words = "target: an MTP head in its file, 1 block of 2.0 MB"
    assert told(WITH_HEAD) == [f"ok: {words}; it drafts in the target's process"]
    small = ModelFile(role="draft", name="d.gguf", head=CarriedHead(MTP, 1, 9))
    assert told(WITH_HEAD, small) == [f"ok: {words}; not used beside a draft model"]
    assert told(TARGET) == []


def test_a_head_that_is_not_used_is_a_note_with_the_reason():
    assert told(WITH_HEAD, missing=MISSING) == [f"note: target: {MISSING['mtp']}"]
    broken = CarriedHead(replace(MTP, fault="has an MTP head of x, which is not supported"), 1, 9)
    assert told(replace(TARGET, head=broken)) == [
        f"note: target: {TARGET.name} has an MTP head of x, which is not supported"
    ]


def test_a_head_in_a_file_of_its_own_is_told_with_the_targets_that_it_can_read():
    words = "draft: e.gguf is an EAGLE-3 head, 2 blocks of 1.0 MB, for targets of width 64"
    assert told(TARGET, HEAD_FILE) == [f"ok: {words}, of which it reads the layers 1, 2, 3"]
    mtp = replace(HEAD_FILE, head=CarriedHead(replace(MTP, is_alone=True), 1, 10**6))
    assert told(mtp)[0].endswith("for targets of qwen35, width 64")
    wrong = "e.gguf is an EAGLE-3 head of a target of width 64, not 32"
    assert told(TARGET, HEAD_FILE, beside=wrong) == [f"problem: draft: {wrong}"]


def placed(role: str, *shares: DeviceShare, splits: int = 1) -> Placed:
    footprint = Footprint(shares=shares, split_count=splits, file_type="Q4_0")
    return Placed(role, 4, footprint)


def share(device: str, layers: int, weights: int, caches: int = 2 * GB) -> DeviceShare:
    return DeviceShare(device=device, layers=layers, weights=weights, caches=caches, compute=GB)


ON_CPU = [placed("target", share(CPU, 33, 4 * GB)), placed("draft", share(CPU, 9, GB, caches=GB))]


@pytest.mark.parametrize(("available", "level"), [(20, OK), (11, NOTE), (9, PROBLEM)])
def test_models_against_the_machines_memory(available: int, level: Severity):
    finding = only(judge_memory(ON_CPU, [], (available * GB, "cgroup")))
    assert finding.level is level and bool(finding.remedy) is (level is not OK)
    assert finding.message == (
        f"10.0 GB of the {available}.0 GB that the cgroup has available (target: weights 4.0 GB, "
        "4 sessions of 500.0 MB, 1.0 GB to compute; draft: weights 1.0 GB, 4 sessions of 250.0 MB, "
        "1.0 GB to compute)"
    )


@pytest.mark.parametrize(("weights", "level"), [(10, OK), (16, NOTE), (18, PROBLEM)])
def test_a_card_is_judged_by_what_it_has_free(weights: int, level: Severity):
    target = placed("target", share("CUDA0", 33, weights * GB), share(CPU, 0, GB, caches=0))
    layers, card, machine = judge_memory([target], [CARD], (100 * GB, "machine"))
    assert layers == Finding("gpu", OK, "target: of 33 layers 33 on CUDA0")
    assert card.level is level and machine.level is OK
    assert card.message.startswith(f"{weights + 3}.0 GB of the 20.0 GB that CUDA0 has free (target")
    assert ("--draft-n-gpu-layers 0" in card.remedy) is (level is not OK)


def test_a_card_that_does_not_say_what_it_has_is_not_judged():
    silent = replace(CARD, free_bytes=0, total_bytes=0)
    target = placed("target", share("CUDA0", 33, 99 * GB))
    assert levels(judge_memory([target], [silent], None)) == [OK, OK]


def test_layers_are_shown_card_by_card():
    shares = share("CUDA0", 16, GB), share("CUDA1", 12, GB), share(CPU, 5, GB)
    target = placed("target", *shares, splits=4)
    both = [CARD, replace(CARD, name="CUDA1")]
    layers, *memory = judge_memory([target], both, (100 * GB, "machine"))
    assert layers.message == "target: of 33 layers 16 on CUDA0, 12 on CUDA1, 5 on CPU"
    assert [each.check for each in memory] == ["memory"] * 3


def test_a_build_that_computes_a_part_of_every_layer_elsewhere_is_noted_with_the_type():
    target = placed("target", share("CUDA0", 33, GB), splits=66)
    finding = judge_memory([target], [CARD], None)[0]
    assert finding.level is NOTE and "--cache-type-k" in finding.remedy
    assert "changes 65 times between processor and card" in finding.message
    assert "no kernels there for weights of Q4_0" in finding.message


def test_no_models_say_nothing_of_memory():
    assert judge_memory([], [CARD], (1, "machine")) == []


def test_decodes_are_shown_by_rows_that_double():
    costs = [(1, 2.8), (2, 3.0), (3, 3.3), (4, 3.61), (8, 5.2)]
    assert only(judge_decodes(costs, 12.0)).message == (
        "target 1:2.8 2:3.0 4:3.6 8:5.2 ms by rows, draft 12.0 ms a token"
    )
    assert judge_decodes([], None) == []


def test_a_pair_that_fits():
    assert [judge_pairing().level, *judge_sizes(TARGET, DRAFT)] == [OK]


def test_a_mismatch_names_the_rule_and_the_token():
    finding = judge_pairing("token 9 differs: target 'a', draft 'b'", "token text")
    assert finding.level is PROBLEM and finding.remedy
    assert "(rule: token text): token 9 differs: target 'a', draft 'b'" in finding.message


def test_a_draft_that_translates_is_a_note_with_what_is_shared():
    finding = judge_pairing("token 9 differs", "token text", "has 3 of 5 tokens", 0.5)
    assert finding.level is NOTE and "--same-vocabulary" in finding.remedy
    assert finding.message.endswith("has 3 of 5 tokens; on a sample of text they are 50%")


def test_what_a_draft_may_be_expected_to_do_is_shown_before_it_is_deployed():
    finding = judge_pairing("token 9 differs", "token text", "has 3 of 5", 0.5, "string", 0.41)
    assert finding.message.endswith(
        "on a sample of text they are 50%, so it translates at string level; "
        "the draft is right in 41% of a sample"
    )
    assert judge_pairing(acceptance=0.64, mass=1.0, level="native").message == (
        "the draft and the target share a vocabulary; the draft is right in 64% of a sample"
    )


def test_what_is_not_measured_of_a_pair_is_said_with_its_reason():
    large, small = (
        ModelFile(role="target", name="t", size=7 * 10**9, is_loaded=False),
        ModelFile(role="draft", name="d", size=10**9),
    )
    why = unmeasured([large, small])
    assert why == "a target of 7.0 GB is loaded only with --measure" and not unmeasured([small])
    assert judge_pairing(left_out=why).message == (
        "the draft and the target share a vocabulary; "
        f"not measured: how often the draft is right ({why})"
    )
    known = judge_pairing("token 9 differs", "token text", "has 3 of 5", 0.5, "string", None, why)
    assert known.message.endswith(
        "on a sample of text they are 50%, so it translates at string level; "
        f"not measured: how often the draft is right ({why})"
    )
    unknown = judge_pairing("token 9 differs", "token text", "has 3 of 5", left_out=why)
    assert unknown.message.endswith(
        "not measured: how often the draft is right, and the share of the tokens in common on a "
        f"sample of text ({why})"
    )
    assert "not measured" not in judge_pairing("token 9 differs", "type", left_out=why).message


def test_a_target_that_cannot_be_rolled_back_is_a_note():
    assert judge_rollback("none", 0, 0.0).remedy
    finding = judge_rollback("checkpoints", 0, 2.0)
    assert finding.level is OK and finding.message.startswith("checkpoints: a draft costs a check")


def test_a_smaller_context_of_the_draft_is_a_note():
    finding = only(judge_sizes(TARGET, replace(DRAFT, context=1024)))
    assert finding.level is NOTE and finding.remedy == "--draft-ctx 4096"


@pytest.mark.parametrize(("size", "level"), [(10**9, []), (10**9 + 1, [NOTE])])
def test_a_draft_larger_than_a_quarter_is_a_note(size: int, level: list[Severity]):
    assert levels(judge_sizes(TARGET, replace(DRAFT, size=size))) == level


@pytest.mark.parametrize(
    ("profile", "left_out", "costs", "level", "words"),
    [
        ("exact", "", (9.0, 9.2), OK, "exact (a plain token: 9.0 ms native, 9.2 ms exact)"),
        ("native", "", (22.0, 38.0), OK, "22.0 ms native, 38.0 ms exact"),
        ("native", "", (22.0, 0.0), OK, "near-ties (Q8_0 or Q4_0 on a CPU would not)"),
        ("", "it is too large", (0.0, 0.0), OK, "not known: it is too large"),
        ("", "", (0.0, 0.0), NOTE, "did not get so far"),
    ],
)
def test_the_numerics_profile(
    profile: str, left_out: str, costs: tuple[float, float], level: Severity, words: str
):
    finding = judge_numerics(profile, left_out, *costs)
    assert finding.level is level and words in finding.message
    assert bool(finding.remedy) is (level is not OK)


# --- sharing a machine ---


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [(0, 1, [OK]), (3, 1, [OK]), (4, 4, [OK]), (5, 1, [PROBLEM]), (5, 5, [PROBLEM, PROBLEM])],
)
def test_threads_of_a_pair_on_four_cores(target: int, draft: int, expected: list[Severity]):
    wishes = [("target", target), ("draft", draft)]
    assert levels(judge_threads(wishes, 4, 4)) == expected


def test_threads_that_do_not_fit_at_once_take_turns():
    both = [("target", 4), ("draft", 0)]
    assert "target 4, draft 4, who take turns on 4 cores" in only(judge_threads(both, 4, 4)).message
    few = [("target", 3), ("draft", 1)]
    assert "turns" not in only(judge_threads(few, 4, 4)).message
    apart = only(judge_threads(both, 4, 4, on_gpu=["target"])).message
    assert apart.startswith("target 4 beside the GPU, draft 4; 4 cores")


def test_a_target_on_a_gpu_has_one_thread_and_a_draft_beside_it_some_of_the_cores() -> None:
    pair = [("target", 0), ("draft", 0)]
    there = only(judge_threads(pair, 16, 16, on_gpu=["target"], has_draft_beside=True)).message
    expected = "target 1 beside the GPU, draft 14 or 8 or 4, whichever is quickest; 16 cores"
    assert there.startswith(expected)
    asked = [("target", 0), ("draft", 6)]
    there = only(judge_threads(asked, 16, 16, on_gpu=["target"], has_draft_beside=True)).message
    assert there.startswith("target 1 beside the GPU, draft 6; 16 cores")
    both = only(judge_threads(pair, 16, 16, on_gpu=["target", "draft"])).message
    assert both.startswith("target 1 beside the GPU, draft 1 beside the GPU; 16 cores")
    # Those are fewer than the physical cores, however many hardware threads there are.
    assert levels(judge_threads(pair, 16, 16, 8, ["target"], has_draft_beside=True)) == [OK]


def test_too_many_threads_are_told_with_the_numbers_and_the_flag():
    finding = only(judge_threads([("draft", 8)], 16, 2))
    assert finding.message == (
        "draft: 8 threads, but only 16 cores in the affinity mask, 2 by the cgroup's quota"
    )
    assert finding.remedy.startswith("--draft-threads 2")
    assert only(judge_threads([("target", 2)], 1, 1)).remedy.startswith("--threads 1")


def test_two_threads_on_a_core_are_named_with_the_count_to_try():
    [finding] = judge_threads([("target", 0)], 8, 8, physical=4)
    assert finding.level is NOTE
    assert "target: 8 threads on 4 cores with two hardware threads each" in finding.message
    assert finding.remedy == "try --threads 4"
    assert levels(judge_threads([("target", 4)], 8, 8, physical=4)) == [OK]
    assert levels(judge_threads([("target", 8)], 8, 8, physical=8)) == [OK]


def test_one_model_alone_may_take_every_core():
    assert levels(judge_threads([("draft", 4)], 4, 4)) == [OK]


@pytest.mark.parametrize(
    ("variables", "alone", "shared"),
    [
        ({}, OK, OK),
        ({"GOMP_SPINCOUNT": "10000"}, OK, OK),
        ({"GOMP_SPINCOUNT": "10k"}, OK, OK),
        ({"OMP_WAIT_POLICY": "active"}, NOTE, PROBLEM),
        ({"OMP_WAIT_POLICY": " ACTIVE "}, NOTE, PROBLEM),
        ({"OMP_WAIT_POLICY": "passive"}, NOTE, NOTE),
        ({"GOMP_SPINCOUNT": "infinity"}, NOTE, PROBLEM),
        ({"GOMP_SPINCOUNT": "300000"}, NOTE, PROBLEM),
        ({"GOMP_SPINCOUNT": "1G"}, NOTE, PROBLEM),
        ({"GOMP_SPINCOUNT": "soon"}, NOTE, PROBLEM),
        ({"GOMP_SPINCOUNT": "0"}, NOTE, NOTE),
        ({"GOMP_SPINCOUNT": "10000", "OMP_WAIT_POLICY": "active"}, OK, OK),
        ({"OMP_PROC_BIND": "true"}, NOTE, NOTE),
        ({"OMP_PROC_BIND": "false"}, OK, OK),
        ({"GOMP_CPU_AFFINITY": "0-1"}, NOTE, NOTE),
        ({"OMP_THREAD_LIMIT": "1"}, NOTE, NOTE),
        ({"OMP_NUM_THREADS": "4"}, NOTE, NOTE),
    ],
)
def test_openmp_variables(variables: dict[str, str], alone: Severity, shared: Severity):
    assert only(judge_openmp(variables, 1, True)).level is alone
    assert only(judge_openmp(variables, 2, True)).level is shared


def test_the_remedy_for_waiting_names_the_variable_that_counts():
    both = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "infinite"}
    remedy = only(judge_openmp(both, 2, True)).remedy
    assert remedy.startswith("unset GOMP_SPINCOUNT (")
    assert only(judge_openmp({"OMP_WAIT_POLICY": "active"}, 1, True)).remedy == (
        "unset OMP_WAIT_POLICY (the engine then sets GOMP_SPINCOUNT=30000)"
    )


def test_variables_mean_nothing_to_a_build_without_openmp():
    assert only(judge_openmp({"OMP_WAIT_POLICY": "active"}, 2, False)).level is OK


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        (" 12 ", 12),
        ("10k", 1e4),
        ("2M", 2e6),
        ("3 G", 3e9),
        ("1t", 1e12),
        ("INFINITE", float("inf")),
        ("-1", None),
        ("1kk", None),
        ("k", None),
        ("", None),
        ("1.5", None),
    ],
)
def test_spin_counts_are_read_as_libgomp_does(text: str, count: float | None):
    assert read_spin_count(text) == count


# --- ports ---


@pytest.mark.parametrize(
    ("owner", "is_taken", "level"),
    [(None, False, OK), ("a target serves there", True, NOTE), (None, True, PROBLEM)],
)
@pytest.mark.parametrize("role", ["target", ""])
def test_ports(owner: str | None, is_taken: bool, level: Severity, role: str):
    finding = judge_port(role, "127.0.0.1:50062", owner, is_taken)
    assert finding.level is level and "127.0.0.1:50062" in finding.message
    assert bool(finding.remedy) is (level is not OK)


def test_an_address_that_is_not_here_is_a_problem():
    finding = judge_unusable("target", "192.0.2.1:1", "not here")
    assert finding.level is PROBLEM and finding.remedy
    assert finding.message == "192.0.2.1:1 (target) cannot be listened on: not here"


def test_a_strangers_port_is_looked_up_by_its_number():
    finding = judge_port("draft", "[::1]:50061", None, True)
    assert finding.message == "[::1]:50061 (draft) is taken: another program listens there"
    assert finding.remedy.endswith("ss -ltnp 'sport = :50061'")


# --- peers ---

MODEL = common.GetModelResponse(
    model_name="big",
    numerics_profile=common.NUMERICS_PROFILE_EXACT,
    decode_costs=[common.DecodeCost(row_count=1, milliseconds=50.0)],
)
NEAR = ProbedPeer(role="target", address="t:1", round_trips=(0.001,) * 3, model=MODEL)


@pytest.mark.parametrize("failure", list(CallFailure))
def test_every_failure_has_a_remedy(failure: CallFailure):
    peer = ProbedPeer(role="draft", address="d:1", failure=failure, detail="it is so")
    finding = only(judge_peer(peer))
    assert finding.level is PROBLEM and finding.message == "draft at d:1: it is so"
    assert finding.remedy and "{" not in finding.remedy


def test_a_peer_is_told_with_its_median_and_worst_round_trip():
    peer = replace(NEAR, round_trips=(0.001, 0.002, 0.009))
    finding = only(judge_peer(peer))
    assert finding.level is OK
    assert finding.message == (
        "target at t:1, big, numerics exact, round trip 2.0 ms, at worst 9.0 ms"
    )


def test_a_target_is_told_with_what_drafts_in_its_process():
    own = common.OwnDraft(
        model_name="big", head="HEAD_KIND_MTP", token_milliseconds=1.5, weight_byte_count=2 * 10**9
    )
    model = common.GetModelResponse(model_name="big", own_draft=own)
    told = only(judge_peer(replace(NEAR, model=model))).message
    assert ", drafts with mtp (big, 1.5 ms a token, 2.0 GB), round trip" in told


def test_a_peer_that_loads_is_a_note():
    assert only(judge_peer(ProbedPeer(role="draft", address="d:1", serving=False))).level is NOTE


@pytest.mark.parametrize(("trip", "count"), [(0.05, 1), (0.051, 2)])
def test_a_link_that_costs_more_than_a_decode_of_the_target_is_a_note(trip: float, count: int):
    findings = judge_peer(replace(NEAR, round_trips=(trip,)))
    assert levels(findings) == [OK, NOTE][:count]


def test_a_quick_target_beside_its_orchestrator_is_not_moved_there():
    here = status_of("target", MODEL, 200)
    for address in ("plain://127.0.0.1:7", "[::1]:7", "localhost:7"):
        here.address = address
        slow = judge_peer(orchestrator(here, DRAFTING))[2]
        assert (slow.level, slow.remedy) == (OK, "") and "drafts gain little" in slow.message
    here.address = "gpu:7"
    assert "beside the target" in judge_peer(orchestrator(here, DRAFTING))[2].remedy


def test_the_link_to_a_draft_is_not_measured_against_its_decode():
    draft = ProbedPeer(role="draft", address="d:1", round_trips=(1.0,), model=MODEL)
    assert levels(judge_peer(draft)) == [OK]


def test_other_versions_are_a_note():
    newer = common.GetModelResponse(model_name="big", service_version="0.2.0")
    peer = replace(NEAR, model=newer)
    assert levels(judge_peer(peer, "0.2.0")) == [OK]
    assert levels(judge_peer(peer, "0.1.0")) == [OK, NOTE]


def test_the_certificate_of_a_peer_expires():
    assert levels(judge_peer(replace(NEAR, expiry_seconds=31 * DAY))) == [OK]
    assert levels(judge_peer(replace(NEAR, expiry_seconds=29 * DAY))) == [OK, NOTE]


SMALL = common.GetModelResponse(model_name="small", numerics_profile=common.NUMERICS_PROFILE_NATIVE)


def status_of(
    role: str, model: common.GetModelResponse, milliseconds: int = 0
) -> messages.PeerStatus:
    status = messages.PeerStatus(
        role=role, address=f"{role[0]}:1", state=messages.PEER_STATE_READY, model=model
    )
    status.round_trip_duration.FromMilliseconds(milliseconds)
    return status


def orchestrator(*peers: messages.PeerStatus, reason: str = "") -> ProbedPeer:
    status = messages.GetStatusResponse(peers=peers, speculating=not reason, reason=reason)
    return ProbedPeer(role="orchestrator", address="o:1", status=status)


FAR, DRAFTING = status_of("target", MODEL, 10), status_of("draft", SMALL)


def test_an_orchestrator_that_drafts_is_fine():
    assert levels(judge_peer(orchestrator(FAR, DRAFTING))) == [OK, OK, OK, OK]


def test_the_link_between_orchestrator_and_target_is_judged():
    slow = orchestrator(status_of("target", MODEL, 200), DRAFTING)
    assert levels(judge_peer(slow)) == [OK, OK, NOTE, OK, OK]


HEADED = common.GetModelResponse(
    model_name="big", decode_costs=[common.DecodeCost(row_count=n, milliseconds=30) for n in (1, 8)]
)
HEAD = common.GetModelResponse(
    model_name="mtp-big",
    head=common.HEAD_KIND_MTP,
    decode_costs=[common.DecodeCost(row_count=1, milliseconds=2)],
)


@pytest.mark.parametrize(("trip", "level"), [(1, OK), (200, NOTE)])
def test_a_head_away_from_its_target_is_told_up_to_where_it_pays(trip: int, level: Severity):
    """It drafts after each round, so that each waits for its round trip."""
    peers = status_of("target", HEADED, 1), status_of("draft", HEAD, trip)
    [finding] = [each for each in judge_peer(orchestrator(*peers)) if "head" in each.message]
    far = re.search(r"up to a round trip of ([\d.]+) ms", finding.message)
    assert far is not None and 20 < float(far[1]) < 120
    assert (finding.level, f"it is {trip}.0 ms away" in finding.message) == (level, True)


def test_a_head_of_another_target_is_a_problem_that_names_it():
    finding = judge_pairing("the draft is an MTP head: it is one of glm4moe", "head")
    assert (finding.level, finding.message.count("glm4moe")) == (PROBLEM, 1)
    assert "--hidden-rows" in finding.remedy


def test_a_pair_that_the_orchestrator_refuses_is_a_problem():
    refused = orchestrator(FAR, DRAFTING, reason="token 9 differs: target 'a', draft 'b'")
    finding = judge_peer(refused)[-1]
    assert (finding.check, finding.level) == ("pair", PROBLEM)
    assert "token 9 differs" in finding.message


def test_an_orchestrator_without_a_draft_is_a_note():
    alone = orchestrator(FAR, reason="no draft is configured")
    assert judge_peer(alone)[-1].level is NOTE


@pytest.mark.parametrize(
    ("state", "level"),
    [("loading", NOTE), ("connecting", NOTE), ("lost", PROBLEM), ("refused", PROBLEM)],
)
def test_what_an_orchestrator_waits_for(state: str, level: Severity):
    waits = messages.PeerStatus(
        role="draft",
        state=messages.PeerState.Value(f"PEER_STATE_{state.upper()}"),
        detail="waiting for the draft at d:1",
    )
    finding = judge_peer(orchestrator(FAR, waits, reason="waiting for the draft"))[1]
    assert finding.level is level
    assert finding.message == f"its draft is {state}: waiting for the draft at d:1"


# --- tokens and certificates ---


@pytest.mark.parametrize(
    ("error", "mode", "level", "remedy"),
    [
        ("", 0o600, OK, ""),
        ("", 0o640, OK, ""),
        ("", 0o644, NOTE, "chmod 600 t"),
        ("--token-file: cannot read t: No such file", 0, PROBLEM, "correct --token-file"),
        ("--token-file: a token has 16 to 4096", 0, PROBLEM, "openssl rand -hex 32 > t"),
    ],
)
def test_token_files(error: str, mode: int, level: Severity, remedy: str):
    finding = judge_token("t", error, mode)
    assert finding.level is level and finding.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("seconds", "level", "words"),
    [
        (None, OK, "not known"),
        (400 * DAY, OK, "another 400 days"),
        (30 * DAY, OK, "another 30 days"),
        (1.5 * DAY, NOTE, "expires in 1 day"),
        (0.0, PROBLEM, "has expired"),
        (-DAY, PROBLEM, "has expired"),
    ],
)
def test_certificates(seconds: float | None, level: Severity, words: str):
    finding = judge_certificate("--tls-ca", "ca.pem", seconds)
    assert finding.level is level and words in finding.message


def test_the_verdict_says_whether_the_set_up_is_fine_and_what_drafts_may_do():
    fine, note = Finding("ports", OK, "free"), Finding("pair", NOTE, "small")
    helps, vain = judge_gain(1.4), judge_gain(1.04)
    wrong = Finding("tls", PROBLEM, "expired")
    assert verdict([fine]) == "This set-up is fine."
    assert verdict([fine, helps]) == (
        "This set-up is fine. Drafts are expected to help here; outrider bench measures how much."
    )
    assert verdict([note, vain]) == (
        "This set-up works; one note says what could be better."
        " Drafts are not expected to save time here; then none are made."
    )
    assert verdict([judge_gain(1.0, slow="a draft of 9 ms cannot help")]).endswith(
        "then none are made. A draft of 9 ms cannot help."
    )
    assert verdict([judge_gain(1.4, others_share=0.5)]).startswith(
        "This set-up is fine. The machine is too busy to say"
    )
    assert verdict([judge_head_gain(0.412)]).endswith(
        "The head is expected to help here where 41% or more of its tokens are accepted;"
        " outrider bench measures how many are."
    )
    assert "is not expected to save time" in judge_head_gain(None).message
    assert "too busy" in judge_head_gain(0.4, others_share=0.5).message
    assert verdict([wrong, helps]) == "This set-up does not work yet: mend the PROBLEM above."
    shown = ["".join(words.text for words in line) for line in finding_lines([fine, helps], None)]
    assert shown == ["ok      ports     free", verdict([fine, helps])]


def test_a_certificate_that_is_not_valid_yet_is_a_matter_of_clocks():
    finding = judge_certificate("--tls-ca", "ca.pem", 99 * DAY, not_yet=True)
    assert finding.level is PROBLEM and "not valid yet" in finding.message
    assert "clock" in finding.remedy
    for failure in (CallFailure.NOT_YET, CallFailure.EXPIRED):
        assert "clock" in failure.value and "--tls-ca" not in failure.value


# --- words ---


def test_sizes_and_times_are_for_people():
    assert [show_size(n) for n in (5, 1500, 22_400_000, 4 * 10**9)] == [
        *("5 bytes", "1.5 KB", "22.4 MB", "4.0 GB"),
    ]
    assert [show_time(s) for s in (0.00012, 0.0666, 1.7)] == ["0.1 ms", "66.6 ms", "1.70 s"]


# --- chat templates ---


def chats(template: str) -> Finding:
    model = common.GetModelResponse(model_name="m.gguf", chat_template=template)
    found = judge_peer(ProbedPeer(role="target", address="a:1", round_trips=(0.001,), model=model))
    return only([finding for finding in found if finding.check == "chats"])


def test_it_is_said_how_a_model_writes_calls_and_thoughts() -> None:
    found = chats(chat_formats.source("Qwen3.5-4B"))
    assert (found.level, found.remedy) == (OK, "")
    assert "calls in parameters after '<tool_call>\\n<function='" in found.message
    assert "thoughts in <think> </think>" in found.message and "any" in found.message


def test_a_template_that_takes_tools_and_shows_no_call_is_noted() -> None:
    found = chats("{{ tools }}{{ messages[0].content }}")
    assert found.level is NOTE and "tools are refused" in found.remedy
    assert chats("{% nonsense %}").level is NOTE
