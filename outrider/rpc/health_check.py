"""Asks a service whether it serves, by the health protocol that all gRPC services share."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.errors import DeadlinePassed, InvalidConfig, PeerUnavailable
from outrider.rpc.channel import explain_refusal, open_channel
from outrider.rpc.security import ANONYMOUS, ClientSecurity, call_metadata
from outrider.rpc.statuses import describe


async def check(
    address: str, security: ClientSecurity = ANONYMOUS, timeout: float = 5.0, service: str = ""
) -> str:
    """Return "serving" or "not serving"; of LIVENESS, whether the process is alive.

    Raises Unauthenticated, DeadlinePassed or PeerUnavailable when the service
    does not say, and InvalidConfig for what need not be sent to be refused.
    """
    if not 0 < timeout <= 1e6:
        raise InvalidConfig("timeout", f"must be in (0, 1000000] seconds, not {timeout}")
    metadata = call_metadata(security)
    async with open_channel(address, security) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = await stub.Check(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _failure(error, address, security) from None
    serving = response.status == health_pb2.HealthCheckResponse.SERVING
    return "serving" if serving else "not serving"


def _failure(error: grpc.aio.AioRpcError, address: str, security: ClientSecurity) -> Exception:
    refusal = explain_refusal(error, "service", address, security)
    if refusal is not None:
        return refusal
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlinePassed(f"the service at {address} did not answer in time")
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return PeerUnavailable(f"no service answers at {address}")
    return PeerUnavailable(f"what answers at {address} has no health: {describe(error)}")
