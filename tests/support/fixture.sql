-- The objects that the cases speak of, made once in a template database.
CREATE TABLE item (id int PRIMARY KEY, label text, qty int NOT NULL DEFAULT 0);
INSERT INTO item SELECT n, 'item' || n, n FROM generate_series(1, 20) AS n;
CREATE TABLE trail (id bigserial PRIMARY KEY, item_id int);
CREATE UNLOGGED TABLE scratch (a int);
INSERT INTO scratch VALUES (1), (2);
CREATE SEQUENCE ticket;
CREATE FUNCTION add_trail(i int) RETURNS int LANGUAGE plpgsql VOLATILE AS
    $$ BEGIN INSERT INTO trail(item_id) VALUES (i); RETURN i; END $$;
CREATE FUNCTION add_trail_mislabelled(i int) RETURNS int LANGUAGE plpgsql STABLE AS
    $$ BEGIN RETURN add_trail(i); END $$;
CREATE FUNCTION item_label(i int) RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT label FROM item WHERE id = i $$;
CREATE VIEW ticket_view AS SELECT nextval('ticket') AS n;
CREATE VIEW trail_view AS SELECT add_trail(id) AS r FROM item WHERE id = 1;
CREATE PROCEDURE log_item(i int) LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO trail(item_id) VALUES (i); COMMIT; END $$;
CREATE SCHEMA tenant_a;
CREATE SCHEMA tenant_b;
CREATE TABLE tenant_a.w (x int);
INSERT INTO tenant_a.w VALUES (1);
CREATE TABLE tenant_b.w (x int);
INSERT INTO tenant_b.w VALUES (2);
