"use strict";
(() => {
  const PRINTED_PX = 680; // what A4 and Letter have room for
  const NARROW_PX = 520;
  const root = document.documentElement;

  // Tables: a header becomes a button that sorts by its column.
  const said = document.getElementById("said");
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    [...body.rows].forEach((row, index) => { row.first = index; });
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        sort(body, column, up);
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        said.textContent = `sorted by ${button.textContent}, ${up ? "ascending" : "descending"}`;
      });
    });
  }

  function sort(body, column, up) {
    const keyed = [...body.rows].map((row) => [key(row.cells[column]), row]);
    keyed.sort(([a, one], [b, other]) => {
      if ((a === null) !== (b === null)) return a === null ? 1 : -1; // what has no value stands last, either way
      const order = typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
      return (up ? order : -order) || one.first - other.first;
    });
    body.append(...keyed.map(([, row]) => row));
  }

  function key(cell) {
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim();
    return cell.classList.contains("number") || !text ? null : text;
  }

  // Charts: colours are those of the style sheet, light or dark.
  const plots = [...document.querySelectorAll("figure.chart")].map((figure) => ({
    at: figure.querySelector(".plot > div"),
    drawn: JSON.parse(figure.querySelector("script").textContent),
  }));
  const config = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
  const touch = matchMedia("(pointer: coarse)").matches;

  function coloured(value, style) {
    if (typeof value === "string") {
      return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((one) => coloured(one, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, style)]));
  }

  function usual() {
    const axis = {
      automargin: true, gridcolor: "var(--line)", linecolor: "var(--soft)", zerolinecolor: "var(--soft)",
      title: { standoff: 8 },
    };
    return {
      font: { family: "system-ui, sans-serif", size: 13, color: "var(--text)" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 8, r: 12, t: 8, b: 8 },
      xaxis: axis, yaxis: axis,
      hoverlabel: { bgcolor: "var(--panel)", bordercolor: "var(--soft)", font: { color: "var(--text)" } },
      showlegend: false,
      uniformtext: { mode: "hide", minsize: 10 },
      dragmode: touch ? false : "zoom",
    };
  }

  // On a phone long names beside bars take two lines.
  function narrow(axis) {
    if (axis.tickmode !== "array") return axis;
    const ticktext = axis.ticktext.map((name) => {
      const spaces = [...name.matchAll(/ /g)].map((one) => one.index);
      const middle = spaces.sort((a, b) => Math.abs(a - name.length / 2) - Math.abs(b - name.length / 2))[0];
      return name.length < 16 || !spaces.length ? name : `${name.slice(0, middle)}<br>${name.slice(middle + 1)}`;
    });
    return { ...axis, ticktext, tickfont: { size: 11 } };
  }

  function draw(width) {
    const style = getComputedStyle(root), template = coloured(usual(), style);
    for (const { at, drawn } of plots) {
      const figure = coloured(drawn, style);
      const layout = { ...figure.layout, template: { layout: template }, autosize: !width };
      if (width) Object.assign(layout, { width, height: at.clientHeight });
      else if (at.clientWidth < NARROW_PX) {
        if (layout.yaxis) layout.yaxis = narrow(layout.yaxis);
        for (const trace of figure.data) if (trace.maxdepth) trace.maxdepth = 3;
      }
      Plotly.react(at, figure.data, layout, { ...config, responsive: !width });
    }
  }

  if (!plots.length) return;
  draw();
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // where plotly measures texts
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    draw(PRINTED_PX);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    draw();
  });
})();
