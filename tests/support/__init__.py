"""True but tiny stand-ins for what the tests would otherwise wait for."""
