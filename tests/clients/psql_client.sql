\set VERBOSITY verbose
\set SHOW_CONTEXT errors
\pset null (null)
\echo types
SELECT 1::int2, 0.1::float8, 'NaN'::numeric, true, '\x00ff'::bytea, '2024-02-29'::date, NULL::int, ARRAY[1,NULL,3], ROW(1,'x');
SELECT * FROM item ORDER BY id LIMIT 3 \gx
SELECT id, label FROM item WHERE id = 1 \gdesc
SELECT id AS one_id FROM item WHERE id = 1 \gset
\echo :one_id
\echo errors
SELEC;
SELECT 1/0;
SELECT * FROM nowhere;
INSERT INTO item VALUES (1);
\echo transactions
BEGIN;
INSERT INTO trail(item_id) VALUES (1) RETURNING item_id;
SAVEPOINT a;
SELECT 1/0;
ROLLBACK TO a;
SELECT count(*) FROM trail;
COMMIT;
\set ON_ERROR_ROLLBACK on
BEGIN;
SELECT 'x'::int;
SELECT 'still fine';
ROLLBACK;
\set ON_ERROR_ROLLBACK off
SELECT 1 \; SELECT 2 \; SELECT 3;
\echo cursors
\set FETCH_COUNT 4
SELECT id FROM item ORDER BY id;
\unset FETCH_COUNT
BEGIN;
DECLARE c SCROLL CURSOR WITH HOLD FOR SELECT id FROM item ORDER BY id;
FETCH 2 FROM c;
COMMIT;
FETCH LAST FROM c;
FETCH PRIOR FROM c;
CLOSE c;
\echo prepared
PREPARE p(int) AS SELECT label FROM item WHERE id = $1;
EXECUTE p(3);
EXECUTE p(4);
DEALLOCATE p;
EXECUTE p(3);
\echo copy
CREATE TEMP TABLE copied(a int, b text);
COPY copied FROM STDIN;
1	one
2	two
\.
\copy (SELECT * FROM copied ORDER BY a) TO STDOUT
COPY copied FROM STDIN;
zz	bad
\.
SELECT count(*) FROM copied;
DROP TABLE copied;
\echo session
SET search_path = tenant_a;
SELECT x FROM w;
\dt
SHOW search_path;
RESET search_path;
SELECT x FROM w;
SET TIME ZONE 'Asia/Tokyo';
SELECT '2024-01-01 00:00Z'::timestamptz;
SET DateStyle = 'German';
SELECT '2024-01-31'::date;
DO $$ BEGIN RAISE NOTICE 'hello'; RAISE WARNING 'careful'; END $$;
\encoding LATIN1
\encoding
\encoding UTF8
\echo catalogue
\d item
\d trail
\df add_trail
\dn
\dv
\l pool*
\du pool1
SELECT format('SELECT %s', n) FROM generate_series(1, 3) n \gexec
SELECT id % 2 AS odd, label, qty FROM item WHERE id < 5 \crosstabview
\errverbose
LISTEN psql;
NOTIFY psql, 'payload';
UNLISTEN psql;
\lo_unlink 1
SELECT lo_from_bytea(4711, 'content') \g
\lo_export 4711 /dev/null
\lo_unlink 4711
\c
SELECT 'reconnected', current_setting('search_path'), current_setting('DateStyle');
