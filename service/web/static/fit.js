// Goes to the result of a fit when it finishes while the page is open, or if it was just submitted
// and has already finished. live.js keeps the page up to date.

const detail = () => document.getElementById("fit-detail");
const SUBMITTED = "#submitted";

function showResult() {
  if (detail().dataset.result) location.assign(detail().dataset.result);
}

function follow() {
  const watch = new MutationObserver(() => {
    if ("busy" in detail().dataset) return;
    watch.disconnect();
    showResult();
  });
  watch.observe(document.getElementById("main"), { childList: true });
}

const wasSubmitted = location.hash === SUBMITTED;
// otherwise going back to this page would redirect again
if (wasSubmitted) history.replaceState(null, "", location.pathname);
if ("busy" in detail().dataset) follow();
else if (wasSubmitted) showResult();
