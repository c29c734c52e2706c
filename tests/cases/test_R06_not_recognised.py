"""R06: what is not known to be a read goes to the primary, and so does everything when reads are not split."""

from __future__ import annotations

from ..support.target import DIRECT, PROXY, SPLIT, Target, targets
from ..support.witness import Witness

DEEP = 1_500_000
READS = (
    ("TABLE item", "C[SELECT 20] ZI"),
    ("VALUES (1),(2)", "T[column1] D[1] D[2] C[SELECT 2] ZI"),
    ("(SELECT 1) UNION ALL (SELECT 2)", "T[?column?] D[1] D[2] C[SELECT 2] ZI"),
)
OTHERS = (
    (
        "MERGE INTO item USING (SELECT 2 AS id) s ON item.id = s.id WHEN MATCHED THEN UPDATE SET qty = 1",
        "C[MERGE 1] ZI",
    ),
    ("SECURITY LABEL ON TABLE item IS 'x'", "E[22023] ZI"),
    ("INSERT INTO item VALUES (900,$q$;-- '$q$,1) ON CONFLICT (id) DO NOTHING", "C[INSERT 0 1] ZI"),
    ("FLARB the table", "E[42601] ZI"),
    ("SELECT FROM WHERE", "E[42601] ZI"),
    ("SELECT 'no end", "E[42601] ZI"),
    (f"SELECT {'(' * 500}1{')' * 500}", "D[1] C[SELECT 1] ZI"),
    (f"SELECT {'(' * DEEP}1{')' * DEEP}", "ZI"),
)
EVERYWHERE = targets(DIRECT, PROXY, SPLIT)


@EVERYWHERE
def test_the_primary_unless_known(target: Target, witness: Witness) -> None:
    client = target.client()
    for sql, end in OTHERS:
        replies = witness.on_primary(client, sql)
        assert replies.endswith(end), (sql[:200], replies)
    assert client.query("SELECT 1") == "T[?column?] D[1] C[SELECT 1] ZI"


@EVERYWHERE
def test_reads_that_begin_otherwise(target: Target, witness: Witness) -> None:
    client = target.client()
    for sql, end in READS:
        assert witness.on_replica(client, sql).endswith(end), sql
