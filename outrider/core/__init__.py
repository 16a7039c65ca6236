"""The pure core: values and decisions, without clocks, sockets and threads."""
