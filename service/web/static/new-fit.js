// The form of a new fit: checks the chosen files, uploads them, submits the fit and goes to its
// page. Everything is shown as text, never as markup.

import { joined, labelsFirst, readHeader, Unreadable } from "./npy.js";
import { post, Refusal, Stopped } from "./uploading.js";

const HEADER_BYTES = 1 << 16;
const NUMBERED = /^(logit|p|probability)_\d+$/;
const ALONE = /^(logit|p|probability)$/;
const FILE_FIELDS = ["data", "evaluation"];

const root = document.body.dataset.root;
const form = document.getElementById("fit");
const part = (id) => document.getElementById(id);
const sent = new Map(); // finished uploads: dataset ids by files and kind
let stopping = null;

const size = (bytes) => {
  const power = Math.min(3, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${(bytes / 2 ** (10 * power)).toFixed(power ? 1 : 0)} ${["bytes", "KiB", "MiB", "GiB"][power]}`;
};
const ending = (file) => /\.([^.]+)$/.exec(file.name)?.[1].toLowerCase() ?? "";
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

class InputError extends Error {
  constructor(title, sentence, advice = "") {
    super(sentence);
    Object.assign(this, { title, advice });
  }
}

// Returns the files chosen in a field, ready to send: { names, type, hasKind, body(kind) }; null if there are none.
async function chosen(id) {
  const files = [...part(id).files];
  if (!files.length) return null;
  const names = files.map((one) => one.name).join(" and ");
  if (files.every((one) => ending(one) === "npy")) return pair(files, names);
  if (files.length > 1) {
    throw new InputError(`${names} cannot be combined`, "Only two .npy files can be combined.", "Choose one file.");
  }
  const type = form.dataset[`type${ending(files[0])[0]?.toUpperCase()}${ending(files[0]).slice(1)}`];
  if (!type) {
    throw new InputError(`${names} has an unsupported format`, `Supported formats: .npy, ${form.dataset.endings}.`,
      "Save it with np.savez('data.npz', logits=logits, labels=labels), for example.");
  }
  const isText = form.dataset.textTypes.split(" ").includes(type);
  const limit = Number(isText ? form.dataset.textLimit : form.dataset.limit);
  if (files[0].size > limit) {
    throw new InputError(`${names} is too large`, `Its size is ${size(files[0].size)}; the limit is ${size(limit)}.`,
      isText ? "Save it as .npz, which is far smaller." : "Send fewer rows, or float16.");
  }
  const hasKind = type !== "text/csv" || (await csvHasKind(files[0]));
  return { names, files, type, hasKind, sendsKind: type === "text/csv", body: () => files[0] };
}

async function pair(files, names) {
  if (files.length !== 2) {
    throw new InputError(files.length === 1 ? `${names} contains only one array` : "More than two arrays were chosen",
      "A fit needs logits and labels.", "Choose logits.npy and labels.npy together.");
  }
  const [labels, values] = labelsFirst(await Promise.all(files.map(readHeader)));
  const total = labels.size + values.size;
  if (total > Number(form.dataset.limit)) {
    throw new InputError(`${names} are too large`, `Their total size is ${size(total)}; the limit is ${size(Number(form.dataset.limit))}.`);
  }
  const named = /prob/i.test(values.file.name) ? "probabilities" : /logit/i.test(values.file.name) ? "logits" : null;
  const type = form.dataset.typeSafetensors;
  return { names, files, type, hasKind: named !== null, sendsKind: false, body: (kind) => joined(named ?? kind, values, labels) };
}

async function csvHasKind(file) {
  const [header] = (await file.slice(0, HEADER_BYTES).text()).replace(/^\s+/, "").split(/\r|\n/, 1);
  const names = header.split(",").map((one) => one.trim().replace(/^"|"$/g, "").trim().toLowerCase());
  if (!names.some((one) => /^labels?$/.test(one))) return true; // not a dataset; the service reports that
  const others = names.filter((one) => !/^(label|segment)s?$/.test(one));
  return others.some((one) => NUMBERED.test(one)) || (others.length === 1 && ALONE.test(others[0]));
}

let checks = 0; // only the result of the newest check is shown

async function check(id) {
  const number = ++checks;
  const files = [...part(id).files];
  part(`${id}-status`).textContent = files.map((one) => `${one.name}, ${size(one.size)}`).join("; ");
  try {
    const found = await Promise.all(FILE_FIELDS.map(chosen));
    if (number !== checks) return;
    part("kind").hidden = found.every((one) => one === null || one.hasKind);
    hide();
  } catch (error) {
    if (number === checks) show(error);
  }
}

function kindOf(one) {
  if (one.hasKind) return null;
  const kind = form.querySelector("input[name=kind]:checked")?.value;
  if (!kind) throw new InputError(`The kind of the values in ${one.names} is unknown`, "Choose logits or probabilities.");
  return kind;
}

async function upload(one) {
  const kind = kindOf(one);
  const known = JSON.stringify([kind, ...one.files.map((file) => [file.name, file.size, file.lastModified])]);
  if (!sent.has(known)) {
    const url = `${root}/v1/datasets${kind && one.sendsKind ? `?kind=${kind}` : ""}`;
    const answer = await call(url, one.body(kind), one.type, one.names).catch((error) => {
      if (error instanceof Refusal) Object.assign(error, { names: one.names, isCsv: one.type === "text/csv" });
      throw error;
    });
    sent.set(known, answer.id);
  }
  return sent.get(known);
}

function call(url, body, type, names) {
  say(`Sending ${names}.`);
  const onProgress = (loaded, total) => {
    part("progress").value = loaded / total;
    part("sent").textContent = loaded < total ? `${names}: ${size(loaded)} of ${size(total)}` : `${names}: the service is checking it`;
  };
  return post(url, body, { type, token: form.dataset.csrf, onProgress, signal: stopping.signal });
}

// Returns the parameters of a method if they differ from its defaults.
function paramsOf(method) {
  const field = part(`params-${method}`);
  const text = field?.value.trim() ?? "";
  if (!text || text === field.defaultValue.trim()) return {};
  try {
    const params = JSON.parse(text);
    if (params !== null && typeof params === "object" && !Array.isArray(params)) return { params };
  } catch {
    // reported below
  }
  throw new InputError(`The parameters of ${method} are not a JSON object`, 'Write them as {"name": value, "other": value}.',
    "Names and text need double quotes; true and false are lower case.");
}

async function submit() {
  const chosenMethods = [...form.querySelectorAll("input[name=method]:checked")].map((one) => one.value);
  const methods = chosenMethods.map((method) => ({ method, ...paramsOf(method) }));
  if (!methods.length) throw new InputError("No method was chosen", "A fit needs at least one method.");
  const [data, evaluation] = await Promise.all(FILE_FIELDS.map(chosen));
  if (data === null) throw new InputError("No file was chosen", "A fit needs logits and labels.");
  [data, evaluation].filter(Boolean).forEach(kindOf); // raises before anything is sent
  const body = { methods, dataset: await upload(data) };
  if (evaluation) body.evaluation = await upload(evaluation);
  for (const name of ["model", "description"]) {
    if (form.elements[name].value.trim()) body[name] = form.elements[name].value.trim();
  }
  const url = `${root}/v1/calibrators/${encodeURIComponent(form.elements.calibrator.value.trim())}/fits`;
  return call(url, JSON.stringify(body), "application/json", "the fit");
}

async function begin(event) {
  event.preventDefault();
  hide();
  stopping = new AbortController();
  busy(true);
  try {
    const fit = await submit();
    location.assign(`${root}/jobs/${encodeURIComponent(fit.id)}#submitted`);
  } catch (error) {
    busy(false);
    if (error.problem?.code === "no_such_dataset") sent.clear(); // it has been deleted since
    if (error instanceof Stopped) say("Stopped; no fit was submitted.");
    else show(error);
  }
}

function busy(is) {
  part("begin").disabled = is;
  part("stop").hidden = part("sending").hidden = !is;
  part("progress").value = 0;
  part("sent").textContent = "";
}

// Describes an error to the user: which file, which rule, how many rows, what to do.
function describe(error) {
  if (error instanceof Unreadable) return { title: `${error.file} cannot be read`, lines: [error.message, error.advice] };
  if (!(error instanceof Refusal)) {
    return { title: error.title ?? "Something went wrong", lines: [error.message, error.advice] };
  }
  const { code, detail = "", rows, first } = error.problem;
  const title = error.names ? `${error.names} was not accepted` : "The fit was not submitted";
  const advice = [...part("advice").children].find((one) => one.dataset.code === code)?.textContent;
  if (rows === undefined) return { title, lines: [sentence(detail), advice], code };
  const place = error.isCsv ? `row ${first + 1} below the header` : `row ${first}, counted from 0`;
  const which = `${plural(rows, "row")} ${rows === 1 ? "is" : "are"} invalid; the first is ${place}.`;
  return { title, lines: [sentence(detail.replace(/ \([^()]*\)$/, "")), which, advice], code };
}

function sentence(text) {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function show(error) {
  const box = part("error");
  const { title, lines, code } = describe(error);
  box.replaceChildren(element("h2", title), ...lines.filter(Boolean).map((text) => element("p", text)));
  if (code) box.append(element("small", code));
  box.hidden = false;
  box.focus();
}

function hide() {
  part("error").hidden = true;
  part("error").replaceChildren();
}

const say = (text) => {
  part("state").textContent = text;
};

function take(area, files) {
  const input = part(area.dataset.drop);
  input.files = files;
  input.dispatchEvent(new Event("change"));
}

for (const area of document.querySelectorAll("[data-drop]")) {
  const over = (is) => () => area.classList.toggle("over", is);
  area.addEventListener("dragenter", over(true));
  area.addEventListener("dragover", over(true));
  area.addEventListener("dragleave", over(false));
  area.addEventListener("drop", (event) => {
    over(false)();
    if (event.dataTransfer.files.length) take(area, event.dataTransfer.files);
  });
}
// a file dropped outside of the fields must not replace the page
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
for (const id of FILE_FIELDS) part(id).addEventListener("change", () => check(id));
form.addEventListener("submit", begin);
part("stop").addEventListener("click", () => stopping.abort());
busy(false);
part("curl").open = false;
form.hidden = false;
