// The pages of training runs. Everything received is shown as text, never as markup.

import { draw as drawChart, hideEmpty, chartError } from "./drawing.js";

const { root, run } = document.body.dataset;
const WAIT_SECONDS = 20;
const ABSENT_SECONDS = 5;
const LONGEST_PAUSE_SECONDS = 15;
const LAST_STEPS = 20;
const PAGE = 200;
const MINUS = "\u2212";

const $ = (id) => document.getElementById(id);
const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the service responded with status ${status}`);
    this.status = status;
    this.code = problem.code || "";
  }
}

class Lost extends Error {}
const lost = (error) => { throw new Lost(error.message); };

async function ask(path) {
  const answer = await fetch(`${root}/v1/${path}`, { cache: "no-store" }).catch(lost);
  if (answer.ok) return answer.json().catch(lost);
  throw new Refused(answer.status, await answer.json().catch(() => ({})));
}

async function allPages(path) {
  const found = [];
  let cursor = "";
  do {
    const page = await ask(`${path}&limit=${PAGE}${cursor}`);
    found.push(...page.items);
    cursor = page.next === null ? "" : `&cursor=${encodeURIComponent(page.next)}`;
  } while (cursor);
  return found;
}

// ---- formatting

const missing = "\u2013";
const fixed = (value, digits) => (value === null ? missing : value.toFixed(digits).replace("-", MINUS));
const percent = (value) => (value === null ? missing : `${(100 * value).toFixed(2)} %`);
const moment = (text) => (text === null ? missing : new Date(text).toLocaleString());
const figures = (metrics) => [
  percent(metrics.ece), percent(metrics.ada_ece), fixed(metrics.nll, 4), percent(metrics.accuracy),
];

function element(kind, content, className = "") {
  const made = document.createElement(kind);
  if (className) made.className = className;
  made.append(...[content].flat());
  return made;
}

function row(first, cells) {
  const head = element("th", first);
  head.scope = "row";
  return element("tr", [head, ...cells.map((one) => (one instanceof Node ? one : element("td", one)))]);
}

const flag = (text, kind = "") => element("span", text, `flag ${kind}`);
const fill = (id, rows) => $(id).querySelector("tbody").replaceChildren(...rows);

function say(id, text) {
  $(id).textContent = text;
  $(id).hidden = text === "";
}

function status(text, kind = "") {
  $("live").textContent = text;
  $("live").className = `badge ${kind}`;
}

// ---- sessions that have ended

const isSignedOut = (error) => error instanceof Refused && error.status === 401;

function signIn() {
  const here = run ? `/runs/${encodeURIComponent(run)}` : "/runs";
  location.assign(`${root}/sign-in?next=${encodeURIComponent(here)}`);
}

// ---- the list

async function showList(cursor = "") {
  const archived = $("archived").checked;
  const page = await ask(`runs?limit=50&archived=${archived}${cursor}`);
  const body = $("list").querySelector("tbody");
  if (!cursor) body.replaceChildren();
  body.append(...page.items.map(listed));
  $("content").hidden = false;
  $("none").hidden = body.childElementCount > 0;
  $("list").hidden = body.childElementCount === 0;
  $("more").hidden = page.next === null;
  $("more").onclick = () => attempt(() => showList(`&cursor=${encodeURIComponent(page.next)}`));
}

function listed(one) {
  const link = element("a", one.name);
  link.href = `${root}/runs/${encodeURIComponent(one.name)}`;
  const measured = one.metrics === null ? Array(4).fill(missing) : figures(one.metrics);
  return row(link, [one.kind, String(one.step), ...measured, moment(one.updated_at)]);
}

async function attempt(action) {
  try {
    say("error", "");
    await action();
  } catch (error) {
    if (isSignedOut(error)) signIn();
    else say("error", `The list could not be loaded: ${error.message}`);
  }
}

// ---- one run

const address = run && `runs/${encodeURIComponent(run)}`;
const views = {};
let charts = null;
let steps = [];
let now = null;
let waited = false;

async function load() {
  const [about, found] = await Promise.all([ask(address), allPages(`${address}/history?`)]);
  steps = found;
  describe(about);
}

async function follow() {
  let seconds = 1;
  for (;;) {
    const started = performance.now();
    try {
      await poll();
      seconds = 1;
      say("error", "");
      status("live", "live");
      if (performance.now() - started < 250) await pause(0.25);
    } catch (error) {
      if (isSignedOut(error)) return signIn();
      if (error.status === 404) {
        absent();
        await pause(ABSENT_SECONDS);
      } else if (error instanceof Lost || error.status >= 500 || error.status === 429) {
        status("connection lost, retrying", "lost");
        await pause(seconds);
        seconds = Math.min(2 * seconds, LONGEST_PAUSE_SECONDS);
      } else {
        status("stopped", "lost");
        say("error", `This page stopped updating: ${error.message}`);
        throw error;
      }
    }
  }
}

function absent() {
  say("error", `There is no run called ${run}. This page keeps checking.`);
  $("content").hidden = true;
  status("not found", "lost");
  now = null;
}

async function poll() {
  // a wait follows one session: after a wait without a new step, look for a newer session
  const wait = now === null || waited ? "" : `?after=${now.step}&wait=${WAIT_SECONDS}`;
  waited = wait !== "";
  const latest = await ask(`${address}/state${wait}`);
  const last = steps.length ? steps[steps.length - 1].step : 0;
  if (now === null || latest.session !== now.session || latest.step < now.step) await load();
  else if (latest.step > now.step) steps = steps.concat(await allPages(`${address}/history?after=${last}`));
  else return;
  waited = false;
  now = { session: latest.session, step: latest.step };
  await show();
}

function describe(about) {
  const settings = about.settings || {};
  const facts = [
    about.archived ? "archived" : "",
    about.kind === "adafocal" ? `AdaFocal, rate ${settings.rate}, rule ${settings.rule}` : about.kind,
    ...Object.entries(about.tags).map(([name, value]) => `${name}: ${value}`),
    about.description,
  ];
  $("about").textContent = facts.filter(Boolean).join(" \u00b7 ");
  fill("sessions", about.sessions.map((one) => row(one.id, [
    String(one.base_step), String(one.world_size), one.decides, moment(one.begun_at),
  ])));
}

async function show() {
  $("content").hidden = false;
  $("waiting").hidden = steps.length > 0;
  $("details").hidden = false;
  $("charts").hidden = steps.length === 0;
  showFigures();
  fill("steps", steps.slice(-LAST_STEPS).reverse().map(stepRow));
  if (steps.length) await draw();
}

function showFigures() {
  const latest = steps[steps.length - 1];
  if (!latest) return $("figures").replaceChildren();
  const names = ["ECE", "AdaECE", "NLL", "accuracy"];
  const shown = [["step", String(latest.step)], ...figures(latest.metrics).map((one, at) => [names[at], one])];
  shown.push(["mean confidence", percent(latest.metrics.confidence)]);
  shown.push(["rows", latest.metrics.rows.toLocaleString()]);
  $("figures").replaceChildren(
    ...shown.map(([name, value]) => element("div", [element("dt", name), element("dd", value)])),
  );
}

function stepRow(step) {
  const remarks = [];
  if (step.partial) remarks.push(flag(`partial: ranks ${step.ranks.join(", ")} of ${step.world_size}`));
  if (step.verified === false) remarks.push(flag("unverified: the service computed different gammas", "unverified"));
  return row(String(step.step), [
    ...figures(step.metrics),
    percent(step.metrics.confidence),
    step.metrics.rows.toLocaleString(),
    step.switched.length ? step.switched.join(", ") : missing,
    moment(step.decided_at),
    element("td", remarks.length === 2 ? [remarks[0], "; ", remarks[1]] : remarks, "text"),
  ]);
}

async function draw() {
  const error = chartError();
  if (error) return say("chart-error", error);
  charts ??= await (await fetch(`${root}/static/run-charts.json`)).json();
  const hasGammas = steps.some((one) => one.gammas !== null);
  for (const [name, chart] of Object.entries(charts)) {
    if (name !== "gammas" || hasGammas) await drawOne(name, chart, hasGammas);
  }
}

async function drawOne(name, chart, hasGammas) {
  const values = steps.map((one) => ({ ...one }));  // Vega modifies its data
  if (views[name]) {
    await views[name].data("steps", values).runAsync();
    return hideEmpty(views[name].container());
  }
  const { title, ...rest } = chart;
  const place = element("div", [], "drawing");
  const size = name === "gammas" || name === "gaps" ? "" : "small";
  const section = element(
    "section",
    [element("h2", title.text), element("p", title.subtitle), place],
    `chart ${name === "gaps" && !hasGammas ? "wide" : size}`,
  );
  $("charts").append(section);
  const spec = { ...rest, width: "container", data: { name: "steps", values } };
  views[name] = await drawChart(place, spec);
}

function begin() {
  now = null;
  if (run) follow();
  else attempt(showList);
}

if (!run) $("archived").addEventListener("change", () => attempt(showList));
begin();
