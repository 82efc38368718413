"""Benchmarks. Run them as ``python -m bench.cells`` and so on from the root of the tree; see README.md."""
