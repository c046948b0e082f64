// Draws a chart in every element whose data-chart holds a Vega-Lite specification, including elements that live.js adds.

import { draw, chartError } from "./drawing.js";

const BESIDE = 68;  // width of the axis of a view, in pixels
const drawn = new WeakSet();

function widthOf({ hconcat, vconcat, width = 0, spacing = 20 }) {
  if (hconcat) return hconcat.reduce((sum, one) => sum + widthOf(one) + spacing, -spacing);
  return vconcat ? Math.max(...vconcat.map(widthOf)) : width + BESIDE;
}

// stacks views that do not fit side by side, and shrinks those that are too wide
function fitted(view, room) {
  const { hconcat, vconcat, width } = view;
  if (hconcat && widthOf(view) > room) return fitted({ ...view, hconcat: undefined, vconcat: hconcat }, room);
  if (hconcat) return view;
  if (vconcat) return { ...view, vconcat: vconcat.map((one) => fitted(one, room)) };
  return width > room - BESIDE ? { ...view, width: room - BESIDE } : view;
}

async function show(place) {
  drawn.add(place);
  try {
    const error = chartError();
    if (error) throw new Error(error);
    const spec = JSON.parse(place.dataset.chart);
    await draw(place, fitted(spec, place.clientWidth));
  } catch (error) {
    place.textContent = `The chart cannot be shown. ${error.message}`;
  }
}

function showAll() {
  for (const place of document.querySelectorAll("[data-chart]")) if (!drawn.has(place)) show(place);
}

showAll();
new MutationObserver(showAll).observe(document.body, { childList: true, subtree: true });
