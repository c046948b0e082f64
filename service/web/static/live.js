// Refreshes the parts of a page that are marked data-live, while any part is marked data-busy. The
// fetched HTML was escaped by the service, and scripts in it never run.

const SECONDS = 1;
const LONGEST_PAUSE_SECONDS = 15;

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const isBusy = () => document.querySelector("[data-busy]") !== null;
// do not replace a part whose details the user has opened
const isInUse = (part) => part.querySelector("details[open]") !== null;

// announces a change to screen readers
function announce(before, now) {
  const status = document.getElementById("announcement");
  if (status && now && now !== before) status.textContent = now;
}

function replace(part, fresh) {
  if (part.outerHTML === fresh.outerHTML || isInUse(part)) return;
  const focused = part.contains(document.activeElement) ? document.activeElement.id : "";
  part.replaceWith(document.adoptNode(fresh));
  announce(part.dataset.announce, fresh.dataset.announce);
  if (focused) document.getElementById(focused)?.focus();
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
  if (answer.redirected) return location.reload();  // the session has ended
  if (!answer.ok) throw new Error(`the service responded with status ${answer.status}`);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(part.id);
    if (fresh) replace(part, fresh);
  }
}

let seconds = SECONDS;
while (isBusy()) {
  await pause(document.hidden ? LONGEST_PAUSE_SECONDS : seconds);
  try {
    await refresh();
    seconds = SECONDS;
  } catch {
    seconds = Math.min(2 * seconds, LONGEST_PAUSE_SECONDS);
  }
}
