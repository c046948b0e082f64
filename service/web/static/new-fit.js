// The form of a new fit: looks at the files that were chosen, sends them, orders the fit and goes on
// to its page. Whatever is shown is put in as text.

import { joined, labelsFirst, readHeader, Unreadable } from "./npy.js";
import { post, Refusal, Stopped } from "./uploading.js";

const HEADER_BYTES = 1 << 16;
const NUMBERED = /^(logit|p|probability)_\d+$/;
const ALONE = /^(logit|p|probability)$/;
const WHOLE = ["data", "evaluation"];

const root = document.body.dataset.root;
const form = document.getElementById("fit");
const part = (id) => document.getElementById(id);
const sent = new Map(); // what was uploaded before: files and kind to the dataset's id
let stopping = null;

const size = (bytes) => {
  const power = Math.min(3, Math.floor(Math.log2(Math.max(1, bytes)) / 10));
  return `${(bytes / 2 ** (10 * power)).toFixed(power ? 1 : 0)} ${["bytes", "KiB", "MiB", "GiB"][power]}`;
};
const ending = (file) => /\.([^.]+)$/.exec(file.name)?.[1].toLowerCase() ?? "";
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

class Wrong extends Error {
  constructor(title, sentence, advice = "") {
    super(sentence);
    Object.assign(this, { title, advice });
  }
}

// What was chosen in a field, ready to be sent: { names, type, says, body(kind) }; null if nothing.
async function chosen(id) {
  const files = [...part(id).files];
  if (!files.length) return null;
  const names = files.map((one) => one.name).join(" and ");
  if (files.every((one) => ending(one) === "npy")) return pair(files, names);
  if (files.length > 1) {
    throw new Wrong(`${names} cannot be taken together`, "Only two .npy files belong together.", "Choose one file.");
  }
  const type = form.dataset[`type${ending(files[0])[0]?.toUpperCase()}${ending(files[0]).slice(1)}`];
  if (!type) {
    throw new Wrong(`${names} is of no kind that is read here`, `Files end with .npy, ${form.dataset.endings}.`,
      "Save it such as by np.savez('data.npz', logits=logits, labels=labels).");
  }
  const isText = form.dataset.textTypes.split(" ").includes(type);
  const limit = Number(isText ? form.dataset.textLimit : form.dataset.limit);
  if (files[0].size > limit) {
    throw new Wrong(`${names} is too large`, `It has ${size(files[0].size)}; at most ${size(limit)} are taken.`,
      isText ? "Save it as .npz, which is far smaller." : "Send fewer rows, or float16.");
  }
  const says = type !== "text/csv" || (await csvSaysKind(files[0]));
  return { names, files, type, says, asked: type === "text/csv", body: () => files[0] };
}

async function pair(files, names) {
  if (files.length !== 2) {
    throw new Wrong(files.length === 1 ? `${names} is one array alone` : "These are more than two arrays",
      "A fit needs logits and labels.", "Choose logits.npy and labels.npy together.");
  }
  const [labels, values] = labelsFirst(await Promise.all(files.map(readHeader)));
  const total = labels.size + values.size;
  if (total > Number(form.dataset.limit)) {
    throw new Wrong(`${names} are too large`, `They have ${size(total)}; at most ${size(Number(form.dataset.limit))} are taken.`);
  }
  const named = /prob/i.test(values.file.name) ? "probabilities" : /logit/i.test(values.file.name) ? "logits" : null;
  const type = form.dataset.typeSafetensors;
  return { names, files, type, says: named !== null, asked: false, body: (kind) => joined(named ?? kind, values, labels) };
}

async function csvSaysKind(file) {
  const [header] = (await file.slice(0, HEADER_BYTES).text()).replace(/^\s+/, "").split(/\r|\n/, 1);
  const names = header.split(",").map((one) => one.trim().replace(/^"|"$/g, "").trim().toLowerCase());
  if (!names.some((one) => /^labels?$/.test(one))) return true; // it is no set at all: the service says so
  const others = names.filter((one) => !/^(label|segment)s?$/.test(one));
  return others.some((one) => NUMBERED.test(one)) || (others.length === 1 && ALONE.test(others[0]));
}

let looks = 0; // of which the newest counts

async function look(id) {
  const number = ++looks;
  const files = [...part(id).files];
  part(`${id}-said`).textContent = files.map((one) => `${one.name}, ${size(one.size)}`).join("; ");
  try {
    const found = await Promise.all(WHOLE.map(chosen));
    if (number !== looks) return;
    part("kind").hidden = found.every((one) => one === null || one.says);
    hide();
  } catch (error) {
    if (number === looks) show(error);
  }
}

function kindOf(one) {
  if (one.says) return null;
  const kind = form.querySelector("input[name=kind]:checked")?.value;
  if (!kind) throw new Wrong(`${one.names} does not say what its values are`, "Choose logits or probabilities.");
  return kind;
}

async function upload(one) {
  const kind = kindOf(one);
  const known = JSON.stringify([kind, ...one.files.map((file) => [file.name, file.size, file.lastModified])]);
  if (!sent.has(known)) {
    const url = `${root}/v1/datasets${kind && one.asked ? `?kind=${kind}` : ""}`;
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
    part("sent").textContent = loaded < total ? `${names}: ${size(loaded)} of ${size(total)}` : `${names}: the service checks it`;
  };
  return post(url, body, { type, token: form.dataset.csrf, onProgress, signal: stopping.signal });
}

// The parameters of a method, if somebody has changed its defaults.
function paramsOf(method) {
  const field = part(`params-${method}`);
  const text = field?.value.trim() ?? "";
  if (!text || text === field.defaultValue.trim()) return {};
  try {
    const params = JSON.parse(text);
    if (params !== null && typeof params === "object" && !Array.isArray(params)) return { params };
  } catch {
    // told below
  }
  throw new Wrong(`The parameters of ${method} are no JSON object`, 'They are written as {"name": value, "other": value}.',
    "Names and text stand in double quotes; true and false have small letters.");
}

async function order() {
  const chosenMethods = [...form.querySelectorAll("input[name=method]:checked")].map((one) => one.value);
  const methods = chosenMethods.map((method) => ({ method, ...paramsOf(method) }));
  if (!methods.length) throw new Wrong("No method is chosen", "A fit takes at least one.");
  const [data, evaluation] = await Promise.all(WHOLE.map(chosen));
  if (data === null) throw new Wrong("No file is chosen", "A fit needs logits and labels.");
  [data, evaluation].filter(Boolean).forEach(kindOf); // asked before anything is sent
  const asked = { methods, dataset: await upload(data) };
  if (evaluation) asked.evaluation = await upload(evaluation);
  for (const name of ["model", "description"]) {
    if (form.elements[name].value.trim()) asked[name] = form.elements[name].value.trim();
  }
  const url = `${root}/v1/calibrators/${encodeURIComponent(form.elements.calibrator.value.trim())}/fits`;
  return call(url, JSON.stringify(asked), "application/json", "the order");
}

async function begin(event) {
  event.preventDefault();
  hide();
  stopping = new AbortController();
  busy(true);
  try {
    const fit = await order();
    location.assign(`${root}/jobs/${encodeURIComponent(fit.id)}#ordered`);
  } catch (error) {
    busy(false);
    if (error.problem?.code === "no_such_dataset") sent.clear(); // it was deleted since
    if (error instanceof Stopped) say("Stopped; nothing was ordered.");
    else show(error);
  }
}

function busy(is) {
  part("begin").disabled = is;
  part("stop").hidden = part("sending").hidden = !is;
  part("progress").value = 0;
  part("sent").textContent = "";
}

// Errors as people want them: which file, what rule, how many rows, what to do.
function told(error) {
  if (error instanceof Unreadable) return { title: `${error.file} cannot be read`, lines: [error.message, error.advice] };
  if (!(error instanceof Refusal)) {
    return { title: error.title ?? "This did not work", lines: [error.message, error.advice] };
  }
  const { code, detail = "", rows, first } = error.problem;
  const title = error.names ? `${error.names} was not taken` : "The fit was not ordered";
  const advice = [...part("advice").children].find((one) => one.dataset.code === code)?.textContent;
  if (rows === undefined) return { title, lines: [sentence(detail), advice], code };
  const place = error.isCsv ? `row ${first + 1} below the header` : `row ${first}, counted from 0`;
  const which = `${plural(rows, "row")} ${rows === 1 ? "breaks" : "break"} this rule, the first is ${place}.`;
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
  const box = part("trouble");
  const { title, lines, code } = told(error);
  box.replaceChildren(element("h2", title), ...lines.filter(Boolean).map((text) => element("p", text)));
  if (code) box.append(element("small", code));
  box.hidden = false;
  box.focus();
}

function hide() {
  part("trouble").hidden = true;
  part("trouble").replaceChildren();
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
// a file that misses its field must not replace the page
for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
for (const id of WHOLE) part(id).addEventListener("change", () => look(id));
form.addEventListener("submit", begin);
part("stop").addEventListener("click", () => stopping.abort());
busy(false);
part("curl").open = false;
form.hidden = false;
