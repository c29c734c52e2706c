"""Two hundred analytic statements over a small shop, and its tables: what reports, BI tools and benchmarks send.

All of them tell their order to the last row, so that their answers can be compared.
"""

from __future__ import annotations

SCHEMA = """
CREATE TABLE region (id int PRIMARY KEY, name text COLLATE "C" NOT NULL);
INSERT INTO region SELECT n, 'region ' || n FROM generate_series(1, 5) n;
CREATE TABLE customer (
    id int PRIMARY KEY, region_id int NOT NULL, name varchar(40) COLLATE "C", segment text COLLATE "C", since date,
    balance numeric(12,2), active bool
);
INSERT INTO customer SELECT n, 1 + n % 5, 'customer ' || n, (ARRAY['AUTO','BUILDING','HOUSE'])[1 + n % 3],
    date '2019-01-01' + n * 3, (n * 7919 % 200000 - 60000) / 100.0, CASE n % 7 WHEN 0 THEN NULL ELSE n % 2 = 0 END
    FROM generate_series(1, 150) n;
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id int NOT NULL, status text COLLATE "C", placed timestamp, stamped timestamptz,
    total numeric(14,2), discount real, weight float8, priority int2
);
INSERT INTO orders SELECT n, 1 + n * 31 % 140, (ARRAY['open','paid','sent'])[1 + n % 3],
    timestamp '2020-01-01' + n * interval '7 hours 13 minutes',
    timestamptz '2020-01-01 00:00+00' + n * interval '11 hours', (n * 104729 % 900000) / 100.0, n % 11 / 16.0,
    CASE WHEN n % 13 = 0 THEN NULL ELSE n % 97 / 8.0 END, n % 5 FROM generate_series(1, 600) n;
CREATE TABLE line (
    order_id bigint, number int, product text COLLATE "C", quantity int, price numeric(10,2),
    tax numeric(4,3), shipped date, PRIMARY KEY (order_id, number)
);
INSERT INTO line SELECT o, l, 'product ' || (o * l) % 23, 1 + (o + l) % 50, (o * 37 + l * 101) % 9000 / 100.0,
    (o % 3) * 0.005, date '2020-01-05' + ((o * l) % 700)::int
    FROM generate_series(1, 600) o, generate_series(1, 4) l WHERE (o + l) % 5 <> 0;
"""

_AGGREGATES = (
    "count(*)",
    "count(DISTINCT l.product)",
    "sum(l.quantity)",
    "sum(l.price)",
    "sum(l.price * l.quantity)",
    "sum(l.price * (1 - l.tax)), count(*)",
    "min(l.price), max(l.price)",
    "min(l.shipped), max(l.shipped)",
    "avg(l.quantity)",
    "avg(l.price), count(l.price)",
    "sum(o.weight), avg(o.weight)",
    "bool_or(l.quantity > 40), bool_and(l.quantity > 1)",
    "string_agg(DISTINCT o.status, ',' ORDER BY o.status)",
    "count(*) FILTER (WHERE l.quantity > 25)",
    "sum(CASE WHEN o.status = 'paid' THEN l.quantity ELSE 0 END)",
    "max(o.id), min(o.priority)",
    "count(DISTINCT o.customer_id), sum(o.priority)",
)
_GROUPS = (
    "o.status",
    "o.priority",
    "l.product",
    "date_trunc('month', o.placed)",
    "extract(year FROM l.shipped)",
    "extract(month FROM o.placed), o.status",
    "date_part('quarter', l.shipped)",
    "CASE WHEN l.quantity > 25 THEN 'many' ELSE 'few' END",
)
_BY_GROUP = tuple(
    f"SELECT {group}, {aggregate} FROM line l JOIN orders o ON o.id = l.order_id GROUP BY {group}"
    f" ORDER BY {'1, 2' if group.endswith(', o.status') else '1'}"
    for group in _GROUPS
    for aggregate in _AGGREGATES
)

_OTHERS = (
    # whole tables
    "SELECT count(*) FROM line",
    "SELECT count(*), count(weight), count(DISTINCT customer_id) FROM orders",
    "SELECT sum(quantity), sum(price), min(tax), max(tax) FROM line",
    "SELECT max(stamped), min(placed), max(since) FROM orders o JOIN customer c ON c.id = o.customer_id",
    "SELECT sum(total), sum(discount), sum(weight), sum(priority) FROM orders",
    "SELECT variance(weight), stddev_pop(weight), corr(weight, discount) FROM orders",
    "SELECT avg(balance), stddev(balance) FROM customer",
    "SELECT round(avg(price), 2), round(sum(price), 1) FROM line",
    "SELECT count(*) FROM orders WHERE placed >= date '2020-03-01'"
    " AND placed < date '2020-03-01' + interval '3 months'",
    "SELECT sum(price * tax) AS revenue FROM line WHERE shipped BETWEEN date '2020-02-01' AND date '2020-08-01'"
    " AND tax BETWEEN 0.004 AND 0.011 AND quantity < 24",
    "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY quantity) FROM line",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY weight) FROM orders",
    "SELECT array_agg(DISTINCT priority ORDER BY priority) FROM orders",
    "SELECT string_agg(name, '; ' ORDER BY id) FROM region",
    "SELECT bool_and(active), bool_or(active), count(active) FROM customer",
    "SELECT count(*) FROM customer WHERE name LIKE 'customer 1%' AND segment IN ('AUTO', 'HOUSE')",
    "SELECT count(*) FROM customer WHERE name ~ '^customer [12]'",
    "SELECT sum(length(name)), max(upper(segment)), min(lower(segment)) FROM customer",
    # joins
    "SELECT r.name, count(*), sum(o.total) FROM orders o JOIN customer c ON c.id = o.customer_id"
    " JOIN region r ON r.id = c.region_id GROUP BY r.name ORDER BY r.name",
    "SELECT c.id, sum(l.price * l.quantity) AS spent FROM customer c JOIN orders o ON o.customer_id = c.id"
    " JOIN line l ON l.order_id = o.id GROUP BY c.id ORDER BY spent DESC, c.id LIMIT 10",
    "SELECT c.segment, count(o.id) FROM customer c LEFT JOIN orders o ON o.customer_id = c.id AND o.status = 'open'"
    " GROUP BY c.segment ORDER BY c.segment",
    "SELECT c.id, count(o.id) FROM customer c LEFT JOIN orders o ON o.customer_id = c.id GROUP BY c.id"
    " HAVING count(o.id) < 3 ORDER BY c.id",
    "SELECT count(*) FROM orders a JOIN orders b ON a.customer_id = b.customer_id AND a.id < b.id",
    "SELECT l.product, sum(l.quantity) AS sold FROM line l, orders o, customer c WHERE l.order_id = o.id"
    " AND o.customer_id = c.id AND c.segment = 'HOUSE' GROUP BY l.product ORDER BY sold DESC, l.product",
    "SELECT count(*) FROM customer c FULL JOIN region r ON r.id = c.region_id AND c.active",
    "SELECT r.id, c.segment, count(*) FROM region r CROSS JOIN customer c GROUP BY 1, 2 ORDER BY 1, 2",
    # sub-selects
    "SELECT count(*) FROM customer c WHERE EXISTS"
    " (SELECT 1 FROM orders o WHERE o.customer_id = c.id AND o.total > 8000)",
    "SELECT count(*) FROM customer c WHERE NOT EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id)",
    "SELECT count(*) FROM orders WHERE total > (SELECT max(balance) FROM customer)",
    "SELECT o.status, sum(o.total) FROM orders o WHERE o.customer_id IN (SELECT id FROM customer WHERE active)"
    " GROUP BY o.status ORDER BY o.status",
    "SELECT spent, count(*) FROM (SELECT customer_id, count(*) AS spent FROM orders GROUP BY customer_id) s"
    " GROUP BY spent ORDER BY spent",
    "WITH monthly AS (SELECT date_trunc('month', placed) AS month, sum(total) AS total FROM orders GROUP BY 1)"
    " SELECT month, total, lag(total) OVER (ORDER BY month) FROM monthly ORDER BY month",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12)"
    " SELECT i, count(o.id) FROM n LEFT JOIN orders o ON extract(month FROM o.placed) = i GROUP BY i ORDER BY i",
    "SELECT c.segment, s.n FROM (SELECT DISTINCT segment FROM customer) c CROSS JOIN LATERAL"
    " (SELECT count(*) AS n FROM customer d WHERE d.segment = c.segment) s ORDER BY 1",
    "SELECT sum(best) FROM (SELECT max(total) AS best FROM orders GROUP BY customer_id HAVING count(*) > 2) b",
    # windows
    "SELECT id, status, row_number() OVER (PARTITION BY status ORDER BY id) FROM orders ORDER BY id",
    "SELECT id, rank() OVER (ORDER BY priority), dense_rank() OVER (ORDER BY priority) FROM orders ORDER BY id",
    "SELECT id, sum(total) OVER (ORDER BY id) FROM orders ORDER BY id",
    "SELECT id, sum(priority) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM orders ORDER BY id",
    "SELECT id, first_value(total) OVER w, last_value(total) OVER w FROM orders"
    " WINDOW w AS (PARTITION BY customer_id ORDER BY id) ORDER BY id",
    "SELECT id, lead(placed) OVER (ORDER BY id), ntile(4) OVER (ORDER BY id) FROM orders ORDER BY id",
    "SELECT status, count(*), sum(count(*)) OVER (ORDER BY status) FROM orders GROUP BY status ORDER BY status",
    "SELECT id, percent_rank() OVER (ORDER BY id) FROM customer ORDER BY id",
    "SELECT id, avg(weight) OVER (PARTITION BY priority) FROM orders WHERE weight IS NOT NULL ORDER BY id",
    "SELECT DISTINCT ON (customer_id) customer_id, id, max(total) OVER (PARTITION BY customer_id) FROM orders"
    " ORDER BY customer_id, id DESC",
    # sets, grouping sets
    "SELECT status, priority, count(*) FROM orders GROUP BY ROLLUP (status, priority) ORDER BY 1, 2",
    "SELECT status, priority, sum(total) FROM orders GROUP BY CUBE (status, priority) ORDER BY 1 NULLS FIRST, 2 DESC",
    "SELECT segment, active, count(*) FROM customer GROUP BY GROUPING SETS ((segment), (active), ()) ORDER BY 1, 2, 3",
    "SELECT status, count(*) FROM orders GROUP BY status UNION ALL SELECT segment, count(*) FROM customer"
    " GROUP BY segment ORDER BY 1",
    "SELECT customer_id FROM orders GROUP BY customer_id EXCEPT SELECT id FROM customer WHERE active ORDER BY 1",
    "SELECT active, count(*) FROM customer GROUP BY active ORDER BY active NULLS FIRST",
    "SELECT active, count(*) FROM customer GROUP BY active ORDER BY active DESC",
    # expressions
    "SELECT 7 / 2, sum(quantity) / count(*), sum(quantity) % 7 FROM line",
    "SELECT quantity / 10 AS tens, count(*) FROM line GROUP BY tens ORDER BY tens",
    "SELECT sum(price) / 3, sum(price) / sum(quantity) FROM line",
    "SELECT since - date '2019-01-01' AS days, count(*) FROM customer GROUP BY 1 ORDER BY 1",
    "SELECT date_trunc('year', since), count(*) FROM customer GROUP BY 1 ORDER BY 1",
    "SELECT date_trunc('day', stamped), count(*) FROM orders GROUP BY 1 ORDER BY 1",
    "SELECT extract(hour FROM stamped), count(*) FROM orders GROUP BY 1 ORDER BY 1",
    "SELECT extract(epoch FROM placed), count(*) FROM orders GROUP BY 1 ORDER BY 1 LIMIT 20",
    "SELECT to_char(placed, 'YYYY-MM'), count(*) FROM orders GROUP BY 1 ORDER BY 1",
    "SELECT coalesce(weight, -1), count(*) FROM orders GROUP BY 1 ORDER BY 1",
    "SELECT nullif(priority, 0), count(*) FROM orders GROUP BY 1 ORDER BY 1 DESC",
    "SELECT greatest(quantity, 10), least(quantity, 5), count(*) FROM line GROUP BY 1, 2 ORDER BY 1, 2",
    "SELECT substring(product FROM 1 FOR 9), count(*) FROM line GROUP BY 1 ORDER BY 1",
    "SELECT product || ' sold', sum(quantity) FROM line GROUP BY 1 ORDER BY 1",
    "SELECT balance > 0, count(*), sum(abs(balance)), sum(round(balance, 1)) FROM customer GROUP BY 1 ORDER BY 1",
    "SELECT ceil(balance), count(*) FROM customer GROUP BY 1 ORDER BY 1 LIMIT 20",
    "SELECT discount, count(*), sum(discount) FROM orders GROUP BY discount ORDER BY discount",
    "SELECT power(priority, 2), sqrt(priority), count(*) FROM orders GROUP BY priority ORDER BY 1",
    "SELECT count(*) * 1.5, count(*)::numeric / 7, (count(*) / 7.0)::numeric(10,3) FROM orders",
)
_KEPT = 200 - len(_OTHERS)
REPORTS = (*_OTHERS, *(_BY_GROUP[n * len(_BY_GROUP) // _KEPT] for n in range(_KEPT)))

WITH_PARAMETERS = (
    ("SELECT count(*) FROM orders WHERE total > $1 AND status <> $2", ("5000", "paid")),
    ("SELECT status, sum(total + $1) FROM orders WHERE placed < $2 GROUP BY status ORDER BY status",
     ("1.5", "2020-06-01")),
    ("SELECT c.segment, count(*) FROM customer c JOIN orders o ON o.customer_id = c.id WHERE o.priority + $1 > 3"
     " GROUP BY c.segment ORDER BY c.segment", ("2",)),
    ("SELECT sum(quantity * $1) FROM line WHERE shipped BETWEEN $2 AND $3", ("3", "2020-02-01", "2020-12-31")),
)  # fmt: skip
"""Their types are told by nobody but PostgreSQL."""
assert len(set(REPORTS)) == 200
