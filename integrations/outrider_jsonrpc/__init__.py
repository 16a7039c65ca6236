"""JSON-RPC, in the words of the library that the first users came from."""
