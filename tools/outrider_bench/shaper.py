"""A link with delay, jitter, loss and a rate, between this network namespace and a fresh one.

Two TUN devices and a process between them that holds every packet until it is due, because not
every kernel has netem. TCP, HTTP/2 and TLS behave on it as over a real network of that kind.
No packet is early. A round trip takes 0.1 to 0.3 ms more than asked, the less the shorter it is.

    python -m outrider_bench.shaper --delay-ms 25 -- command argument...
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import gc
import heapq
import json
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

MTU = 1500
"""Bytes of the largest packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the link does to packets, the same in both directions."""

    delay_ms: float = 0.0
    """One way; a round trip takes twice as long."""
    jitter_ms: float = 0.0
    """Every delay is uniform within this much of `delay_ms`, though never below zero."""
    loss: float = 0.0
    """Odds that a packet is lost, before it takes any time on the line."""
    rate_mbit: float | None = None
    """A packet occupies the line for its bits divided by this; None takes no time at all."""
    queue_bytes: int = 256 * 1024
    """With a rate: what may wait for the line, the packet on it included. More is dropped."""
    may_reorder: bool = False
    """Whether jitter lets packets overtake; else one that would waits for the one before it."""

    def __post_init__(self) -> None:
        if self.delay_ms < 0 or self.jitter_ms < 0:
            raise ValueError(f"A delay is at least 0 ms: {self}")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"A loss is in [0, 1]: {self}")
        if self.rate_mbit is not None and self.rate_mbit <= 0:
            raise ValueError(f"A rate is above 0 Mbit/s: {self}")
        if self.queue_bytes < MTU:
            raise ValueError(f"The queue must hold a packet of {MTU} bytes: {self}")


class Lane:
    """The packets in one direction, and when each of them leaves. Times are in nanoseconds.

    `uniform` gives numbers in [0, 1), two for each packet, so that which packets are lost depends
    on nothing but their count.
    """

    def __init__(self, shape: Shape, uniform: Callable[[], float]) -> None:
        self._uniform = uniform
        self._count = 0
        self._held: list[tuple[int, int, _Packet]] = []  # a heap: when due, which, what
        self._start(shape)

    def push(self, arrival: int, data: bytes) -> None:
        """Take a packet. Arrivals never go back in time."""
        chance, swing = self._uniform(), 2.0 * self._uniform() - 1.0
        if chance >= self._shape.loss:
            self._count += 1
            self._hold(self._count, _Packet(arrival, swing, data))

    def pop_due(self, now: int) -> list[bytes]:
        """Give up the packets that are due, in the order in which they leave."""
        due = []
        while self._held and self._held[0][0] <= now:
            due.append(heapq.heappop(self._held)[2].data)
        return due

    @property
    def next_due(self) -> int | None:
        """When the next packet leaves; None if none is held."""
        return self._held[0][0] if self._held else None

    def reshape(self, shape: Shape) -> None:
        """Continue as if every packet held had found the new shape when it arrived.

        So nothing of an old long delay or slow line lingers. What was lost stays lost.
        """
        held = sorted(self._held, key=lambda entry: entry[1])
        self._held = []
        self._start(shape)
        for _, number, packet in held:
            self._hold(number, packet)

    def _start(self, shape: Shape) -> None:
        self._shape = shape
        self._delay = round(shape.delay_ms * 1e6)
        self._jitter = round(shape.jitter_ms * 1e6)
        self._per_byte = 8000.0 / shape.rate_mbit if shape.rate_mbit else 0.0
        self._line_free = 0
        self._last_due = 0

    def _hold(self, number: int, packet: _Packet) -> None:
        sent = packet.arrival
        if self._per_byte:
            begin = max(sent, self._line_free)
            taken = round(len(packet.data) * self._per_byte)
            if begin + taken - sent > self._shape.queue_bytes * self._per_byte:
                return  # the queue is full
            self._line_free = sent = begin + taken
        due = sent + max(0, self._delay + round(packet.swing * self._jitter))
        if not self._shape.may_reorder:
            self._last_due = due = max(due, self._last_due)
        heapq.heappush(self._held, (due, number, packet))


@dataclass(frozen=True, slots=True)
class _Packet:
    arrival: int
    swing: float
    """In [-1, 1): how much of the jitter this packet gets."""
    data: bytes


class Link:
    """A shaped link to a network namespace of its own, for as long as the context lasts.

    Both go when the context ends, however it does: a process of its own holds them, and that one
    ends with this one. Use it from one thread at a time.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.near_address = ""
        """IPv4, of this end."""
        self.far_address = ""
        """IPv4, of the other end."""
        self.namespace = ""
        """Where the other end is, for `ip netns`."""
        self.pid = 0
        """Of the process that carries the packets: what it computes, a benchmark goes without."""

    def __enter__(self) -> Self:
        if reason := why_not():
            raise RuntimeError(f"no link can be made here: {reason}")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "outrider_bench.shaper",
                _FORWARD,
                json.dumps(asdict(self._shape)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[1],
            start_new_session=True,  # a Ctrl-C is for us; the link outlives what we do about it
        )
        self.pid = self._process.pid
        try:
            made = self._answer()
        except BaseException:
            self._end()
            raise
        self.near_address, self.far_address = made["near"], made["far"]
        self.namespace = made["namespace"]
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` at the other end."""
        return ["ip", "netns", "exec", self.namespace, *argv]

    def reshape(self, shape: Shape) -> None:
        """Change the link; every packet sent from now on finds the new shape.

        Those sent before are lost or not by the old one, and as late as by the new one.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(json.dumps(asdict(shape)).encode() + b"\n")
            self._process.stdin.flush()
        self._answer()

    def _answer(self) -> dict[str, str]:
        """Read one line of the process; it holds "error" where something went wrong."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, str] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise RuntimeError(f"the link failed: {answer['error']}")
        return answer

    def _end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        if self._process.returncode < 0 and self.namespace:  # killed, so it could not clean up
            subprocess.run(["ip", "netns", "delete", self.namespace], check=False)


def why_not() -> str | None:
    """Say why no link can be made here, or return None."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if shutil.which("ip") is None:
        return "the command `ip` is missing"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing or closed to us"
    status = Path("/proc/self/status").read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    if held & _CAPABILITIES != _CAPABILITIES:
        return "only root may make network devices and namespaces"
    return None


_CAPABILITIES = 1 << 12 | 1 << 21  # CAP_NET_ADMIN for the devices, CAP_SYS_ADMIN for the namespace
_FORWARD = "--forward"
_PATIENCE = 10.0
"""Seconds that the process may take to clean up, many times what it needs."""


# What follows runs in the process between the two devices.

_WAKING_NS = 20_000
"""How much too late a sleeping process wakes, at the very least: measured 20 to 50 µs."""
_BATCH = 64
"""Packets read from one device before anything else is looked at."""
_QUEUE_PACKETS = 10_000
"""Length of a device's own queue; what it would lose, no seed could repeat."""
_PARENT_ENDED = signal.SIGHUP


def _forward(shape: Shape) -> None:
    """Make a link, say where, and forward until standard input or the parent ends."""
    woken = _wake_on_signals()
    parent = os.getppid()
    try:
        with _devices() as made:
            _hurry()
            _print(namespace=made.namespace, near=made.near_address, far=made.far_address)
            forwarder = _Forwarder(made.near, made.far, shape)
            while True:
                readable = forwarder.run_until_readable([0, woken.fileno()])
                if woken.fileno() in readable:
                    # The thread that started us may end while its process lives on.
                    if signal.SIGTERM in woken.recv(64) or os.getppid() != parent:
                        return
                elif order := os.read(0, 65536):
                    forwarder.reshape(Shape(**json.loads(order)))
                    _print()
                else:
                    return
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None)
        _print(error=f"{error} {output or ''}".strip())


def _print(**answer: str) -> None:
    with suppress(BrokenPipeError):
        print(json.dumps(answer), flush=True)


def _wake_on_signals() -> socket.socket:
    """Return a socket that becomes readable, with the signal's number, when we are to stop.

    Nothing else happens then, so that neither making the link nor removing it is cut short.
    """
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.detach())
    for number in (signal.SIGTERM, _PARENT_ENDED):
        signal.signal(number, lambda *_: None)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(_PARENT_ENDED), 0, 0, 0)
    return woken


_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def _hurry() -> None:
    """Wake as early as the system allows: as a real-time process, or else at niceness -10.

    Beside two busy processes a sleep of 5 ms ended 0.5 ms late in the median at niceness -10, and
    43 ms late once in a hundred; as a real-time process 0.05 ms and 0.1 ms late.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    with suppress(OSError):
        lowest = os.sched_param(os.sched_get_priority_min(os.SCHED_RR))
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, lowest)
    gc.disable()  # nothing here makes cycles


@dataclass(frozen=True, slots=True)
class _Devices:
    near: int
    """File of the device in this namespace; what is read from it was sent to the far end."""
    far: int
    near_address: str
    far_address: str
    namespace: str


@contextmanager
def _devices() -> Iterator[_Devices]:
    """Make the namespace and both devices; remove all three at the end."""
    number, near = _open_first_free()
    name = _name(number)
    # 198.18.0.0/15 is set aside for benchmarks (RFC 2544), so no real network uses it.
    addresses = f"198.18.{number}.1", f"198.18.{number}.2"
    _ip(["netns", "add", name])
    try:
        far = _open_device(f"{name}-far")
        _ip(["link", "set", f"{name}-far", "netns", name])
        _ip(["-batch", "-"], _commands(name, *addresses))
        _ip(["-n", name, "-batch", "-"], _commands(f"{name}-far", *reversed(addresses)))
        _ip(["-n", name, "link", "set", "lo", "up"])
        yield _Devices(near, far, *addresses, name)
    finally:
        if Path("/run/netns", name).exists():
            _ip(["netns", "delete", name])
        # The devices go with their files, when the process ends.


def _name(number: int) -> str:
    return f"shaper{number}"


def _open_first_free() -> tuple[int, int]:
    """Return a number that no other link has, and the file of the near device that claims it."""
    for number in range(256):
        if Path("/run/netns", _name(number)).exists():
            continue
        try:
            return number, _open_device(_name(number))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EBUSY, "256 links exist; see `ip netns list`")


def _open_device(name: str) -> int:
    """Make a TUN device and return its file. Fails with EBUSY if somebody holds the name."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000


def _commands(device: str, here: str, there: str) -> str:
    """Return what `ip` is to do with a new device. Without an IPv6 address it stays silent."""
    return (
        f"link set {device} mtu {MTU} txqueuelen {_QUEUE_PACKETS} addrgenmode none\n"
        f"address add {here} peer {there} dev {device}\n"
        f"link set {device} up\n"
    )


def _ip(arguments: Sequence[str], text: str = "") -> None:
    subprocess.run(["ip", *arguments], input=text, capture_output=True, text=True, check=True)


class _Forwarder:
    """Carries packets between two devices, each way through a lane."""

    def __init__(self, near: int, far: int, shape: Shape) -> None:
        out, back = (Lane(shape, random.Random(seed).random) for seed in (1, 2))
        self._ways = {near: (out, far), far: (back, near)}

    def run_until_readable(self, others: Sequence[int]) -> list[int]:
        """Forward until one of these files can be read; return which."""
        devices = list(self._ways)
        files = [*devices, *others]
        while True:
            readable, _, _ = select.select(files, [], [], self._pause())
            for device in devices:
                if device in readable:
                    self._take(device, _BATCH)
            self._send_due()
            if stop := [file for file in readable if file not in devices]:
                return stop

    def reshape(self, shape: Shape) -> None:
        """Change both lanes, once they have what was sent before."""
        for device, (lane, _) in self._ways.items():
            self._take(device, _QUEUE_PACKETS)
            lane.reshape(shape)

    def _pause(self) -> float | None:
        """Return how many seconds to sleep until a packet is due; None if none is held.

        For select(), which counts microseconds. epoll would round up to a millisecond.
        """
        due = [lane.next_due for lane, _ in self._ways.values() if lane.next_due is not None]
        if not due:
            return None
        return max(0, min(due) - time.monotonic_ns() - _WAKING_NS) / 1e9

    def _take(self, device: int, limit: int) -> None:
        lane, _ = self._ways[device]
        for _ in range(limit):
            try:
                data = os.read(device, MTU)
            except BlockingIOError:
                return
            lane.push(time.monotonic_ns(), data)

    def _send_due(self) -> None:
        now = time.monotonic_ns()
        for lane, device in self._ways.values():
            for data in lane.pop_due(now):
                with suppress(OSError):  # a device that is down loses what comes
                    os.write(device, data)


def main() -> int:
    """Run a command at the far end of a link and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m outrider_bench.shaper",
        usage="%(prog)s [options] -- command...",
        description="Run a command at the far end of a shaped link.",
    )
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="more or less than the delay")
    parser.add_argument("--loss", type=float, default=0.0, help="odds of losing a packet, 0 to 1")
    parser.add_argument("--rate-mbit", type=float, help="in each direction")
    parser.add_argument("command", nargs="+")
    options = vars(parser.parse_args())
    command = options.pop("command")
    if reason := why_not():
        parser.error(reason)
    try:
        shape = Shape(**options)
    except ValueError as error:
        parser.error(str(error))
    with Link(shape) as link, suppress(KeyboardInterrupt):
        print(f"near {link.near_address}, far {link.far_address}", flush=True)
        return subprocess.call(link.inside(command))
    return 130


if __name__ == "__main__":
    if sys.argv[1:2] == [_FORWARD]:
        _forward(Shape(**json.loads(sys.argv[2])))
    else:
        sys.exit(main())
