// SPDX-License-Identifier: Apache-2.0
//
// An application that is not in Python: it runs a command, shows its person the question, answers it, and keeps
// an index of the project's files in a database of its own. docs/embedding.md explains each step.
//
//   node embedding.mjs PROJECT DATABASE        answer with y or n on standard input
//
// Needs Node.js 18 or newer, and the programs `unspill` and `sqlite3`.

import { execFile, execFileSync, spawn } from "node:child_process";
import { lstatSync, readdirSync } from "node:fs";
import { createInterface } from "node:readline";
import { promisify } from "node:util";

const [project, database] = process.argv.slice(2);
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const slash = Buffer.from("/");

// Start unspill. Resolves with its exit code, what it printed, and one object for each path that it changed.
function unspill(verb, ...words) {
  const options = ["--project", project, "--json", "--events", "3"];
  const child = spawn("unspill", [verb, ...options, ...words], { stdio: ["ignore", "pipe", "pipe", "pipe"] });
  const texts = ["", "", "", ""];
  for (const number of [1, 2, 3]) child.stdio[number].setEncoding("utf8").on("data", (text) => (texts[number] += text));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) =>
      resolve({
        code,
        problem: texts[2].trim(),
        result: texts[1] ? JSON.parse(texts[1]) : null,
        events: texts[3].split("\n").filter(Boolean).map((line) => JSON.parse(line)),
      }),
    );
  });
}

async function answerQuestions(isOver) {
  while (!isOver()) {
    const { stdout } = await promisify(execFile)("unspill", ["requests", "--project", project, "--json"]);
    for (const request of JSON.parse(stdout).requests) {
      console.log([request.text, ...request.lines].join("\n"));
      const { value } = await answers.next();
      const verb = value === "y" ? ["approve", "--yes", request.id] : ["deny", "--reason", "not now", request.id];
      execFileSync("unspill", verb, { stdio: "ignore" });
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

function sql(text) {
  return execFileSync("sqlite3", [database], { input: text, encoding: "utf8" });
}

// File names are bytes, so they are kept as such: x'...' is a blob.
const blob = (path) => `x'${path.toString("hex")}'`;

// Forget a path and all below it, then look at what is there now.
function reindex(path) {
  sql(`delete from files where path = ${blob(path)}
       or (path > ${blob(Buffer.concat([path, slash]))} and path < ${blob(Buffer.concat([path, Buffer.from("0")]))});`);
  add(path);
}

function add(path) {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found?.isDirectory()) {
    for (const name of readdirSync(path, { encoding: "buffer" })) add(Buffer.concat([path, slash, name]));
  } else if (found) {
    sql(`insert or replace into files values (${blob(path)}, ${found.size});`);
  }
}

function take(events) {
  for (const event of events) {
    console.log(`${event.event}: ${event.path} (${event.now})`);
    reindex(Buffer.from(event.path_b64, "base64"));
  }
  console.log("index:", sql("select count(*) from files;").trim(), "files");
}

sql("create table if not exists files (path blob primary key, size integer);");
reindex(Buffer.from(project));
take([]);

let isOver = false;
const command = ["--", "sh", "-c", "echo hello > greeting.txt; rm -rf old"];
const running = unspill("run", "--ask", "queue", "--allow-host", "example.org", ...command);
running.finally(() => (isOver = true)).catch(() => {});
await answerQuestions(() => isOver);
const ran = await running;
if (ran.result === null) {
  console.log(ran.problem);
  process.exit(0);
}
console.log("exit code:", ran.result.outcome.exit_code);
take(ran.events);

const undone = await unspill("undo");
take(undone.events);
process.exit(0);
