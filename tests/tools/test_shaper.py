"""A shaped link carries real traffic, does to it what was asked, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from outrider_bench.shaper import Link, Shape, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
"""Seconds; nothing here takes as long, unless it hangs."""

ECHO, SINK, COUNTER = 7000, 7001, 7002

FAR_END = f"""
import socket, threading

def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)

def sink(connection):
    while connection.recv(65536):
        pass
    connection.sendall(b"done")

def accept(server, handle):
    while True:
        threading.Thread(target=handle, args=(server.accept()[0],), daemon=True).start()

for port, handle in (({ECHO}, echo), ({SINK}, sink)):
    server = socket.create_server(("0.0.0.0", port))
    threading.Thread(target=accept, args=(server, handle), daemon=True).start()
counter = socket.socket(type=socket.SOCK_DGRAM)
counter.bind(("0.0.0.0", {COUNTER}))
print("ready", flush=True)
count = 0
while True:
    data, sender = counter.recvfrom(1500)
    if data == b"how many?":
        counter.sendto(b"%d" % count, sender)
    else:
        count += 1
"""

HOLDER = """
import time
from outrider_bench.shaper import Link, Shape

with Link(Shape(delay_ms=5.0)) as link:
    print(link.namespace, flush=True)
    time.sleep(600)
"""


@contextmanager
def process(argv: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a command; yield its process and its first line. It is killed at the end."""
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


@contextmanager
def linked(shape: Shape) -> Iterator[Link]:
    """Make a link with the three servers at its far end."""
    with (
        Link(shape) as link,
        process(link.inside([sys.executable, "-c", FAR_END])) as (_, line),
    ):
        assert line == "ready"
        yield link


def connect(link: Link, port: int) -> socket.socket:
    connection = socket.create_connection((link.far_address, port), timeout=PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def round_trip(connection: socket.socket, message: bytes = b"hello") -> float:
    """Return the seconds of one echo."""
    begin = time.perf_counter()
    connection.sendall(message)
    answer = b""
    while len(answer) < len(message):
        answer += connection.recv(65536)
    assert answer == message
    return time.perf_counter() - begin


def send_datagrams(link: Link, count: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(b"datagram", (link.far_address, COUNTER))


def received_count(link: Link) -> int:
    """Return how many datagrams have come through so far; the link must not lose any now."""
    with socket.socket(type=socket.SOCK_DGRAM) as asker:
        asker.settimeout(PATIENCE)
        asker.sendto(b"how many?", (link.far_address, COUNTER))
        return int(asker.recv(1500))


def exists(name: str) -> bool:
    """Whether anything of the link with this namespace is left."""
    return Path("/run/netns", name).exists() or Path("/sys/class/net", name).exists()


def test_tcp_goes_across_and_back() -> None:
    with linked(Shape()) as link, connect(link, ECHO) as connection:
        assert connection.getpeername()[0] == link.far_address
        assert connection.getsockname()[0] == link.near_address
        round_trip(connection, bytes(range(256)) * 64)


def test_the_far_end_has_a_loopback_of_its_own() -> None:
    with Link(Shape()) as link:
        own = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[0])"
        connect_to_itself = f"{own}; socket.create_connection(s.getsockname())"
        argv = link.inside([sys.executable, "-W", "ignore", "-c", connect_to_itself])
        assert subprocess.check_output(argv, text=True) == "127.0.0.1\n"


def test_a_delay_is_paid_in_both_directions() -> None:
    with linked(Shape(delay_ms=30.0)) as link, connect(link, ECHO) as connection:
        assert min(round_trip(connection) for _ in range(5)) >= 0.060


def test_a_delay_below_a_millisecond_is_paid_too() -> None:
    with linked(Shape(delay_ms=0.5)) as link, connect(link, ECHO) as connection:
        assert min(round_trip(connection) for _ in range(50)) >= 0.001


def test_a_new_shape_is_for_connections_that_exist() -> None:
    with linked(Shape()) as link, connect(link, ECHO) as connection:
        round_trip(connection)
        for delay_ms in (20.0, 40.0):
            link.reshape(Shape(delay_ms=delay_ms))
            assert min(round_trip(connection) for _ in range(3)) >= 2 * delay_ms / 1e3
        link.reshape(Shape())
        round_trip(connection)


def test_jitter_and_loss_do_not_harm_what_tcp_carries() -> None:
    shape = Shape(delay_ms=2.0, jitter_ms=2.0, loss=0.02)
    with linked(shape) as link, connect(link, ECHO) as connection:
        for size in (1, 1000, 30_000):
            round_trip(connection, os.urandom(size))


def test_a_link_that_loses_everything_passes_nothing() -> None:
    with linked(Shape(loss=1.0)) as link:
        send_datagrams(link, 100)
        link.reshape(Shape())
        assert received_count(link) == 0
        send_datagrams(link, 1)
        assert received_count(link) == 1


def test_what_was_sent_before_a_new_shape_finds_the_old_one() -> None:
    with linked(Shape(loss=1.0)) as link:
        os.kill(link.pid, signal.SIGSTOP)
        send_datagrams(link, 100)
        threading.Timer(0.2, os.kill, (link.pid, signal.SIGCONT)).start()
        link.reshape(Shape())
        assert received_count(link) == 0


def test_a_link_that_loses_half_passes_some() -> None:
    with linked(Shape(loss=0.5)) as link:
        send_datagrams(link, 100)
        link.reshape(Shape())
        # The seed is fixed; with a random one, all or none would pass once in 2**99 runs.
        assert 0 < received_count(link) < 100


def test_a_transfer_takes_at_least_its_bits_over_the_rate() -> None:
    size, rate_mbit = 250_000, 4.0
    with linked(Shape(rate_mbit=rate_mbit)) as link, connect(link, SINK) as connection:
        begin = time.perf_counter()
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(4) == b"done"
        assert time.perf_counter() - begin >= size * 8 / (rate_mbit * 1e6)


def test_links_live_side_by_side() -> None:
    with ExitStack() as stack:
        links = [stack.enter_context(linked(Shape(delay_ms=ms))) for ms in (0.0, 10.0)]
        connections = [stack.enter_context(connect(link, ECHO)) for link in links]
        ends = {address for link in links for address in (link.near_address, link.far_address)}
        assert len(ends) == 4
        round_trip(connections[0])
        assert round_trip(connections[1]) >= 0.020


def test_a_link_outlives_the_thread_that_made_it() -> None:
    with ExitStack() as stack:
        made: list[Link] = []
        maker = threading.Thread(
            target=lambda: made.append(stack.enter_context(linked(Shape(delay_ms=1.0))))
        )
        maker.start()
        maker.join()
        with connect(made[0], ECHO) as connection:
            round_trip(connection)


def test_nothing_is_left_after_an_exception() -> None:
    with pytest.raises(KeyError), Link(Shape()) as link:
        assert exists(link.namespace)
        raise KeyError
    assert not exists(link.namespace)


def test_nothing_is_left_after_the_parent_was_killed() -> None:
    with process([sys.executable, "-c", HOLDER]) as (holder, namespace):
        assert exists(namespace)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        deadline = time.monotonic() + 30.0
        while exists(namespace):
            assert time.monotonic() < deadline, f"{namespace} is still there"
            time.sleep(0.05)


def test_a_link_whose_process_was_killed_says_so_and_leaves_nothing() -> None:
    with Link(Shape()) as link:
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="its process ended"):
            link.reshape(Shape(delay_ms=1.0))
    assert not exists(link.namespace)


def test_the_command_runs_a_command_at_the_far_end() -> None:
    asked = ["--delay-ms", "1", "--", "sh", "-c", "ip -4 -brief address; exit 3"]
    run = subprocess.run(
        [sys.executable, "-m", "outrider_bench.shaper", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    first, *rest = run.stdout.splitlines()
    far_address = first.rpartition(" ")[2]
    assert first.startswith("near 198.18.")
    assert any(far_address in line for line in rest)
    assert run.returncode == 3
