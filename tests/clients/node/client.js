// node-postgres: text format, unnamed and named statements, pools, cursors, notifications, errors.
"use strict";
const path = require("path");
const modules = process.env.NODE_MODULES;
const { Client, Pool } = require(path.join(modules, "pg"));
const Cursor = require(path.join(modules, "pg-cursor"));

const [host, port, user, database] = process.argv.slice(2);
const where = { host, port: Number(port), user, database };
const say = (label, value) => console.log(`${label}: ${JSON.stringify(value)}`);
const attempt = async (label, step) => {
  try {
    say(label, (await step()).rows);
  } catch (error) {
    say(label, error.code);
  }
};

async function main() {
  const client = new Client({ ...where, application_name: "node" });
  await client.connect();
  const types = await client.query(
    "SELECT 1::int2 a, 9007199254740993::int8 b, 0.1::float8 c, 1.50::numeric d, true e, 'x'::text f, " +
      "'\\x00ff'::bytea g, '2024-02-29'::date::text h, '{\"a\":[1,null]}'::jsonb i, ARRAY[1,NULL,3] j, NULL::int k"
  );
  say("types", types.rows);
  say("fields", types.fields.map((f) => [f.name, f.dataTypeID, f.format]));
  for (const value of [1, 1.5, "text", null, true, ["a", "b"], Buffer.from([255]), { a: 1 }])
    await attempt("parameter", () => client.query("SELECT $1::text AS v", [value]));
  for (const sql of ["SELEC", "SELECT 1/0", "SELECT * FROM nowhere", "INSERT INTO item VALUES (1)"]) {
    await attempt(sql, () => client.query(sql));
    await attempt(`${sql} extended`, () => client.query({ text: sql, values: [], queryMode: "extended" }));
  }
  for (let n = 1; n < 5; n++)
    await attempt("named", () => client.query({ name: "by id", text: "SELECT label FROM item WHERE id = $1", values: [n] }));
  await attempt("binary", () => client.query({ text: "SELECT 5::int4 AS five", binary: true, values: [] }));
  const several = await client.query("SELECT 1 AS a; SELECT 2 AS b");
  say("several", several.map((r) => r.rows));
  await client.query("BEGIN");
  await client.query("SAVEPOINT a");
  await attempt("savepoint", () => client.query("SELECT 1/0"));
  await client.query("ROLLBACK TO a");
  await attempt("inside", () => client.query("INSERT INTO trail(item_id) VALUES ($1) RETURNING item_id", [7]));
  await client.query("COMMIT");
  const cursor = client.query(new Cursor("SELECT id FROM item ORDER BY id"));
  say("cursor", await cursor.read(3));
  say("cursor", await cursor.read(2));
  await cursor.close();
  await client.query("LISTEN node");
  const heard = new Promise((resolve) => client.once("notification", (m) => resolve([m.channel, m.payload])));
  await client.query("NOTIFY node, 'payload'");
  say("notified", await heard);
  await client.query("UNLISTEN *");
  const noticed = new Promise((resolve) => client.once("notice", (m) => resolve(m.message)));
  await client.query("DO $$ BEGIN RAISE NOTICE 'hello'; END $$");
  say("notice", await noticed);
  await client.query("SET search_path = tenant_b");
  await attempt("path", () => client.query("SELECT x FROM w"));
  await client.query("RESET ALL");
  await attempt("timeout", () => client.query("SET statement_timeout = 50; SELECT pg_sleep(10)"));
  await client.query("RESET statement_timeout");
  await attempt("application", () => client.query("SHOW application_name"));
  const queued = await Promise.all([...Array(20).keys()].map((n) => client.query("SELECT $1::int AS n", [n])));
  say("queued", queued.map((r) => r.rows[0].n));
  await client.end();

  const pool = new Pool({ ...where, max: 3 });
  const all = await Promise.all([...Array(30).keys()].map((n) => pool.query("SELECT $1::int AS n", [n])));
  say("pool", all.map((r) => r.rows[0].n));
  await pool.end();
}

main().catch((error) => {
  console.log("failed", error);
  process.exit(1);
});
