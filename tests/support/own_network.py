"""A loopback of one's own, on which no other test has a port."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914  # linux/sockios.h
_IFF_UP = 1
_REQUEST = "16sH14x"  # struct ifreq: the name, and the flags


@contextmanager
def own_network() -> Iterator[bool]:
    """Give this thread, and the processes it starts, a network of their own: a loopback alone.

    The ports that services have by default are among those that the system lends to any connection,
    such as those of the tests beside this one. Yields whether it could be made: a user without
    rights keeps the network that there is, and so does root in many containers.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    former = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET):
            yield False
            return
        try:
            _start_loopback()
            yield True
        finally:
            if libc.setns(former, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot go back to the network")
    finally:
        os.close(former)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack(_REQUEST, b"lo", 0)
        name, flags = struct.unpack(_REQUEST, fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_REQUEST, name, flags | _IFF_UP))
