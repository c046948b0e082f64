// Goes on from a fit to what it has made, if that comes while somebody watches, or if it was there
// before the page was and whoever ordered it waits for it. live.js keeps the page as it is now.

const job = () => document.getElementById("job");
const ORDERED = "#ordered";

function goOn() {
  if (job().dataset.result) location.assign(job().dataset.result);
}

function follow() {
  const watch = new MutationObserver(() => {
    if ("busy" in job().dataset) return;
    watch.disconnect();
    goOn();
  });
  watch.observe(document.getElementById("main"), { childList: true });
}

const wasOrdered = location.hash === ORDERED;
// so that who comes back to this page stays on it
if (wasOrdered) history.replaceState(null, "", location.pathname);
if ("busy" in job().dataset) follow();
else if (wasOrdered) goOn();
