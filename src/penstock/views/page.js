for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[heading.cellIndex].dataset.v ?? row.cells[heading.cellIndex].textContent;
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        const [p, q] = [parseFloat(x), parseFloat(y)];
        return isNaN(p) || isNaN(q) ? (isNaN(p) ? 0 : 1) - (isNaN(q) ? 0 : 1) || x.localeCompare(y) : p - q;
      };
      body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
    });
  }
}
