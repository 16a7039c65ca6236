"""The methods of a C++ library over JSON-RPC 2.0, for an orchestrator: `outrider jsonrpc`."""
