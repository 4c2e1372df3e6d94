"use strict";
// Answers in JSON, from a file or from what follows # in the address, drawn as their own pages are; nothing leaves the browser.
const MOST_BYTES = 4e6;
const three = (value) => (value === 0 ? "0" : value >= 100 ? value.toFixed(0) : value.toPrecision(3));
const share = (value) => `${(100 * value).toFixed(1)}%`;
const count = (value) => {
  for (const [unit, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) if (value >= unit) return three(value / unit) + name;
  return value.toFixed(0);
};
const seconds = (value) => {
  for (const [unit, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) if (value >= unit) return `${three(value / unit)} ${name}`;
  return `${three(value / 1e-9)} ns`;
};
const bound = (plan) => `${plan.bound_by} ${(100 * plan.bound_fraction).toFixed(0)}%`;
const zero = (plan) => (plan.sharding === "hsdp" ? `HSDP-${plan.shard_size}` : `ZeRO-${plan.zero}`);
const stage = (plan) => (plan.sharding === "hsdp" ? `3/${plan.shard_size}` : plan.zero); // as a cell has it
const degrees = (plan) => [
  `TP${plan.tp}${plan.sp ? "+SP" : ""}`, `PP${plan.pp}`,
  ...["vpp", "cp", "ep", "etp"].filter((name) => plan[name] > 1).map((name) => name.toUpperCase() + plan[name]),
  `DP${plan.dp}`, zero(plan),
].join(" ");

// What a page of such an answer says: texts alone, whatever the answer holds.
function laidOut(answer) {
  const [, kind] = /^gpuscale\.(plan|estimate)\/1$/.exec(answer.schema) || [];
  if (!kind) throw new Error(`${String(answer.schema).slice(0, 60)} is no answer that this page draws: plan, estimate`);
  const plans = kind === "plan" ? answer.plans : [answer.plan];
  if (!plans.length) throw new Error(String(answer.message || "no plan"));
  const best = plans[0], where = `${answer.model} on ${answer.gpus.toLocaleString("en")} GPU${answer.gpus > 1 ? "s" : ""}`;
  const used = ["vpp", "cp", "ep", "etp"].filter((name) => plans.some((plan) => plan[name] > 1));
  const jobs = answer.variants || [], choice = (plan) => plan.choice || (jobs[plan.variant] || {}).choice || {};
  const chosen = Object.keys(choice(best)); // what sets jobs apart that are compared
  const header = ["#", ...chosen, "TP", "PP", ...used.map((name) => name.toUpperCase()), "DP", "ZeRO", "mb", "recompute", "s/step", "MFU%", "GiB",
    "fits%", "bound by", "comm%", "idle%"];
  const rows = plans.map((plan) => [
    plan.rank, ...chosen.map((name) => choice(plan)[name] ?? "-"), `${plan.tp}${plan.sp ? "+SP" : ""}`, plan.pp,
    ...used.map((name) => plan[name]), plan.dp, stage(plan), plan.micro_batch_size, plan.recompute,
    three(plan.step_time_s), (100 * plan.mfu).toFixed(1), plan.memory_gib.toFixed(1), (100 * plan.fit_probability).toFixed(0),
    bound(plan), (100 * plan.exposed_comm_fraction).toFixed(1), (100 * plan.bubble_fraction).toFixed(1),
  ].map(String));
  const job = Object.entries(answer.job || {}).map(([name, value]) => [name, String(value)]);
  return {
    title: `${where} of ${answer.cluster}`,
    verdict: `${where}: ${degrees(best)}: ${seconds(best.step_time_s)}/step, MFU ${share(best.mfu)}, ${count(best.tokens_per_s_per_gpu * answer.gpus)} tokens/s`,
    tiles: [
      ["Step time", seconds(best.step_time_s), `80 % within ${seconds(best.step_time_low_s)} to ${seconds(best.step_time_high_s)}`],
      ["MFU", share(best.mfu), `${best.tflops_per_gpu.toFixed(0)} TFLOP/s per GPU`],
      ["Throughput", `${count(best.tokens_per_s_per_gpu * answer.gpus)} tokens/s`, `${Math.round(best.tokens_per_s_per_gpu).toLocaleString("en")} per GPU`],
      ["Memory", `${best.memory_gib.toFixed(1)} GiB`, `of ${best.memory_limit_gib.toFixed(1)} GiB`],
      ["Exposed communication", share(best.exposed_comm_fraction), "of the step"],
      ["Bubble", share(best.bubble_fraction), `of the step; bound by ${bound(best)}`],
    ],
    tables: [{ caption: `${plans.length} plan${plans.length > 1 ? "s" : ""} by rank`, header, rows }],
    facts: [["nearest measured run", best.nearest_run_name || "none"], ["nobody measured", (best.unmeasured || []).join("; ") || "-"], ...job],
  };
}

async function unpacked(hash) {
  const raw = atob(hash.replaceAll("-", "+").replaceAll("_", "/"));
  const stream = new Blob([Uint8Array.from(raw, (one) => one.charCodeAt(0))]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const parts = [];
  let size = 0;
  for (const reader = stream.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > MOST_BYTES) throw new Error("the link unpacks to more than 4 MB");
    parts.push(value);
  }
  return JSON.parse(await new Blob(parts).text());
}

function draw(page) {
  const main = document.getElementById("main");
  const put = (parent, tag, said, more = {}) => {
    const one = Object.assign(document.createElement(tag), more);
    if (said !== undefined) one.textContent = said;
    parent.append(one);
    return one;
  };
  main.replaceChildren();
  document.title = page.title;
  put(main, "h1", page.title);
  put(main, "p", page.verdict, { className: "verdict" });
  const tiles = put(main, "dl", undefined, { className: "tiles" });
  for (const [name, number, said] of page.tiles) {
    const tile = put(tiles, "div");
    put(tile, "dt", name);
    put(put(tile, "dd", `${number} `), "small", said);
  }
  for (const { caption, header, rows } of page.tables) {
    const table = put(put(main, "div", undefined, { className: "wide" }), "table");
    put(table, "caption", caption);
    const head = put(put(table, "thead"), "tr"), body = put(table, "tbody");
    header.forEach((name) => put(head, "th", name, { scope: "col" }));
    for (const row of rows) {
      const line = put(body, "tr");
      row.forEach((cell, at) => put(line, at ? "td" : "th", cell, { className: /^[-\d.,%/]+$/.test(cell) ? "number" : "" }));
    }
  }
  const facts = put(main, "dl", undefined, { className: "facts" });
  for (const [name, said] of page.facts) {
    put(facts, "dt", name);
    put(facts, "dd", said);
  }
}

function start() {
  const said = document.getElementById("said");
  const shown = async (read) => {
    try {
      draw(laidOut(await read()));
      said.textContent = "";
    } catch (error) {
      said.textContent = `cannot be shown: ${error.message}`;
    }
  };
  const file = (one) => one && shown(async () => {
    if (one.size > MOST_BYTES) throw new Error("the file has more than 4 MB");
    return JSON.parse(await one.text());
  });
  const link = () => location.hash.length > 1 && shown(() => unpacked(location.hash.slice(1)));
  document.getElementById("file").addEventListener("change", (event) => file(event.target.files[0]));
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => { event.preventDefault(); file(event.dataTransfer.files[0]); });
  window.addEventListener("hashchange", link);
  link();
}
if (typeof document !== "undefined") start();
