"use strict";
(() => {
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
})();
