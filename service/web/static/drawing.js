// Draws charts with Vega, or explains why they cannot be drawn.

// ast: interpret expressions, because the content security policy forbids compiling them
const OPTIONS = {
  actions: false, renderer: "svg", ast: true, defaultStyle: false, logLevel: 1,
  tooltip: { theme: "custom", disableDefaultStyle: true },
};

export function chartError() {
  if (window.vegaEmbed) return "";
  return window.calibrdNoCharts
    ? "The service has no chart library. Install it with pip install 'calibrd[charts]'."
    : "The chart library could not be loaded. Reload the page.";
}

export async function draw(place, spec) {
  const shown = { ...spec, background: "transparent", padding: 2 };
  const { view } = await window.vegaEmbed(place, shown, OPTIONS);
  hideEmpty(place);
  return view;
}

// layers without marks have no label: hide them from screen readers
export function hideEmpty(place) {
  for (const layer of place.querySelectorAll(".mark-symbol, .mark-rule, .mark-text")) {
    if (layer.childElementCount) layer.removeAttribute("aria-hidden");
    else layer.setAttribute("aria-hidden", "true");
  }
}
