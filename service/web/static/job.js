// Goes on from a fit to what it has made, if that comes while somebody watches; and tells those who
// listen to the page how its status changes. live.js keeps the page as it is now.

const job = () => document.getElementById("job");

function follow() {
  let status = job().dataset.status;
  const watch = new MutationObserver(() => {
    const now = job().dataset;
    if (now.status !== status) {
      status = now.status;
      document.getElementById("said").textContent = `The fit is ${status}.`;
    }
    if ("busy" in now) return;
    watch.disconnect();
    if (now.result) location.assign(now.result);
  });
  watch.observe(document.getElementById("main"), { childList: true });
}

if ("busy" in job().dataset) follow();
