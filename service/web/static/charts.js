// Draws the charts of a page: every element with data-chart, which is a Vega-Lite specification. Elements that come later (live.js brings some) are drawn as they come.

import { draw, whyNot } from "./drawing.js";

const BESIDE = 68;  // pixels that the axis of a view takes
const begun = new WeakSet();

function widthOf({ hconcat, vconcat, width = 0, spacing = 20 }) {
  if (hconcat) return hconcat.reduce((sum, one) => sum + widthOf(one) + spacing, -spacing);
  return vconcat ? Math.max(...vconcat.map(widthOf)) : width + BESIDE;
}

// views that have no room beside each other go below each other, and none is wider than its place
function fitted(view, room) {
  const { hconcat, vconcat, width } = view;
  if (hconcat && widthOf(view) > room) return fitted({ ...view, hconcat: undefined, vconcat: hconcat }, room);
  if (hconcat) return view;
  if (vconcat) return { ...view, vconcat: vconcat.map((one) => fitted(one, room)) };
  return width > room - BESIDE ? { ...view, width: room - BESIDE } : view;
}

async function show(place) {
  begun.add(place);
  try {
    const trouble = whyNot();
    if (trouble) throw new Error(trouble);
    const spec = JSON.parse(place.dataset.chart);
    await draw(place, fitted(spec, place.clientWidth));
  } catch (error) {
    place.textContent = `There is no chart here. ${error.message}`;
  }
}

function showAll() {
  for (const place of document.querySelectorAll("[data-chart]")) if (!begun.has(place)) show(place);
}

showAll();
new MutationObserver(showAll).observe(document.body, { childList: true, subtree: true });
