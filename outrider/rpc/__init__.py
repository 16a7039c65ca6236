"""Everything that imports grpc and is shared."""
