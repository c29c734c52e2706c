"""A columnar node for the demo and the tests: DuckDB behind a PostgreSQL front, in one process.

`server` and `session` speak the protocol, `engine` runs statements, `follow` and `copies` keep a copy of a
PostgreSQL database up to date by logical replication. DuckDB lets one process at a time write a file, so
front and follower share one. A statement that DuckDB can't run as PostgreSQL would gets an error with
PostgreSQL's SQLSTATE: whoever routes to this node then asks another.
"""
