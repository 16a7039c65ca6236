"""A real Ray of one machine, for as long as the tests of a file run."""

from __future__ import annotations

import os

os.environ.update(
    RAY_AUTH_MODE="disabled",  # a token would be kept in the home directory
    RAY_USAGE_STATS_ENABLED="0",
    RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",
    RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="0.5",
)
