// How the charts of all pages are drawn, and why they cannot be.

// ast: expressions are interpreted, because the pages' policy forbids to compile them
const OPTIONS = {
  actions: false, renderer: "svg", ast: true, defaultStyle: false, logLevel: 1,
  tooltip: { theme: "custom", disableDefaultStyle: true },
};

export function whyNot() {
  if (window.vegaEmbed) return "";
  return window.calibrdNoCharts
    ? "The service cannot draw charts: it needs pip install 'calibrd[charts]'."
    : "The charts' library could not be loaded from the service; reload to try again.";
}

export async function draw(place, spec) {
  const shown = { ...spec, background: "transparent", padding: 2 };
  const { view } = await window.vegaEmbed(place, shown, OPTIONS);
  hideEmpty(place);
  return view;
}

// layers without marks have no name: screen readers would meet a picture of nothing
export function hideEmpty(place) {
  for (const layer of place.querySelectorAll(".mark-symbol, .mark-rule, .mark-text")) {
    if (layer.childElementCount) layer.removeAttribute("aria-hidden");
    else layer.setAttribute("aria-hidden", "true");
  }
}
