// Draws the pictures over time of a report: steps, bandwidth, the host and lanes on one axis of seconds, so that
// zooming one zooms all.  Knows no network: data is what pictures.chart_data made, Plotly is handed in.

const EMPTY = "rgba(0,0,0,0)";

// Fills every figure of root that has data; its still picture stays for print.
export function charts(root, data, Plotly) {
  const drawn = [];
  const makers = { steps: stepChart, lanes: laneChart };
  for (const name of ["bandwidth", "system", "host"]) makers[name] = (data, place) => lineChart(data, place, data[name]);
  const redraw = () => {
    for (const { place, make } of drawn) {
      if (!place.isConnected) continue; // another page has taken its place
      const { traces, layout } = make();
      Plotly.react(place, traces, layout);
    }
  };
  for (const [name, maker] of Object.entries(makers)) {
    const figure = root.querySelector(`[data-chart=${name}]`);
    if (!figure || !data[name]) continue;
    const place = document.createElement("div");
    place.className = "live";
    figure.append(place);
    const make = () => maker(data, place, redraw);
    const { traces, layout } = make();
    // toImage is left out: what is printed is the still picture.
    const buttons = [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]];
    const config = { responsive: true, displaylogo: false, modeBarButtons: buttons, displayModeBar: !isNarrow(place) };
    Plotly.newPlot(place, traces, layout, config);
    figure.classList.add("drawn");
    drawn.push({ place, make });
  }
  link(drawn.map((one) => one.place), Plotly);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("theme", redraw); // of a page that does not follow the browser
  return drawn.map((one) => one.place);
}

// What one plot shows of the run, the others show too.
function link(places, Plotly) {
  let busy = false;
  for (const place of places) {
    place.on("plotly_relayout", async (change) => {
      if (busy) return;
      const range = place.layout.xaxis.range;
      const touched = Object.keys(change).some((key) => key.startsWith("xaxis."));
      if (!touched || !range) return;
      busy = true;
      const others = places.filter((other) => other !== place);
      await Promise.all(others.map((other) => Plotly.relayout(other, { "xaxis.range": [...range] })));
      busy = false;
    });
  }
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const suffix = (unit) => (unit === "count" ? "" : unit);

function cut(label, most) {
  const half = Math.floor(most / 2);
  return label.length <= most ? label : `${label.slice(0, half)}…${label.slice(1 - half)}`;
}

const isNarrow = (place) => place.clientWidth < 560; // no room beside the legend for more

// The left edge is the same in all plots, as wide as the longest label of a lane needs.
function edge(data, place) {
  const narrow = isNarrow(place);
  const longest = Math.max(0, ...(data.lanes?.labels ?? []).map((label) => label.length));
  const least = data.lanes?.saves.length ? "checkpoints".length : 0;
  const letters = Math.max(least, Math.min(longest, narrow ? 11 : 28));
  return { left: Math.max(narrow ? 52 : 64, 14 + 7.2 * letters), letters };
}

function layoutOf(data, place, height, more) {
  const kept = place.layout?.xaxis?.range;
  const ink = color("soft");
  const lines = { gridcolor: color("line"), zerolinecolor: color("soft"), linecolor: color("soft"), fixedrange: true };
  return {
    height,
    margin: { l: edge(data, place).left, r: 12, t: 26, b: 42 },
    paper_bgcolor: EMPTY,
    plot_bgcolor: EMPTY,
    font: { color: ink, family: getComputedStyle(document.body).fontFamily, size: 12 },
    hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("ink") } },
    hovermode: "x unified",
    dragmode: "zoom",
    modebar: { bgcolor: EMPTY, color: ink, activecolor: color("ink") },
    showlegend: true, // of a single line too: it says what the line is
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom" },
    xaxis: {
      title: { text: "seconds since the run began", standoff: 6 },
      range: kept ?? [0, data.end_s],
      gridcolor: color("line"),
      linecolor: color("soft"),
      hoverformat: ".4~f",
      unifiedhovertitle: { text: "at %{x:.4~f} s" },
      zeroline: false,
    },
    ...more(lines),
  };
}

// Round numbers from 0 up to the first at or beyond most, at most four.
function ticks(most) {
  const raw = most / 3;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  return [0, 1, 2, 3].map((i) => i * step).filter((v) => v < most * 0.9999 + step);
}

const SCALES = ["n", "µ", "m", "", "k", "M", "G", "T", "P", "E"];
function said(value, unit) {
  if (unit === "share") return `${Number((100 * value).toPrecision(3))} %`;
  let scale = 3;
  while (Math.abs(value) >= 999.5 && scale + 1 < SCALES.length) (value /= 1000), (scale += 1);
  if (unit === "s") while (value && Math.abs(value) < 0.9995 && scale) (value *= 1000), (scale -= 1);
  return `${Number(value.toPrecision(3))} ${SCALES[scale]}${unit}`;
}

function stepChart(data, place) {
  const steps = data.steps;
  const last = (values) => [...values, values[values.length - 1]];
  const named = (first) => (steps.per > 1 ? `steps ${first} to ${first + steps.per - 1}, mean` : `step ${first}`);
  const names = last(steps.first.map(named));
  const traces = steps.series.map((one, at) => ({
    name: one.label,
    x: steps.at,
    y: last(one.values),
    customdata: last(one.values).map((value, i) => said(value, "s") + (at ? "" : ` (${names[i]})`)),
    hovertemplate: "%{customdata}",
    mode: "lines",
    line: { width: 0, shape: "hv", color: color(one.color) },
    fillcolor: color(one.color),
    stackgroup: "one",
  }));
  const marks = steps.passes.map(([pass, start]) => ({
    type: "line", xref: "x", yref: "paper", x0: start, x1: start, y0: 0, y1: 1,
    line: { color: color("ink"), width: 1, dash: "dot" },
  }));
  // A pass is named where its name lies on no other's and not over the edge.
  const room = place.clientWidth - edge(data, place).left - 12;
  let free = 0;
  const spaced = steps.passes.filter(([, start]) => {
    const at = (start / data.end_s) * room;
    if (at < free || at > room - 50) return false;
    free = at + 54;
    return true;
  });
  const words = spaced.map(([pass, start]) => ({
    x: start, y: 1, xref: "x", yref: "paper", xanchor: "left", yanchor: "top", showarrow: false,
    text: `pass ${pass}`, font: { size: 11 }, bgcolor: color("card"), // over the next pass's line
  }));
  const heights = ticks(steps.limit);
  const texts = heights.map((value) => said(value, "s"));
  const layout = layoutOf(data, place, 270, (lines) => ({
    yaxis: { ...lines, range: [0, steps.limit], tickvals: heights, ticktext: texts },
    shapes: marks,
    annotations: words,
  }));
  return { traces, layout };
}

// Read goes up and write goes down, each on a scale of its own: one is often tens of times the other.
function lineChart(data, place, { series, marks, x_start, x_step, unit }) {
  const sideOf = (group) => (group === "write" ? "down" : "up");
  const dashes = ["solid", "dot", "dash", "dashdot"];
  const seen = {};
  const most = { up: 0, down: 0 };
  for (const one of series) {
    const side = sideOf(one.key.split(" ")[0]);
    most[side] = one.values.reduce((a, b) => Math.max(a, b), most[side]);
  }
  const near = marks.filter((mark) => mark.shown);
  for (const mark of near) most[sideOf(mark.group)] = Math.max(most[sideOf(mark.group)], mark.value);
  const isBoth = most.up > 0 && most.down > 0;
  const axis = { up: "y", down: most.up > 0 ? "y2" : "y" };
  const traces = series.map((one) => {
    const group = one.key.split(" ")[0];
    const nth = (seen[group] = (seen[group] ?? -1) + 1);
    const values = [...one.values, one.values[one.values.length - 1]];
    return {
      name: one.label,
      x: values.map((_, i) => x_start + i * x_step),
      y: values,
      yaxis: axis[sideOf(group)],
      customdata: values.map((value) => said(value, unit)),
      hovertemplate: "%{customdata}",
      mode: "lines",
      line: { width: 1.2, shape: "hv", color: color(one.color), dash: dashes[nth % 4] },
      fill: "tozeroy",
      fillcolor: color(one.color) + "40",
    };
  });
  const heights = (side, isFlipped) => {
    const of = ticks(most[side] || 1);
    const top = of.at(-1);
    const shown = isFlipped ? of.slice(1) : of; // one zero is enough
    return { range: isFlipped ? [top, 0] : [0, top], tickvals: shown, ticktext: shown.map((v) => said(v, unit)) };
  };
  const layout = layoutOf(data, place, isBoth ? 330 : 250, (lines) => ({
    yaxis: { ...lines, ...heights(most.up ? "up" : "down", false), domain: isBoth ? [0.5, 1] : [0, 1] },
    ...(isBoth ? { yaxis2: { ...lines, ...heights("down", true), domain: [0, 0.5] } } : {}),
    shapes: near.map((mark) => ({
      type: "line", xref: "paper", yref: axis[sideOf(mark.group)], x0: 0, x1: 1, y0: mark.value, y1: mark.value,
      line: { color: color("ink"), width: 1.5, dash: "dash" },
    })),
    annotations: near.map((mark) => ({
      x: 1, xref: "paper", y: mark.value, yref: axis[sideOf(mark.group)], xanchor: "right",
      yanchor: isBoth && sideOf(mark.group) === "down" ? "bottom" : "top", showarrow: false,
      text: `${escaped(cut(mark.label, isNarrow(place) ? 24 : 60))}: ${said(mark.value, unit)}`, font: { size: 11 },
    })),
  }));
  layout.xaxis.anchor = isBoth ? "y2" : "y";
  return { traces, layout };
}

// Plotly reads a little markup in texts; foreign text has none.
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function laneChart(data, place, redraw) {
  const lanes = data.lanes;
  const chosen = Number(place.dataset.heat ?? 0);
  const heat = lanes.heats[chosen];
  heatSwitch(lanes, place, chosen, redraw);
  const n = lanes.labels.length;
  const { letters } = edge(data, place);
  const rows = Math.min(24, Math.max(3, 900 / n));
  const every = Math.ceil(13 / rows);
  const places = lanes.labels.map((_, i) => i).filter((i) => i % every === 0);
  const bins = heat.rows[0].length;
  const traces = [{
    type: "heatmap",
    z: heat.rows.map((row) => row.map((value) => value || null)),
    x: Array.from({ length: bins + 1 }, (_, i) => i * lanes.x_step),
    y: lanes.labels.map((_, i) => i),
    customdata: lanes.labels.map((label) => Array(bins).fill(escaped(label))),
    hovertemplate: `%{customdata}<br>%{z:.3~s}${suffix(heat.unit)} in ${heat.bin_said} at %{x:.4~f} s<extra></extra>`,
    hoverongaps: false,
    zmin: 0,
    zmax: heat.limit,
    colorscale: [[0, color("heat-low")], [1, color("heat")]],
    showscale: false,
    xgap: 0,
    ygap: rows > 8 ? 2 : 0,
  }, ...saveTraces(lanes.saves)];
  const hasSaves = traces.length > 1;
  const strip = hasSaves ? 22 : 0;
  const tall = n * rows + strip;
  const layout = layoutOf(data, place, tall + 76, (lines) => ({
    hovermode: "closest",
    showlegend: false,
    yaxis: {
      ...lines,
      domain: [0, 1 - strip / tall],
      range: [n - 0.5, -0.5],
      tickvals: places,
      ticktext: places.map((i) => escaped(cut(lanes.labels[i], letters))),
      showgrid: false,
      zeroline: false,
    },
    yaxis2: {
      ...lines, domain: [1 - strip / tall, 1], range: [0, 1], showgrid: false, zeroline: false,
      tickvals: [0.6], ticktext: [cut("checkpoints", letters)], visible: hasSaves,
    },
  }));
  return { traces, layout };
}

// Checkpoints above the lanes: those that stop the step loop, and those beside it.
function saveTraces(saves) {
  return [["blocked", 2, "checkpoint-storage"], ["in the background", 3, "checkpoint-other"]].flatMap(([how, at, name]) => {
    const of = saves.filter((save) => save[at] !== null);
    if (!of.length) return [];
    const told = of.map((save) => `checkpoint ${save[0]}, ${how}: ${Number(save[at].toPrecision(3))} s`);
    return [{
      x: of.flatMap((save) => [save[1], save[1] + save[at], null]),
      y: of.flatMap(() => [0.6, 0.6, null]),
      text: told.flatMap((text) => [text, text, ""]),
      hovertemplate: "%{text}<extra></extra>",
      yaxis: "y2",
      mode: "lines+markers",
      line: { color: color(name), width: 9 },
      marker: { color: color(name), size: 4, symbol: "square" }, // so that a short one is seen
    }];
  });
}

// The row of choices above the lanes, and what the colours mean.
function heatSwitch(lanes, place, chosen, redraw) {
  const figure = place.parentElement;
  const heat = lanes.heats[chosen];
  figure.querySelector("figcaption > span").textContent = heat.words;
  figure.querySelector(".heats")?.remove();
  const box = document.createElement("div");
  box.className = "heats live";
  box.setAttribute("role", "radiogroup");
  box.setAttribute("aria-label", "what the colours show");
  for (const [at, one] of lanes.heats.entries()) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = "radio";
    input.name = "heat";
    input.checked = at === chosen;
    input.addEventListener("change", () => {
      place.dataset.heat = at;
      redraw();
      figure.querySelectorAll(".heats input")[at].focus();
    });
    label.append(input, one.title);
    box.append(label);
  }
  const legend = document.createElement("span");
  legend.className = "scale";
  const bar = document.createElement("i");
  legend.append("0", bar, `${heat.limit_said} in ${heat.bin_said}`);
  box.append(legend);
  figure.insertBefore(box, place);
}
