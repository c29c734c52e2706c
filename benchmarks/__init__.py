"""pgtrident beside PgBouncer and Pgpool-II, on one cluster, in one run. `python -m benchmarks.run`."""
