"""The servers that are measured; each does the work of `benchmarks.work` on POST."""
