"""Channels: one per peer for the life of a process, with bounds and keepalive."""

from __future__ import annotations

import grpc

MESSAGE_BYTES = 16 * 1024 * 1024
"""Messages up to this size are accepted; longer ones get RESOURCE_EXHAUSTED."""

_LIMITS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]

SERVER_OPTIONS = [
    *_LIMITS,
    # Two servers on one port would share its calls silently.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_CLIENT_OPTIONS = [
    *_LIMITS,
    # Without pings a link that goes down is never noticed.
    ("grpc.keepalive_time_ms", 3000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # A restarted peer is dialled again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to HOST:PORT; it connects by itself, again and again."""
    return grpc.aio.insecure_channel(address, options=_CLIENT_OPTIONS)
