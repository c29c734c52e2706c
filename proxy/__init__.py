"""pgtrident: one address in front of a PostgreSQL fleet."""

__version__ = "0.1.0"
