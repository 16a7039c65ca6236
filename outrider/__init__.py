"""What more than one Outrider service needs."""

__version__ = "0.1.0"
PROTOCOL_VERSION = 2
